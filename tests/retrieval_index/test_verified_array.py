"""What somebody else writes into the files of an open index reaches no search: it is an error, or nothing at all."""

import os
import random
import threading

import numpy as np
import pytest

import retrieval_index
from retrieval_index import IndexCorrupt, Passage, memory, verified_array
from retrieval_index.verified_array import BLOCK, VerifiedArray, read_array, write_sums

SEED = int(os.environ.get("ATTACK_SEED", "0"))
WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ara", "elo", "ini", "oru", "uma", "eki")]


def make_passages(count=1500):
    rng = random.Random(0)
    return [Passage(str(i), f"{rng.choice(WORDS)} {i}", " ".join(rng.choices(WORDS, k=40))) for i in range(count)]


PASSAGES = make_passages()
QUERIES = [f"{passage.title} {word}" for passage, word in zip(PASSAGES[::75], WORDS, strict=False)]
KINDS = {"bm25": {}, "dense": {}, "lossy": {"factory": "SQ8"}, "hybrid": {}}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """A folder of each kind, and what it answers."""
    made = {}
    for kind, options in KINDS.items():
        folder = tmp_path_factory.mktemp("indexes") / kind
        backend = "dense" if kind == "lossy" else kind
        retrieval_index.build(PASSAGES, backend=backend, **options).save(folder)
        made[kind] = folder, answers(retrieval_index.load(folder))
    return made


def copy_of(folder, place):
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


def answers(searcher):
    """Of each query: its passages and scores, or None where the search said that the index is damaged."""
    found = []
    for query in QUERIES:
        try:
            found.append([(p.id, p.title, p.text, round(p.score, 4)) for p in searcher.search([query], k=5)[0]])
        except IndexCorrupt:
            found.append(None)
    return found


def damage(path, how, rng):
    """In place, as another process would: the same file, other bytes."""
    size = path.stat().st_size
    if how == "truncate":
        with open(path, "r+b") as file:
            file.truncate(rng.randrange(size))
        return
    with open(path, "r+b") as file:
        for _ in range(1 if how == "flip" else 50):
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))


@pytest.mark.parametrize("how", ["flip", "overwrite", "truncate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_changed_under_an_open_index_gives_no_other_answer(indexes, tmp_path, kind, how):
    folder, right = indexes[kind]
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".npy", ".jsonl", ".faiss", ".json"))
    refused = 0
    for number, name in enumerate(names):
        place = copy_of(folder, tmp_path / name)
        searcher = retrieval_index.load(place)
        damage(place / name, how, random.Random(f"{kind} {how} {number} {SEED}"))
        found = answers(searcher)
        assert all(one in (None, wanted) for one, wanted in zip(found, right, strict=True)), name
        refused += None in found
    assert refused or how == "flip"


def test_what_was_read_once_is_not_read_again(indexes, tmp_path):
    folder, right = indexes["bm25"]
    place = copy_of(folder, tmp_path / "index")
    searcher = retrieval_index.load(place)
    assert answers(searcher) == right
    for name in ("posting_scores.npy", "posting_rows.npy", "term_keys.npy", "term_starts.npy", "offsets.npy"):
        (place / name).write_bytes(b"")
    assert answers(searcher) == right


def test_the_server_answers_500_and_goes_on(indexes, tmp_path):
    testclient = pytest.importorskip("fastapi.testclient")
    from retrieval_index.server import create_app

    place = copy_of(indexes["bm25"][0], tmp_path / "index")
    with testclient.TestClient(create_app(retrieval_index.load(place))) as client:
        with open(place / "posting_rows.npy", "r+b") as file:
            file.truncate(200)
        answer = client.post("/retrieve", json={"queries": [QUERIES[0]]})
        assert answer.status_code == 500 and "posting_rows.npy" in answer.json()["detail"]
        assert client.get("/health").status_code == 200


# -- one array ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    """An array of some 20 blocks with its checksums."""
    array = np.random.default_rng(0).random((10_000, 8), dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    write_sums(tmp_path / "a.npy")
    return tmp_path / "a.npy", array


def test_rows_are_those_of_the_array(stored):
    path, array = stored
    lazy = VerifiedArray(path)
    assert len(lazy) == 10_000 and lazy.shape == array.shape and lazy.dtype == array.dtype
    rng = np.random.default_rng(1)
    for _ in range(50):
        low = rng.integers(0, 10_000, 3)
        high = np.minimum(low + rng.integers(0, 900, 3), 10_000)
        view = lazy.read_rows(low, high)
        assert all((view[a:b] == array[a:b]).all() for a, b in zip(low, high, strict=True))
        assert not view.flags.writeable
    np.testing.assert_array_equal(lazy[np.array([3, -1, 9_999])], array[[3, -1, 9_999]])
    np.testing.assert_array_equal(np.asarray(lazy), array)
    np.testing.assert_array_equal(read_array(path), array)


def test_a_damaged_block_is_an_error_for_those_who_read_it_alone(stored):
    path, array = stored
    lazy = VerifiedArray(path)
    with open(path, "r+b") as file:
        file.seek(5 * BLOCK + 7)
        file.write(b"\xff\xfe")
    with pytest.raises(IndexCorrupt, match=r"a\.npy: a block of it is not what was written"):
        lazy[np.array([6 * BLOCK // 32 - 10])]
    np.testing.assert_array_equal(lazy[np.arange(100)], array[:100])
    with pytest.raises(IndexCorrupt):
        read_array(path)


def test_more_than_may_be_held_is_forgotten_and_read_again(stored, monkeypatch):
    path, array = stored
    monkeypatch.setattr(verified_array, "MOST", 3 * BLOCK)
    lazy = VerifiedArray(path)
    early = lazy.read_rows(np.array([0]), np.array([500]))
    for row in range(0, 10_000, 100):
        np.testing.assert_array_equal(lazy[np.array([row])], array[[row]])
        assert lazy._bytes <= 5 * BLOCK
    np.testing.assert_array_equal(early[:500], array[:500])


def test_threads_share_an_array(stored):
    path, array = stored
    lazy, wrong = VerifiedArray(path), []

    def read(seed):
        for row in np.random.default_rng(seed).permutation(10_000)[:200]:
            if not np.array_equal(lazy[np.array([row])], array[[row]]):
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"nonsense" * 100])
def test_what_is_no_array_is_named(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(IndexCorrupt, match=r"a\.npy"):
        VerifiedArray(tmp_path / "a.npy")


def test_a_container_limits_what_is_held(monkeypatch):
    machine = memory.usable_memory()
    monkeypatch.setattr(memory, "container_limits", lambda: [1 << 20])
    assert memory.usable_memory() == 1 << 20 < machine
    monkeypatch.setattr(memory, "container_limits", lambda: [1 << 62])  # as cgroups of version 1 say none
    assert memory.usable_memory() >= machine
