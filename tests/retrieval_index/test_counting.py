import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from retrieval_index import BM25Index, Corpus, Passage, counting, postings
from retrieval_index.corpus import write_passages
from retrieval_index.progress import silent
from retrieval_index.tokenizer import Analyzer


def same_index(one: BM25Index, other: BM25Index) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.files, other.files, strict=True))


@pytest.mark.parametrize("size", [1, 7, 199, 200])
def test_blocks_and_slices_change_nothing(passages, monkeypatch, size):
    corpus = Corpus(passages)
    whole = BM25Index.build(corpus)
    monkeypatch.setattr(counting, "BLOCK", size)
    monkeypatch.setattr(postings, "SLICE", 50)
    assert same_index(whole, BM25Index.build(corpus))


def test_worker_processes_count_what_one_process_counts(passages, source, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "BLOCK", 40)
    monkeypatch.setattr("retrieval_index.counting.usable_cores", lambda: 3)
    index = BM25Index.build(Corpus.open(source.parent), work=tmp_path)
    assert same_index(index, BM25Index.build(Corpus(passages)))


def test_a_worker_that_fails_is_an_error(passages, tmp_path, monkeypatch):
    write_passages(passages, tmp_path)
    corpus = Corpus.open(tmp_path)
    monkeypatch.setattr("retrieval_index.counting.usable_cores", lambda: 2)
    monkeypatch.setattr(counting, "BLOCK", 50)
    (tmp_path / "passages.jsonl").write_bytes(b"")  # what a worker will find
    (tmp_path / "work").mkdir()
    with pytest.raises(OSError, match="failed"):
        counting.count_corpus(corpus, Analyzer(), tmp_path / "work", silent)


def test_a_worker_ends_with_its_parent(tmp_path):
    write_passages([Passage("0", "title", "word " * 2000)] * 4000, tmp_path)
    (tmp_path / "work").mkdir()
    own = [str(tmp_path), str(tmp_path / "work"), json.dumps(Analyzer().parameters), str(counting.BLOCK)]
    command = [sys.executable, "-c", counting._WORKER, *own, "0"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    assert worker.poll() is None
    worker.stdin.close()  # as the system does when the parent has gone
    assert worker.wait(timeout=20) == 1
    assert os.listdir(tmp_path / "work") == []
