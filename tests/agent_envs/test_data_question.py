"""Questions in JSONL: every field survives, and an error names file, line and field."""

import json
import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.data import Question, read_questions
from agent_envs.data.question import question_from_row

FIELDS = {"id": "q1", "question": "Where was the director of Nebelmeer born?", "answer": "Zürich", "type": "bridge"}
STEP = {"question": "Who directed Nebelmeer?", "answer": "Ada Kern"}
ROW = {
    **FIELDS,
    **{"aliases": ["Zurich"], "supporting_titles": ["Nebelmeer", "Ada Kern"], "decomposition": [STEP]},
    "supporting_facts": [["Nebelmeer", 0], ["Ada Kern", 2]],
}


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_every_field_is_read(tmp_path):
    (question,) = read_questions(write(tmp_path / "q.jsonl", ROW))
    rest = {"supporting_facts": (("Nebelmeer", 0), ("Ada Kern", 2)), "decomposition": (STEP,)}
    assert question == Question(**FIELDS, aliases=("Zurich",), supporting_titles=("Nebelmeer", "Ada Kern"), **rest)
    assert question.golds == ("Zürich", "Zurich")
    assert pickle.loads(pickle.dumps(question)) == question
    assert {question: 1}[question] == 1
    with pytest.raises(FrozenInstanceError):
        question.answer = "Bern"


def test_only_three_fields_are_required(tmp_path):
    rows = [{"id": 7, "question": "Who?", "answer": "Ada", "type": None, "level": "hard"}, "\n", ROW]
    first, second = read_questions(write(tmp_path / "q.jsonl", *rows))
    assert first == Question("7", "Who?", "Ada")
    assert first.golds == ("Ada",) and first.supporting_facts is None
    assert second.id == "q1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "the row has no 'answer'"),
        ({"question": "  "}, "'question' is empty"),
        ({"answer": ["Zürich"]}, r"'answer': expected a string, got \['Zürich'\]"),
        ({"id": True}, "'id': expected a string, got True"),
        ({"aliases": ["Zurich", 3]}, "'aliases': expected a string, got 3"),
        ({"answer": "\ud800"}, "'answer': a lone surrogate"),
        ({"supporting_facts": [["Nebelmeer", "0"]]}, r"'supporting_facts': expected \[title, sentence index\]"),
        ({"decomposition": ["Who?"]}, "'decomposition': expected an object"),
    ],
)
def test_an_error_names_file_line_and_field(tmp_path, change, message):
    path = write(tmp_path / "q.jsonl", ROW, {**ROW, **change})
    with pytest.raises(ValueError, match=rf"q\.jsonl:2: {message}"):
        read_questions(path)


@pytest.mark.parametrize("line", ["{", "[1]\n", "null\n", "[" * 100_000])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    with pytest.raises(ValueError, match=r"q\.jsonl:2: "):
        read_questions(write(tmp_path / "q.jsonl", ROW, line))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé \ud800", max_size=3),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(list(ROW)), values, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(ROW)), JSON_VALUES))
def test_any_row_is_a_question_or_a_value_error(change):
    try:
        question = question_from_row({**ROW, **change})
    except ValueError:
        return
    assert isinstance(hash(question), int) and question.answer.strip()


def test_two_questions_of_one_id_are_refused(tmp_path):
    path = write(tmp_path / "q.jsonl", ROW, {**ROW, "id": "other"}, {**ROW, "question": "Who?"})
    message = r"q\.jsonl:3: the id '.*' is that of q\.jsonl:1 too: give every question an id"
    with pytest.raises(ValueError, match=message):
        read_questions(path)
