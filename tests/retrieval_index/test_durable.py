"""Files that are written in one step."""

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from retrieval_index import durable, postings, verified_array


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "kept.json"
    durable.write_text(file, "old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, os.strerror(28))))
    with pytest.raises(OSError, match="No space left"):
        durable.write_text(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert file.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_disk_that_is_full_by_the_last_bytes_is_an_error(tmp_path):
    """`tofile` and `np.save` leave them in a buffer, and do not look whether they arrive."""
    for name in ("array.npy", "array.npy.sums", "sink.npy"):
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        durable.write_array(tmp_path / "array.npy", np.zeros(10))
    with pytest.raises(OSError, match="No space left"):
        verified_array.save_sums(tmp_path / "array.npy", np.zeros(10, "<u8"))
    sink = postings._Sink(tmp_path, "sink", "<i4", 10)
    sink.append(np.zeros(10, "<i4"))
    with pytest.raises(OSError, match="No space left"):
        sink.close()


@pytest.mark.parametrize(
    "array", [np.arange(5, dtype=np.int32), np.zeros(0, "S16"), np.array([b"a", b"bb"], "S16"), np.eye(3, 4).T]
)
def test_an_array_is_written_as_numpy_does(array, tmp_path):
    durable.write_array(tmp_path / "ours.npy", array)
    np.save(tmp_path / "theirs.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
