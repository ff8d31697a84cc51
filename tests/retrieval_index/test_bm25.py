import importlib
import math
import re

import numpy as np
import pytest

import retrieval_index
from retrieval_index import Passage, Searcher
from retrieval_index.tokenizer import tokenize

QUERIES = ["river town", "film", "castle castle comet", "novel by a painter", "harbour railway queen island 17", ""]
BACKENDS = ["bm25", "rank-bm25"]
FILLERS = [Passage(f"filler-{n}", f"word{n}", f"other{n} things{n}") for n in range(20)]
SAME = [
    *(("Łódź", "Lodz"), ("Ørsted", "Orsted"), ("ency\u00adclo\u00adpedia", "encyclopedia"), ("İzmir", "izmir")),
    *(("\ufeffWord\u200ejoiner", "wordjoiner"), ("Weißensee", "Weissensee"), ("Æthelred", "Aethelred")),
    *(("Antonín Dvořák", "Antoni\u0301n Dvor\u030ca\u0301k"), ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"), ("Hawaiʻi", "Hawaii")),
    *(("1,000 years", "1000 years"), ("13½ lives", "13 1/2 lives")),
]


def whole(title: str) -> str:
    return "=" + "".join(re.findall(r"\w+", title.lower()))


def test_a_score_by_hand():
    """Three passages of 2, 4 and 3 words with their titles, so avg|d| = 3; k1 = 1.5, b = 0.75."""
    passages = [Passage("0", "x", "cat"), Passage("1", "y", "cat cat dog"), Passage("2", "z", "dog fox")]
    index = retrieval_index.build(passages, title_weight=1, exact_title=False)
    idf_cat = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    idf_fox = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    rows, scores = index.top_k(["cat", "fox"], 3)
    assert rows.tolist() == [[1, 0, -1], [2, -1, -1]]
    expected_1 = idf_cat * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 4 / 3))
    expected_0 = idf_cat * 1 / (1 + 1.5 * (1 - 0.75 + 0.75 * 2 / 3))
    np.testing.assert_allclose(scores, [[expected_1, expected_0, 0], [idf_fox / (1 + 1.5), 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_word_of_most_passages_finds_them(backend):
    """Its weight is negative in rank_bm25."""
    passages = [
        Passage("0", "Toto", "rock band"),
        Passage("1", "Oz", "a dog called Toto"),
        Passage("2", "Arn", "river"),
    ]
    index = retrieval_index.build(passages, backend)
    assert {passage.id for passage in index.search(["toto"], 3)[0]} == {"0", "1"}


@pytest.mark.parametrize(
    "options", [{}, {"title_weight": 2}, {"exact_title": False}, {"title_weight": 0}, {"k1": 0.9, "b": 0.4}]
)
def test_with_any_fields_the_scores_equal_those_of_the_libraries(passages, options):
    """Of bm25s and rank_bm25, on terms that the test itself puts together."""
    import bm25s
    from rank_bm25 import BM25Okapi

    weight, fields = options.get("title_weight", 3), {n: v for n, v in options.items() if n not in ("k1", "b")}

    def terms(title, text):
        exact = [whole(title)] if options.get("exact_title", True) and weight and title else []
        return weight * tokenize(title) + tokenize(text) + exact

    accented = [Passage(p.id, p.title.replace("o", "ø"), p.text.replace("a", "á")) for p in passages]
    words = [terms(p.title, p.text) for p in accented]
    queries = [*QUERIES[:-1], accented[3].title, "nøvel cásále", "castle castle"]
    asked = [tokenize(query) + terms(query, "")[weight * len(tokenize(query)) :] for query in queries]
    okapi = BM25Okapi(words)
    theirs = [okapi.get_scores(query) for query in asked]
    ours = retrieval_index.build(accented, "rank-bm25", **fields)
    np.testing.assert_allclose(_dense(ours, queries), theirs, atol=1e-4)
    engine = bm25s.BM25(k1=options.get("k1", 1.5), b=options.get("b", 0.75))
    engine.index(words, show_progress=False)
    theirs = [engine.get_scores(query) for query in asked]
    np.testing.assert_allclose(_dense(retrieval_index.build(accented, **options), queries), theirs, atol=1e-5)


def test_the_words_of_a_hybrid_take_the_fields_too(passages):
    options = {"title_weight": 2, "exact_title": False}
    hybrid, alone = retrieval_index.build(passages, "hybrid", **options), retrieval_index.build(passages, **options)
    assert hybrid.parts[0].parameters == alone.parameters
    np.testing.assert_array_equal(_dense(hybrid.parts[0], QUERIES), _dense(alone, QUERIES))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_passage_is_found_by_its_own_title_before_those_that_say_more_of_it(backend):
    passages = [
        *(Passage(f"o{n}", f"Arizona Arizona {n}", "Arizona Arizona Arizona state") for n in range(20)),
        Passage("own", "Arizona", "It lies in the south-west of the country and " + "borders on many others " * 9),
        Passage("let", "Let It Be", "The last album of the band"),
        Passage("if", "If/Then", "A musical of 2013"),
        *FILLERS,
    ]
    index = retrieval_index.build(passages, backend)
    queries = ["Arizona", "arizona", "let it be", "If/Then", "If Then", "if-then"]
    assert [found[0].id for found in index.search(queries, 1)] == ["own", "own", "let", "if", "if", "if"]
    plain = retrieval_index.build(passages, backend, exact_title=False)
    assert plain.search(queries[:1], 1)[0][0].id != "own"
    assert plain.search(queries[3:5], 1) == [[], []]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_go_to_the_lower_row_at_any_k(backend, passages):
    twins = [passage for passage in passages[:20] for _ in range(4)]
    index = retrieval_index.build(twins, backend, keep_duplicates=True)
    everything, scores = index.top_k(QUERIES, len(twins))
    for rows, values in zip(everything, scores, strict=True):
        ranking = [(-value, row) for row, value in zip(rows, values, strict=True) if row >= 0]
        assert ranking == sorted(ranking)
    for k in (1, 2, 3, 5, 17, 50):
        assert (index.top_k(QUERIES, k)[0] == everything[:, :k]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_passages_that_share_no_word_are_not_returned(backend):
    passages = [Passage("0", "Toto", "a band"), Passage("1", "Oz", "a dog"), Passage("2", "", "")]
    index = retrieval_index.build(passages, backend)
    found = index.search(["band", "", "the of and", "zeppelin", "?!"], 3)
    assert [[p.id for p in ranking] for ranking in found] == [["0"], [], [], [], []]
    assert found[0][0].score > 0
    assert [p.id for p in index.search(["oz"], 10**9)[0]] == ["1"]  # titles are searched; k may exceed the corpus


WRONG_REQUESTS = [
    *(("band", 1, TypeError, r"search\(\[query\], k\)"), ([None], 1, TypeError, "NoneType")),
    *((["band"], 1.5, TypeError, "."), (["band"], 0, ValueError, "at least 1")),
]


@pytest.mark.parametrize("backend", [*BACKENDS, "dense"])
def test_wrong_requests_say_so(backend):
    index = retrieval_index.build([Passage("0", "Toto", "a band"), Passage("1", "Oz", "a dog")], backend)
    assert isinstance(index, Searcher)
    for queries, k, error, message in WRONG_REQUESTS:
        with pytest.raises(error, match=message):
            index.search(queries, k)


@pytest.mark.parametrize("backend", [*BACKENDS, "dense"])
def test_nothing_to_index_is_an_error(backend):
    for passages in ([], [Passage("0", "", "the of and")]):
        with pytest.raises(ValueError, match=r"nothing to index|empty vocabulary"):
            retrieval_index.build(passages, backend)


def test_unknown_arguments_are_rejected(passages):
    with pytest.raises(ValueError, match="bm25, rank-bm25, dense, hybrid"):
        retrieval_index.build(passages, "tantivy")
    with pytest.raises(ValueError, match="no option shards; it has b, exact_title, k1, title_weight"):
        retrieval_index.build(passages, shards=2)


def test_words_of_any_script_however_they_are_written():
    for stored, typed in SAME:
        assert tokenize(stored) == tokenize(typed) != []
    assert tokenize("The Café—Société, naïve_1 ПРИВЕТ 東京タワー") == "cafe societe naive_1 привет 東京タワー".split()
    assert tokenize("Cafe\u0301") == tokenize("Café") == ["cafe"]  # a combining accent is no word break
    assert tokenize("2,000 of 12,34 or 1234,567 in 1,2,3") == ["2000", "12", "34", "1234", "567", "1", "2", "3"]
    assert tokenize("किताब தமிழ்") == ["कतब", "தமழ"]  # marks of all categories (Mn, Mc) go, and part no word
    index = retrieval_index.build([Passage("0", "Zürich", "größte Stadt"), Passage("1", "東京", "首都")])
    assert [ranking[0].id for ranking in index.search(["zürich", "東京", "GRÖẞTE"], 1)] == ["0", "1", "0"]


def _dense(index, queries) -> np.ndarray:
    """Scores of all passages by row, float32 [n queries, n passages]."""
    rows, scores = index.top_k(queries, len(index.corpus))
    table = np.zeros((len(queries), len(index.corpus)))
    for query, (found, values) in enumerate(zip(rows, scores, strict=True)):
        table[query, found[found >= 0]] = values[found >= 0]
    return table


def test_constants_out_of_range_are_said_before_anything_is_stored(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"id": "1", "title": "a", "text": "b"}\n')
    build_module = importlib.import_module("retrieval_index.build")  # the name is also a function's
    monkeypatch.setattr(build_module, "_store", lambda *_: pytest.fail("too late"))
    for name, values in {"k1": (math.inf, math.nan, -1), "b": (2.0,), "title_weight": (-1, 1.5, True, "3")}.items():
        for wrong in values:
            with pytest.raises(ValueError, match=name):
                build_module.build_folder(tmp_path / "p.jsonl", tmp_path / "index", **{name: wrong})
