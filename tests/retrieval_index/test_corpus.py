import hashlib
import pickle

import pytest

from retrieval_index import Corpus, Passage
from retrieval_index.corpus import write_passages

ODD = [
    Passage("1", "Beyoncé", 'Line one\nline two\u2028still the same passage "quoted" \\ back'),
    Passage("two", "東京", "🗼 \x00 control and emoji"),
    Passage("3", "", ""),
]


def stored(passages, folder) -> Corpus:
    write_passages(passages, folder)
    return Corpus.open(folder)


def test_the_stored_corpus_equals_the_one_in_memory(tmp_path, passages):
    memory, disk = Corpus(ODD + passages), stored(ODD + passages, tmp_path)
    assert len(disk) == len(memory)
    assert list(disk) == list(memory) == ODD + passages
    assert disk[-1] == memory[-1] == passages[-1]
    assert disk.fingerprint == memory.fingerprint
    assert memory.fingerprint == hashlib.sha256((tmp_path / "passages.jsonl").read_bytes()).hexdigest()
    assert Corpus(passages).fingerprint != memory.fingerprint
    scored, plain = Passage("1", "a", "b", score=2.0), Passage("1", "a", "b")  # the score is no part of equality
    assert scored == plain and hash(scored) == hash(plain)


def test_titles_come_from_the_disk_as_from_memory(tmp_path):
    hostile = ['","title":"', '","text":"', "\\", 'a "b" \\"', "\n\t", "&amp;", "é\u2028"]
    rows = ODD + [Passage(f"{one}{i}", two, one) for i, one in enumerate(hostile) for two in hostile]
    assert stored(rows, tmp_path).titles() == Corpus(rows).titles() == {row.title for row in rows}
    assert Corpus.join([Corpus(rows), Corpus(ODD)]).titles() == Corpus(rows).titles()


@pytest.mark.parametrize("rows", [slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(2, 99)])
def test_a_slice_is_a_list(tmp_path, rows):
    disk = stored(ODD, tmp_path)
    assert Corpus(ODD)[rows] == disk[rows] == Corpus.join([disk])[rows] == ODD[rows]
    for row in (3, -4):
        with pytest.raises(IndexError):
            disk[row]


def test_a_stored_corpus_pickles_by_its_path_and_outlives_its_files(tmp_path, passages):
    disk = stored(passages, tmp_path)
    pickled = pickle.dumps(disk)
    assert len(pickled) < 1000
    assert list(pickle.loads(pickled)) == passages
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "copy").mkdir()
    write_passages(disk, tmp_path / "copy")  # what was opened, not what may lie at the path by now
    assert list(Corpus.open(tmp_path / "copy")) == passages
