"""What a result was made by."""

import re
import sys

from trainers.runtime import provenance


def test_a_summary_tells_command_date_version_and_hardware(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "-m", "x", "--out", "a b"])
    made = provenance.describe_process()
    assert made["command"] == "python -m x --out 'a b'"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made["date"]) and made["version"]
    assert "CPU core" in made["hardware"] or "×" in made["hardware"] or "NVIDIA" in made["hardware"]
