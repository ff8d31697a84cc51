"""Episodes for others: conversations that their readers and ours load."""

import json

import gymnasium
import pytest
from chat_templates import end_ids, make_tokenizer
from datasets import load_dataset

import agent_envs  # noqa: F401
from agent_envs.chat_tokens import ChatTokens
from agent_envs.types import ToolCall, Turn
from agent_envs.utils.scripts import EpisodeRecorder
from trainers.episodes.records import Origin, make_record, to_line
from trainers.export_episodes import Args, main
from trainers.imitation.conversations import read_conversations
from trainers.trajectory import to_rows

SYSTEM = {"role": "system", "content": "Instructions."}


def episode(
    number,
    sample=0,
    score=1.0,
    phase="training",
    group=None,
    agent="GRPO (training)",
    messages=None,
    turns=None,
    **outcome,
):
    """The record of an episode, of two turns by default."""
    origin = Origin(phase=phase, agent=agent, name="x", env="E", split="train", source="s", score="em", step=3)
    messages = messages or [
        SYSTEM, {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": f"<search>{sample}</search>"},
        {"role": "user", "content": "Results."}, {"role": "assistant", "content": f"<answer>{sample}</answer>"},
    ]  # fmt: skip
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant" and not message.get("read")]
    turns = turns or [
        {
            "message": place, "action": messages[place]["content"], "calls": [], "next_observation": "", "found": [],
            "invalid": False, "reward": score / len(places), "reward_terms": {"answer": score},
        }
        for place in places
    ]  # fmt: skip
    messages = [{name: value for name, value in message.items() if name != "read"} for message in messages]
    return make_record(
        origin, {"instance": number, "sample": sample}, messages, turns, {"em": score}, group=group, **outcome
    )


@pytest.fixture
def export(tmp_path):
    def export(records):
        (tmp_path / "episodes.jsonl").write_text("".join(to_line(each) + "\n" for each in records), encoding="utf-8")
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return main(Args(source=tmp_path, out=out))

    return export


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(messages):
    return [message["content"] for message in messages]


def test_conversations_load_into_sft_and_datasets(export, make_policy, capsys):
    records = [episode(1), episode(2), episode(2), episode(3, score=0.0), episode(4, phase="evaluation")]
    records.append(episode(5, failed=True))
    out = export(records)
    assert read(out) == [{"messages": record["messages"]} for record in records[:2]]
    said = capsys.readouterr().out
    assert all(
        told in said
        for told in ("2 conversations", "1 repeated", "1 with a score below 1", "1 of another phase", "1 that failed")
    )
    policy = make_policy("bytes")
    sequences = [sequence for _, steps in read_conversations(out, policy, None) for sequence in to_rows(steps)]
    taught = [id for id, own in zip(sequences[0].ids, sequences[0].mask, strict=True) if own]
    assert policy.tokenizer.decode(taught) == "<search>0</search><|im_end|><answer>0</answer><|im_end|>"
    rows = load_dataset("json", data_files=str(out), split="train", cache_dir=str(out.parent / "cache"))
    assert rows[1]["messages"] == records[1]["messages"]


def test_a_rewritten_context_is_a_conversation_of_its_own(export):
    messages = [
        SYSTEM, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "cut"},
        SYSTEM, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "kept", "read": True},
        {"role": "user", "content": "r"}, {"role": "assistant", "content": "two"},
    ]  # fmt: skip
    first, second = (line["messages"] for line in read(export([episode(1, messages=messages)])))
    assert contents(first) == ["Instructions.", "Q", "one"]
    assert [message.get("weight") for message in second] == [None, None, 0, None, None]


def test_an_empty_system_message_that_marks_a_new_context_is_not_exported(export):
    """Of a template without such a role, or a program without instructions."""
    own = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "one"}]
    again = [{"role": "user", "content": "Q, again"}, {"role": "assistant", "content": "two"}]
    messages = [*own, {"role": "system", "content": ""}, *again]
    assert [line["messages"] for line in read(export([episode(1, messages=messages)]))] == [own, again]


def test_a_turn_of_a_program_that_was_cut_is_not_taught(export):
    (turn,) = episode(1)["turns"][-1:]
    turns = [turn | {"message": place, "cut": place == 2} for place in (2, 4)]
    messages = [
        SYSTEM, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "It is"}, {"role": "user", "content": "On."},
        {"role": "assistant", "content": "two"},
    ]  # fmt: skip
    (line,) = read(export([episode(1, messages=messages) | {"turns": turns}]))
    assert [message.get("weight") for message in line["messages"]] == [None, None, 0, None, None]


def test_function_calls_keep_their_results(export):
    calls = [{"id": n, "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}} for n in "ab"]
    back = [{"role": "tool", "tool_call_id": n, "name": "search", "content": n} for n in "ab"]
    empty = {"reasoning_content": "", "tool_calls": []}
    messages = [
        SYSTEM, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "I look.", **empty, "tool_calls": calls},
        *back, {"role": "assistant", "content": "Zug", **empty},
    ]  # fmt: skip
    (line,) = read(export([episode(1, messages=messages)]))
    said = line["messages"]
    assert said[2] == {"role": "assistant", "content": "I look.", "tool_calls": calls}
    assert said[3:] == [*back, {"role": "assistant", "content": "Zug"}]


def test_mistakes_are_one_line_and_leave_nothing(export, tmp_path):
    with pytest.raises(ValueError, match=r"nothing to export: of its episodes 1 of another phase \(--phase training\)"):
        export([episode(1, phase="evaluation")])
    with pytest.raises(ValueError, match="'training/3/x-1/1/0' is no episode as in docs"):
        export([episode(1) | {"turns": None}])
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.jsonl"]
    with pytest.raises(ValueError, match="exists already"):
        main(Args(source=tmp_path, out=tmp_path / "episodes.jsonl"))
    with pytest.raises(ValueError, match="give the folder of a run"):
        main(Args(source=tmp_path / "none", out=tmp_path / "x"))


def test_a_turn_without_a_word_is_context_and_not_taught(export, make_policy):
    messages = [
        SYSTEM, {"role": "user", "content": "Question?"}, {"role": "assistant", "content": ""},
        {"role": "user", "content": "Write a turn."}, {"role": "assistant", "content": "<answer>it</answer>"},
    ]  # fmt: skip
    ((_, steps),) = read_conversations(export([episode(1, messages=messages)]), make_policy("bytes"), None)
    assert len(steps) == 1


ENV = {"id": "AgentR1/MiniWiki-Easy-v0", "entities": 60, "questions": 5, "max_turns": 9}


def play(mistakes):
    """The record of an episode in function calls: these turns, and then a search and an answer."""
    env = gymnasium.make(**ENV, format="native").unwrapped
    observation, info = env.reset(options={"question": 0})
    search, answer = Turn(calls=(ToolCall("search", {"query": "the book"}),)), Turn(answer=env.question.answer)
    recorder, turns = EpisodeRecorder(env, info), []
    messages = [{"role": "system", "content": info["instructions"]}, {"role": "user", "content": observation}]
    for action in (*mistakes, *map(env.format.write, (search, answer))):
        observation, reward, *_, info = env.step(action, cut=action == "Hm")
        turns.append({
            "message": len(messages), "action": action, "next_observation": observation, "reward": reward,
            "reward_terms": info["reward_terms"], **recorder.record_turn(),
        })  # fmt: skip
        messages += [env.format.message(action), *env.format.messages(observation)]
    return episode(1, messages=messages[:-1], turns=turns)


def call(*made):
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in made]
    return json.dumps({"role": "assistant", "content": "I try.", "tool_calls": calls})


BOOK = ("search", '{"query": "the book"}')
MISTAKES = {
    "text": "It is Zug.", "cut": "Hm", "unknown tool": call(("weather", "{}")), "no argument": call(("search", "{}")),
    "wrong argument": call(("search", '{"query": 5}')), "answer too": call(BOOK, ("answer", '{"text": "Zug"}')),
    "many calls": call(*[BOOK] * 40), "no JSON": call(("search", "{")), "no object": call(("search", "[]")),
    "no name": call((None, "{}")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        ("tags", "plain"),
        ("hermes", "hermes"),
        *(("native", kind) for kind in ("hermes", "qwen3.5", "llama3.1", "gpt-oss")),
    ],
)
def test_a_mistake_that_is_corrected_is_context(export, format, kind):
    """In the calls of the agent's chat template, and in a format of text."""
    env, chat = gymnasium.make(**ENV, format=format).unwrapped, ChatTokens(make_tokenizer(kind), end_ids(kind))
    (_, wanted), *found = read_conversations(
        export([play([]), *(play([mistake]) for mistake in MISTAKES.values())]), chat, env
    )
    for name, (_, steps) in zip(MISTAKES, found, strict=True):
        assert [step.tokens for step in steps] == [step.tokens for step in wanted], name
        assert len(steps[0].prompt) > len(wanted[0].prompt), name
