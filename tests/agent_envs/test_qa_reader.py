"""The demonstrator that reads: whatever it writes stands in what it was asked, or was shown."""

import json
import os
import re
import unicodedata
from pathlib import Path

import gymnasium
import pytest

import agent_envs  # noqa: F401
from agent_envs.utils.scripts import roll_out

REAL_DATA = Path(os.environ.get("AGENT_ENVS_TEST_DATA") or Path(__file__).parents[2].parent / "shared" / "data")

BREAKS = {i: " " for i in range(0x10000) if not (chr(i).isalnum() or unicodedata.combining(chr(i)))}

PASSAGES = {
    "Nebelmeer (film)": "Nebelmeer is a film of 1934, directed by Adà Kern for a studio in Basel.",
    "Ada Kern": "Kern was born in Zürich and died in Bern.",
    "Otto Vale": "Otto Vale was a painter, born in Graz.",
    "Lichtung": "Lichtung is a film of 1951 by Otto Vale.",
    "Graz": "Graz is a city with a clock tower.",
    "Zebra": "The zebra is striped and knows nothing of films.",
}
QUESTIONS = [
    ("What is the birthplace of the man who made Nebelmeer?", "Zürich", "bridge", ["Nebelmeer (film)", "Ada Kern"]),
    ("Which film came first, Lichtung or Nebelmeer?", "Nebelmeer", "comparison", ["Lichtung", "Nebelmeer (film)"]),
    ("Are Lichtung and Nebelmeer films?", "yes", "comparison", ["Lichtung", "Nebelmeer (film)"]),
    ("Which animal lives where Nebelmeer was made?", "zebra", "bridge", ["Nebelmeer (film)", "Zebra"]),
    ("How tall is the tower of the city that the maker of Lichtung is from?", "28 m", "bridge", ["Otto Vale", "Graz"]),
]


def words(text):
    """Words in lower case without accents, by other means than the script's."""
    letters = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text)).lower()
    letters = "".join(c for c in letters if not unicodedata.combining(c))
    return f" {' '.join(letters.translate(BREAKS).split())} "


def check_that_a_reader_could(turns):
    """Each query is the question, or stands in what was asked or shown before it; so does the answer, but for yes and no."""
    read, queries = turns[0]["observation"], []
    for turn in turns:
        [(tag, text)] = re.findall(r"<(search|answer)>(.*?)</\1>", turn["action"], re.DOTALL)
        assert words(text) in words(read) or text in ("yes", "no"), (text, read)
        if tag == "search":
            assert text not in queries
            queries.append(text)
        read += "\n" + turn["next_observation"]
    assert queries[0] == turns[0]["observation"].strip()
    return queries


@pytest.fixture
def env(tmp_path):
    passages = [{"id": str(i), "title": t, "text": x} for i, (t, x) in enumerate(PASSAGES.items())]
    rows = [
        {"id": str(i), "question": q, "answer": a, "type": kind, "supporting_titles": titles}
        for i, (q, a, kind, titles) in enumerate(QUESTIONS)
    ]
    for name, lines in (("passages.jsonl", passages), ("hotpotqa.train.jsonl", rows)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return gymnasium.make("AgentR1/HotpotQA-v0", data=tmp_path, k=1).unwrapped


def test_what_a_reader_does(tmp_path, env):
    def rolled(number, **options):
        reader = gymnasium.make("AgentR1/HotpotQA-v0", data=tmp_path, k=1, **options).unwrapped if options else env
        return roll_out(reader, reader.SCRIPTS["reader"], 0, {"question": number})

    turns = rolled(0)  # the next query is the title as it was read
    assert check_that_a_reader_could(turns) == ["What is the birthplace of the man who made Nebelmeer?", "Ada Kern"]
    assert turns[-1]["em"] == 1.0
    for number in (1, 2):  # a comparison is answered when both sides were read
        turns = rolled(number)
        assert len(check_that_a_reader_could(turns)) == 2 and turns[-1]["support_recall"] == turns[-1]["em"] == 1.0
    # no name that was read leads to the second passage, or the answer stands nowhere, or passages are cut before it
    assert [rolled(*asked)[-1]["prediction"] for asked in ((3,), (4,))] == ["unknown"] * 2
    assert rolled(0, max_chars=8)[-1]["prediction"] == "unknown"


@pytest.mark.parametrize("format", ["tags", "hermes", "react", "native"])
def test_it_reads_what_comes_back_in_any_format(tmp_path, env, format):
    other = gymnasium.make("AgentR1/HotpotQA-v0", data=tmp_path, k=2, format=format).unwrapped
    for script in ("reader", "scripted"):
        assert roll_out(other, other.SCRIPTS[script], 0, {"question": 0})[-1]["prediction"] not in ("", "unknown")


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="no AGENT_ENVS_TEST_DATA, and no ../shared/data")
def test_on_real_questions(monkeypatch):
    solved = 0
    for id in ("AgentR1/HotpotQA-v0", "AgentR1/2WikiMultihopQA-v0"):
        real = gymnasium.make(id, data=REAL_DATA, k=2, max_chars=500).unwrapped
        for number in range(0, 200):
            turns = roll_out(real, real.SCRIPTS["reader"], 0, {"question": number})
            if turns[-1]["em"]:
                check_that_a_reader_could(turns)
                solved += 1
    assert solved > 280
