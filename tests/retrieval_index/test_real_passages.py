import json

import numpy as np
import pytest

import retrieval_index

BENCHMARKS = ("hotpotqa", "2wikimultihopqa", "musique")


def test_recall_of_bm25_with_the_raw_question(real_data):
    """What one search finds of the gold titles in 54 k real passages: the gap to 1 is what multi-step search is for."""
    searcher = retrieval_index.build(retrieval_index.read_passages(real_data / "passages.jsonl"))
    recall = {}
    for benchmark in BENCHMARKS:
        files = [path.read_text(encoding="utf-8") for path in real_data.glob(f"{benchmark}.*.jsonl")]
        rows = [json.loads(line) for file in files for line in file.strip().split("\n")]
        found = searcher.search([row["question"] for row in rows], k=10)
        recall[benchmark] = np.mean(
            [
                len({p.title for p in passages} & (gold := set(row["supporting_titles"]))) / len(gold)
                for row, passages in zip(rows, found, strict=True)
            ]
        )
    assert recall == pytest.approx({"hotpotqa": 0.818, "2wikimultihopqa": 0.707, "musique": 0.579}, abs=0.01)
    assert np.mean(list(recall.values())) == pytest.approx(0.70, abs=0.03)
