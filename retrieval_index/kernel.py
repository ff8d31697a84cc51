"""The inner loop of BM25 search, compiled by numba. Import it late: the import takes a fraction of a second.

It ranks exactly without scoring every passage, by MaxScore (Turtle & Flood 1995, "Query evaluation: strategies and
optimizations"). Terms whose best scores together cannot lift a passage into the top k are only looked up in passages that
contain another term. Passages are processed in windows that fit the CPU cache.

The score of a passage is summed in the order of the query's words, in float32. Therefore a shard agrees with the whole index
to the last bit, and a batch with a single query.
"""

import numpy as np
from numba import njit

WINDOW = 4096
PRIMED = 65_536  # terms with at most this number of postings are scanned once for a first threshold
CHEAPER = 32  # number of consecutive postings whose reading costs as much as looking one up
SLACK = 1e-5  # bounds are summed in another order than scores: leave room for rounding, more for long queries
ROUNDING = 4 * 2.0**-24


def _search(rows, low, high, row):
    """The first posting in [low, high) whose row is at least `row`, by galloping from `low`."""
    step = 1
    while low + step < high and rows[low + step] < row:
        low += step
        step *= 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


def _keep(touched, n_touched, sums, needed):
    """Move the places whose sum reaches `needed` to the front of `touched`. Returns the number of these places."""
    n_left = 0
    for number in range(n_touched):
        place = touched[number]
        touched[n_left] = place
        n_left += sums[place] >= needed
    return n_left


def _insert(best_rows, best_scores, found, row, score):
    """Insert a row into the best k, sorted by score, highest first, then by row. Returns the new number of rows."""
    k = len(best_rows)
    if found == k and not (score > best_scores[k - 1] or (score == best_scores[k - 1] and row < best_rows[k - 1])):
        return found
    place = found if found < k else k - 1
    while place > 0 and (
        best_scores[place - 1] < score or (best_scores[place - 1] == score and best_rows[place - 1] > row)
    ):
        best_scores[place] = best_scores[place - 1]
        best_rows[place] = best_rows[place - 1]
        place -= 1
    best_scores[place] = score
    best_rows[place] = row
    return min(found + 1, k)


def _distinct(tokens, term_maxima, terms, counts, bounds, slot):
    """Fill in the distinct terms of a query, their counts and, ascending, their highest scores. Returns the number of terms."""
    n_terms = 0
    for token in tokens:
        i = 0
        while i < n_terms and terms[i] != token:
            i += 1
        if i == n_terms:
            terms[i] = token
            n_terms += 1
        counts[i] += 1
    for i in range(n_terms):
        term, count, bound = terms[i], counts[i], term_maxima[terms[i]] * np.float32(counts[i])
        place = i
        while place > 0 and bounds[place - 1] > bound:
            terms[place], counts[place], bounds[place] = terms[place - 1], counts[place - 1], bounds[place - 1]
            place -= 1
        terms[place], counts[place], bounds[place] = term, count, bound
    for i in range(n_terms):
        for number in range(len(tokens)):
            if tokens[number] == terms[i]:
                slot[number] = i
    return n_terms


def _first_threshold(counts, bounds, at, ends, k, term_scores):
    """Return a score that at least k passages reach with one rare term; 0 if no rare term has k postings."""
    threshold = np.float32(0)
    best = np.empty(k, np.float32)
    for i in range(len(at) - 1, -1, -1):  # the rarest first: then the others can mostly be left out
        low, high = at[i], ends[i]
        if high - low < k or high - low > PRIMED or bounds[i] <= threshold:
            continue
        for place in range(k):
            best[place] = 0
        for posting in range(low, high):
            score = term_scores[posting] * np.float32(counts[i])
            if score > best[k - 1]:
                place = k - 1
                while place > 0 and best[place - 1] < score:
                    best[place] = best[place - 1]
                    place -= 1
                best[place] = score
        threshold = max(threshold, best[k - 1])
    return threshold


def _walk(window, essential, counts, begin, at, ends, term_rows, term_scores, sums, seen, touched):
    """Add the scores of the essential terms over a window of passages. Returns the number of places touched in it."""
    n_touched = 0
    for i in range(essential, len(at)):
        posting, count = at[i], np.float32(counts[i])
        begin[i] = posting
        while posting < ends[i] and term_rows[posting] < window + WINDOW:
            place = term_rows[posting] - window
            if place >= 0:  # always in an intact file; a damaged one must not reach other memory
                touched[n_touched] = place
                n_touched += not seen[place]
                seen[place] = True
                sums[place] += term_scores[posting] * count
            posting += 1
        at[i] = posting
    return n_touched


def _look_up(window, begin, end, count, n_left, term_rows, term_scores, sums, touched):
    """Add the scores of a term, whose postings in the window are [begin, end), to the touched places that are left."""
    if end - begin < CHEAPER * n_left:
        for posting in range(begin, end):
            place = term_rows[posting] - window
            if 0 <= place < WINDOW:  # as above; sums of untouched places are never read
                sums[place] += term_scores[posting] * count
        return
    for number in range(n_left):
        row = window + touched[number]
        posting = _search(term_rows, begin, end, row)
        if posting < end and term_rows[posting] == row:
            sums[touched[number]] += term_scores[posting] * count


def _rank(tokens, best_rows, best_scores, scratch, term_scores, term_rows, term_starts, term_maxima):
    """Rank passages for one query into `best_rows` and `best_scores`."""
    sums, seen, touched = scratch
    n_tokens, k = len(tokens), len(best_rows)
    terms, counts, bounds = np.empty(n_tokens, np.int64), np.zeros(n_tokens, np.int64), np.empty(n_tokens, np.float32)
    slot = np.empty(n_tokens, np.int64)  # the index in `terms` of each word of the query
    n_terms = _distinct(tokens, term_maxima, terms, counts, bounds, slot)
    bound_sums = np.empty(n_terms, np.float32)  # highest possible score of the first i + 1 terms together
    begin, at, ends = np.empty(n_terms, np.int64), np.empty(n_terms, np.int64), np.empty(n_terms, np.int64)
    for i in range(n_terms):
        bound_sums[i] = bounds[i] + (bound_sums[i - 1] if i else np.float32(0))
        at[i], ends[i] = term_starts[terms[i]], term_starts[terms[i] + 1]
        begin[i] = at[i]  # the term's postings in the window are those from `begin` to `at`
    given = np.empty(n_terms, np.float32)

    slack = np.float32(1 - max(SLACK, ROUNDING * n_tokens))
    threshold = _first_threshold(counts, bounds, at, ends, k, term_scores) * slack
    # Terms from number `essential` on are walked; those before it, MaxScore's non-essential ones, are looked up.
    found, essential = 0, 0
    while True:
        while essential < n_terms and bound_sums[essential] < threshold:
            essential += 1
        window = np.int64(1 << 62)
        for i in range(essential, n_terms):
            if at[i] < ends[i]:
                window = min(window, np.int64(term_rows[at[i]]))
        if window == 1 << 62:
            return
        n_touched = _walk(window, essential, counts, begin, at, ends, term_rows, term_scores, sums, seen, touched)
        n_left = _keep(
            touched, n_touched, sums, threshold - (bound_sums[essential - 1] if essential else np.float32(0))
        )
        for i in range(essential - 1, -1, -1):
            if n_left == 0:
                break
            begin[i] = _search(term_rows, begin[i], ends[i], window)
            at[i] = _search(term_rows, begin[i], ends[i], window + WINDOW)
            _look_up(window, begin[i], at[i], np.float32(counts[i]), n_left, term_rows, term_scores, sums, touched)
            n_left = _keep(touched, n_left, sums, threshold - (bound_sums[i - 1] if i else np.float32(0)))
        for number in range(n_left):
            row = window + touched[number]
            if sums[touched[number]] < threshold:  # the threshold may have risen
                continue
            for i in range(n_terms):
                posting = _search(term_rows, begin[i], at[i], row)
                given[i] = term_scores[posting] if posting < at[i] and term_rows[posting] == row else 0
            score = np.float32(0)
            for token in range(n_tokens):
                score += given[slot[token]]
            if score > 0:
                found = _insert(best_rows, best_scores, found, row, score)
                if found == k:
                    threshold = max(threshold, best_scores[k - 1] * slack)
        sums[:] = 0
        seen[:] = False


def _top_k(queries, starts, k, term_scores, term_rows, term_starts, term_maxima):
    """Rank passages for a batch of queries, see `BM25Index.top_k`.

    Args:
        queries: int64 [n tokens], the term ids of all queries, one after another.
        starts: int64 [n queries + 1], where each query begins in `queries`.
        term_scores, term_rows, term_starts, term_maxima: the postings of a `BM25Index`; no score is below 0.
    """
    n_queries = len(starts) - 1
    rows = np.full((n_queries, k), -1, np.int64)
    scores = np.zeros((n_queries, k), np.float32)
    scratch = (np.zeros(WINDOW, np.float32), np.zeros(WINDOW, np.bool_), np.empty(WINDOW + 1, np.int64))
    for query in range(n_queries):
        tokens = queries[starts[query] : starts[query + 1]]
        if len(tokens):
            _rank(tokens, rows[query], scores[query], scratch, term_scores, term_rows, term_starts, term_maxima)
    return rows, scores


def _compile(function):
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder to cache the compiled code in
        return njit(nogil=True)(function)


_search, _keep, _insert, _distinct = map(_compile, (_search, _keep, _insert, _distinct))
_walk, _look_up, _first_threshold, _rank = map(_compile, (_walk, _look_up, _first_threshold, _rank))
top_k = _compile(_top_k)
