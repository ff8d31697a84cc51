"""A model plays, and one sees it."""

import pytest

from trainers import play

SMALL = '{"entities": 60, "questions": 30}'


def test_an_episode_is_shown(model_folder, capsys):
    args = play.Args(checkpoint=model_folder, env_kwargs=SMALL, seed=3, max_new_tokens=6)
    turns = play.main(args)
    shown = capsys.readouterr().out
    assert turns[0]["observation"] in " ".join(shown.split())
    assert f"Turn {len(turns)}\n" in shown and shown.count("reward ") == len(turns)
    assert "golds: " in shown
    assert [turn["action"] for turn in play.main(args)] == [turn["action"] for turn in turns]


def test_tasks_of_a_program_are_not_played(model_folder, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}')
    with pytest.raises(ValueError, match=r"tasks.jsonl are for a program: python -m trainers.evaluate --agent"):
        play.Args(checkpoint=model_folder, env=str(tmp_path / "tasks.jsonl")).check_inputs()


def test_a_question_of_ones_own_has_no_scores(model_folder, capsys):
    args = {"model": str(model_folder), "env_kwargs": SMALL, "max_new_tokens": 6}
    turns = play.main(play.Args(question="Is the Po longer?", **args))
    shown = capsys.readouterr().out
    assert turns[0]["observation"] == "Is the Po longer?"
    assert "prediction: " in shown and "turns: " in shown
    assert not any(name in shown for name in ("golds: ", "em: ", "f1: ", "support_recall: "))
