"""The formats that the authors publish, in miniature."""

import json
import warnings

import pytest

from agent_envs.data import Question, load_benchmark
from agent_envs.data.question import paragraph_key

CONTEXT = [
    ["Nebelmeer", ["Nebelmeer is a film.", " It was directed by Ada Kern."]],
    ["Ada Kern", ["Ada Kern is a director.", " She was born in Zürich."]],
    ["Void", []],
]
QUESTION = {"question": "Where was the director of Nebelmeer born?", "answer": "Zürich"}
FACTS = [["Nebelmeer", 0], ["Ada Kern", 0], ["Ada Kern", 1]]
HOTPOT = QUESTION | {"_id": "5a7", "type": "bridge", "level": "hard", "supporting_facts": FACTS, "context": CONTEXT}
TWO_WIKI = HOTPOT | {"type": "compositional", "evidences": [["Nebelmeer", "director", "Ada Kern"]], "answer_id": "Q72"}
TWO_WIKI["context"] = [
    ["Nebelmeer", ["Nebelmeer is a film.", "It was directed by Ada Kern."]],
    ["Ada Kern", ["Ada Kern was born in Zürich."]],
]
STEPS = [
    {"id": 1, "question": "Who directed Nebelmeer?", "answer": "Ada Kern", "paragraph_support_idx": 1},
    {"id": 2, "question": "Where was #1 born?", "answer": "Zürich", "paragraph_support_idx": 2},
]
PARAGRAPHS = [
    {"idx": 0, "title": "Ada Kern", "paragraph_text": "Ada Kern liked cats.", "is_supporting": False},
    {"idx": 1, "title": "Nebelmeer", "paragraph_text": "Nebelmeer is by Ada Kern.", "is_supporting": True},
    {"idx": 2, "title": "Ada Kern", "paragraph_text": "Ada Kern was born in Zürich.", "is_supporting": True},
]
MUSIQUE = QUESTION | {"id": "2hop__1_2", "answer_aliases": ["Zurich"], "answerable": True, "paragraphs": PARAGRAPHS}
MUSIQUE["question_decomposition"] = STEPS


GOLD = ("Nebelmeer is a film. It was directed by Ada Kern.", "Ada Kern is a director. She was born in Zürich.")


def write_json(path, *records):
    path.write_text(json.dumps(list(records)), "utf-8")
    return path


def write_jsonl(path, *records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


def write_passages(path):
    """The gold paragraphs."""
    rows = zip(("Nebelmeer", "Ada Kern"), GOLD, strict=True)
    return write_jsonl(path, *({"id": str(i), "title": title, "text": text} for i, (title, text) in enumerate(rows)))


def texts(benchmark):
    return [(passage.title, passage.text) for passage in benchmark.passages]


def test_hotpotqa(tmp_path):
    other = {**HOTPOT, "_id": "5a8", "question": "Who directed Nebelmeer?", "answer": "Ada Kern"}
    write_json(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOT, other)
    benchmark = load_benchmark("hotpotqa", split="validation", data=tmp_path)
    support = {"supporting_titles": ("Nebelmeer", "Ada Kern"), "supporting_paragraphs": tuple(map(paragraph_key, GOLD))}
    expected = Question(id="5a7", **QUESTION, type="bridge", **support)
    assert benchmark.questions[0] == expected
    assert [question.id for question in benchmark.questions] == ["5a7", "5a8"]
    assert texts(benchmark) == list(zip(("Nebelmeer", "Ada Kern"), GOLD, strict=True))
    assert benchmark.source == f"local:{tmp_path.name}/hotpot_dev_distractor_v1.json"


def test_two_wiki_with_and_without_its_aliases(tmp_path):
    path = write_json(tmp_path / "dev.json", TWO_WIKI)
    advice = r"no question has an alias.* put id_aliases\.json, .*2wikimultihop\), beside the official file"
    with pytest.warns(match=advice):
        benchmark = load_benchmark("2wikimultihopqa", split="validation", data=path)
    (question,) = benchmark.questions
    assert question.aliases == () and benchmark.source.endswith("/dev.json (without aliases)")

    folder = tmp_path / "with_aliases"
    folder.mkdir()
    write_json(folder / "dev.json", TWO_WIKI, {**TWO_WIKI, "_id": "none", "answer_id": None})
    aliases = {"Q_id": "Q72", "aliases": ["Zurich", "Zürich"], "demonyms": ["Zurich", "Zürcher"]}
    write_jsonl(folder / "id_aliases.json", {"Q_id": "Q1", "aliases": ["x"], "demonyms": []}, aliases)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        benchmark = load_benchmark("2wikimultihopqa", split="validation", data=folder)
    assert benchmark.source == "local:with_aliases/dev.json"
    assert [question.golds for question in benchmark.questions] == [("Zürich", "Zurich", "Zürcher"), ("Zürich",)]
    assert texts(benchmark)[0] == ("Nebelmeer", "Nebelmeer is a film. It was directed by Ada Kern.")


@pytest.mark.parametrize("searched", [None, "corpus", "index"])
def test_a_fullwiki_file_is_told_from_the_distractor_set(tmp_path, searched):
    """It has the same format, and contexts that a search found: most questions lack a gold paragraph."""
    lacking = {**HOTPOT, "context": [CONTEXT[0], ["Oslo", ["Oslo is a city."]]]}
    path = write_json(tmp_path / "hotpot_dev_fullwiki_v1.json", *[{**lacking, "_id": str(i)} for i in range(9)])
    arguments = {"questions_only": True} if searched == "index" else {}
    if searched == "corpus":
        arguments["corpus"] = write_passages(tmp_path / "wiki.jsonl")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        benchmark = load_benchmark("hotpotqa", split="validation", data=tmp_path, **arguments)
    said = [str(warning.message) for warning in caught]
    if searched:
        assert not said and "lack" not in benchmark.source, "its contexts are not what is searched"
    else:
        assert benchmark.source == f"local:{path.parent.name}/{path.name} (100% of the questions lack a gold paragraph)"
        assert len(said) == 1 and "A fullwiki file is like that, and is not the distractor set" in said[0]


def test_a_gold_paragraph_that_is_missing_now_and_then_is_no_fullwiki_file(tmp_path):
    """And a title is the same with HTML entities and without."""
    entities = [["Salt &amp; Sea", ["Salt & Sea is a film."]], CONTEXT[1]]
    rows = [
        {**HOTPOT, "supporting_facts": [["Salt & Sea", 0]], "context": entities, "_id": str(i), "answer": f"a{i}"}
        for i in range(30)
    ]
    lacking = {**HOTPOT, "supporting_facts": [["Bern", 0]]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_json(tmp_path / "a.json", lacking, *rows)
        benchmark = load_benchmark("hotpotqa", split="validation", data=path)
    assert [len(question.supporting_paragraphs) for question in benchmark.questions] == [0] + [1] * 30


HUB_FACTS = {"title": ["Nebelmeer", "Ada Kern"], "sent_id": [0, 0]}


@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa"])
@pytest.mark.parametrize(
    "change",
    [
        {"context": None},
        {"context": []},
        {"context": {"title": [], "sentences": []}},
        {"_id": None, "id": "5a7", "answer_id": None, "context": None, "supporting_facts": HUB_FACTS},
        {"_id": None, "id": "5a7", "answer_id": None, "context": None},
    ],
)
def test_rows_without_contexts_are_searched_in_a_corpus(tmp_path, name, change):
    row = {key: value for key, value in {**TWO_WIKI, **change}.items() if value is not None}
    path = write_json(tmp_path / "dev.json", row)
    with pytest.raises(FileNotFoundError, match=r"passages\.jsonl to search in"):
        load_benchmark(name, split="validation", data=path)
    write_passages(tmp_path / "passages.jsonl")
    write_jsonl(tmp_path / "id_aliases.json", {"Q_id": "Q72", "aliases": ["Zurich"], "demonyms": []})
    benchmark = load_benchmark(name, split="validation", data=path)
    (question,) = benchmark.questions
    assert (question.id, question.type) == ("5a7", "compositional")
    assert question.supporting_titles == ("Nebelmeer", "Ada Kern") and question.supporting_paragraphs == ()
    assert question.golds == (("Zürich", "Zurich") if name == "2wikimultihopqa" and "answer_id" in row else ("Zürich",))
    assert [passage.title for passage in benchmark.passages] == ["Nebelmeer", "Ada Kern"]


def test_musique(tmp_path):
    unanswerable = {**MUSIQUE, "answerable": False, "paragraphs": [{**PARAGRAPHS[0], "title": "Kern"}]}
    write_jsonl(tmp_path / "musique_full_v1.0_train.jsonl", MUSIQUE, unanswerable)
    benchmark = load_benchmark("musique", split="train", data=tmp_path)
    (question,) = benchmark.questions
    assert question.golds == ("Zürich", "Zurich")
    assert question.supporting_titles == ("Nebelmeer", "Ada Kern")
    assert question.supporting_paragraphs == tuple(paragraph_key(p["paragraph_text"]) for p in PARAGRAPHS[1:])
    assert [title for title, _ in texts(benchmark)] == ["Ada Kern", "Nebelmeer", "Ada Kern", "Kern"]


def test_html_entities_become_characters_in_questions_and_passages_alike(tmp_path):
    def escaped(value):
        return json.loads(json.dumps(value).replace("Ada Kern", "Ada &amp; Kern"))

    for name, record in (("hotpotqa", HOTPOT), ("2wikimultihopqa", TWO_WIKI), ("musique", MUSIQUE)):
        (tmp_path / f"{name}.json").write_text(json.dumps(escaped(record)) + "\n", encoding="utf-8")
        found = load_benchmark(name, split="validation", data=tmp_path / f"{name}.json")
        assert set(found.questions[0].supporting_titles) == {"Nebelmeer", "Ada & Kern"}
        assert "Ada & Kern" in {passage.title for passage in found.passages}
        assert "&amp;" not in repr(found.passages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": [["Nebelmeer"]]}, "expected pairs of 'title'"),
        ({"supporting_facts": [3]}, "'supporting_facts': expected pairs"),
        ({"context": [["Nebelmeer", ["\ud800"]]]}, "surrogates not allowed"),
    ],
)
def test_an_error_names_file_and_record(tmp_path, change, message):
    path = write_json(tmp_path / "dev.json", HOTPOT, {**HOTPOT, **change})
    with pytest.raises(ValueError, match=rf"dev\.json: record 2: .*{message}"):
        load_benchmark("hotpotqa", split="validation", data=path)


@pytest.mark.parametrize("row", [{"a": 1}, {"Q_id": 7}, {"Q_id": "Q72", "aliases": "Zurich"}])
def test_a_file_of_aliases_that_is_none_is_named(tmp_path, row):
    write_json(tmp_path / "dev.json", TWO_WIKI)
    write_jsonl(tmp_path / "id_aliases.json", {"Q_id": "Q1", "aliases": None}, row)
    with pytest.raises(ValueError, match=r"id_aliases\.json: record 2: expected an object with Q_id, aliases"):
        load_benchmark("2wikimultihopqa", split="validation", data=tmp_path)
