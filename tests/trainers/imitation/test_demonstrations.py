"""What is imitated: played, sampled, selected, held out, written and read again."""

import json

import pytest
import torch

from agent_envs.types import ToolCall, Turn
from trainers import sft
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.imitation import demonstrations as demos
from trainers.rollouts.rollout import rollout
from trainers.trajectory import BatchRow, to_rows

SMALL = '{"entities": 60, "questions": 30}'


@pytest.fixture(scope="module")
def envs():
    return make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 4)


def of_ids(question, ids, paid=1.0, score=1.0, instance=None):
    zeros = [0.0] * len(ids)
    sequence = BatchRow(ids=ids, mask=[False, *[True] * (len(ids) - 1)], logprobs=zeros, rewards=zeros)
    return demos.Demonstration(question=question, rows=[sequence], score=score, episode_return=paid, instance=instance)


def test_questions_are_drawn_over_the_whole_split_and_none_twice_too_early(envs):
    assert sorted(demos.draw_questions(envs, 0, 0)) == list(range(30))
    many = demos.draw_questions(envs, 45, 0)
    assert sorted(many[:30]) == list(range(30))
    assert len(set(many[30:])) == 15
    assert demos.draw_questions(envs, 8, 0) == many[:8] != list(range(8))
    assert demos.draw_questions(envs, 8, 1) != many[:8]
    games = make_envs("AgentR1/Bandit-v0", "{}", "train", 2)
    assert len(set(demos.draw_questions(games, 9, 0))) == 9
    assert demos.draw_questions(games, 9, 0)[:4] == demos.draw_questions(games, 4, 0)  # they go on
    with pytest.raises(ValueError, match="give --demonstrations"):
        demos.draw_questions(games, 0, 0)


def test_what_was_sampled_is_kept_id_by_id(envs, make_policy):
    policy = make_policy("bytes")
    engine = TransformersEngine(policy, envs.envs[0].stop)
    torch.manual_seed(0)
    found = list(demos.sample(envs, policy, engine, [4, 2, 7], attempts=2, max_new_tokens=5, temperature=1.0))
    assert [one.question for one in found] == [envs.envs[0].questions[int(n)].question for n in "442277"]
    assert [one.instance for one in found] == [4, 4, 2, 2, 7, 7]
    torch.manual_seed(0)
    played = rollout(envs, policy, engine, questions=[4, 2], group_size=2, max_new_tokens=5, temperature=1.0)
    assert [one.rows for one in found[:4]] == [to_rows(episode.steps) for episode in played]
    assert [one.episode_return for one in found[:4]] == [episode.episode_return for episode in played]


def test_selection_by_hand():
    a, b, c = of_ids("1", [1, 2], 0.5), of_ids("1", [1, 3], 2.0), of_ids("1", [1, 3], 2.0)
    d, e = of_ids("2", [1, 2], 3.0, score=0.0), of_ids("2", [1, 4], 0.25)
    everything = [a, b, c, d, e]
    assert demos.select(everything) == [a, b, c, e]
    assert demos.select(everything, only_solved=False) == everything
    assert demos.select(everything, min_reward=0.5) == [a, b, c]
    assert demos.select(everything, keep=1) == [b, e]
    assert demos.select(everything, keep=2) == [a, b, e]  # c is b again
    assert demos.select(everything, only_solved=False, keep=1) == [b, d]
    games = [of_ids("Hello", [1, n], paid, instance=n % 2) for n, paid in ((2, 1.0), (3, 0.5), (4, 2.0))]
    assert demos.select(games, keep=1) == games[1:]  # instances that begin alike
    told = of_ids("3", [1, 2], None)  # conversations of others, which nobody paid
    assert demos.select([a, told], min_reward=2.0) == [told]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_questions_are_held_out_whole(share):
    everything = [of_ids(str(i % 10), [1, i]) for i in range(40)]
    learned, held_out = demos.hold_out(everything, share, 0)
    assert sorted(one.rows[0].ids[1] for one in learned + held_out) == list(range(40))
    ours, theirs = {one.question for one in learned}, {one.question for one in held_out}
    assert not ours & theirs
    assert len(theirs) == {0.0: 0, 0.01: 1, 0.3: 3, 1.0: 9}[share]
    assert demos.hold_out(everything, share, 0) == (learned, held_out)


def test_a_file_gives_back_what_was_written(envs, make_policy, tmp_path):
    policy = make_policy("bpe")
    found = list(demos.run_script(envs, policy, [0, 1], envs.envs[0].SCRIPTS["oracle"], 0))
    demos.write_demonstrations(tmp_path / demos.FILE, found, policy)
    again = demos.read_demonstrations(tmp_path, policy)
    assert [(one.question, one.score, one.episode_return) for one in again] == [
        (one.question, one.score, one.episode_return) for one in found
    ]
    for ours, theirs in zip(again, found, strict=True):
        assert [(s.ids, s.mask) for s in ours.rows] == [(s.ids, s.mask) for s in theirs.rows]
    with pytest.raises(ValueError, match="ids of another tokenizer"):
        demos.read_demonstrations(tmp_path, make_policy("bytes"))


def test_a_damaged_file(make_policy, tmp_path):
    policy = make_policy("bpe")
    with pytest.raises(ValueError, match="there are no demonstrations in"):
        demos.read_demonstrations(tmp_path, policy)
    demos.write_demonstrations(tmp_path / demos.FILE, [of_ids("1", [1, 2, 3])], policy)
    line = json.loads((tmp_path / demos.FILE).read_text())
    wrong = line | {"sequences": [{"ids": [1, 2], "target_tokens": [[0, 1]]}]}
    for broken in ("{", json.dumps({n: v for n, v in line.items() if n != "tokenizer"}), json.dumps(wrong)):
        (tmp_path / demos.FILE).write_text(broken)
        with pytest.raises(ValueError, match=r"demonstrations\.jsonl:1 is not a demonstration"):
            demos.read_demonstrations(tmp_path, policy)


def test_demonstrations_that_call_no_tool_are_said_to(envs, make_policy, monkeypatch, capsys):
    def recall(env, rng):
        yield Turn(answer=env.question.answer)

    args = sft.Args(env_kwargs=SMALL, script=("oracle",), max_length=100_000)
    policy = make_policy("bytes")
    demos.collect(args, policy, envs)
    assert "Warning" not in capsys.readouterr().err
    monkeypatch.setitem(envs.envs[0].SCRIPTS, "oracle", recall)
    demos.collect(args, policy, envs)
    assert "none of them calls a tool" in capsys.readouterr().err


def test_a_question_of_two_sources_is_held_out_of_both(envs, make_policy, tmp_path):
    asked = [question.question for question in envs.envs[0].questions[:10]]
    lines = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "hm"}]} for q in asked]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = sft.Args(env_kwargs=SMALL, script=("oracle",), messages=(str(tmp_path / "m.jsonl"),), max_length=100_000)
    learned, held_out = demos.hold_out(demos.collect(args, make_policy("bytes"), envs), 0.3, 0)
    ours, theirs = {one.question for one in learned}, {one.question for one in held_out}
    assert not ours & theirs and len(ours | theirs) == 30
    assert len(learned) + len(held_out) == 40 and any(q in theirs for q in asked)


def test_of_many_questions_a_hundred_are_held_out():
    learned, held_out = demos.hold_out([of_ids(str(i), [1, i]) for i in range(5000)], 0.05, 0)
    assert (len(learned), len(held_out)) == (4900, 100)


def test_one_question_is_held_out_conversation_by_conversation():
    assert demos.hold_out([of_ids("1", [1, 2])], 0.5, 0)[1] == []
    alike = [of_ids("Hello", [1, n]) for n in range(2, 12)]
    learned, held_out = demos.hold_out(alike, 0.3, 0)
    assert len(held_out) == 3 and sorted(map(id, learned + held_out)) == sorted(map(id, alike))


def test_a_question_with_most_conversations_is_not_held_out_whole():
    uneven = [of_ids("Hello" if n else "Hi", [1, n]) for n in range(200)]
    learned, held_out = demos.hold_out(uneven, 0.05, 0)
    assert (len(learned), len(held_out)) == (190, 10)


@pytest.mark.parametrize(("format", "end"), [("tags", ""), ("hermes", "<|im_end|>")])
def test_a_script_is_recorded_as_it_acted(make_policy, format, end):
    """The token that ends a turn is taught where no string ends it: </answer> ends the last one."""
    policy, env_kwargs = make_policy("bpe"), {**json.loads(SMALL), "format": format}
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", json.dumps(env_kwargs), "train", 4)
    numbers, env = (3, 1, 2, 0, 5), envs.envs[0]
    found = list(demos.run_script(envs, policy, list(numbers), env.SCRIPTS["oracle"], 0))
    for one, question in zip(found, (env.questions[number] for number in numbers), strict=True):
        (sequence,) = one.rows
        assert one.question == question.question and one.score == 1 and one.episode_return > 1
        turns = [Turn(calls=(ToolCall("search", {"query": title}),)) for title in question.supporting_titles]
        expected = "".join(f"{env.format.write(turn)}{end}" for turn in turns) + f"<answer>{question.answer}</answer>"
        taught = [i for i, own in zip(sequence.ids, sequence.mask, strict=True) if own]
        assert policy.tokenizer.decode(taught) == expected
