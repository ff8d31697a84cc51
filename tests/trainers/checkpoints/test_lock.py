"""One process at a time in the folder of a run."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from trainers.checkpoints import lock
from trainers.checkpoints.lock import FolderInUse, check_writable, hold_folder

ROOT = Path(__file__).resolve().parents[3]
_HOLD = """
import sys, time
from pathlib import Path
from trainers.checkpoints.lock import hold_folder
with hold_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_who_holds_a_folder_is_said_and_a_killed_process_holds_none(tmp_path, capsys):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse, match=rf"run is in use by process {other.pid} on .* give another --out"):
            hold_folder(folder).__enter__()
        other.kill()
    with hold_folder(folder):
        (folder / "metrics.jsonl").touch()
    assert folder.is_dir() and capsys.readouterr().err == ""


def test_a_folder_in_which_nothing_was_done_is_not_left(tmp_path):
    with hold_folder(tmp_path / "a" / "run"):
        pass
    assert not (tmp_path / "a" / "run").exists()
    (tmp_path / "mine").mkdir()
    with hold_folder(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir(), "it was there before"


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*Not a directory.*: give another --out"):
        hold_folder(tmp_path / "file" / "run").__enter__()
    with pytest.raises(ValueError, match=r"cannot write to .*: look elsewhere$"):
        check_writable(tmp_path / "file" / "run", "look elsewhere")
    monkeypatch.setattr(lock.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(ValueError, match="disk with 3 MiB left: make room"):
        hold_folder(tmp_path / "full").__enter__()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Two runs could write into one folder at once. What is in a cache is made twice, and no worse for it."""

    def refuse(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with pytest.raises(ValueError, match=r"on a file system without locks \(No locks available\)"):
        hold_folder(tmp_path).__enter__()
    with lock.wait_for(tmp_path / "cold-start", "it"):
        pass


def test_what_another_process_makes_is_waited_for(tmp_path):
    path, made = tmp_path / "cold-start", []

    def make(name):
        with lock.wait_for(path, "the same cold start"):
            if not path.exists():
                made.append(name)
                time.sleep(0.3)
                path.mkdir()

    threads = [threading.Thread(target=make, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
