"""Describe how a result was made: command, date, version of the package and hardware."""

import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from agent_envs import __version__


def describe_process() -> dict[str, str]:
    """Describe this process for a summary."""
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    command = shlex.join(["python", *sys.orig_argv[1:]])  # secrets are in environment variables, never in options
    return {"command": command, "date": made, "version": __version__, "hardware": describe_hardware()}


def describe_hardware() -> str:
    """Name the GPUs or, without any, the CPU."""
    if torch.cuda.is_available():
        count, name = torch.cuda.device_count(), torch.cuda.get_device_name()
        return f"{count} × {name}" if count > 1 else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    known = Path("/proc/cpuinfo")
    found = re.search(
        r"^model name\s*: (.+)", known.read_text(errors="replace") if known.exists() else "", re.MULTILINE
    )
    model = re.sub(r"\((R|TM)\)|\s+CPU\b.*", "", found[1]).strip() if found else ""
    return f"{cores} CPU core{'s' * (cores != 1)}" + f" ({model})" * bool(model)
