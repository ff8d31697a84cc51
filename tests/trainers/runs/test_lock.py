"""One process at a time in the folder of a run."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainers.runs import lock
from trainers.runs.lock import FolderInUse, check_writable, hold_folder

ROOT = Path(__file__).resolve().parents[3]
_HOLD = """
import sys, time
from pathlib import Path
from trainers.runs.lock import hold_folder
with hold_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_who_holds_a_folder_is_said_and_a_killed_process_holds_none(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse, match=rf"run is in use by process {other.pid} on .* give another --out"):
            hold_folder(folder).__enter__()
        other.kill()
    with hold_folder(folder):
        (folder / "metrics.jsonl").touch()
    assert folder.is_dir()


def test_a_folder_in_which_nothing_was_done_is_not_left(tmp_path):
    with hold_folder(tmp_path / "a" / "run"):
        pass
    assert not (tmp_path / "a" / "run").exists()
    (tmp_path / "mine").mkdir()
    with hold_folder(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir(), "it was there before"


@pytest.mark.parametrize("use", [check_writable, lambda folder: hold_folder(folder).__enter__()])
def test_where_nothing_can_be_written(tmp_path, monkeypatch, use):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*Not a directory.*: give another --out"):
        use(tmp_path / "file" / "run")
    monkeypatch.setattr(lock.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(ValueError, match="disk with 3 MiB left: make room"):
        use(tmp_path / "full")

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lock.os, "open", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match=r"cannot write to .*Read-only file system"):
        use(tmp_path / "frozen")
