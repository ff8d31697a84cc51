import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import retrieval_index
from retrieval_index import BM25Index, Corpus, Passage, counting, postings
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


def test_worker_processes_count_what_one_process_counts(passages, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "BLOCK", 40)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    Corpus(passages).write(tmp_path)
    (tmp_path / "work").mkdir()
    index = BM25Index.build(Corpus.open(tmp_path), work=tmp_path / "work")
    assert same_index(index, BM25Index.build(Corpus(passages)))


def test_a_worker_that_fails_is_an_error(passages, tmp_path, monkeypatch):
    Corpus(passages).write(tmp_path)
    corpus = Corpus.open(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(counting, "BLOCK", 50)
    (tmp_path / "passages.jsonl").write_bytes(b"")  # what a worker will find
    (tmp_path / "work").mkdir()
    with pytest.raises(OSError, match="failed"):
        counting.count_corpus(corpus, Analyzer(), tmp_path / "work", silent)


def test_a_worker_ends_with_its_parent(tmp_path):
    """A killed build must not leave processes that go on writing."""
    Corpus([Passage("0", "title", "word " * 2000)] * 4000).write(tmp_path)
    (tmp_path / "work").mkdir()
    own = [str(tmp_path), str(tmp_path / "work"), json.dumps(Analyzer().parameters), str(counting.BLOCK)]
    command = [sys.executable, "-c", counting._WORKER, *own, "0"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    assert worker.poll() is None
    worker.stdin.close()  # as the system does when the parent has gone
    assert worker.wait(timeout=20) == 1
    assert os.listdir(tmp_path / "work") == []


RESUMED = """
import os, sys, retrieval_index
from retrieval_index import build, counting
counting.BLOCK, os.cpu_count = 50, lambda: 1
if sys.argv[3] == "die":
    count, done = counting._count_block, []
    def once(*arguments):
        if len(done) == 2:
            os.kill(os.getpid(), 9)
        done.append(1)
        return count(*arguments)
    counting._count_block = once
else:
    build.read_passages = None  # the passages are there already
    count, counted = counting._count_block, []
    counting._count_block = lambda *of: counted.append(of[-1]) or count(*of)
retrieval_index.build_folder(sys.argv[1], sys.argv[2])
if sys.argv[3] != "die":
    print(*counted)
"""


def build(tmp_path, how):
    command = [sys.executable, "-c", RESUMED, str(tmp_path / "passages.jsonl"), str(tmp_path / "index"), how]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_killed_build_goes_on(passages, tmp_path):
    folder = tmp_path / "index"
    Corpus(passages).write(tmp_path)
    assert build(tmp_path, "die").returncode == -signal.SIGKILL
    assert not folder.exists()
    done = build(tmp_path, "go on")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100", "150"]
    queries = [p.title for p in passages]
    assert retrieval_index.load(folder).search(queries, 9) == retrieval_index.build(passages).search(queries, 9)
    assert sorted(os.listdir(tmp_path)) == ["index", "offsets.npy", "passages.jsonl"]


def test_a_source_that_has_changed_is_read_anew(passages, tmp_path):
    source, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    Corpus(passages).write(tmp_path)
    assert build(tmp_path, "die").returncode
    source.write_text('{"id": "1", "title": "only", "text": "one"}\n')
    retrieval_index.build_folder(source, folder)
    assert [p.title for p in retrieval_index.load(folder).corpus] == ["only"]
