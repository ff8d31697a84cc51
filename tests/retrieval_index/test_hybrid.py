import numpy as np
import pytest

import retrieval_index
from retrieval_index import Corpus, HybridIndex, RankBM25Index
from retrieval_index.hybrid import fuse


def test_fusion_by_hand():
    """Row 7 is first and third, row 3 second and first, row 5 third in one ranking only; -1 is no row."""
    rows, scores = fuse([np.array([7, 3, 5]), np.array([3, -1, 7])])
    assert rows.tolist() == [3, 7, 5]
    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 63])


def test_a_hybrid_finds_what_either_part_finds_first(passages):
    hybrid = retrieval_index.build(passages, "hybrid")
    assert [part.backend for part in hybrid.parts] == ["bm25", "dense"]
    for ranking in hybrid.search(["comet harbour", "queen 17"], 5):
        assert len(ranking) == 5
        scores = [p.score for p in ranking]
        assert scores == sorted(scores, reverse=True) and scores[0] <= 2 / 61 + 1e-6
        assert hybrid.search(["comet harbour"], 1)[0] == hybrid.search(["comet harbour"], 5)[0][:1]  # looks as deep


def test_parts_of_other_kinds_are_saved_too_and_wrong_ones_rejected(passages, tmp_path):
    index, corpus = retrieval_index.build(passages), Corpus(passages)
    hybrid = HybridIndex([retrieval_index.build(corpus), RankBM25Index.build(corpus)])
    hybrid.save(tmp_path / "other")
    assert retrieval_index.load(tmp_path / "other").search(["castle"], 5) == hybrid.search(["castle"], 5)
    with pytest.raises(ValueError, match="two parts"):
        HybridIndex([index])
    with pytest.raises(ValueError, match="same corpus"):
        HybridIndex([index, retrieval_index.build(passages[:-1])])
    with pytest.raises(ValueError, match="two parts of one kind"):
        HybridIndex([index, index]).save(tmp_path / "index")
