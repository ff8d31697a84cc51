import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import retrieval_index
from retrieval_index import Corpus, HybridIndex, IndexCorrupt, Passage, ShardedSearcher
from retrieval_index.corpus import write_passages

QUERIES = ["river town", "film castle", "comet", "nothing-of-this", "castle castle comet"]


@pytest.mark.parametrize("backend", ["bm25", "dense"])
@pytest.mark.parametrize("shards", [2, 7])
def test_shards_give_what_one_index_gives(source, passages, tmp_path, backend, shards):
    retrieval_index.build_folder(source, tmp_path / "one", backend)
    retrieval_index.build_folder(source, tmp_path / "many", backend, shards=shards)
    one, many = retrieval_index.load(tmp_path / "one"), retrieval_index.load(tmp_path / "many")
    assert isinstance(many, ShardedSearcher) and len(many.shards) == shards
    for k in (1, 5, 50, 1000):
        rows, scores = one.top_k(QUERIES, k)
        shard_rows, shard_scores = many.top_k(QUERIES, k)
        if backend == "bm25":  # to the last bit
            assert (rows == shard_rows).all() and (scores == shard_scores).all()
            assert many.search(QUERIES, k) == one.search(QUERIES, k)
        else:  # FAISS sums in another order for another number of vectors
            np.testing.assert_allclose(scores, shard_scores, atol=1e-5)
            assert len({id(shard.encoder) for shard in many.shards}) == 1  # else each would hold all of its weights
    assert list(many.corpus) == passages
    with pytest.raises(ValueError, match="cannot be saved"):
        many.save(tmp_path / "copy")
    assert many.corpus.fingerprint == one.corpus.fingerprint
    assert (pickle.loads(pickle.dumps(many)).top_k(QUERIES, 5)[0] == many.top_k(QUERIES, 5)[0]).all()


def test_rows_that_are_none_come_after_every_score():
    """A dense index may give scores below the 0 of a row that is none."""

    corpus = Corpus([Passage("0", "a", "b")] * 2)
    found = [([1, -1], [-0.5, 0]), ([0, -1], [-0.25, 0])]
    answers = [(np.array([rows]), np.array([scores], np.float32)) for rows, scores in found]
    shards = [SimpleNamespace(corpus=corpus, top_k=lambda queries, k, answer=answer: answer) for answer in answers]
    rows, scores = ShardedSearcher(shards).top_k(["x"], 4)
    assert rows.tolist() == [[2, 1, -1, -1]] and scores.tolist() == [[-0.25, -0.5, 0, 0]]


def test_a_shard_is_an_index_of_its_own(source, tmp_path):
    retrieval_index.build_folder(source, tmp_path / "many", shards=2)
    whole = retrieval_index.load(tmp_path / "many")
    (tmp_path / "many" / "shard-1").rename(tmp_path / "elsewhere")
    part = retrieval_index.load(tmp_path / "elsewhere")
    assert part.search(QUERIES, 3) == whole.shards[1].search(QUERIES, 3)
    with pytest.raises(IndexCorrupt, match="shard-1"):
        retrieval_index.load(tmp_path / "many")


def test_a_shard_that_fails_fails_the_search(passages):
    gone = retrieval_index.RemoteSearcher("http://127.0.0.1:9", retries=0)
    with pytest.raises(ConnectionError, match="failed 1 times"):
        ShardedSearcher([retrieval_index.build(passages), gone]).search(QUERIES, 3)


def test_what_cannot_be_sharded_says_so(source, tmp_path, passages):
    for backend, shards, message in (("hybrid", 2, "must be 1"), ("rank-bm25", 2, "must be 1"), ("bm25", 0, "")):
        with pytest.raises(ValueError, match=f"shards {message}".strip()):
            retrieval_index.build_folder(source, tmp_path / "index", backend, shards=shards)
    with pytest.raises(ValueError, match="at least one"):
        ShardedSearcher([])
    with pytest.raises(ValueError, match="hybrid of sharded"):
        ShardedSearcher([HybridIndex.build(Corpus(passages[:20]))])


def test_a_hybrid_of_sharded_searchers(source, tmp_path, passages):
    parts = []
    for backend in ("bm25", "dense"):
        retrieval_index.build_folder(source, tmp_path / backend, backend, shards=3)
        parts.append(retrieval_index.load(tmp_path / backend))
    fused = HybridIndex(parts).search(QUERIES, 5)
    whole = retrieval_index.build(passages, "hybrid").search(QUERIES, 5)
    assert [[p.id for p in ranking] for ranking in fused[:2]] == [[p.id for p in ranking] for ranking in whole[:2]]


def test_a_shard_may_have_no_word(tmp_path):
    texts = ["A town by the river.", "A castle.", "🦊", "🦊🦊"]
    write_passages((Passage(str(n), f"Town {n}" if n < 2 else "", t) for n, t in enumerate(texts)), tmp_path)
    retrieval_index.build_folder(tmp_path / "passages.jsonl", tmp_path / "one")
    retrieval_index.build_folder(tmp_path / "passages.jsonl", tmp_path / "two", shards=2)
    one, two = (retrieval_index.load(tmp_path / name) for name in ("one", "two"))
    for query in ("river town", "castle", "🦊", "a"):
        assert two.search([query], 4) == one.search([query], 4), query
    write_passages([Passage("1", "", "🦊"), Passage("2", "", "the")], tmp_path)
    with pytest.raises(ValueError, match="none of the 2 passages holds a word"):
        retrieval_index.build_folder(tmp_path / "passages.jsonl", tmp_path / "none", shards=2)
