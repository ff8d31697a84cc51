"""What somebody else writes into the files of an open index reaches no search: it is an error, or nothing at all."""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import retrieval_index
from retrieval_index import IndexCorrupt, Passage, verified_array
from retrieval_index.verified_array import BLOCK, VerifiedArray, read_array, usable_cores, write_sums

SEED = int(os.environ.get("ATTACK_SEED", "0"))
WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ara", "elo", "ini", "oru", "uma", "eki")]


RNG = random.Random(0)
PASSAGES = [Passage(str(i), f"{RNG.choice(WORDS)} {i}", " ".join(RNG.choices(WORDS, k=40))) for i in range(500)]
QUERIES = [f"{passage.title} {word}" for passage, word in zip(PASSAGES[::50], WORDS, strict=False)]
KINDS = {"hybrid": {}, "dense": {"factory": "SQ8"}}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """A folder of each kind, and what it answers."""
    made = {}
    for kind, options in KINDS.items():
        folder = tmp_path_factory.mktemp("indexes") / kind
        retrieval_index.build(PASSAGES, kind, **options).save(folder)
        made[kind] = folder, answers(retrieval_index.load(folder))
    return made


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
    content = bytearray(path.read_bytes())
    if how == "truncate":
        del content[rng.randrange(len(content)) :]
    for _ in range({"flip": 1, "overwrite": 50, "truncate": 0}[how]):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    with open(path, "r+b") as file:
        file.truncate(len(content))
        file.write(content)


@pytest.mark.parametrize("how", ["flip", "overwrite", "truncate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_changed_under_an_open_index_gives_no_other_answer(indexes, tmp_path, kind, how):
    folder, right = indexes[kind]
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".npy", ".jsonl", ".faiss", ".json"))
    refused = 0
    for number, name in enumerate(names):
        place = shutil.copytree(folder, tmp_path / name)
        searcher = retrieval_index.load(place)
        damage(place / name, how, random.Random(f"{kind} {how} {number} {SEED}"))
        found = answers(searcher)
        assert all(one in (None, wanted) for one, wanted in zip(found, right, strict=True)), name
        refused += None in found
    assert refused or how == "flip"


def test_what_was_read_once_is_not_read_again(tmp_path):
    retrieval_index.build(PASSAGES).save(place := tmp_path / "index")
    searcher = retrieval_index.load(place)
    right = answers(searcher)
    for name in ("posting_scores.npy", "posting_rows.npy", "term_keys.npy", "term_starts.npy", "offsets.npy"):
        (place / name).write_bytes(b"")
    assert answers(searcher) == right


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
    for content in (b"", b"\x93NUMPY", b"nonsense" * 100):  # what is no array is named
        path.write_bytes(content)
        with pytest.raises(IndexCorrupt, match=r"a\.npy"):
            VerifiedArray(path)


def test_more_than_may_be_held_is_forgotten_and_read_again(stored, monkeypatch):
    path, array = stored
    monkeypatch.setattr(verified_array, "MOST", 3 * BLOCK)
    lazy = VerifiedArray(path)
    early = lazy.read_rows(np.array([0]), np.array([500]))
    for row in range(0, 10_000, 100):
        np.testing.assert_array_equal(lazy[np.array([row])], array[[row]])
        assert lazy._bytes <= 5 * BLOCK
    np.testing.assert_array_equal(early[:500], array[:500])


def test_the_quota_of_a_container_limits_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(96)))
    for said, cores in (("max 100000", 96), ("250000 100000", 3), ("50000 100000", 1)):
        monkeypatch.setattr(Path, "read_text", lambda _, said=said: said)
        assert usable_cores() == cores
