"""Every state that a power loss may leave of a save or a build is whole; and the harness sees it where one is not."""

import os

import pytest

from benchmarks import power_loss
from retrieval_index import durable


@pytest.mark.parametrize("write", power_loss.WRITERS.values(), ids=power_loss.WRITERS)
def test_a_power_loss_leaves_the_old_or_the_new(tmp_path, write):
    (tmp_path / "root").mkdir()
    (tmp_path / "scratch").mkdir()
    assert write(tmp_path / "root", tmp_path / "scratch") > 10


def test_without_syncing_the_harness_finds_bad_states(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "sync", lambda path: None)
    (tmp_path / "root").mkdir()
    with pytest.raises((AssertionError, ValueError)):
        power_loss.published_files(tmp_path / "root", tmp_path / "scratch")


def test_without_syncing_the_folder_what_was_reported_may_be_gone(tmp_path, monkeypatch):
    real = durable.sync
    monkeypatch.setattr(durable, "sync", lambda path: None if os.path.isdir(path) else real(path))
    (tmp_path / "root").mkdir()
    with pytest.raises(AssertionError, match="older summary"):
        power_loss.published_files(tmp_path / "root", tmp_path / "scratch")
