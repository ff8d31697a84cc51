"""Episodes in a terminal: what is listed, what an episode shows, what keys do; and plain text elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agent_envs.utils.view import Viewer, find_file, read_entries, show_episode, split_keys, view

LONG = "The town lies by a river. " * 40
ROOT = Path(__file__).resolve().parents[2]


def record(number: int, score: float = 1.0, **other) -> dict:
    turns = [
        {
            "message": 2, "action": "<search>town</search>", "invalid": False, "found": ["Town"], "reward": 0.25,
            "calls": [{"tool": "search", "arguments": '{"query": "town"}', "result": LONG, "fault": False}],
            "observation": LONG, "reward_terms": {"progress": 0.25, "format": 0.0}, "advantage": None,
        },
        {
            "message": 4, "action": "<answer>x</answer>", "invalid": other.pop("invalid", False), "found": [], "calls": [],
            "observation": "", "reward": score, "reward_terms": {"answer": score}, "advantage": -0.5,
        },
    ]  # fmt: skip
    contents = [
        "Instructions.",
        f"Question {number}?",
        "<search>town</search>",
        LONG + "end.",
        f"<answer>x{number}</answer>",
    ]
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


def screen(viewer: Viewer, width=100, height=20) -> list[str]:
    lines = viewer.draw(Console(width=width, height=height, force_terminal=True))
    assert len(lines) == height and all(sum(part.cell_length for part in line) <= width for line in lines)
    return ["".join(part.text for part in line).rstrip() for line in lines]


def press(viewer: Viewer, keys: str) -> bool:
    return all(viewer.press(key) for key in split_keys(keys))


@pytest.mark.parametrize(
    ("outcome", "numbers"),
    [
        ("all", [1, 2, 3, 4]),
        ("right", [1]),
        ("wrong", [2, 3, 4]),
        ("invalid", [3]),
        ("truncated", [2]),
        ("failed", [4]),
    ],
)
def test_episodes_are_chosen_by_outcome_and_numbered_by_their_place(file, outcome, numbers):
    assert [entry.number for entry in read_entries(file, outcome)] == numbers


def test_the_search_reaches_into_the_conversation_and_minds_no_case(file):
    assert [entry.number for entry in read_entries(file, text="<ANSWER>x3")] == [3]
    assert not read_entries(file, "right", "x3</answer>")


def test_an_episode_shows_rewards_evidence_calls_and_folds_results(file):
    entry = read_entries(file)[0]
    shown = text_of(show_episode(record(1), entry))
    for part in (
        "✓ right em 1", "return +1.25", "the gold", "✓ Town (turn 1)", "✗ River", "Turn 1", "Returned",
        '→ search {"query": "town"}', "✓ evidence: Town", "reward +0.25 (progress +0.25)", "advantage -0.5", "<answer>x1",
    ):  # fmt: skip
        assert part in shown
    assert "more characters" in shown and "end." not in shown
    assert "end." in text_of(show_episode(record(1), entry, unfold=True))


def test_calls_of_an_api_and_rewritten_contexts_read_well(file):
    entry, odd = read_entries(file)[0], record(1)
    call = {"function": {"name": "lookup", "arguments": '{"q": 1}'}}
    odd["messages"][2]["content"] = json.dumps({"role": "assistant", "content": "I look.", "tool_calls": [call]})
    odd["messages"].insert(4, {"role": "system", "content": "Anew."})
    shown = text_of(show_episode(odd, entry))
    assert (
        "I look." in shown
        and 'lookup {"q": 1}' in shown
        and "tool_calls" not in shown
        and "context was rewritten" in shown
    )


def test_a_record_of_another_shape_is_one_line(file):
    entry = read_entries(file)[0]
    with pytest.raises(ValueError, match="is no episode as docs"):
        show_episode(record(1) | {"turns": ["a"]}, entry)


def test_keys_open_scroll_unfold_and_go_to_the_next(file):
    viewer = Viewer(file, read_entries(file))
    first = screen(viewer)
    assert "4 episodes: all" in first[0] and "1/4" in first[-1] and "Question 1?" in first[1]
    press(viewer, "\x1b[B\r")
    assert "Episode 2" in screen(viewer)[1]
    press(viewer, "n")
    top = screen(viewer)
    assert "Episode 3" in top[1]
    press(viewer, "G")
    assert screen(viewer)[1] != top[1] and "100 %" in screen(viewer)[-1]
    press(viewer, "gf")
    assert screen(viewer)[1] == top[1]
    length = viewer._length
    press(viewer, "f")
    screen(viewer)
    assert viewer._length < length
    press(viewer, "pp\x1b[D")
    assert "Episode 1" in screen(viewer)[1]  # there is none before it
    assert press(viewer, "q") and "4 episodes: all" in screen(viewer)[0]
    assert not press(viewer, "q")


def test_keys_filter_and_search_and_letters_are_letters_while_typing(file):
    viewer = Viewer(file, read_entries(file))
    press(viewer, "f")
    assert "1 episode: right" in screen(viewer)[0]
    press(viewer, "f/qjX\x7f")
    assert "search for: qj" in screen(viewer)[-1]
    press(viewer, "\r")
    assert "0 episodes" in screen(viewer)[0] and press(viewer, "\rj")
    press(viewer, "/question 3\r")
    assert "with question 3" in screen(viewer)[0] and "Question 3?" in screen(viewer)[1]
    press(viewer, "/zz\x1b")
    assert "1 episode:" in screen(viewer)[0]


def test_a_small_window_shows_what_is_chosen(file):
    viewer = Viewer(file, read_entries(file))
    press(viewer, "jj")
    assert "Question 3?" in "\n".join(screen(viewer, 90, 4))
    press(viewer, "\r")
    screen(viewer, 12, 4)


def test_where_there_is_no_terminal_it_prints(file, capsys):
    view(file.parent, outcome="wrong")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["2", "3", "4"]
    assert "\\x1b[2JHostile question" in lines[2] and "\x1b" not in lines[2]
    view(file, episode="evaluation/0/policy/4/0")
    assert "✗ wrong failed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no episode '1' among the 3"):
        view(file, episode="1", outcome="wrong")


def test_a_folder_of_runs_names_them(tmp_path, file):
    with pytest.raises(FileNotFoundError, match=f"give one of {tmp_path}"):
        find_file(tmp_path.parent)
    with pytest.raises(FileNotFoundError, match="give the folder of a run"):
        find_file(tmp_path / "nothing")


def start(*arguments, **options):
    command = [sys.executable, "-m", "agent_envs", "view", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TERM": "xterm"}, **options)


def test_a_file_without_episodes_is_an_error(tmp_path, file):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('garbage\n{"a": 1}\n')
    with pytest.raises(ValueError, match="holds no episode: give"):
        view(wrong)
    view(file, text="of this there is nothing")


def test_the_command_says_mistakes_in_one_line(tmp_path):
    run = start(tmp_path / "none", stderr=subprocess.PIPE, text=True)
    assert run.communicate()[1].count("\n") == 1 and run.returncode == 1


def test_in_a_terminal_it_takes_keys_and_leaves_the_terminal_as_it_was(file):
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 100))
    before = termios.tcgetattr(theirs)
    run = start(file, stdin=theirs, stdout=theirs, stderr=theirs)
    shown = b""

    def read_until(words: bytes) -> None:
        nonlocal shown
        while words not in shown:
            shown += os.read(ours, 4096)
        shown = b""

    try:
        read_until(b"q quit")
        os.write(ours, b"\x1b[B\r")
        read_until(b"Episode 2")
        os.write(ours, b"qq")
        assert run.wait(timeout=30) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        run.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("sent", ["\x1b[3~", "\x1bOP", "\x1b[Z", "\x1b[1;5B"])
def test_keys_that_mean_nothing_are_no_escape(sent):
    """Delete, F1, Shift and Tab, Control and an arrow."""
    assert list(split_keys(f"k{sent}j\x1b")) == ["k", "j", "escape"]
