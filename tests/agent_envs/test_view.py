"""Episodes as text: what is listed, and what an episode shows."""

import json

import pytest
from rich.console import Console

from agent_envs.utils.view import find_file, read_entries, show_episode, view

LONG = "The town lies by a river. " * 40


def record(number: int, score: float = 1.0, invalid: bool = False, **other) -> dict:
    call = {"tool": "search", "arguments": '{"query": "town"}', "result": LONG, "fault": False}
    search, answer = "<search>town</search>", "<answer>x</answer>"
    turns = [
        {"message": 2, "action": search, "invalid": False, "found": ["Town"], "reward": 0.25, "calls": [call],
         "observation": LONG, "reward_terms": {"progress": 0.25, "format": 0.0}, "advantage": None},
        {"message": 4, "action": answer, "invalid": invalid, "found": [], "reward": score, "calls": [],
         "observation": "", "reward_terms": {"answer": score}, "advantage": -0.5},
    ]  # fmt: skip
    contents = ["Instructions.", f"Question {number}?", search, LONG + "end.", f"<answer>x{number}</answer>"]
    roles = ["system", "user", "assistant", "user", "assistant"]
    return {
        "key": f"evaluation/0/policy/{number}/0", "agent": "GRPO", "step": 4, "env": "AgentR1/MiniWiki-Easy-v0",
        "question": f"Question {number}?", "golds": ["the gold"], "supporting": ["Town", "River"], "turns": turns,
        "messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)],
        "score_name": "em", "score": score, "return": 0.25 + score, "truncated": False, "failed": False,
    } | other  # fmt: skip


@pytest.fixture
def file(tmp_path):
    records = [
        record(1), record(2, 0.0, truncated=True), record(3, 0.5, invalid=True),
        record(4, 0.0, failed=True, question="\x1b[2JHostile\nquestion"),
    ]  # fmt: skip
    lines = [json.dumps(each) for each in records]
    path = tmp_path / "episodes.jsonl"
    path.write_text("\n".join([lines[0], '{"key": "cut sho', "[]", *lines[1:]]) + "\n", encoding="utf-8")
    return path


def text_of(renderable, width=100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_episodes_are_chosen_and_numbered_by_their_place(file):
    chosen = {"all": [1, 2, 3, 4], "right": [1], "wrong": [2, 3, 4], "invalid": [3], "truncated": [2], "failed": [4]}
    assert {outcome: [entry.number for entry, _ in read_entries(file, outcome)] for outcome in chosen} == chosen
    # the search reaches into the conversation and minds no case
    assert [entry.number for entry, _ in read_entries(file, text="<ANSWER>x3")] == [3]
    assert not list(read_entries(file, "right", "x3</answer>"))


def test_an_episode_shows_rewards_evidence_calls_and_folds_results(file):
    entry, _ = next(read_entries(file))
    shown = text_of(show_episode(record(1), entry))
    for part in (
        "✓ right em 1", "return +1.25", "the gold", "✓ Town (turn 1)", "✗ River", "Turn 1", "Returned",
        '→ search {"query": "town"}', "✓ evidence: Town", "reward +0.25 (progress +0.25)", "advantage -0.5", "<answer>x1",
    ):  # fmt: skip
        assert part in shown
    assert "more characters" in shown and "end." not in shown
    assert "end." in text_of(show_episode(record(1), entry, unfold=True))


def test_function_calls_and_rewritten_contexts_read_well(file):
    (entry, _), odd = next(read_entries(file)), record(1)
    call = {"function": {"name": "lookup", "arguments": '{"q": 1}'}}
    odd["messages"][2] = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]}
    odd["messages"].insert(4, {"role": "system", "content": "Anew."})
    shown = text_of(show_episode(odd, entry))
    assert "<think>Hm.</think>" in shown and "I look." in shown and 'lookup {"q": 1}' in shown
    assert "tool_calls" not in shown and "context was rewritten" in shown
    with pytest.raises(ValueError, match="is not an episode in the format of docs"):
        show_episode(record(1) | {"turns": ["a"]}, entry)


def test_it_prints_the_list_or_an_episode(file, capsys):
    view(file.parent, outcome="wrong")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["2", "3", "4"]
    assert "\\x1b[2JHostile question" in lines[2] and "\x1b" not in lines[2]
    view(file, episode="evaluation/0/policy/4/0")
    assert "✗ wrong failed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no episode '1' among the 3"):
        view(file, episode="1", outcome="wrong")


def test_a_folder_of_runs_names_them_and_a_file_without_episodes_is_an_error(tmp_path, file):
    with pytest.raises(FileNotFoundError, match=f"give one of {tmp_path}"):
        find_file(tmp_path.parent)
    with pytest.raises(FileNotFoundError, match="give the folder of a run"):
        find_file(tmp_path / "nothing")
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('garbage\n{"a": 1}\n')
    with pytest.raises(ValueError, match="holds no episode: give"):
        view(wrong)
    view(file, text="of this there is nothing")
