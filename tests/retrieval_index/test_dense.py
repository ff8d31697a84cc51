import numpy as np
import pytest

import retrieval_index
from retrieval_index import Corpus, DenseIndex, Passage

TOPICS = {
    "astronomy": ["comet", "orbit", "planet", "telescope", "asteroid", "galaxy", "nebula", "star", "moon", "eclipse"],
    "music": ["band", "guitar", "album", "drummer", "singer", "chorus", "melody", "concert", "orchestra", "violin"],
    "sea": ["harbour", "ship", "sailor", "anchor", "reef", "tide", "coral", "lighthouse", "whale", "island"],
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Passages of three topics. Each holds four of its topic's ten words, so that most pairs of a topic share few."""
    draw = np.random.default_rng(0)
    return Corpus(
        Passage(f"{topic}-{number}", topic[:2] + str(number), " ".join(draw.choice(words, 4, replace=False)))
        for number in range(60)
        for topic, words in TOPICS.items()
    )


@pytest.fixture(scope="module")
def index(corpus) -> DenseIndex:
    from retrieval_index import SvdEncoder

    encoder = SvdEncoder.fit([p.text for p in corpus], dimension=8)
    return DenseIndex.build(corpus, encoder=encoder)


def test_recall_of_the_topic(index):
    """The nearest passages of one word of a topic are of that topic, among them some without the word itself."""
    for topic, words in TOPICS.items():
        for ranking, word in zip(index.search(words, 30), words, strict=True):
            assert np.mean([p.id.startswith(topic) for p in ranking]) > 0.9
            assert any(word not in p.text for p in ranking)


def test_a_passage_finds_itself(corpus):
    index = retrieval_index.build(corpus, "dense")
    found = index.search([f"{p.title} {p.text}" for p in corpus], 1)
    assert [ranking[0].id for ranking in found] == [p.id for p in corpus]
    assert all(ranking[0].score == pytest.approx(1, abs=1e-5) for ranking in found)


def test_scores_are_the_inner_products_in_order(index, corpus):
    queries = ["comet", "guitar ship"]
    vectors = index.encoder.encode([f"{p.title} {p.text}" for p in corpus])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    rows, scores = index.top_k(queries, 20)
    exact = index.encoder.encode(queries) @ vectors.T
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :20], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), scores, atol=1e-5)


def test_a_query_without_a_known_word_finds_nothing(index):
    assert [len(ranking) for ranking in index.search(["", "zzz", "comet"], 4)] == [0, 0, 4]
    assert index.search([], 4) == []


def test_equal_scores_go_to_the_lower_row():
    index = retrieval_index.build([Passage(str(i), "", ["red fox", "blue sea"][i % 2]) for i in range(100)], "dense")
    for batch in (1, 64):
        rows, _ = index.top_k(["fox"] * batch, 20)
        assert rows[-1].tolist() == list(range(0, 40, 2))


def test_a_corpus_of_one_passage():
    index = retrieval_index.build([Passage("0", "Toto", "band")], "dense")
    assert [p.id for p in index.search(["toto"], 3)[0]] == ["0"]
