import csv
import gzip
import io
import json
import os
import socket
import time
from hashlib import blake2b
from unittest import mock

import datasets
import pyarrow as pa
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import _detect_agent
from pyarrow import parquet

from retrieval_index import Passage, formats, hub
from retrieval_index.build import build_folder
from retrieval_index.corpus import split_contents
from retrieval_index.duplicates import Deduplicated
from retrieval_index.readers import make_passage, read_passages

ODD = [
    Passage("o1", 'The "Heroes" album', "Line one\nline two\u2028still\tthe same\r\n \\ passage"),
    Passage("o2", "東京", '"🗼" \x00 control and emoji'),
    Passage("o3", "", "no title"),
]


def rows_of(passages):
    return [{"id": p.id, "title": p.title, "text": p.text} for p in passages]


def flashrag_rows(passages):
    return [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in passages]


def jsonl(rows) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def tsv(passages) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t")
    writer.writerows([("id", "text", "title"), *((p.id, p.text, p.title) for p in passages)])
    return text.getvalue().encode()


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def write_parquet(path, rows):
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=70)


FILES = {
    "plain.jsonl": lambda passages: jsonl(rows_of(passages)),
    "both.jsonl": lambda passages: jsonl({**row, "contents": "not read"} for row in rows_of(passages)),
    "squeezed.jsonl.gz": lambda passages: gzip.compress(jsonl(rows_of(passages))),
    "squeezed.jsonl.zst": lambda passages: zstd(jsonl(rows_of(passages))),
    "flashrag.JSONL": lambda passages: jsonl(flashrag_rows(passages)),
    "flashrag.jsonl.gz": lambda passages: gzip.compress(jsonl(flashrag_rows(passages))),
    "array.json": lambda passages: json.dumps(rows_of(passages), indent=1).encode(),
    "array.json.zst": lambda passages: zstd(json.dumps(flashrag_rows(passages)).encode()),
    "psgs_w100.tsv": tsv,
    "psgs_w100.tsv.gz": lambda passages: gzip.compress(tsv(passages)),
}


@pytest.mark.parametrize("name", FILES)
def test_text_files(tmp_path, passages, name):
    (tmp_path / name).write_bytes(FILES[name](passages + ODD))
    assert list(read_passages(tmp_path / name)) == passages + ODD


def test_a_byte_order_mark_and_blank_lines_are_no_data(tmp_path):
    row = {"id": 7, "title": "é", "text": "x"}
    for name, data in {
        "p.jsonl": jsonl([row]) + b" \n\n",
        "p.json": b" [\n" + jsonl([row]) + b"]\n",
        "p.tsv": "id\ttext\ttitle\n\n7\tx\té\n".encode(),
    }.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data)
        assert list(read_passages(tmp_path / name)) == [Passage("7", "é", "x")], name


def test_passages_are_streamed(tmp_path, passages):
    (tmp_path / "p.jsonl").write_bytes(jsonl(rows_of(passages)) + b"broken")
    stream = read_passages(tmp_path / "p.jsonl")
    assert [next(stream) for _ in passages] == passages
    with pytest.raises(ValueError, match=r"p\.jsonl:201: "):
        next(stream)


SENTENCES = {
    "Nebelmeer": ["Nebelmeer is a film.", " It was directed by Ada Kern."],
    "Ada Kern": ["Ada Kern was born in Zürich."],
    "Void": [],
}
PARAGRAPHS = [(title, "".join(sentences)) for title, sentences in SENTENCES.items() if sentences]
HOTPOT = {"_id": "5a7", "context": [[title, sentences] for title, sentences in SENTENCES.items()]}
TWO_WIKI = {**HOTPOT, "context": [["Nebelmeer", ["Nebelmeer is a film.", "It was directed by Ada Kern."]]]}
COLUMNS = {"id": "5a7", "context": {"title": list(SENTENCES), "sentences": list(SENTENCES.values())}}
MUSIQUE = {
    "id": "2hop__1_2",
    "answerable": False,
    "paragraphs": [{"idx": i, "title": t, "paragraph_text": text} for i, (t, text) in enumerate(PARAGRAPHS)],
}


def test_paragraphs_of_the_benchmarks_have_one_id_everywhere(tmp_path):
    ids = [blake2b(f"{title}\n{text}".encode(), digest_size=8).hexdigest() for title, text in PARAGRAPHS]
    expected = [Passage(id, *pair) for id, pair in zip(ids, PARAGRAPHS, strict=True)]
    assert [make_passage(*pair) for pair in PARAGRAPHS] == expected
    for name, data, found in (
        ("hotpot_dev_distractor_v1.json", json.dumps([HOTPOT, HOTPOT]).encode(), expected * 2),
        ("2wiki.json", json.dumps([TWO_WIKI]).encode(), expected[:1]),
        ("musique_full_v1.0_dev.jsonl.gz", gzip.compress(jsonl([MUSIQUE])), expected),
    ):
        (tmp_path / name).write_bytes(data)
        assert list(read_passages(tmp_path / name)) == found
    unique = Deduplicated(read_passages(tmp_path))
    assert sorted(unique, key=lambda passage: passage.text, reverse=True) == expected
    assert (unique.read, unique.duplicates) == (7, 5)


@pytest.mark.parametrize("record", [COLUMNS, MUSIQUE])
def test_questions_as_the_hub_has_them(tmp_path, record):
    write_parquet(tmp_path / "q.parquet", [record])
    assert [(p.title, p.text) for p in read_passages(tmp_path / "q.parquet")] == PARAGRAPHS


NO_PARAGRAPHS = [
    *({"context": wrong} for wrong in ("a paragraph of SQuAD", [["title", "no list"]], [["title", [7]]])),
    *({"context": {"title": "ab", "sentences": "cd"}}, {"paragraphs": None}),
    {"paragraphs": [{"title": None, "paragraph_text": "x"}]},
]


@pytest.mark.parametrize("record", NO_PARAGRAPHS)
def test_a_record_without_paragraphs_is_named(tmp_path, record):
    (good,) = ({"context": [], "paragraphs": []}[name] for name in record)
    (tmp_path / "q.json").write_text(json.dumps([dict.fromkeys(record, good), record]))
    with pytest.raises(ValueError, match=r"q\.json: record 2: .*(expected|must be)"):
        list(read_passages(tmp_path / "q.json"))


def test_every_cut_of_an_array_is_noticed(tmp_path):
    whole = json.dumps([{"a": "é"}, {"b": [1, {}]}], ensure_ascii=False).encode()
    path = tmp_path / "cut.json"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.json: after [0-2] records: "):
            list(formats.iter_records(path))


GOOD = b'{"id": 1, "title": "t", "text": "x"}\n'
FLASH = b'{"id": 1, "contents": "t\\nx"}\n'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p.jsonl", GOOD + b"\n{", ":3: Expecting property name"),
        ("p.jsonl", GOOD + b"[" * 100_000, ":2: "),
        ("p.jsonl", GOOD + b"[1]\n", ":2: expected an object, got list"),
        ("p.jsonl", GOOD + b'{"title": "t"}', ":2: the row has no 'text'"),
        ("p.jsonl", GOOD + FLASH, ":2: the row has no 'text'"),
        ("p.jsonl", GOOD + b'{"id": true, "title": "t", "text": "x"}', ":2: 'id' must be"),
        ("p.jsonl", GOOD + b'{"id": 1, "title": "t", "text": "\\ud800"}', ":2: .*surrogates"),
        ("p.jsonl", GOOD + b'{"id": 1, "title": "t", "text": "\xff"}', ":2: .*UTF-8"),
        ("p.jsonl", FLASH + b'{"id": 1, "contents": ["x"]}', ":2: 'contents' must be a string, got list"),
        ("p.jsonl", b'{"_id": 1, "body": "x"}', ":1: the fields are '_id', 'body'; needed are id, title, text; or id"),
        ("p.jsonl", b"{}", ":1: the fields are none"),
        ("p.json", b"[" + GOOD + b', {"id": 1}]', ": record 2: the row has no 'text'"),
        ("p.json", b"[" + GOOD + b", 7]", ": after 1 records: record 2 is not an object: '7]'"),
        ("p.json", b"[" + GOOD + b"] " + GOOD, ": after 1 records: record 2"),
        ("p.json", b'[{"a": "\xff"}]', ": .*UTF-8"),
        ("p.json", b'{"A": ["x"], "B": ["y", 7]}', ": record 1: expected a list of sentences under 'B'"),
        ("p.tsv", b"id\ttext\ttitle\n1\tx\tt\n2\tx\n", ":3: 2 columns under a header of 3"),
        ("p.tsv", b'id\ttext\ttitle\n1\t"x"y\tt\n', ":2: .* expected after"),
        ("p.tsv", b"id\ttext\ttitle\n1\t\xff\tt\n", ":2: .*UTF-8"),
        ("p.tsv", b"1\tx\tt\n2\tx\tt\n", ":2: the fields are '1', 'x', 't'"),
        (
            "a.csv",
            "title,text\nM,x\nN,München\n".encode("latin-1"),
            r":3: not UTF-8 at byte 0xfc after 'N,M', prob",
        ),
        ("a.jsonl", '{"text": "München"}'.encode("latin-1"), r":1: not UTF-8 at byte 0xfc .* Latin-1"),
        ("a.json", '[{"text": "München"}]'.encode("latin-1"), r": after 0 records: not UTF-8 .* Latin-1"),
        ("a.txt", "München".encode("latin-1"), r": not UTF-8 .*iconv -f WINDOWS-1252"),
        ("a.csv", "title,text\nM,x\n".encode("utf-16"), r":1: this is UTF-16"),
        ("a.csv", b"title;text\nM;x\n", r":1: the columns are separated by ';': separate them by ','"),
        ("a.tsv", b"title,text\nM,x\n", r":1: the columns are separated by ','"),
        ("a.csv", b'title,text\nM,x\nN,"y\nO,z\n', r':3: a quote \("\) opens in this row and never closes'),
        ("a.csv", b'title,text\nM,"x\nN,y\nO,"z"\n', r":4: .*; a quote that opens in line 2 reaches to here"),
    ],
)
def test_a_bad_row_an_encoding_a_separator_and_an_open_quote_are_named(tmp_path, name, data, message):
    packed = ((tmp_path / f"{name}.gz", gzip.compress(data)),) if name != "a.txt" else ()
    for path, bytes_ in ((tmp_path / name, data), *packed):
        path.write_bytes(bytes_)
        with pytest.raises(ValueError, match=message) as error:
            list(read_passages(path))
        assert str(error.value).startswith(str(path))


def test_what_has_no_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_LONGEST", len(GOOD))
    (tmp_path / "p.json").write_bytes(b'{"a": "' + b"x" * 200_000 + b'"}')
    with pytest.raises(ValueError, match=r"p\.json: after 0 records: Unterminated string"):
        list(read_passages(tmp_path / "p.json"))
    (tmp_path / "p.jsonl").write_bytes(GOOD * 2 + b"[" + GOOD)
    with pytest.raises(ValueError, match=r"p\.jsonl: a line is longer .* \.json file"):
        list(read_passages(tmp_path / "p.jsonl"))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_every_cut_of_a_compressed_file_is_noticed(tmp_path, passages, suffix):
    data = jsonl(rows_of(passages))
    whole = gzip.compress(data) if suffix == ".gz" else zstd(data)
    path = tmp_path / f"p.jsonl{suffix}"
    for length in [*range(0, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"p\.jsonl.*(damaged or cut off|is empty)"):
            list(read_passages(path))
    for wrong in (whole + b"rubbish", data):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="damaged or cut off"):
            list(read_passages(path))
    path.write_bytes(whole * 2)  # parts put together are all read
    assert list(read_passages(path)) == passages * 2


def test_each_row_may_lack_its_id_and_its_title(tmp_path):
    rows = [
        {"id": 1, "title": "t", "text": "x"},
        {"id": 2, "title": None, "text": "one two three four five six seven"},
        {"id": None, "text": "y"},
        {"_id": 4, "title": "", "text": "z"},
        {"id": 5, "text": "東" * 200},
    ]
    (tmp_path / "p.jsonl").write_bytes(jsonl(rows))
    write_parquet(tmp_path / "p.parquet", [{"id": None, "_id": None, "title": None} | row for row in rows])
    (tmp_path / "t.csv").write_text("id,title,text\n,A,first\n,B,second\n")
    assert list(read_passages(tmp_path / "t.csv")) == [make_passage("A", "first"), make_passage("B", "second")]
    (tmp_path / "f.jsonl").write_text('{"contents": "t\\nx"}\n{"id": 2, "contents": "x"}\n')
    for name in ("p.jsonl", "p.parquet"):
        read = list(read_passages(tmp_path / name))
        assert [p.title for p in read] == ["t", "one two three four five six", "y", "", "東" * 80], name
        assert [p.id for p in (*read[:2], read[3])] == ["1", "2", "4"] and read[2] == make_passage("y", "y"), name
    assert list(read_passages(tmp_path / "f.jsonl")) == [make_passage("t", "x"), Passage("2", "x", "x")]


def test_parquet_is_read_by_columns_and_errors_name_file_and_row(tmp_path, passages):
    path = tmp_path / "p.parquet"
    write_parquet(path, [{"embedding": [0.5], **row, "url": None} for row in flashrag_rows(passages + ODD)])
    assert list(read_passages(str(path))) == passages + ODD
    write_parquet(path, [{"title": "t", "body": "x", "docid": 1}])
    with pytest.raises(ValueError, match=r"p\.parquet: the fields are 'title', 'body', 'docid'; needed are id, title"):
        list(read_passages(path))
    write_parquet(path, [*rows_of(passages), {"id": "a", "title": "t", "text": None}])
    with pytest.raises(ValueError, match=r"p\.parquet: row 201: 'text' must be a string, got NoneType"):
        list(read_passages(path))
    for broken in (path.read_bytes()[:-9], b"PAR1", b""):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"p\.parquet: "):
            list(read_passages(path))


def test_a_folder_is_read_by_name(tmp_path, passages):
    write_parquet(tmp_path / "3.parquet", rows_of(passages[120:]))
    (tmp_path / "1.tsv").write_bytes(tsv(passages[:50]))
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(jsonl(flashrag_rows(passages[50:120]))))
    for name in ("README.md", ".gitattributes", "_SUCCESS"):
        (tmp_path / name).write_text("no passages")
    assert list(read_passages(tmp_path)) == passages

    (tmp_path / "more").mkdir()
    (tmp_path / "1.tsv").rename(tmp_path / "more" / "1.tsv")
    assert list(read_passages(tmp_path)) == passages[50:] + passages[:50]
    for name in ("one.md", "two.md"):
        (tmp_path / "more" / name).write_text("a note")
    with pytest.warns(
        UserWarning, match=r"its tables are read, and 3 files are not, such as 'README.md': keep notes in"
    ):
        assert list(read_passages(tmp_path)) == passages[50:] + passages[:50]
    (tmp_path / "LICENSE").write_text("a file that is perhaps a corpus is not passed over")
    with pytest.raises(ValueError, match="LICENSE: cannot tell the format"):
        read_passages(tmp_path)


def test_every_text_below_a_folder_is_read_and_what_is_not_is_said(tmp_path):
    notes, elsewhere = tmp_path / "notes", tmp_path / "elsewhere"
    (notes / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (notes / "how to read data.json.md").write_text("with a table's ending in its name")
    (notes / "sub" / "b.txt").write_text("b")
    (elsewhere / "c.txt").write_text("c")
    (notes / "linked").symlink_to(elsewhere)
    (notes / "sub" / "back").symlink_to(notes)  # a circle
    (notes / os.fsdecode(b"caf\xe9.txt")).write_text("d")
    found = [passage.id for passage in read_passages(notes)]
    assert sorted(found) == ["caf\ufffd.txt#1", "how to read data.json.md#1", "linked/c.txt#1", "sub/b.txt#1"]
    (notes / "e.html").write_text("e")
    with pytest.warns(UserWarning, match=r"1 of its files are neither .txt nor .md and are left out, such as 'e.html'"):
        read_passages(notes)


def test_a_source_that_cannot_be_read_is_refused_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    names = "p.pdf", "p", "p.gz", "p.jsonl.bz2", "p.parquet.gz"
    for name in (*names, "p.jsonl"):
        (tmp_path / name).touch()
    for source, error, message in (
        (tmp_path / "empty", ValueError, "there is no file of passages in it"),
        (tmp_path / "absent.jsonl", FileNotFoundError, "hf:owner/name"),
        ("hf:", ValueError, "names no data set"),
        *((tmp_path / name, ValueError, rf"{name}: cannot tell the format .*\.jsonl") for name in names),
    ):
        with pytest.raises(error, match=message):
            read_passages(source)
    assert list(read_passages(tmp_path / "p.jsonl")) == []
    with pytest.raises(ValueError, match="has no splits"):
        read_passages(tmp_path / "p.jsonl", split="train")


def test_a_saved_data_set(tmp_path, passages):
    one, two = (datasets.Dataset.from_list(rows_of(part)) for part in (passages[:120], passages[120:]))
    one.save_to_disk(tmp_path / "one", num_shards=3)
    assert list(read_passages(tmp_path / "one")) == passages[:120]

    datasets.DatasetDict(wiki=two).save_to_disk(tmp_path / "single")
    assert list(read_passages(tmp_path / "single")) == passages[120:]
    datasets.DatasetDict(train=one, test=two).save_to_disk(tmp_path / "double")
    assert list(read_passages(tmp_path / "double", split="test")) == passages[120:]
    for split in (None, "wiki"):
        with pytest.raises(ValueError, match="it must be one of: train, test"):
            read_passages(tmp_path / "double", split=split)

    (shard,) = (tmp_path / "single" / "wiki").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(ValueError, match="single: "):
        read_passages(tmp_path / "single")


def test_a_data_set_as_the_hub_serves_it(tmp_path, passages):
    rows = [{**row, "scores": [0.5]} for row in rows_of(passages)]
    (tmp_path / "train-1.jsonl").write_bytes(jsonl(rows[:120]))
    (tmp_path / "train-2.jsonl").write_bytes(jsonl(rows[120:]))
    assert list(read_passages(f"hf:{tmp_path}")) == passages
    with pytest.raises(ValueError, match="'test', it must be one of: train"):
        read_passages(f"hf:{tmp_path}", split="test")
    (tmp_path / "train-2.jsonl").write_bytes(jsonl(rows[120:]) + jsonl([{"id": "bad", "title": "t"}]))
    with pytest.raises(ValueError, match=r"hf:.*: row 201: 'text' must be a string, got NoneType"):
        list(read_passages(f"hf:{tmp_path}"))


def test_a_hub_that_accepts_and_never_answers_is_asked_one_thing(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(_detect_agent, "_registry", None)  # which the library reads for telemetry, within 3 s
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        for ask in (lambda: read_passages("hf:owner/name"), lambda: hub.check_model("owner/name")):
            start = time.monotonic()
            with pytest.raises(ValueError, match="timed out"):
                ask()
            assert time.monotonic() - start < 2


def test_without_a_network_the_error_says_what_to_do(monkeypatch):
    """At once: `load_dataset` would try for minutes."""
    unreachable = mock.Mock(side_effect=ConnectionError("Couldn't reach the Hub"))
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(ValueError, match=r"Couldn't reach.*hf download owner/name --repo-type dataset"):
        read_passages("hf:owner/name:en")


CONTENTS = [  # contents, the title of the row, and what they are split into
    ('"Oslo"\nIt has a harbour.', None, ("Oslo", "It has a harbour.")),
    ("Oslo\nIt has\na harbour.", None, ("Oslo", "It has\na harbour.")),
    ('"Heroes" (album)\nIt is', None, ('"Heroes" (album)', "It is")),
    ('"', None, ('"', '"')),
    ("a b c d e f g", None, ("a b c d e f", "a b c d e f g")),
    ('"Oslo"\nIt has a harbour.', "Oslo", ("Oslo", "It has a harbour.")),
    ("Oslo is big.\nIt has a harbour.", "Oslo", ("Oslo", "Oslo is big.\nIt has a harbour.")),
    ("Oslo", "Oslo", ("Oslo", "Oslo")),
]
ENTITIES = {
    "R&amp;B &quot;live&quot; &#39;99 &#xe9;": 'R&B "live" \'99 é',
    "AT&T & Co; &copy &unknown; B&sect": "AT&T & Co; &copy &unknown; B&sect",
    "&amp;lt;": "&lt;",
    "*p = &current; &notify; &section; &center;": "*p = &current; &notify; &section; &center;",
}


def test_contents_are_split_into_title_and_text_and_html_entities_become_characters_once():
    for contents, title, split in CONTENTS:
        assert split_contents(contents, title) == split
    for raw, read in ENTITIES.items():
        passage = make_passage(raw, f"x {raw}")
        assert (passage.title, passage.text) == (read, f"x {read}")


def test_an_index_in_the_folder_of_its_corpus_is_no_part_of_it(tmp_path, passages):
    notes, rows = tmp_path / "notes", tmp_path / "rows"
    notes.mkdir(), rows.mkdir()
    (notes / "oslo.md").write_text("# Oslo\n\nIt has a harbour.\n")
    (rows / "p.jsonl").write_bytes(jsonl(rows_of(passages)))
    for folder in (notes, rows):
        before = list(read_passages(folder))
        for _ in range(2):  # again, where the index is
            build_folder(folder, folder / "index")
            assert list(read_passages(folder)) == before
        with pytest.raises(ValueError, match="is an index, not a corpus: search it as it is, with index="):
            read_passages(folder / "index")


def test_names_of_columns_are_read_in_any_case_and_once_and_a_comment_in_code_is_no_heading(tmp_path):
    (tmp_path / "p.csv").write_text("ID,Title,Text\n1,A,one\n")
    assert list(read_passages(tmp_path / "p.csv")) == [Passage("1", "A", "one")]
    (tmp_path / "p.csv").write_text("id,title,text,Text\n1,A,one,two\n")
    with pytest.raises(ValueError, match=r"p\.csv:1: two columns are called 'text'"):
        list(read_passages(tmp_path / "p.csv"))
    code = "```sh\n# install it\npip install it\n```\n"
    for name, text, title in (("a", code + "\n# Real title\n\nText.\n", "Real title"), ("b", code, "b")):
        (tmp_path / f"{name}.md").write_text(text)
        assert {p.title for p in read_passages(tmp_path / f"{name}.md")} == {title}


MARKED = """---
layout: page
---
# Rome

Rome is **in** [Italy](http://x.y/a_(b) "t") and `code*a*b`, *well*, 2 * 3 * 4, a_snake_case, \\*.

## History ##
- [x] founded by _Romulus_[^1]
> a quote, <b>bold</b> <https://a.b/c>

| a | b |
|---|:-:|
| 1 | 2 |
```python
# a comment
x = a * b * c
```
![picture](p.png) [reference][1]

[1]: http://z
[2]: <http://z/a b> "its title"
[^1]: A *footnote*.
[3]: Lovelace, A. Notes.
"""


def test_markdown_loses_its_markup_and_does_not_repeat_its_heading(tmp_path):
    (tmp_path / "rome.md").write_text(MARKED)
    (passage,) = read_passages(tmp_path / "rome.md")
    assert passage.title == "Rome" and passage.text.splitlines() == [
        "Rome is in Italy and code*a*b, well, 2 * 3 * 4, a_snake_case, *.",
        "History",
        "founded by Romulus",
        "a quote, bold https://a.b/c",
        "a, b",
        "1, 2",
        "# a comment",
        "x = a * b * c",
        "picture reference",
        "A footnote.",
        "[3]: Lovelace, A. Notes.",
    ]
