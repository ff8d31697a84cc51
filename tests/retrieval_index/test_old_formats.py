"""Indexes that older code has built: they load, and find what they found."""

import itertools
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import retrieval_index

ARCHIVE = Path(__file__).with_name("format_2.zip")  # built by the last code of format 2, with what it found


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("format_2")
    with zipfile.ZipFile(ARCHIVE) as files:
        files.extractall(folder)
    return folder


@pytest.mark.parametrize("name", ["bm25", "rank-bm25", "dense", "hybrid", "shards"])
def test_an_index_of_format_2_is_searched_with_its_own_tokenizer_and_weights(archive, name, tmp_path):
    expected = json.loads((archive / "expected.json").read_text(encoding="utf-8"))
    index = retrieval_index.load(archive / name)

    # Vectors of passages that share nothing with the query are equal but for rounding, which each processor does its own way.
    ties = {query: set() for query in expected["queries"]}
    if name in ("dense", "hybrid"):
        for query, ranking in zip(ties, retrieval_index.load(archive / "dense").search(list(ties), 100), strict=True):
            pairs = itertools.product(ranking, repeat=2)
            ties[query] = {(a.id, b.id) for a, b in pairs if abs(a.score - b.score) < 2e-6}

    def check(found):
        for query, ranking, wanted in zip(expected["queries"], found, expected["found"][name], strict=True):
            scores = dict(wanted)
            for passage, id in zip(ranking, scores, strict=True):
                assert passage.id == id or (passage.id, id) in ties[query]
            np.testing.assert_allclose([p.score for p in ranking], list(scores.values()), atol=2e-6)

    check(index.search(expected["queries"], 3))
    check(pickle.loads(pickle.dumps(index)).search(expected["queries"], 3))
    if name != "shards":  # written anew it keeps them
        index.save(tmp_path / "again")
        check(retrieval_index.load(tmp_path / "again").search(expected["queries"], 3))


def test_the_manifest_names_fields_and_tokenizer(passages, tmp_path):
    retrieval_index.build(passages, title_weight=2).save(tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest["format_version"] == 3
    assert manifest["parameters"]["fields"] == {"title": 2, "exact_title": 1, "text": 1}
    assert manifest["parameters"]["tokenizer"] == 3
