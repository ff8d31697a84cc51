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
    with pytest.raises(ValueError, match=r"cannot write to .*: look elsewhere$"):
        check_writable(tmp_path / "file" / "run", "look elsewhere")
    monkeypatch.setattr(lock.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(ValueError, match="disk with 3 MiB left: make room"):
        use(tmp_path / "full")

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lock.os, "open", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match=r"cannot write to .*Read-only file system"):
        use(tmp_path / "frozen")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_to_be_one(tmp_path, monkeypatch, number):
    """It can be written to, so another folder on it would be no better."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=rf"on a file system without locks \({os.strerror(number)}\)") as refused:
        hold_folder(tmp_path).__enter__()
    assert "cannot write" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_holder_on_another_machine_that_gave_no_lock_back_is_named(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(lock.socket, "gethostname", lambda: "far-away")
        with pytest.raises(RuntimeError), hold_folder(tmp_path):
            raise RuntimeError  # as if it were killed: the file still says who
        with hold_folder(tmp_path):
            pass
        assert capsys.readouterr().err == ""
        held = hold_folder(tmp_path)
        held.__enter__()
        holder = (tmp_path / ".lock").read_bytes()
        held.__exit__(None, None, None)
    with hold_folder(tmp_path):
        pass
    assert capsys.readouterr().err == "", "it was given back"
    (tmp_path / ".lock").write_bytes(holder)
    with hold_folder(tmp_path):
        pass
    assert "Warning: " in (said := capsys.readouterr().err) and f"process {os.getpid()} on far-away since" in said


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"host": 3}', b"\xff\x00", b'{"process": 1}', b"{" * 10_000]
)
def test_whatever_stands_in_a_lock_file_that_nobody_holds_is_no_hindrance(tmp_path, content):
    (tmp_path / ".lock").write_bytes(content)
    with hold_folder(tmp_path):
        assert b"process" in (tmp_path / ".lock").read_bytes()


def test_what_another_process_makes_is_waited_for(tmp_path):
    """Two runs of one seed need the same cold start: one of them makes it."""
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


def test_a_file_system_without_locks_does_without(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with lock.wait_for(tmp_path / "cold-start", "it"):
        pass
