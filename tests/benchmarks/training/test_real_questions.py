"""Scores of several days and machines are kept in one file, question by question."""

import json

import pytest

from benchmarks.training import real_questions
from experiments.report import pooled_tables


def column(em, f1, ids=("a", "b")):
    return {"questions": {"id": list(ids), "em": em, "f1": f1}, "score": 0.0, "support_recall": 0.123456, "turns": 2.0}


def results(em, seed=0, agent="GRPO", ids=("a", "b")):
    """Of a comparison with one agent."""
    row = {name: column(em, [0.25, 1.0], ids) for name in ("HotpotQA", "2Wiki", "MuSiQue")}
    return {
        "rows": {agent: [row]}, "seeds": {agent: [seed]}, "curves": {agent: [[[0, 0.0, 0.1], [64, 9.0, 0.3]]]},
        "training": {agent: [{"seconds": 9.0, "folder": "/home/me/runs"}]},
    }  # fmt: skip


@pytest.fixture
def add(tmp_path):
    def run(content, **more):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "results.json").write_text(json.dumps(content))
        real_questions.main(real_questions.Args(add=folder, file=tmp_path / "kept.json", **more))
        return json.loads((tmp_path / "kept.json").read_text())

    return run


def test_seed_by_seed(add, tmp_path, capsys):
    add(results([0.0, 1.0], seed=1))
    add(results([1.0, 1.0], agent="SFT"))
    kept = add(results([0.0, 0.0], seed=0), picture=tmp_path / "scores.png")
    assert [(agent, [r["seed"] for r in own]) for agent, own in kept["agents"].items()] == [
        ("SFT", [0]),  # which the recipe has first
        ("GRPO", [0, 1]),
    ]
    assert kept["agents"]["GRPO"][1]["columns"]["2Wiki"] == {
        "em": "01", "f1": [0.25, 1.0], "support_recall": 0.1235, "turns": 2.0
    }  # fmt: skip
    assert kept["agents"]["GRPO"][1]["training"] == {"seconds": 9.0}  # and no folder of this machine
    assert kept["agents"]["GRPO"][1]["curve"] == [[0, 0.0, 0.1], [64, 9.0, 0.3]]
    assert "| GRPO | 0.250 | 0.250 | 0.250 | 0.250 [" in capsys.readouterr().out
    assert (tmp_path / "scores.png").stat().st_size > 10_000
    again = add(results([1.0, 1.0], seed=1), drop=("SFT",))
    assert list(again["agents"]) == ["GRPO"]
    other = add(results([1.0, 1.0]), suffix=", half")
    assert list(other["agents"]) == ["GRPO", "GRPO, half"]
    assert [record["columns"]["MuSiQue"]["em"] for record in again["agents"]["GRPO"]] == ["00", "11"]


def test_other_questions_are_refused(add):
    add(results([0.0, 1.0]))
    with pytest.raises(ValueError, match="scores of other questions"):
        add(results([0.0, 1.0], ids=("a", "c")))


def test_the_kept_table_is_that_of_the_comparison():
    """Differences are paired question by question, as in `experiments.compare`."""
    content = results([1.0, 0.0])
    content["rows"]["SFT"], content["seeds"]["SFT"] = results([0.0, 0.0], agent="SFT")["rows"]["SFT"], [0]
    found = real_questions.untrim({"agents": real_questions.trim(content)["agents"]})
    (line,) = [line for line in pooled_tables(found, "EM") if line.startswith("| GRPO | 0.5")]
    assert "| +0.500 [+0.000, +1.000] |" in line
    with pytest.raises(ValueError, match=r"no agents \['PPO'\]; there are \['GRPO', 'SFT'\]"):
        real_questions.untrim({"agents": real_questions.trim(content)["agents"]}, ("PPO",))
    found = real_questions.untrim({"agents": real_questions.trim(content)["agents"]}, ("SFT",), ("GRPO",))
    assert list(found["rows"]) == ["GRPO", "SFT"]
    (line,) = [line for line in pooled_tables(found, "EM") if line.startswith("| SFT | 0.0")]
    assert "| -0.500 [-1.000, +0.000] |" in line  # to the one that was asked for
