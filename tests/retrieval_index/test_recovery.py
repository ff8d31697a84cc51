"""What a build leaves behind when it is stopped, and what others see of it meanwhile."""

import importlib
import os

import pytest

import retrieval_index
from retrieval_index import counting, store
from retrieval_index.corpus import write_passages

build = importlib.import_module("retrieval_index.build")  # whose name in the package is that of its function
QUERIES = ["river town", "film castle", "comet"]


@pytest.fixture
def source(passages, tmp_path):
    (tmp_path / "source").mkdir()
    write_passages(passages, tmp_path / "source")
    return tmp_path / "source" / "passages.jsonl"


def stop_after(monkeypatch, module, name: str, calls: int):
    """Let a function be called so many times, and then interrupt after it has done its work once more."""
    real, done = getattr(module, name), []

    def counted(*arguments, **options):
        result = real(*arguments, **options)
        done.append(1)
        if len(done) > calls:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(module, name, counted)


@pytest.mark.parametrize(
    ("backend", "options", "stopped_after"), [*(("bm25", {}, n) for n in range(3)), ("dense", {"factory": "SQ8"}, 1)]
)
def test_a_sharded_build_goes_on_between_shards(source, tmp_path, backend, options, stopped_after, monkeypatch):
    retrieval_index.build_folder(source, tmp_path / "expected", backend, shards=2, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, store, "seal", stopped_after)
        with pytest.raises(KeyboardInterrupt):
            retrieval_index.build_folder(source, tmp_path / "index", backend, shards=2, **options)
    assert not (tmp_path / "index").exists()
    retrieval_index.build_folder(source, tmp_path / "index", backend, shards=2, **options)
    expected, found = retrieval_index.load(tmp_path / "expected"), retrieval_index.load(tmp_path / "index")
    assert found.search(QUERIES, 5) == expected.search(QUERIES, 5)
    for number in range(2):
        part = retrieval_index.load(tmp_path / "index" / f"shard-{number}")
        assert part.search(QUERIES, 5) == expected.shards[number].search(QUERIES, 5)


def test_a_stopped_build_counts_no_block_again_and_a_source_that_has_changed_is_read_anew(
    source, passages, tmp_path, monkeypatch
):
    monkeypatch.setattr(counting, "BLOCK", 50)
    monkeypatch.setattr("retrieval_index.counting.usable_cores", lambda: 1)
    for out in ("index", "changed"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, counting, "_count_block", 2)  # in the third of four
            retrieval_index.build_folder(source, tmp_path / out)
        assert not (tmp_path / out).exists()
    count, counted = counting._count_block, []
    with monkeypatch.context() as patch:
        patch.setattr(build, "read_passages", None)  # the passages are there already
        patch.setattr(counting, "_count_block", lambda *of: counted.append(of[-1]) or count(*of))
        retrieval_index.build_folder(source, tmp_path / "index")
    assert counted == [100, 150]
    queries = [p.title for p in passages]
    found = retrieval_index.load(tmp_path / "index").search(queries, 9)
    assert found == retrieval_index.build(passages).search(queries, 9)
    source.write_text('{"id": "1", "title": "only", "text": "one"}\n')
    retrieval_index.build_folder(source, tmp_path / "changed")
    assert [p.title for p in retrieval_index.load(tmp_path / "changed").corpus] == ["only"]
    assert sorted(os.listdir(tmp_path)) == ["changed", "index", "source"]


def test_a_build_that_could_not_be_published_is_published_by_the_next(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("busy")))
        with pytest.raises(OSError, match="busy"):
            retrieval_index.build_folder(source, tmp_path / "index", "rank-bm25")
    monkeypatch.setattr(build, "_store", None)  # there is nothing left to do
    retrieval_index.build_folder(source, tmp_path / "index", "rank-bm25")
    assert retrieval_index.load(tmp_path / "index").search(QUERIES, 3)


def test_an_index_replaced_while_it_is_opened_is_opened_anew(passages, tmp_path, monkeypatch):
    old, new = retrieval_index.build(passages), retrieval_index.build(passages[50:])
    for moment in ("_open", "verify"):
        old.save(tmp_path / "index")
        owner = build if moment == "_open" else store
        real, done = getattr(owner, moment), []

        def publish_meanwhile(*arguments, real=real, done=done):
            if not done:
                done.append(new.save(tmp_path / "index"))
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, moment, publish_meanwhile)
            found = retrieval_index.load(tmp_path / "index")
        assert found.corpus.fingerprint == new.corpus.fingerprint
        assert found.search(QUERIES, 5) == new.search(QUERIES, 5)
