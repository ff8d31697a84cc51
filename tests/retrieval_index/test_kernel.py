"""Pruning changes nothing: the kernel against a scan of every posting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval_index
from retrieval_index import kernel


def scan(query, k, scores, rows, starts, n_passages):
    """Every posting of every word added up in float32 and in the order of the words, then sorted."""
    totals = np.zeros(n_passages, np.float32)
    for term in query:
        span = slice(starts[term], starts[term + 1])
        totals[rows[span]] += scores[span]
    order = np.lexsort((np.arange(n_passages), -totals))[:k]
    order = order[totals[order] > 0]
    return order, totals[order]


def random_postings(draw: np.random.Generator, n_terms: int, n_passages: int):
    """Terms from rare to everywhere; a few score values only, so that ties abound."""
    rows, scores, starts = [], [], [0]
    for _ in range(n_terms):
        held = np.flatnonzero(draw.random(n_passages) < draw.choice([0.0005, 0.02, 0.3, 0.9]))
        rows.append(held if len(held) else np.array([draw.integers(n_passages)]))
        scores.append(draw.choice(np.linspace(0.5, 8, 12, dtype=np.float32), len(rows[-1])))
        starts.append(starts[-1] + len(rows[-1]))
    scores = np.concatenate(scores).astype(np.float32)
    starts = np.array(starts, np.int64)
    maxima = np.maximum.reduceat(scores, starts[:-1])
    return _frozen(scores, np.concatenate(rows).astype(np.int32), starts, maxima)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 10, 200]))
def test_equal_to_a_full_scan_to_the_last_bit(seed, k):
    draw = np.random.default_rng(seed)
    n_passages = int(draw.choice([1, 50, 4096, 4097, 20_000]))
    postings = random_postings(draw, 8, n_passages)
    queries = [draw.integers(0, 8, size) for size in (1, 2, 5, 12)]
    starts = np.cumsum([0, *map(len, queries)])
    rows, scores = kernel.top_k(np.concatenate(queries), starts, k, *postings)
    for query, found, given_scores in zip(queries, rows, scores, strict=True):
        expected_rows, expected_scores = scan(query, k, *postings[:3], n_passages)
        assert found[: len(expected_rows)].tolist() == expected_rows.tolist()
        assert (given_scores[: len(expected_rows)] == expected_scores).all()
        assert (found[len(expected_rows) :] == -1).all()


def test_most_postings_of_common_words_are_never_read():
    """A name beside a word that every passage has: the rows of that word may hold nonsense outside the name's."""
    n = 1_000_000
    rows = np.concatenate([np.arange(0, n, n // 20), np.arange(n)]).astype(np.int32)
    scores = np.concatenate([np.full(20, 9), np.linspace(0.1, 0.2, n)]).astype(np.float32)
    starts, maxima = np.array([0, 20, n + 20], np.int64), np.array([9, 0.2], np.float32)
    query, one = np.array([0, 1]), np.array([0, 2])
    before = kernel.top_k(query, one, 5, *_frozen(scores, rows, starts, maxima))
    assert before[0][0].tolist() == sorted(range(0, n, n // 20), reverse=True)[:5]
    spoilt = scores.copy()
    spoilt[20:][np.arange(n) % (n // 20) > 20_000] = np.nan  # far from every passage that has the name
    after = kernel.top_k(query, one, 5, *_frozen(spoilt, rows, starts, maxima))
    assert (before[0] == after[0]).all() and (before[1] == after[1]).all()


def test_rows_out_of_order_reach_no_other_memory():
    """Which a damaged file may hold that was only verified fast."""
    n = 10_000
    draw = np.random.default_rng(0)
    rows = draw.integers(-(2**31), 2**31 - 1, n).astype(np.int32)
    arrays = _frozen(np.ones(n, np.float32), rows, np.array([0, n // 2, n], np.int64), np.ones(2, np.float32))
    kernel.top_k(np.array([0, 1]), np.array([0, 2]), 10, *arrays)


@pytest.mark.parametrize("number", [31, 32, 200])
def test_a_batch_on_several_threads_is_its_queries_one_by_one(passages, number, monkeypatch):
    index = retrieval_index.build(passages)
    monkeypatch.setattr("retrieval_index.bm25.usable_cores", lambda: 3)
    queries = [f"{p.title} {p.text[:20]}" for p in passages][:number]
    batch = index.top_k(queries, 7)
    for query, rows, scores in zip(queries, *batch, strict=True):
        alone = index.top_k([query], 7)
        assert (alone[0][0] == rows).all() and (alone[1][0] == scores).all()


def _frozen(*arrays):
    for array in arrays:
        array.setflags(write=False)
    return arrays
