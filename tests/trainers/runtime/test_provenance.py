"""What a result was made by."""

import re
import sys

from trainers.runtime import provenance


def test_the_command_line_is_kept_without_secrets(monkeypatch):
    words = ["/usr/bin/python3", "-m", "x", "--api-key", "sk-1", "--out", "a b", "--hf_token=abc", "--keep", "3"]
    monkeypatch.setattr(sys, "orig_argv", words)
    assert provenance.typed_command() == "python -m x --api-key ... --out 'a b' --hf_token=... --keep 3"


def test_a_summary_tells_date_version_and_hardware():
    made = provenance.describe_process()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made["date"]) and made["version"]
    assert "CPU core" in made["hardware"] or "×" in made["hardware"] or "NVIDIA" in made["hardware"]
