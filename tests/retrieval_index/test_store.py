import os
import pickle
import subprocess
import sys

import pytest

import retrieval_index
from retrieval_index import IndexCorrupt, Passage, store

QUERIES = ["river town", "film castle", "comet", "nothing-of-this"]


@pytest.fixture(scope="module", params=["bm25", "rank-bm25", "dense", "hybrid"])
def saved(request, passages, tmp_path_factory):
    """A searcher and the folder that it was saved to."""
    folder = tmp_path_factory.mktemp("saved") / "index"
    searcher = retrieval_index.build(passages, request.param)
    searcher.save(folder)
    return searcher, folder


def same_results(one, other) -> bool:
    found = [[searcher.top_k(QUERIES, k) for k in (1, 500)] for searcher in (one, other)]
    return all((a == b).all() for at in zip(*found, strict=True) for a, b in zip(*at, strict=True))


def test_a_folder_built_from_a_file_equals_one_built_in_memory(saved, source, tmp_path):
    searcher, folder = saved
    retrieval_index.build_folder(source, tmp_path / "index", searcher.backend)
    loaded = retrieval_index.load(tmp_path / "index")
    assert type(loaded) is type(searcher) and same_results(searcher, loaded)
    assert (tmp_path / "index" / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_a_searcher_in_memory_pickles(saved):
    searcher, _ = saved
    assert same_results(searcher, pickle.loads(pickle.dumps(searcher)))


def test_an_index_that_was_replaced_is_not_sent_on_as_the_old_one(passages, tmp_path):
    retrieval_index.build(passages).save(tmp_path / "index")
    sent = pickle.dumps(retrieval_index.load(tmp_path / "index"))
    retrieval_index.build(passages[:50]).save(tmp_path / "index")
    with pytest.raises(IndexCorrupt, match="holds another index than when it was opened"):
        pickle.loads(sent)


@pytest.mark.parametrize("backend", ["bm25", "dense", "hybrid", "shards"])
def test_a_loaded_index_is_pickled_as_its_folder(source, tmp_path, backend):
    kind, shards = ("bm25", 2) if backend == "shards" else (backend, 1)
    retrieval_index.build_folder(source, tmp_path / "index", kind, shards=shards)
    loaded = retrieval_index.load(tmp_path / "index", verify="fast")
    for index in (loaded, *getattr(loaded, "shards", ())):
        sent = pickle.dumps(index)
        assert len(sent) < 1000
        assert pickle.loads(sent).reopen.keywords == {"verify": "fast"}
        assert same_results(index, pickle.loads(sent))


def test_full_verification_reads_every_byte_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SMALL", 1 << 20)
    folder, last = tmp_path / "index", (4 << 20) - store._SAMPLE
    retrieval_index.build([Passage("0", "long", "." * (4 << 20))], "rank-bm25").save(folder)
    with open(folder / "passages.jsonl", "r+b") as file:
        file.seek((store._SAMPLE + last // (store._SAMPLES - 1)) // 2)  # between the first sample and the second
        file.write(b"W")
    store.verify(folder, "fast")
    with pytest.raises(IndexCorrupt, match=r"passages\.jsonl: its checksum"):
        store.verify(folder, "full")


def test_a_loaded_index_can_be_saved_over_itself(saved, tmp_path):
    searcher, _ = saved
    searcher.save(tmp_path / "index")
    loaded = retrieval_index.load(tmp_path / "index")
    loaded.save(tmp_path / "index")
    assert same_results(loaded, retrieval_index.load(tmp_path / "index"))
    assert os.listdir(tmp_path) == ["index"]


def test_any_change_to_any_file_is_a_clear_error(saved, tmp_path):
    searcher, _ = saved
    folder = tmp_path / "index"
    searcher.save(folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        others = [whole[:middle], b"", whole + b"\n", b"{}"] if searcher.backend == "bm25" else []
        for damaged in (flipped, None, *others):
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
            missing = path.name == "manifest.json" and damaged is None
            with pytest.raises(FileNotFoundError if missing else IndexCorrupt) as error:
                retrieval_index.load(folder)
            assert path.name in str(error.value)
        path.write_bytes(whole)
    assert same_results(searcher, retrieval_index.load(folder))


def test_another_format_version_and_a_missing_index_are_told_apart_from_damage(saved, tmp_path, monkeypatch):
    searcher, _ = saved
    for folder, problem in ((tmp_path / "none", "does not exist"), (tmp_path, "is not an index")):
        with pytest.raises(FileNotFoundError, match=f"{problem}(.|\n)*python -m retrieval_index build"):
            retrieval_index.load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(store, "FORMAT_VERSION", 99)
        searcher.save(tmp_path / "index")
    with pytest.raises(IndexCorrupt, match="version 99"):
        retrieval_index.load(tmp_path / "index")


def test_a_build_that_fails_leaves_the_old_index(saved, tmp_path, monkeypatch):
    searcher, _ = saved
    folder = tmp_path / "index"
    searcher.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": 1, "title": "good", "text": "row"}\n{"id": 2}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2"):
        retrieval_index.build_folder(bad, folder, searcher.backend)
    monkeypatch.setattr(store, "seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        retrieval_index.build([Passage("0", "new", "index")]).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == ["bad.jsonl", "index"]


KILLED = """
import os, sys, retrieval_index
from retrieval_index import publish, store
def die(*_): os._exit(9)  # as SIGKILL would: no clean-up runs
setattr(store if sys.argv[2] == 'seal' else publish, sys.argv[2], die)
retrieval_index.build([retrieval_index.Passage("0", "new", "index")], "rank-bm25").save(sys.argv[1])
"""


@pytest.mark.parametrize("step", ["seal", "exchange"])
def test_a_killed_build_leaves_the_old_index_and_its_debris_is_cleared(tmp_path, passages, step):
    folder = tmp_path / "index"
    old = retrieval_index.build(passages, "rank-bm25")
    old.save(folder)
    assert subprocess.run([sys.executable, "-c", KILLED, folder, step], check=False).returncode == 9
    assert same_results(old, retrieval_index.load(folder))
    assert ".index.building" in os.listdir(tmp_path)
    old.save(folder)
    assert os.listdir(tmp_path) == ["index"]
