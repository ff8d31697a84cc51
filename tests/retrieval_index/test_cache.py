import pickle
from unittest import mock

import pytest

import retrieval_index
from retrieval_index import CachedSearcher


class Counting:
    """A searcher that remembers what it was asked."""

    def __init__(self, searcher):
        self.searcher, self.asked = searcher, []
        self.corpus = searcher.corpus

    def search(self, queries, k):
        self.asked += [(query, k) for query in queries]
        return self.searcher.search(queries, k)


@pytest.fixture
def counting(passages):
    return Counting(retrieval_index.build(passages))


def test_a_query_is_asked_once_and_results_are_equal(counting):
    cached = CachedSearcher(counting)
    queries = ["river", "town", "river", "nothing-of-this"]
    for _ in range(2):
        assert cached.search(queries, 3) == counting.searcher.search(queries, 3)
    assert counting.asked == [("river", 3), ("town", 3), ("nothing-of-this", 3)]
    assert cached.search(["river"], 4) == counting.searcher.search(["river"], 4)  # another k is another query
    assert len(counting.asked) == 4
    cached.search(["River"], 4), cached.search(["RIVER"], 4)  # a dense encoder may tell them apart
    assert counting.asked[3:] == [("river", 4), ("River", 4), ("RIVER", 4)]


def test_the_oldest_is_forgotten(counting):
    cached = CachedSearcher(counting, size=2)
    for query in ("river", "town", "river", "film", "river", "town"):
        cached.search([query], 1)
    assert [query for query, _ in counting.asked] == ["river", "town", "film", "town"]


def test_many_passages_are_few_queries(counting):
    """Memory is in the passages: a client that asks for a hundred each would fill it."""
    cached = CachedSearcher(counting, size=2)
    for query in ("river", "town", "film", "river"):
        (found,) = cached.search([query], 12)
        assert len(found) == 12
    assert [query for query, _ in counting.asked] == ["river", "town", "film", "river"]
    cached.search(["river"], 12)
    assert len(counting.asked) == 4 and cached._passages == sum(map(len, cached._found.values())) == 12


def test_neither_a_failed_search_nor_what_a_caller_does_with_a_result_is_remembered(counting, monkeypatch):
    cached = CachedSearcher(counting)
    with monkeypatch.context() as patch:
        patch.setattr(counting.searcher, "search", mock.Mock(side_effect=ConnectionError))
        with pytest.raises(ConnectionError):
            cached.search(["river"], 3)
    for _ in range(2):
        found = cached.search(["river"], 3)[0]
        assert len(found) == 3
        found.clear()


def test_the_rest_is_the_searchers_own(passages):
    index = retrieval_index.build(passages)
    cached = CachedSearcher(index)
    assert cached.backend == "bm25" and cached.corpus is index.corpus
    assert (cached.top_k(["river"], 3)[0] == index.top_k(["river"], 3)[0]).all()
    assert pickle.loads(pickle.dumps(cached)).search(["river"], 3) == index.search(["river"], 3)
    with pytest.raises(TypeError, match=r"search\(\[query\], k\)"):
        cached.search("river", 1)
    with pytest.raises(ValueError, match="size"):
        CachedSearcher(index, size=0)
