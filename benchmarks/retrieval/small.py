"""Measure the index on 54 k real passages: its speed beside other libraries, and its recall.

    python -m benchmarks.retrieval.small --data ../shared/data

Speed: one query at a time, and 400 at once, with the same validation questions for each library. Our index takes the text of a
question and returns passages ("rows": row numbers). bm25s and rank-bm25 take the question split into words, and return row
numbers. All use one thread.

Recall: the share of a question's gold titles among the first k of all passages, by benchmark; the query is the raw question.
`all_gold@10` is the share of questions with every gold title. Also measured: how often BM25 finds a passage by its own title.
Ends with one line of JSON.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tyro

import retrieval_index
from retrieval_index import BM25Index, Corpus, HybridIndex, RankBM25Index, Searcher

BENCHMARKS = ("hotpotqa", "2wikimultihopqa", "musique")
CUTS = (2, 5, 10)
BATCH = 400  # questions asked at once


@dataclass(kw_only=True)
class Args:
    """Measure speed and recall on real passages."""

    data: Path
    """Folder with passages.jsonl and the validation questions of the three benchmarks."""
    rounds: int = 3
    """How often each question is asked to measure speed; the median is over all times."""
    slow_questions: int = 30
    """Questions for rank-bm25, which takes a large part of a second for each."""
    minilm: bool = True
    """Also encode all passages with MiniLM: half an hour on two cores, once. An interrupted run continues."""
    work: Path = Path("runs/index_small")
    """Folder of the indexes, which are built once."""


def read_questions(data: Path, benchmark: str) -> list[dict]:
    lines = (data / f"{benchmark}.validation.jsonl").read_text(encoding="utf-8").strip().split("\n")
    return [json.loads(line) for line in lines]


def recall(searcher: Searcher, questions: list[dict]) -> dict[str, float]:
    """Compute the recall of gold titles at each cut, and how often all are found."""
    found = searcher.search([question["question"] for question in questions], max(CUTS))
    golds = [set(question["supporting_titles"]) for question in questions]
    result = {}
    for cut in CUTS:
        hits = [len(gold & {p.title for p in ranking[:cut]}) for gold, ranking in zip(golds, found, strict=True)]
        result[f"recall@{cut}"] = float(np.mean([hit / len(gold) for hit, gold in zip(hits, golds, strict=True)]))
    result[f"all_gold@{max(CUTS)}"] = float(np.mean([hit == len(gold) for hit, gold in zip(hits, golds, strict=True)]))
    return result


def found_by_title(searcher: Searcher) -> dict[str, float]:
    """Measure how often a title finds a passage with that title, first and among the first 10."""
    titles = sorted({passage.title for passage in searcher.corpus})
    found = searcher.search(titles, 10)
    return {
        f"first {cut}": float(np.mean([t in {p.title for p in r[:cut]} for t, r in zip(titles, found, strict=True)]))
        for cut in (1, 10)
    }


def seconds_of(ask: Callable, arguments: list) -> list[float]:
    times = []
    for argument in arguments:
        started = time.perf_counter()
        ask(argument)
        times.append(time.perf_counter() - started)
    return times


def measure_speed(corpus: Corpus, questions: list[str], args: Args) -> dict[str, float]:
    """Measure the median seconds of a query: ours and bm25s in turn, so that the machine slows both equally; then rank-bm25."""
    import bm25s

    ours, reference = BM25Index.build(corpus), RankBM25Index.build(corpus)
    engine = bm25s.BM25(k1=1.5, b=0.75, backend="numba")
    engine.index([ours.analyzer.passage_terms(p.title, p.text) for p in corpus], show_progress=False)
    words = [ours.analyzer.query_terms(question) for question in questions]

    def search_bm25s(queries: list[list[str]]):
        return engine.retrieve(queries, k=10, show_progress=False, n_threads=0)

    ours.search(questions[:2], 10), search_bm25s(words[:1])  # loads compiled code
    np.testing.assert_allclose(ours.top_k(questions[:100], 10)[1], search_bm25s(words[:100])[1], rtol=1e-4)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for name, size in (("", 1), ("batch_", BATCH)):
            starts = range(0, len(questions) - size + 1, size)
            asked, split = ([rows[start : start + size] for start in starts] for rows in (questions, words))
            for engine_name, ask, batches in (
                ("ours", lambda batch: ours.search(batch, 10), asked),
                ("bm25s", search_bm25s, split),
                ("ours_rows", lambda batch: ours.top_k(batch, 10), asked),
            ):
                times[name + engine_name] += [seconds / size for seconds in seconds_of(ask, batches)]
    slow = words[:: max(1, len(words) // args.slow_questions)]
    times["rank_bm25"] = seconds_of(lambda query: np.argsort(-reference.okapi.get_scores(query))[:10], slow)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def load_or_build(args: Args, name: str, backend: str, **options) -> Searcher:
    """Load an index over all passages from its folder; build it first if there is none."""
    folder = args.work / name
    if not folder.exists():
        retrieval_index.build_folder(args.data / "passages.jsonl", folder, backend, progress=True, **options)
    return retrieval_index.load(folder)


def measure_recall(questions: dict[str, list[dict]], args: Args) -> dict:
    lexical, dense = load_or_build(args, "bm25", "bm25"), load_or_build(args, "svd", "dense")
    searchers = {"bm25": lexical, "svd": dense, "bm25+svd": HybridIndex([lexical, dense])}
    if args.minilm:
        minilm = load_or_build(args, "minilm", "dense", encoder="minilm")
        searchers |= {"minilm": minilm, "bm25+minilm": HybridIndex([lexical, minilm])}
    return {
        name: {benchmark: recall(searcher, asked) for benchmark, asked in questions.items()}
        for name, searcher in searchers.items()
    }


def main(args: Args) -> dict:
    questions = {benchmark: read_questions(args.data, benchmark) for benchmark in BENCHMARKS}
    corpus = Corpus(retrieval_index.read_passages(args.data / "passages.jsonl"))
    speed = measure_speed(corpus, [row["question"] for asked in questions.values() for row in asked], args)
    result = {
        "passages": len(corpus),
        "bm25_over_bm25s": speed["ours"] / speed["bm25s"],
        "bm25_rows_over_bm25s": speed["ours_rows"] / speed["bm25s"],
        "batch_rows_over_bm25s": speed["batch_ours_rows"] / speed["batch_bm25s"],
        "rank_bm25_over_bm25": speed["rank_bm25"] / speed["ours"],
        "query_us": {name: 1e6 * seconds for name, seconds in speed.items()},
        "recall": measure_recall(questions, args),
        "found_by_title_bm25": found_by_title(load_or_build(args, "bm25", "bm25")),
    }
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
