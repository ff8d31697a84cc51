from unittest import mock

import faiss
import numpy as np
import pytest

import retrieval_index
from retrieval_index import Corpus, DenseIndex, Passage, SvdEncoder, vectors
from retrieval_index.corpus import write_passages


@pytest.fixture(scope="module")
def index(passages) -> DenseIndex:
    return DenseIndex.build(Corpus(passages), encoder=SvdEncoder.fit([p.text for p in passages], dimension=8))


def test_scores_are_the_inner_products_in_order(index, passages):
    queries = ["comet", "novel harbour"]
    vectors = index.encoder.encode([f"{p.title} {p.text}" for p in passages])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    rows, scores = index.top_k(queries, 20)
    exact = index.encoder.encode(queries) @ vectors.T
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :20], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), scores, atol=1e-5)


def test_a_query_without_a_known_word_finds_nothing(index, monkeypatch):
    """Nor is FAISS asked for it: all passages are as near, and to sort them takes as long as all the other queries."""
    asked, search = [], vectors.search
    monkeypatch.setattr(vectors, "search", lambda *given: asked.append(len(given[2])) or search(*given))
    assert [len(ranking) for ranking in index.search(["", "zzz", "comet"], 4)] == [0, 0, 4]
    assert index.search(["zzz"], 4) == [[]] and index.search([], 4) == []
    assert asked == [1]


def test_equal_scores_that_k_cuts_go_to_the_lower_row():
    passages = [Passage(str(i), "", text) for i, text in enumerate(["alpha beta", "beta alpha", "alpha beta", "beta"])]
    index = retrieval_index.build(passages, "dense", keep_duplicates=True)
    for query in ("beta", "alpha"):
        rows = {k: index.top_k([query], k)[0][0].tolist() for k in (1, 2, 3, 4)}
        assert all(rows[k] == rows[4][:k] for k in rows), rows
    flat = faiss.IndexFlatIP(2)
    flat.add(np.float32([[0.5, 0], [0.5, 0], [0.5, 0], [1, 0]]))
    assert vectors.search(flat, None, np.float32([[1, 0]]), 2)[0].tolist() == [[3, 0]]


class Planted:
    """Text "7" has the vector in row 7; nothing else is known. Counts the passages it encodes, and fails on demand."""

    def __init__(self, vectors: np.ndarray, name: str = "planted", fails_at: str | None = None):
        self.vectors, self.dimension, self.fails_at, self.encoded = vectors, vectors.shape[1], fails_at, 0
        self.parameters = {"encoder": name, "dimension": self.dimension}

    def encode(self, texts):
        texts = [text.strip() for text in texts]
        if self.fails_at in texts:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        return self.encode_queries(texts)

    def encode_queries(self, texts):
        zero = np.zeros(self.dimension, np.float32)
        return np.array([self.vectors[int(text)] if text.isdigit() else zero for text in texts], np.float32)

    def write(self, folder): ...


@pytest.fixture(scope="module")
def planted() -> Planted:
    """3,000 unit vectors around 100 centres, in 32 dimensions."""
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((100, 32))[draw.integers(100, size=3000)] + 0.5 * draw.standard_normal((3000, 32))
    return Planted((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))


@pytest.fixture(scope="module")
def numbered(planted) -> Corpus:
    return Corpus(Passage(str(row), "", str(row)) for row in range(len(planted.vectors)))


# and the recall@10 to reach with the shortlist re-scored
FACTORIES = {"Flat": 1, "HNSW32": 0.97, "IVF16,SQ8": 0.99, "IVF,PQ4": 0.95, "RR,IVF16,RaBitQfs": 0.9, "PQ4,RFlat": 0.9}


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_scores_exactly_and_recalls(planted, numbered, factory, tmp_path):
    queries = [str(row) for row in range(0, 3000, 20)]
    cosines = planted.vectors[::20] @ planted.vectors.T
    nearest = np.argsort(-cosines, axis=1)[:, :10]
    built = DenseIndex.build(numbered, encoder=planted, factory=factory)
    rows, scores = built.top_k(queries, 10)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, rows, axis=1), atol=1e-3)
    assert (np.diff(scores, axis=1) <= 0).all()
    found = np.mean([np.isin(row, wanted).mean() for row, wanted in zip(rows, nearest, strict=True)])
    assert found >= FACTORIES[factory]
    if built.vectors is not None and factory != "PQ4,RFlat":
        _, proposed = built.index.search(planted.vectors[::20], 10)
        raw = np.mean([np.isin(row, wanted).mean() for row, wanted in zip(proposed, nearest, strict=True)])
        assert raw < found

    built.save(tmp_path / "index")
    opened = retrieval_index.load(tmp_path / "index", encoder=planted)
    assert opened.parameters == built.parameters
    again, same = opened.top_k(queries, 10)
    np.testing.assert_array_equal(again, rows)
    np.testing.assert_array_equal(same, scores)
    opened.save(tmp_path / "again")  # from its own maps
    np.testing.assert_array_equal(retrieval_index.load(tmp_path / "again", encoder=planted).top_k(queries, 10)[0], rows)


def test_the_search_is_as_wide_as_measured(planted, numbered):
    settings = DenseIndex.build(numbered, encoder=planted, factory="HNSW32").parameters["search"]
    assert settings["efSearch"] >= 64 and settings["recall_at_10"] > 0.97
    settings = DenseIndex.build(numbered, encoder=planted, factory="IVF100,SQ8").parameters["search"]
    assert 64 <= settings["nprobe"] <= 100 and settings["recall_at_10"] > 0.9
    assert DenseIndex.build(numbered, encoder=planted).parameters["search"] == {}


def test_a_probe_of_few_lists_gives_fewer_and_never_a_wrong_row(planted, numbered):
    index = DenseIndex.build(numbered, encoder=planted, factory="IVF64,SQ8")
    index.index.nprobe = 1
    rows, scores = index.top_k(["5", "unknown"], 1000)
    n = (rows[0] >= 0).sum()
    assert 0 < n < 1000 and (rows[0, :n] >= 0).all() and (rows[0, n:] == -1).all() and not scores[0, n:].any()
    assert (rows[1] == -1).all()
    assert [len(ranking) for ranking in index.search(["5", "unknown"], 1000)] == [n, 0]


REFUSED = {
    **dict.fromkeys(("Annoy", "LSH"), "try Flat, HNSW32"),
    "IVF16,PQ5": r"for 32 dimensions and inner product \(The dimension .* should be a multiple",
    "IVF5000,SQ8": "more lists than there are passages",
    "IDMap,Flat": "leave the IDMap out",
}


def test_a_factory_that_cannot_be_is_refused_before_encoding(planted, numbered):
    encoder = Planted(planted.vectors)
    for factory, says in REFUSED.items():
        with pytest.raises(ValueError, match=says):
            DenseIndex.build(numbered, encoder=encoder, factory=factory)
    assert encoder.encoded == 0
    with pytest.raises(ValueError, match="over 20 passages"):  # too few to train on
        DenseIndex.build(Corpus(numbered[:20]), encoder=planted, factory="PQ8")


def test_a_killed_encoding_goes_on(planted, numbered, tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_index.dense.ENCODE_BATCH", 256)
    killed = Planted(planted.vectors, fails_at="1500")  # in the sixth batch of twelve
    with pytest.raises(KeyboardInterrupt):
        DenseIndex.build(numbered, encoder=killed, factory="IVF16,SQ8", work=tmp_path)
    assert killed.encoded == 5 * 256
    rest = Planted(planted.vectors)
    index = DenseIndex.build(numbered, encoder=rest, factory="IVF16,SQ8", work=tmp_path)
    assert rest.encoded == 3000 - 5 * 256
    np.testing.assert_array_equal(index.vectors, planted.vectors.astype(np.float16))

    third = Planted(planted.vectors)
    DenseIndex.build(numbered, encoder=third, factory="IVF16,RaBitQ", work=tmp_path)
    assert third.encoded == 0


def test_vectors_of_another_corpus_or_encoder_are_not_taken(planted, numbered, tmp_path):
    options = {"factory": "IVF16,SQ8", "work": tmp_path / "work"}
    index = DenseIndex.build(numbered, encoder=planted, **options)
    index.save(tmp_path / "index")
    index.save(tmp_path / "twin")
    other = Planted(-planted.vectors, name="other")
    negative = DenseIndex.build(numbered, encoder=other, **options)
    assert negative.vectors[0, 0] == np.float16(-planted.vectors[0, 0])
    assert other.encoded == 3000
    backwards = Planted(planted.vectors)
    DenseIndex.build(Corpus(list(numbered)[::-1]), encoder=backwards, **options)
    assert backwards.encoded == 3000
    for folder in ("index", "twin"):  # they shared their vectors with the work folder, and keep them
        rows, _ = retrieval_index.load(tmp_path / folder, encoder=planted).top_k(["7"], 5)
        np.testing.assert_array_equal(rows, index.top_k(["7"], 5)[0])


def test_svd_encoders_of_other_texts_differ(passages):
    texts = [p.text for p in passages]
    fingerprints = [SvdEncoder.fit(t, dimension=8).parameters["fingerprint"] for t in (texts, texts, texts[:-1])]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_an_index_of_another_encoder_is_refused(planted, numbered, tmp_path):
    DenseIndex.build(numbered, encoder=planted).save(tmp_path / "index")
    with pytest.raises(ValueError, match="pass it as encoder="):
        retrieval_index.load(tmp_path / "index")
    with pytest.raises(ValueError, match="another encoder: its encoder was 'planted', and is 'other'"):
        retrieval_index.load(tmp_path / "index", encoder=Planted(planted.vectors, name="other"))


@pytest.mark.parametrize("shards", [1, 2])
def test_an_encoder_may_describe_itself_as_it_likes(planted, numbered, tmp_path, shards):
    encoder = Planted(planted.vectors)
    encoder.parameters = {"sizes": (8, 4)}
    write_passages(numbered[:50], tmp_path)
    index = tmp_path / "index"
    retrieval_index.build_folder(tmp_path / "passages.jsonl", index, "dense", encoder=encoder, shards=shards)
    assert retrieval_index.load(index, encoder=encoder).search(["7"], 1)[0][0].id == "7"
    with pytest.raises(ValueError, match="pass it as encoder="):
        retrieval_index.load(index)


@pytest.mark.parametrize(("number", "factory"), [(np.nan, "Flat"), (np.inf, "SQ8")])
def test_an_encoder_that_gives_no_numbers_is_refused(number, factory):
    """FAISS would find nothing, or not what is near, and say nothing of it."""
    vectors = np.eye(4, dtype=np.float32)
    vectors[2, 1] = number
    corpus = Corpus(Passage(str(row), "", str(row)) for row in range(3))
    with pytest.raises(ValueError, match=r"the encoder gives NaN or infinity for '\s*2'"):
        DenseIndex.build(corpus, encoder=Planted(vectors), factory=factory)
    index = DenseIndex.build(Corpus([Passage("0", "", "0")]), encoder=Planted(vectors), factory=factory)
    assert index.search(["0"], 1)[0]
    with pytest.raises(ValueError, match="NaN or infinity for '2'"):
        index.search(["0", "2"], 1)


def test_a_disk_that_is_full_is_said_by_the_file(index, tmp_path, monkeypatch):
    """FAISS passes it on as a RuntimeError of C++, which no command would show in one line."""
    full = RuntimeError("Error: 'ret == (size)' failed: write error in x: 3 != 4 (No space left on device)")
    monkeypatch.setattr(faiss, "write_index", mock.Mock(side_effect=full))
    with pytest.raises(OSError, match=r"vectors\.faiss: No space left on device"):
        index.write(tmp_path)
