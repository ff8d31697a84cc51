"""The inner loop of BM25 search, compiled by numba. Import it late: it costs a fraction of a second.

It reads the eager index of bm25s (Lù 2024: the score of every term in every passage, computed at build time), as
bm25s's own retrieval does. It differs in three ways: ties are settled by row number where a heap leaves them to
chance, no intermediate arrays are made, and the compiled code is cached on disk, so that a process does not pay
several seconds of compilation at its first query.
"""

import numpy as np
from numba import njit


def _top_k(queries, starts, k, term_scores, term_rows, term_starts, n_passages):
    """Rank passages for a batch of queries.

    Args:
        queries: int64 [n tokens], the term ids of all queries, one after another.
        starts: int64 [n queries + 1], where each query begins in `queries`.
        k: how many to keep.
        term_scores, term_rows: float32 and int32 [n postings], grouped by term.
        term_starts: int64 [n terms + 1], where the postings of each term begin.
        n_passages: size of the corpus.

    Returns:
        rows int64 [n queries, k] and scores float32 [n queries, k]; -1 and 0 where no further passage scored above 0.
    """
    n_queries = len(starts) - 1
    rows = np.full((n_queries, k), -1, np.int64)
    scores = np.zeros((n_queries, k), np.float32)
    totals = np.zeros(n_passages, np.float32)
    for query in range(n_queries):
        for term in queries[starts[query] : starts[query + 1]]:
            for posting in range(term_starts[term], term_starts[term + 1]):
                totals[term_rows[posting]] += term_scores[posting]
        best_rows, best_scores = rows[query], scores[query]
        found, threshold = 0, np.float32(0)
        for row in range(n_passages):
            total = totals[row]
            totals[row] = 0
            if total > threshold:
                # Insertion into a short sorted list. Rows come in ascending order and equals are not passed: lower
                # row first.
                place = found if found < k else k - 1
                while place > 0 and best_scores[place - 1] < total:
                    best_scores[place] = best_scores[place - 1]
                    best_rows[place] = best_rows[place - 1]
                    place -= 1
                best_scores[place] = total
                best_rows[place] = row
                found = min(found + 1, k)
                if found == k:
                    threshold = best_scores[k - 1]
    return rows, scores


try:
    top_k = njit(cache=True, nogil=True)(_top_k)
except RuntimeError:  # no folder that the compiled code could be cached in
    top_k = njit(nogil=True)(_top_k)
