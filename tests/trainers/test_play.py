"""A model plays, and one sees it."""

import pytest

from trainers import play

SMALL = '{"entities": 60, "questions": 30}'


@pytest.fixture
def agent(model_folder):
    return str(model_folder)


def test_an_episode_is_shown(agent, capsys):
    args = play.Args(agent=agent, env_kwargs=SMALL, seed=3, max_new_tokens=6)
    turns = play.main(args)
    shown = capsys.readouterr().out
    assert turns[0]["observation"] in " ".join(shown.split())
    assert f"Turn {len(turns)}\n" in shown and shown.count("reward ") == len(turns)
    assert "golds: " in shown
    assert [turn["action"] for turn in play.main(args)] == [turn["action"] for turn in turns]


def test_a_question_of_ones_own_has_no_scores(agent, capsys):
    turns = play.main(play.Args(agent=agent, env_kwargs=SMALL, question="Is the Po longer?", max_new_tokens=6))
    shown = capsys.readouterr().out
    assert turns[0]["observation"] == "Is the Po longer?"
    assert "prediction: " in shown and "turns: " in shown
    assert not any(name in shown for name in ("golds: ", "em: ", "f1: ", "support_recall: "))
