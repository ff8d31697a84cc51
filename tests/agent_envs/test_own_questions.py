"""AgentR1/QA-v0: questions of your own, from every format, split, searched, and refused in words that help."""

import contextlib
import csv
import json
import warnings
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrieval_index
from agent_envs.data import local
from agent_envs.data.own import _key, load_own
from agent_envs.data.question import paragraph_key
from agent_envs.data.rows import parse_records, parse_row
from agent_envs.integrations import Episode
from agent_envs.tasks.qa_data import load
from agent_envs.utils.scripts import roll_out

TOWNS = ("Arnheim", "Bellwick", "Corran", "Dunmore", "Eastwold", "Farley", "Gannet", "Holm", "Ickford", "Jarrow")
TEXT = "{} is a town on the river {}el. Its mayor is {}."
PASSAGES = [
    {"id": str(i), "title": town, "text": TEXT.format(town, town[:3], town[::-1].title())}
    for i, town in enumerate(TOWNS)
]
ASK = "Who is the mayor of {}?"
QUESTIONS = [
    {"id": f"q{i}", "question": ASK.format(town), "answer": town[::-1].title(), "supporting_titles": [town]}
    for i, town in enumerate(TOWNS[:3])
]


def write(path, rows):
    """In the format that the file's name says."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        flat = [{k: " | ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(flat[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(flat)
    return str(path)


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "towns" / "passages.jsonl", PASSAGES)


@pytest.fixture
def data(tmp_path, corpus):
    return write(tmp_path / "towns" / "my.jsonl", QUESTIONS)


def both(data, **arguments):
    return [load_own(data, split=split, **arguments) for split in ("train", "validation")]


def asked(benchmark):
    return sorted(question.question for question in benchmark.questions)


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_questions_and_passages(tmp_path, data, corpus, form):
    path = write(tmp_path / "other" / f"my.{form}", QUESTIONS)
    passages = write(tmp_path / "other" / f"texts.{form}", PASSAGES)
    for split in ("train", "validation"):
        plain, other = load_own(data, split=split, corpus=corpus), load_own(path, split=split, corpus=passages)
        assert plain.questions == other.questions and plain.passages == other.passages and len(plain.passages) == 10


@pytest.mark.parametrize(
    ("to_data", "name"), [(lambda both: both["train"], "questions.parquet"), (lambda both: both, "questions")]
)
def test_a_dataset_in_memory_is_kept_as_a_file_by_its_content(tmp_path, corpus, monkeypatch, to_data, name):
    from datasets import Dataset, DatasetDict

    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    data = to_data(DatasetDict(train=Dataset.from_list(QUESTIONS), test=Dataset.from_list(QUESTIONS[:1])))
    env = gymnasium.make("AgentR1/QA-v0", data=data, corpus=corpus)
    assert {question.id for question in env.unwrapped.questions} < {question["id"] for question in QUESTIONS}
    assert [path.name for path in (tmp_path / "cache" / "datasets").glob("*/*")] == [name]


def test_the_fields_of_a_row(tmp_path):
    rows = [
        {"question": "Born when?", "answers": ["1921", "in 1921"], "context": ["Ada was born in 1921."], "type": "date"},
        {"Question": "How many?", "Answer": 42, "contexts": [{"title": "A", "text": "Forty-two."}]},
        {"question": "Who?", "answer": "Ada", "answers": ["Ada", "A."], "golden_answers": "A. | L", "aliases": ["Love"],
         "answer_aliases": ["Countess"], "question_id": 7},
        {"question": "Where?", "answers": {"text": ["Oslo"], "answer_start": [3]}, "context": "In Oslo.", "title": "B"},
        {"question": "Which?", "answers": "Bo | Bob", "supporting_titles": "A | B | A",
         "paragraphs": [{"title": "A", "text": "Forty-two."}, {"title": "B", "text": "In Oslo."}]},
        {"question": "How small?", "answers": [5e-5, 0.1]},
    ]  # fmt: skip
    found = load_own(write(tmp_path / "rows.jsonl", rows), split="validation", holdout=1)
    assert [q.golds for q in found.questions] == [
        ("1921", "in 1921"),
        ("42",),
        ("Ada", "A.", "L", "Love", "Countess"),
        ("Oslo",),
        ("Bo", "Bob"),
        ("0.00005", "0.1"),
    ]
    assert found.questions[0].type == "date" and found.questions[2].id == "7"
    assert found.questions[4].supporting_titles == ("A", "B", "A")
    keys = found.questions[4].supporting_paragraphs
    assert keys[0] == keys[2] != keys[1] and len(keys) == 3
    assert [p.title for p in found.passages] == ["Ada was born in 1921.", "A", "B"]


def test_files_of_flashrag_and_search_r1_load_as_they_are(tmp_path):
    def flashrag(id, question, golds):
        return {"id": id, "question": question, "golden_answers": golds}

    rows = [flashrag(f"train_{i}", f"Q{i}?", ["a", "b"]) | {"metadata": {}} for i in range(4)]
    write(tmp_path / "nq" / "train.jsonl", rows)
    for part in ("dev", "test"):
        write(tmp_path / "nq" / f"{part}.jsonl", [flashrag(f"{part}_0", f"Q{part[0]}?", ["c"])])
    train, held_out = both(tmp_path / "nq", index="http://127.0.0.1:9")
    assert len(train.questions) == 4 and asked(held_out) == ["Qd?"] and train.questions[0].golds == ("a", "b")
    assert '"dev" held out as the data says' in held_out.source and held_out.source.startswith("nq (local:")

    for part in ("train", "test"):
        rows = [
            flashrag(f"{part}_{i}", f"{source} {part} {i}?", ["x"])
            | {"data_source": source, "ability": "fact-reasoning", "extra_info": {"index": i, "split": part}}
            | {"prompt": [{"role": "user", "content": f"Answer the given question. Question: {source} {i}?"}]}
            | {"reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}}}
            for source in ("nq", "hotpotqa")
            for i in range(2)
        ]
        write(tmp_path / "r1" / f"{part}.parquet", rows)
    train, held_out = both(tmp_path / "r1", index="http://127.0.0.1:9")
    assert [q.id for q in train.questions] == ["nq/train_0", "nq/train_1", "hotpotqa/train_0", "hotpotqa/train_1"]
    assert asked(held_out) == ["hotpotqa test 0?", "hotpotqa test 1?", "nq test 0?", "nq test 1?"]


def test_a_seed_splits_what_the_data_does_not(tmp_path, corpus, capsys):
    rows = [{"question": f"What is {n}?", "answer": str(n)} for n in range(20)]
    path = write(tmp_path / "numbers.jsonl", [*rows, {"question": "what is  3", "answer": "three"}])
    train, held_out = both(path, corpus=corpus, name="Numbers")
    assert len(held_out.questions) == 5 and len(train.questions) == 16 and not {*asked(train)} & {*asked(held_out)}
    assert {"What is 3?", "what is  3"} <= {*asked(held_out)}  # however it is spelled, it is on one side
    assert held_out.source.startswith("Numbers (local:") and "5 of 21 questions held out by seed 0" in held_out.source
    said = capsys.readouterr().err
    assert said.count("Numbers: 16 questions to train on; 5 of 21 questions held out by seed 0.") == 1
    assert "known to ±0.45" in said and "16 questions are learned by heart" in said and "thousands to train" in said
    turned = write(tmp_path / "turned.jsonl", [{"question": "what is  3", "answer": "three"}, *rows[::-1]])
    assert asked(both(turned, corpus=corpus)[1]) == asked(held_out)
    assert asked(both(path, corpus=corpus, split_seed=1)[1]) != asked(held_out)
    assert len(both(path, corpus=corpus, holdout=2)[1].questions) == 11


def test_what_the_rows_say_is_held_out(tmp_path, corpus):
    rows = [{**row, "split": split} for row, split in zip(QUESTIONS, ("train", "dev", "test"), strict=True)]
    train, held_out = both(write(tmp_path / "my.csv", rows), corpus=corpus)
    assert [q.id for q in train.questions] == ["q0"] and [q.id for q in held_out.questions] == ["q1"]
    with pytest.raises(ValueError, match="some rows have a 'split' and others have none"):
        both(write(tmp_path / "mixed.jsonl", [rows[0], QUESTIONS[1]]), corpus=corpus)
    with pytest.raises(ValueError, match="no question to train on"):
        both(write(tmp_path / "held.jsonl", rows[1:]), corpus=corpus)


def test_a_file_of_a_folder_is_what_its_name_says(tmp_path, corpus):
    write(tmp_path / "held" / "test.jsonl", QUESTIONS)
    for holdout in (0, 1):
        assert len(load_own(tmp_path / "held", split="validation", corpus=corpus, holdout=holdout).questions) == 3
    with pytest.raises(ValueError, match="no question to train on"):
        load_own(tmp_path / "held", split="train", corpus=corpus)
    write(tmp_path / "taught" / "train.jsonl", QUESTIONS)
    assert [len(part.questions) for part in both(tmp_path / "taught", corpus=corpus)] == [2, 1]


def test_what_is_in_both_splits_is_left_out_of_training_with_a_warning(tmp_path, corpus):
    other = {"id": "q0", "question": "Where is Holm?", "answer": "far"}  # the id of another question
    write(tmp_path / "own" / "train.jsonl", [*QUESTIONS, {"question": "where is HOLM", "answer": "far"}])
    write(tmp_path / "own" / "validation.jsonl", [other])
    with pytest.warns(UserWarning, match="1 of 4 training questions are held out too; they are left out of training"):
        train, held_out = both(tmp_path / "own", corpus=corpus)
    assert asked(train) == sorted(row["question"] for row in QUESTIONS)
    assert [q.id for q in train.questions] == ["train/q0", "q1", "q2"] and held_out.questions[0].id == "q0"


def test_what_is_searched(tmp_path, data, corpus):
    beside = load_own(data, split="train")  # passages.jsonl beside the questions
    assert len(beside.passages) == 10 and beside.source.endswith(" + corpus towns/passages.jsonl")
    with_contexts = [row | {"contexts": ["A town."]} for row in QUESTIONS]
    both_ways = write(Path(data).parent / "with-contexts.jsonl", with_contexts)
    assert load_own(both_ways, split="train").passages == beside.passages  # and not the contexts
    apart = load_own(write(tmp_path / "apart" / "my.jsonl", with_contexts), split="train")
    assert [passage.text for passage in apart.passages] == ["A town."] and "corpus" not in apart.source
    alone = write(tmp_path / "alone" / "my.jsonl", QUESTIONS)
    (tmp_path / "empty.jsonl").write_text("")
    blank = write(tmp_path / "blank.jsonl", [{"id": "1", "title": "A", "text": " "}])
    for arguments, error, message in (
        ({}, FileNotFoundError, "nothing to search: give corpus=FILE_OR_FOLDER or index="),
        ({"corpus": corpus, "index": corpus}, ValueError, "give corpus= or index=, not both"),
        ({"corpus": tmp_path / "empty.jsonl"}, ValueError, "there is no passage in it"),
        ({"corpus": blank}, ValueError, "no text in its passages"),
    ):
        with pytest.raises(error, match=message):
            load_own(alone, split="train", **arguments)
    with pytest.warns(UserWarning, match="lack a gold paragraph"):
        load_own(data, split="train", corpus=write(tmp_path / "few.jsonl", PASSAGES[5:]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"query": "Who?", "answer": "Ada"}], r"my\.jsonl:1: there is no 'question'; .* hold anything are 'query', 'answer'"),
        ([{}], r":1: there is no 'question'; no field holds anything"),
        ([{"question": "Who?", "answer": {"name": "Ada"}}], r":1: 'answer': expected text, a number or a list, got \{'name"),
        ([{"question": "Who?", "answer": "x", "contexts": [5]}], r":1: 'contexts': expected texts, or objects .* got 5"),
        ([{"question": "Who?", "answer": "x", "question_decomposition": [5]}], ":1: .question_decomposition.: expected an obj"),
        ([{"question": "Who?", "label": "Ada"}], r":1: there is no 'answer' and no 'answers'; .* 'question', 'label'"),
        ([{"question": "Who?", "answers": []}], r":1: 'answers' holds no answer"),
        ([{"question": "Who?", "answer": "x", "aliases": [True]}], r":1: 'aliases': expected text or a number, got True"),
        ([{"question": "Who?", "answer": "x", "supporting_facts": [["x"]]}], r":1: 'supporting_facts': expected"),
        ([{"data_source": "x", "prompt": [], "reward_model": {"ground_truth": "1"}}], ":1: a row of verl needs a 'question'"),
        ([{"prompt": [{"role": "user", "content": [{"type": "image"}]}], "reward_model": {}}], "a question is text"),
        ([{"prompt": ["Who?"], "reward_model": {"ground_truth": "1"}}], ":1: 'prompt': expected an object, got 'Who"),
        ([{"question": ["Who?"], "answer": "Ada"}], r":1: 'question': expected text or a number, got \["),
        ([{"question": "Who?", "answer": "Ada", "split": "holdout"}], r":1: 'split' must be one of train, training, "),
        ([{"id": 1, "question": "A?", "answer": "a"}, {"id": 1, "question": "B?", "answer": "b"}], r":2: the id '1' is that of"),
        ([["Who?", "Ada"]], r":1: expected an object"),
        ([{"question": "Who?", "answer": "\ud800"}], r":1: 'answer': a lone surrogate"),
        ([{"question": " ", "answer": "x"}], r":1: 'question' is empty"),
        ([{"id": True, "question": "Who?", "answer": "x"}], r":1: 'id': expected text or a number, got True"),
        ([], r"my\.jsonl: there is no question in it"),
        ([{"question": "Only one?", "answer": "yes"}], "no question to train on, 1 of 1 questions held out by seed 0: give more"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line_that_says_where_and_what(tmp_path, corpus, rows, message):
    with pytest.raises(ValueError, match=message) as said:
        load_own(write(tmp_path / "my.jsonl", rows), split="train", corpus=corpus)
    assert "\n" not in str(said.value)


def test_paths_that_are_none(tmp_path, corpus):
    (tmp_path / "my.xlsx").write_text("")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match="split must be one of train, validation, got 'test'"):
        load_own("rows.jsonl", split="test")
    with pytest.raises(ValueError, match=r"give your questions with data=.*docs/own_data\.md"):
        gymnasium.make("AgentR1/QA-v0")
    for name, error, message in (
        ("nowhere.jsonl", FileNotFoundError, "data: there is no file or folder"),
        ("my.xlsx", ValueError, r"cannot tell the format by the name; known are \.jsonl"),
        ("bare", ValueError, "there is no file of questions in it"),
    ):
        with pytest.raises(error, match=message):
            load_own(tmp_path / name, split="train")


def test_the_environment_speaks_the_users_words(data, corpus):
    env = gymnasium.make("AgentR1/QA-v0", data=data, name="Town guide", instructions="You guide visitors.").unwrapped
    question, info = env.reset(seed=0)
    assert info["source"].startswith("Town guide (local:") and "hotpot" not in info["source"].lower()
    assert info["instructions"].startswith("You guide visitors. ") and "Wikipedia" not in info["instructions"]
    episode = roll_out(env, env.SCRIPTS["oracle"], seed=0)
    assert episode[-1]["em"] == 1.0 and episode[-1]["support_recall"] == 1.0
    messages = Episode("AgentR1/QA-v0", data=data, instructions="You guide visitors.").start(seed=0)
    assert messages[0]["content"] == info["instructions"] and messages[1]["content"] == question


def test_fields_of_other_formats_hide_none_of_a_rows_own(tmp_path):
    """A row with metadata of the user's, or a data_source, is not one of FlashRAG for that."""
    contexts = [{"title": "T", "text": "x is here."}]
    own = {"aliases": ["y"], "type": "bridge", "supporting_titles": ["T"], "contexts": contexts}
    rows = [{"question": f"What is {n}?", "golden_answers": ["x"]} | own for n in range(3)]
    rows[0]["metadata"], rows[1]["data_source"] = {"src": "web"}, "my-crm"
    write(tmp_path / "o" / "train.jsonl", rows)
    write(
        tmp_path / "p" / "rows.jsonl", [{"question": "Who?", "answer": "x", "metadata": {"context": "a call"}, **own}]
    )
    (passage,) = load_own(tmp_path / "p", split="validation", holdout=1).passages
    assert passage.text == "x is here."
    assert parse_row({"question": "Who?", "answer": "x", "metadata": {"context": "a call"}}).passages == []
    for question in load_own(tmp_path / "o", split="train").questions:
        assert (question.aliases, question.type, question.supporting_titles) == (("y",), "bridge", ("T",))


def test_a_changed_file_is_read_again_and_so_is_one_with_another_name(tmp_path, data, corpus):
    assert len(both(data)[0].questions) == len(load("own", data=data).questions) == 2
    write(Path(data), [*QUESTIONS, {"question": "Who is the mayor of Dunmore?", "answer": "Eromnud"}])
    assert len(both(data)[0].questions) == len(load("own", data=data).questions) == 3
    before = load("own", data=data)
    assert load("own", data=data) is before
    write(Path(corpus), [*PASSAGES, {"id": "new", "title": "Kell", "text": "Kell is new."}])
    assert len(load("own", data=data).searcher.corpus) == 11
    for name, n in (("a", range(10)), ("b", range(10, 20))):  # names say which questions are held out
        write(tmp_path / "n" / f"{name}.jsonl", [{"question": f"What is {i}?", "answer": str(i)} for i in n])
    before = load("own", data=str(tmp_path / "n"), corpus=corpus)
    for name, then in (("a", "train"), ("b", "validation")):
        (tmp_path / "n" / f"{name}.jsonl").rename(tmp_path / "n" / f"{then}.jsonl")
    assert len(before.questions) != len(load("own", data=str(tmp_path / "n"), corpus=corpus).questions) == 10


def test_one_title_of_two_texts_is_evidence_by_its_title(tmp_path):
    """Which of them is meant is not known: neither alone is."""
    texts = ["Tarn was founded by Mira.", "Its market opens on Friday."]
    row = {"question": "Who?", "answer": "Mira", "supporting_titles": ["Tarn"]}
    row["contexts"] = [{"title": "Tarn", "text": text} for text in texts]
    found = load_own(write(tmp_path / "rows.jsonl", [row]), split="validation", holdout=1)
    assert (found.questions[0].supporting_titles, found.questions[0].supporting_paragraphs) == (("Tarn",), ())
    row["supporting_paragraphs"] = texts
    with pytest.raises(ValueError, match="one for each of supporting_titles, got 2 for 1; repeat a title that two"):
        load_own(write(tmp_path / "other.jsonl", [row]), split="validation", holdout=1)


def test_rows_of_verl(tmp_path, corpus):
    """The question from ``extra_info`` or the prompt, the answer in each of its forms, the split from ``extra_info``."""
    asked = {"role": "user", "content": [{"type": "text", "text": "Which "}, {"type": "text", "text": "town?"}]}
    ask = [{"role": "system", "content": "Think."}, {"role": "user", "content": "Which day?"}]
    given = [
        (ask, "7", "train"), (ask, ["a", "b"], "train"),
        ([*ask, {"role": "assistant", "content": "7"}, asked], {"target": ["c"]}, "train"),
        ("Which year?", "8", "train"), (json.dumps([{"role": "user", "content": "Is it?"}]), {"target": True}, "test"),
    ]  # fmt: skip
    rows = [
        {
            "data_source": "openai/gsm8k", "prompt": prompt, "ability": "math",
            "reward_model": {"ground_truth": truth, "style": "rule"},
            "extra_info": {"split": split, "index": i % 4} | ({"question": "Q1?"} if i == 1 else {}),
        }
        for i, (prompt, truth, split) in enumerate(given)
    ]  # fmt: skip
    path = write(tmp_path / "rows.jsonl", rows)
    train, held_out = (load_own(path, split=split, corpus=corpus).questions for split in ("train", "validation"))
    expected = [("Which day?", ("7",)), ("Q1?", ("a", "b")), ("Which town?", ("c",)), ("Which year?", ("8",))]
    assert [(q.question, q.golds) for q in train] == expected
    assert [(q.question, q.golds) for q in held_out] == [("Is it?", ("yes",))]


def test_queries_of_beir_with_the_ids_of_their_passages(tmp_path):
    corpus = {"Tarn": ["Tarn is old.", "Mira rules it."], "Arn": ["A river."]}
    (tmp_path / "corpus.json").write_text(json.dumps(corpus))  # one object of sentences by title
    ids = {passage.title: passage.id for passage in retrieval_index.read_passages(tmp_path / "corpus.json")}
    rows = [{"_id": "q1", "text": "Who rules Tarn?", "answer": "Mira", "supporting_ids": [ids["Tarn"]]}]
    rows += [{"_id": "q2", "text": "Is Arn a river?", "answer": True, "supporting_ids": ["gone"]}]
    with pytest.warns(UserWarning, match="1 of 2 supporting_ids are not in the corpus: 'gone'"):
        found = load_own(write(tmp_path / "queries.jsonl", rows), split="validation", holdout=1)
    first, second = found.questions
    assert (first.question, first.supporting_titles, first.golds) == ("Who rules Tarn?", ("Tarn",), ("Mira",))
    assert first.supporting_paragraphs == (paragraph_key("Tarn is old. Mira rules it."),)
    assert (second.golds, second.supporting_titles) == (("yes",), ())


def test_ids_stay_apart_where_both_splits_count_from_one(tmp_path, corpus):
    for split, ids in (("train", ("1", "train/1")), ("validation", ("1",))):
        rows = [{"id": id, "question": f"{split} {id}?", "answer": "x"} for id in ids]
        write(tmp_path / "rows" / f"{split}.jsonl", rows)
    train = load_own(tmp_path / "rows", split="train", corpus=corpus).questions
    assert [question.id for question in train] == ["train/train/1", "train/1"]


def test_of_several_files_those_that_are_read_are_named(tmp_path, corpus):
    for name in ("train", "more"):
        write(tmp_path / "folder" / f"{name}.jsonl", QUESTIONS)
    with pytest.warns(UserWarning, match=r"only files that name a split are read \(train\.jsonl\), not more\.jsonl"):
        load_own(tmp_path / "folder", split="train", corpus=corpus)
    for word in ("train", "dev"):
        write(tmp_path / "held" / f"{word}.jsonl", [{"question": f"Who {word}?", "answer": "Mira"}])
    write(tmp_path / "held" / "test.jsonl", [{"question": "Who?", "answer": ""}])  # as the test files of benchmarks
    assert asked(load_own(tmp_path / "held", split="validation", corpus=corpus)) == ["Who dev?"]


def test_an_index_that_was_built_again_is_searched_anew(tmp_path, data):
    for text in ("old text", "new text"):
        retrieval_index.build([retrieval_index.Passage("1", "Arnheim", text)]).save(tmp_path / "index")
        env = gymnasium.make("AgentR1/QA-v0", data=str(data), index=str(tmp_path / "index"))
        env.reset(seed=0)
        assert text in env.step("<search>Arnheim</search>")[0]


def test_supporting_ids_name_passages_of_an_index(tmp_path, corpus):
    index = str(tmp_path / "index")
    retrieval_index.build(retrieval_index.read_passages(corpus)).save(index)
    rows = [
        {"question": f"Who rules {town}?", "answer": "Mira", "supporting_ids": [str(i)]} for i, town in enumerate(TOWNS)
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        questions = load("own", data=path, index=index, holdout=1, split="validation").questions
    assert [question.supporting_titles for question in questions] == [(town,) for town in TOWNS]
    with pytest.warns(UserWarning, match="supporting_ids need a local index, not a server"):
        load_own(path, split="validation", index="http://127.0.0.1:9", holdout=1)


def test_supporting_ids_may_name_the_contexts_of_their_row(tmp_path):
    contexts = [{"id": 7, "title": "T", "text": "Mira is mayor."}, {"id": "b", "text": "Nobody."}]
    row = {"question": "Who?", "answer": "Mira", "contexts": contexts, "supporting_ids": ["7"]}
    path = write(tmp_path / "my.jsonl", [row])
    with warnings.catch_warnings(action="error"):
        (question,) = load_own(path, split="validation", holdout=1).questions
    assert question.supporting_titles == ("T",) and question.supporting_paragraphs == (paragraph_key("Mira is mayor."),)


def test_supporting_ids_may_name_duplicates_also_of_a_corpus_that_is_indexed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_INDEXED_ONCE", 0)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    rows = [{"id": id, "title": "Tarn", "text": "Mira rules Tarn."} for id in ("first", "copy")]
    corpus = write(tmp_path / "passages.jsonl", rows)
    path = write(tmp_path / "my.jsonl", [{"question": "Who?", "answer": "Mira", "supporting_ids": ["copy"]}])
    (question,) = load_own(path, split="validation", corpus=corpus, holdout=1).questions
    assert question.supporting_titles == ("Tarn",)


def test_a_list_in_the_cell_of_an_answer(tmp_path):
    """As pandas writes one, or JSON; and an answer that only looks like one."""
    cells = ("['Friday', 'Fridays']", '["Friday", "Fridays"]', "[sic]", "Friday | Fridays", "[1]")
    with (tmp_path / "my.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *((f"When {i}?", cell) for i, cell in enumerate(cells))])
    passages = write(tmp_path / "passages.jsonl", [{"title": "x", "text": "y"}])
    found = load_own(tmp_path / "my.csv", split="validation", corpus=passages, holdout=1).questions
    assert [q.golds for q in found] == [
        ("Friday", "Fridays"), ("Friday", "Fridays"), ("[sic]",), ("Friday | Fridays",), ("1",)
    ]  # fmt: skip
    for text in ("[1, 2, 3]", "['Friday']"):  # JSON has lists of its own
        assert parse_row({"question": "When?", "answer": text}).question.golds == (text,)
    for text in ("['Friday', 'Fridays']", '["Friday", "Fridays"]', "Friday | Fridays"):
        assert parse_row({"question": "When?", "answers": text}).question.golds == ("Friday", "Fridays")
    with pytest.raises(ValueError, match=r"a list without commas.*write it as JSON"):  # as numpy writes it
        parse_row({"question": "When?", "answers": "['Friday' 'Fridays']"})


SAME = [
    ("Who is Bob’s wife?", "who is  Bob's wife"),
    ("Which state-of-the-art method?", "Which state of the art method"),
    ("“Who”, he said, is it?", "Who he said is it?"),
    ("It ended in 1990, when?", "It ended in 1990 when?"),
    *(("Is it in the U.S. or not?", "Is it in the US or not?"), ("Who is J.K. Rowling?", "Who is J. K. Rowling?")),
]
OTHERS = [
    *(("What is 3 + 4?", "What is 34?"), ("What is 3 + 4?", "What is 3 - 4?"), ("What is 1.5?", "What is 15?")),
    *(("Who designed C#?", "Who designed C++?"), ("कि", "का")),
]


@pytest.mark.parametrize(("one", "other"), [*SAME, *OTHERS])
def test_which_questions_are_one(one, other):
    keys = [_key(parse_row({"question": text, "answer": "x"}).question) for text in (one, other)]
    assert (keys[0] == keys[1]) is ((one, other) in SAME)


def test_fields_of_the_benchmarks_in_a_table():
    """pandas makes floats of numbers in a column with a gap, and writes lists as text."""
    row = {"question": "When?", "answer": "Friday", "id": 3.0, "type": 2}
    question = parse_row(row | {"supporting_facts": "[['Oslo', 0], ['Rome', 1]]"}).question
    assert (question.id, question.type, question.supporting_titles) == ("3", "2", ("Oslo", "Rome"))
    for wrong in ("Oslo", "[1]", [["Oslo"]], 3):
        with pytest.raises(ValueError, match="'supporting_facts': expected pairs of a title and a sentence's number"):
            parse_row({**row, "supporting_facts": wrong})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé \ud800", max_size=3),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(("title", "text")), values, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = ("id", "question", "answers", "aliases", "type", "supporting_facts", "context", "paragraphs", "metadata")


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_row_is_a_question_or_a_value_error(change):
    row = {"question": "Who?", "answer": "Ada", **change}
    with contextlib.suppress(ValueError):
        ((_, parsed),) = parse_records([("a.jsonl:1", row)], parse_row)
        assert isinstance(hash(parsed.question), int) and parsed.question.answer.strip()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["no"] * 15 + ["yes"] * 5 + ["Oslo", "Rome"] * 40, "75% of the yes/no questions have the answer 'no'"),
        (["Oslo"] * 8 + [f"a{i}" for i in range(14)], "36% of the questions have the answer 'oslo'"),
        (["no"] * 10 + ["yes"] * 10 + [f"a{i}" for i in range(60)], None),
        (["no"] * 15 + [f"a{i}" for i in range(60)], None),  # too few to tell
    ],
)
def test_answers_that_are_lopsided_are_warned_of(tmp_path, corpus, answers, told):
    rows = [{"question": f"Question {i}?", "answer": answer} for i, answer in enumerate(answers)]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.warns(UserWarning, match=told) if told else contextlib.nullcontext():
        found = load_own(path, split="validation", holdout=1, corpus=corpus)
    assert (told or "have the answer") in found.source if told else "have the answer" not in found.source
