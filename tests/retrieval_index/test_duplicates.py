import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval_index
from retrieval_index import Passage
from retrieval_index.duplicates import Deduplicated


def test_duplicates_are_left_out_and_counted():
    first = [Passage("1", "a", "b"), Passage("2", "a", "c"), Passage("3", "ab", "c"), Passage("4", "a", "bc")]
    again = [Passage("1", "a", "b"), Passage("9", "a", "c"), Passage("3", "a", "bc")]
    unique = Deduplicated([*first, *again])
    for _ in range(2):  # counted anew each time
        assert list(unique) == first
        assert (unique.read, unique.duplicates) == (7, 3)


def test_an_index_drops_duplicates_and_says_how_many(tmp_path):
    first = [Passage("1", "a", "b"), Passage("2", "a", "c")]
    index = retrieval_index.build([*first, Passage("9", "a", "b")])
    index.save(tmp_path / "index")
    for same in (index, retrieval_index.load(tmp_path / "index")):
        assert list(same.corpus) == first
        assert same.corpus.duplicates_left_out == 1
    with pytest.raises(ValueError, match="its id '1' was that of another"):
        retrieval_index.build([*first, Passage("1", "other", "text")])
    kept = retrieval_index.build([*first, *first], keep_duplicates=True)
    assert (len(kept.corpus), kept.corpus.duplicates_left_out) == (4, 0)
    rows = [{"id": str(n), "title": "t", "text": str(n % 4)} for n in range(4)] * 2
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for shards in (1, 2):
        retrieval_index.build_folder(tmp_path / "p.jsonl", tmp_path / f"{shards}", shards=shards)
        assert retrieval_index.load(tmp_path / f"{shards}").corpus.duplicates_left_out == 4


@given(st.lists(st.integers(0, 3000), max_size=20), st.integers(0, 20_000))
@settings(deadline=None, max_examples=20)
def test_the_digest_table_agrees_with_a_set_as_it_grows(repeated, count):
    numbers = [*repeated, *range(count), *repeated]
    unique = Deduplicated(Passage(str(number), "t", str(number)) for number in numbers)
    assert [passage.id for passage in unique] == [str(number) for number in dict.fromkeys(numbers)]
    assert unique.read - unique.duplicates == len(set(numbers))
