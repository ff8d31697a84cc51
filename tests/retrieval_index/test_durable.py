"""Files that are written in one step."""

import os
from unittest import mock

import pytest

from retrieval_index import durable


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "kept.json"
    durable.write_text(file, "old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, os.strerror(28))))
    with pytest.raises(OSError, match="No space left"):
        durable.write_text(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert file.read_text() == "old"
