"""The benchmarks without paragraphs, in the shapes that their authors, the hub and FlashRAG publish, in miniature."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from agent_envs import scoring
from agent_envs.data import Question, load_benchmark
from agent_envs.data.catalog import CATALOG, parser_of
from agent_envs.data.question import paragraph_key
from agent_envs.tasks.qa_data import load as load_task

pytestmark = pytest.mark.usefixtures("alone")
ALONE = [name for name, entry in CATALOG.items() if not entry.own_passages]
NORMALIZED = ["wilhelm street", "wilhelmstraße street", "wilhelmstraße"]
TRIVIA_ANSWER = {"Value": "Wilhelmstraße", "Aliases": ["Wilhelm Street"], "NormalizedAliases": NORMALIZED}
TRIVIA = {"Answer": TRIVIA_ANSWER, "EntityPages": [], "Question": "Where is it?", "QuestionId": "tc_1"}
HUB_ANSWER = {"value": "Wilhelmstraße", "aliases": ["Wilhelm Street"], "normalized_aliases": NORMALIZED}
TRIVIA_HUB = {"question": "Where is it?", "question_id": "tc_1", "answer": HUB_ANSWER}
POPQA = {"id": 4222362, "prop": "occupation", "obj": "director", "question": "What is Ada Kern's occupation?"}
POPQA["possible_answers"] = '["director", "film \\"director\\""]'
GSM8K = {"question": "How many?", "answer": "She has 3*4=<<3*4=12>>12 boxes of 100.\n#### 1,200"}
FLASHRAG = {"id": "test_0", "question": "who wrote it", "golden_answers": ["Ada Kern", "Kern", "Ada Kern"]}


def write_jsonl(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def write_table(path, rows, delimiter):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_trivia(path, *questions, **options):
    whole = {"Data": list(questions), "Domain": "Wikipedia", "VerifiedEval": False, "Version": 1.0}
    path.write_text(json.dumps(whole, **options), "utf-8")
    return path


def load(name, data, split="validation", **arguments):
    return load_benchmark(name, split=split, data=data, questions_only=True, **arguments)


def test_bamboogle_and_nq(tmp_path):
    rows = [{"Question": 'Who was president, when "it" was found?', "Answer": "Taft, William"}]
    write_table(tmp_path / "Bamboogle Prerelease - Sheet1.csv", rows, ",")
    (question,) = load("bamboogle", tmp_path).questions
    assert (question.question, question.golds) == (rows[0]["Question"], ("Taft, William",))
    (again,) = load("bamboogle", write_jsonl(tmp_path / "hub.jsonl", *rows)).questions
    assert again == question, "the id is a hash of the question"
    answers = ["14 December 1972 UTC", "December 1972", "", "December 1972"]
    rows = [{"question": "when was it", "answer": answers}, {"question": "who was it", "answer": ["The aorta"]}]
    write_jsonl(tmp_path / "NQ-open.dev.jsonl", *rows)
    first, second = load("nq", tmp_path).questions
    assert first.golds == ("14 December 1972 UTC", "December 1972") and second.golds == ("The aorta",)
    assert first.id != second.id and first.supporting_titles == ()
    write_jsonl(tmp_path / "NQ-open.train.jsonl", rows[1])
    assert load("nq", tmp_path, "train").questions == (second,)


@pytest.mark.parametrize("indent", [None, 4])
def test_triviaqa(tmp_path, indent):
    verified = {**TRIVIA, "QuestionId": "tc_2", "Answer": {**TRIVIA_ANSWER, "HumanAnswers": ["W St"]}}
    write_trivia(tmp_path / "wikipedia-dev.json", TRIVIA, verified, indent=indent)
    first, second = load("triviaqa", tmp_path).questions
    assert first == Question("tc_1", "Where is it?", "Wilhelmstraße", aliases=tuple(NORMALIZED))
    assert second.golds == (*first.golds, "W St")
    assert load("triviaqa", write_jsonl(tmp_path / "hub.jsonl", TRIVIA_HUB)).questions == (first,)


def test_triviaqa_files_lie_in_a_folder_of_their_own(tmp_path):
    (tmp_path / "triviaqa" / "qa").mkdir(parents=True)
    write_trivia(tmp_path / "triviaqa" / "qa" / "wikipedia-train.json", TRIVIA)
    benchmark = load("triviaqa", tmp_path, "train")
    assert benchmark.source == "local:qa/wikipedia-train.json"
    write_trivia(tmp_path / "unfiltered-web-train.json", TRIVIA, {**TRIVIA, "QuestionId": "tc_2"})
    assert len(load("triviaqa", tmp_path, "train").questions) == 2, "the open-domain questions come first"


def test_popqa(tmp_path):
    write_table(tmp_path / "popQA.tsv", [POPQA], "\t")
    (question,) = load("popqa", tmp_path).questions
    rest = {"aliases": ('film "director"',), "type": "occupation"}
    assert question == Question("4222362", POPQA["question"], "director", **rest)
    listed = {**POPQA, "possible_answers": ["director", 'film "director"']}
    assert load("popqa", write_jsonl(tmp_path / "hub.jsonl", listed)).questions == (question,)


def test_gsm8k(tmp_path):
    rows = [GSM8K, {**GSM8K, "question": "Less?", "answer": "#### -3.50"}]
    write_jsonl(tmp_path / "test.jsonl", *rows)
    assert [question.golds for question in load("gsm8k", tmp_path).questions] == [("1200",), ("-3.50",)]
    with pytest.raises(FileNotFoundError, match=r"none of gsm8k\.train\.jsonl, train\.jsonl"):
        load("gsm8k", tmp_path, "train")


@pytest.mark.parametrize("name", [name for name in CATALOG if name != "gsm8k"])
def test_flashrag_has_a_folder_a_benchmark(tmp_path, name):
    file = "test.jsonl" if name in ALONE else "dev.jsonl"
    path = write_jsonl(tmp_path / name / file, FLASHRAG)
    for place in (tmp_path, tmp_path / name, path):
        benchmark = load(name, place)
        assert benchmark.questions == (Question("test_0", "who wrote it", "Ada Kern", aliases=("Kern",)),)
        assert benchmark.source == f"local:{name}/{file}"
    (tmp_path / "other").mkdir()
    path.rename(tmp_path / "other" / file)
    with pytest.raises(FileNotFoundError, match=f"{name}/{file}"):
        load(name, tmp_path / "other")


def test_a_changed_file_in_flashrags_folder_is_read_again(tmp_path):
    corpus = write_jsonl(tmp_path / "passages.jsonl", {"id": "1", "title": "x", "text": "y"})
    for count in (1, 2):
        rows = [{**FLASHRAG, "id": f"test_{i}"} for i in range(count)]
        write_jsonl(tmp_path / "fr" / "nq" / "test.jsonl", *rows)
        found = load_task("nq", split="validation", data=str(tmp_path / "fr"), corpus=str(corpus))
        assert len(found.questions) == count


def test_flashrag_keeps_the_support_of_multi_hop_questions(tmp_path):
    facts = {"title": ["Nebelmeer", "Ada Kern", "Ada Kern"], "sent_id": [0, 0, 1]}
    row = {**FLASHRAG, "metadata": {"type": "bridge", "supporting_facts": facts, "context": {"title": []}}}
    (question,) = load("hotpotqa", write_jsonl(tmp_path / "a.jsonl", row)).questions
    assert question.supporting_titles == ("Nebelmeer", "Ada Kern") and question.type == "bridge"

    steps = [{"question": "Who?", "answer": "Ada Kern", "support_paragraph": {"title": "Nebelmeer", "idx": 1}}]
    row = {**FLASHRAG, "metadata": {"metadata": {"question_decomposition": steps}}}
    (question,) = load("musique", write_jsonl(tmp_path / "b.jsonl", row)).questions
    assert question.supporting_titles == ("Nebelmeer",)


SENTENCES = [["Nebelmeer is a film.", " It is by Ada Kern."], ["Ada Kern is of Zürich."], ["Oslo is a city."]]
CONTEXT = {"title": ["Nebelmeer", "Ada Kern", "Oslo"], "sentences": SENTENCES}


@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa"])
def test_contexts_in_flashrag_metadata_are_what_is_searched(tmp_path, name):
    facts = {"title": ["Nebelmeer", "Ada Kern"], "sent_id": [1, 0]}
    row = {**FLASHRAG, "metadata": {"type": "bridge", "level": "hard", "supporting_facts": facts, "context": CONTEXT}}
    benchmark = load_benchmark(name, split="validation", data=write_jsonl(tmp_path / "dev.jsonl", row))
    assert [passage.title for passage in benchmark.passages] == ["Nebelmeer", "Ada Kern", "Oslo"]
    assert benchmark.passages[0].text == "Nebelmeer is a film. It is by Ada Kern."
    keys = tuple(paragraph_key(passage.text) for passage in benchmark.passages[:2])
    assert benchmark.questions[0].supporting_paragraphs == keys
    content = {"title": CONTEXT["title"], "content": SENTENCES}  # its 2WikiMultihopQA
    row["metadata"]["context"] = content
    again = load_benchmark(name, split="validation", data=write_jsonl(tmp_path / "content.jsonl", row))
    assert again.questions == benchmark.questions and again.passages == benchmark.passages
    lacking = {**CONTEXT, "title": ["Nebelmeer", "Bern", "Oslo"]}
    row["metadata"]["context"] = lacking
    with pytest.warns(match="lack a gold paragraph"):
        benchmark = load_benchmark(name, split="validation", data=write_jsonl(tmp_path / "other.jsonl", row))
    assert benchmark.questions[0].supporting_paragraphs == ()


def test_paragraphs_in_flashrag_metadata_are_what_is_searched(tmp_path):
    paragraphs = [
        {"idx": 0, "title": "Ada Kern", "paragraph_text": "Ada Kern liked cats.", "is_supporting": False},
        {"idx": 1, "title": "Ada Kern", "paragraph_text": "Ada Kern is of Zürich.", "is_supporting": True},
    ]
    for number, steps in enumerate(([], [{"question": "Who?", "answer": "x", "support_paragraph": paragraphs[1]}])):
        row = {**FLASHRAG, "metadata": {"paragraphs": paragraphs, "question_decomposition": steps}}
        path = write_jsonl(tmp_path / f"{number}.jsonl", row)
        benchmark = load_benchmark("musique", split="validation", data=path)
        assert [passage.text for passage in benchmark.passages] == ["Ada Kern liked cats.", "Ada Kern is of Zürich."]
        assert benchmark.questions[0].supporting_titles == ("Ada Kern",)
        assert benchmark.questions[0].supporting_paragraphs == (paragraph_key("Ada Kern is of Zürich."),)


def search_r1(source, number, **fields):
    prompt = [{"role": "user", "content": f"Answer the given question. Question: who made film {number}?\n"}]
    return {
        **{"id": f"test_{number}", "question": f"who made film {number}?", "golden_answers": ["Ada Kern", "Kern"]},
        **{"data_source": source, "prompt": prompt, "ability": "fact-reasoning"},
        **{"reward_model": {"style": "rule", "ground_truth": {"target": ["Ada Kern", "Kern"]}}},
        **{"extra_info": {"split": "test", "index": number}, **fields},
    }


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_search_r1_has_several_benchmarks_in_a_file(tmp_path, extension):
    metadata = {"type": "bridge", "supporting_facts": {"title": ["Nebelmeer"], "sent_id": [0]}, "context": CONTEXT}
    rows = [
        *(search_r1("nq", 0, metadata=None), search_r1("hotpotqa", 1, metadata=metadata)),
        search_r1("searchR1_hotpotqa", 2, metadata=metadata, golden_answers=None),
        search_r1("bamboogle", 3, metadata=None),
    ]
    path = tmp_path / f"test.{extension}"
    if extension == "jsonl":
        write_jsonl(path, *rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    hotpot = load_benchmark("hotpotqa", split="validation", data=path)
    assert [question.id for question in hotpot.questions] == ["test_1", "test_2"] and len(hotpot.passages) == 3
    assert {question.golds for question in hotpot.questions} == {("Ada Kern", "Kern")}
    assert hotpot.questions[0].type == "bridge" and len(hotpot.questions[0].supporting_paragraphs) == 1
    (question,) = load("nq", path).questions
    assert question == Question("test_0", "who made film 0?", "Ada Kern", aliases=("Kern",))
    with pytest.raises(ValueError, match=rf"test\.{extension}: there is no question of this benchmark in it"):
        load("musique", path)
    path.rename(tmp_path / f"train.{extension}")
    if extension == "parquet":  # it is found in its folder, after the files of the authors
        assert load("nq", tmp_path, "train").source == f"local:{tmp_path.name}/train.parquet"
        write_jsonl(tmp_path / "NQ-open.train.jsonl", {"question": "who", "answer": ["x"]})
        assert load("nq", tmp_path, "train").source == f"local:{tmp_path.name}/NQ-open.train.jsonl"


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("triviaqa", [TRIVIA, {**TRIVIA, "Answer": {"Value": "x"}}], r":2 has no 'normalizedaliases'"),
        ("popqa", [{**POPQA, "possible_answers": "[]"}], r":1: 'possible_answers' holds no answer"),
        ("gsm8k", [GSM8K, {**GSM8K, "answer": "#### x"}], r":2: 'answer': there is no number"),
        ("nq", [{**FLASHRAG, "metadata": {"supporting_facts": 3}}], r":1: 'supporting_facts': expected pairs"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=rf"a\.jsonl{message}"):
        load(name, write_jsonl(tmp_path / "a.jsonl", *rows))


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("triviaqa", "a.json", b'{"Data": [{"QuestionId": "1"}]}', r"a\.json: record 1: there is no 'question'"),
        ("triviaqa", "a.json", b'{"Domain": "Web", "Data": [7]}', r"a\.json: record 1: expected an object, got 7"),
        ("triviaqa", "a.json", b'{"Data": [', r"a\.json: Expecting value"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, file, text, message):
    (tmp_path / file).write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path / file)


@pytest.mark.parametrize("name", ["bamboogle", "popqa"])
def test_a_split_that_does_not_exist_is_an_error_and_no_stand_in(tmp_path, name):
    for data in (None, tmp_path):
        with pytest.raises(ValueError, match=f"{CATALOG[name].title} has only a test split"):
            load(name, data, "train")


@pytest.mark.parametrize("name", ALONE)
def test_questions_without_passages_must_be_asked_for(tmp_path, name):
    row = {"id": "q1", "question": "Who?", "answer": "Ada Kern", "aliases": ["Kern"]}
    write_jsonl(tmp_path / f"{name}.validation.jsonl", row)
    advice = r"passages\.jsonl to search in: .* corpus=; an environment also takes an index with index="
    with pytest.raises(FileNotFoundError, match=advice):
        load_benchmark(name, split="validation", data=tmp_path)
    benchmark = load(name, tmp_path)
    assert benchmark.passages == () and benchmark.questions[0].golds == ("Ada Kern", "Kern")
    corpus = write_jsonl(tmp_path / "wiki" / "passages.jsonl", {"id": "1", "title": "Ada", "text": "Ada is."})
    benchmark = load_benchmark(name, split="validation", data=tmp_path, corpus=corpus)
    assert [passage.title for passage in benchmark.passages] == ["Ada"]
    with pytest.raises(ValueError, match=r"corpus= .* cannot go with questions_only"):
        load(name, tmp_path, corpus=corpus)


@pytest.mark.parametrize(
    ("name", "row", "prediction"),
    [
        ("nq", {"question": "who", "answer": ["Beyonce\u0301"]}, "Beyonc\u00e9"),
        ("triviaqa", TRIVIA, "the Wilhelmstraße_(street)"),
        ("popqa", POPQA, "A film director."),
    ],
)
def test_the_gold_is_right_by_the_metric_of_its_benchmark(name, row, prediction):
    golds = parser_of(name, None)(row).question.golds
    assert scoring.answer_scores(prediction, golds, scoring.normalizer(name)).em == 1.0


def test_questions_without_ids_get_one_each(tmp_path):
    """NQ-open's ids are made from the questions: one that is asked twice is counted twice, as its script does."""
    asked = ("who", "A"), ("why", "B"), ("who", "C"), ("who", "A")
    write_jsonl(tmp_path / "NQ-open.dev.jsonl", *({"question": text, "answer": [answer]} for text, answer in asked))
    found = load("nq", tmp_path).questions
    assert [question.answer for question in found] == ["A", "B", "C", "A"]
    first = found[0].id
    assert [found[2].id, found[3].id] == [f"{first}-2", f"{first}-3"] and found[1].id != first
