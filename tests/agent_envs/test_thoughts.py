"""Thoughts that the prompt opens, that the model opens, and that are cut."""

import time

import pytest
from chat_templates import end_ids, make_tokenizer
from toy_tools import STRING, tool

from agent_envs.chat_tokens import ChatTokens, StopChecker
from agent_envs.formats import make_format
from agent_envs.integrations import hosting
from agent_envs.rewards import Format, Invalid, Reward
from agent_envs.vector import ToolVectorEnv


def make_chat(kind: str) -> ChatTokens:
    return ChatTokens(make_tokenizer(kind), end_ids(kind))


SEARCH = tool("search", required=["query"], query=STRING)
ANSWERS = {
    "tags": "<answer>{}</answer>",
    "hermes": "<answer>{}</answer>",
    "react": "Final Answer: {}",
    "native": "{}",
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(("kind", "opening"), [("qwen3.5", ""), ("qwen3", "<think>\n")])
def test_a_draft_in_a_thought_is_no_action(kind, opening, name):
    chat, format = make_chat(kind), make_format(name, [SEARCH])
    said = f"{opening}Maybe {ANSWERS[name].format('Paris')}? No.\n</think>\n\n{ANSWERS[name].format('London')}"
    ends_turn, ids = StopChecker(chat, format.stop), [*chat.encode(said), *chat.turn_end_ids]
    turn = format.parse(chat.act(ends_turn.cut(ids), format.schemas()))
    assert (turn.answer, turn.error) == ("London", None)
    open_thought = chat.act(chat.encode(said.partition("</think>")[0]), format.schemas())
    assert "think>" in (format.parse(open_thought).error or "")


def test_the_environment_gets_the_thought_that_the_prompt_opened():
    chat = make_chat("qwen3.5")
    assert chat.act(chat.encode("so\n</think>\n\n<answer>x</answer>")).startswith("<think>\nso\n</think>")
    assert chat.act(chat.encode("<think>\nso\n</think>\n\n<answer>x</answer>")).count("<think>") == 1
    assert make_chat("qwen3").act(chat.encode("so")) == "so"


@pytest.mark.parametrize("opening", ["", "<think>"])
def test_plain_text_leaves_no_open_thought_to_the_environment(opening):
    format = make_format("plain", [SEARCH], answers=False)
    assert bool(format.parse(f"{opening}north").error) == bool(opening)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("<answer>a</answer>b", "</answer>"),
        ("<think><answer>a</answer></think><answer>b</answer>c", "b</answer>"),
        ("<think>a</think><answer>b</answer></think>", "b</answer>"),
        ("<think><answer>a</answer> </search> </search></think>> > ></search>", "></search>"),
        ("<think><answer>a</answer>", ""),
    ],
)
def test_a_stop_string_counts_outside_of_thoughts(text, end):
    chat = make_chat("hermes")  # <think> is several tokens of it
    said = chat.decode(StopChecker(chat, ("</answer>", "</search>")).cut(chat.encode(text)))
    assert said == text[: text.rindex(end) + len(end)] if end else said == text


def test_stop_strings_within_a_long_thought_take_linear_time():
    chat = make_chat("qwen3.5")
    ids, ends_turn, seconds = chat.encode("so </answer>" * 4000), StopChecker(chat, ("</answer>",)), list[float]()
    for count in (len(ids) // 8, len(ids)):
        begun = time.perf_counter()
        assert not any(ends_turn(ids[:n]) for n in range(count - 400, count))
        seconds.append(time.perf_counter() - begun)
    assert seconds[1] < 4 * seconds[0] + 0.1


def make_priced(**options):
    rewards = Reward(price=(-1.0, Invalid()), readable=(0.5, Format()))
    return hosting.make("AgentR1/MiniWiki-Easy-v0", entities=60, questions=20, max_turns=4, rewards=rewards, **options)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_cut_turn_is_no_action_and_no_invalid_turn(name):
    env = make_priced(format=name)
    env.reset(seed=0)
    half, whole = ANSWERS[name].format("Zug is what I would"), ANSWERS[name].format("Zug")
    told, reward, terminated, truncated, info = env.step(half, cut=True)
    assert "cut" in told and (reward, terminated, truncated, info["cut"], info["valid"]) == (
        0,
        False,
        False,
        True,
        False,
    )
    _, reward, *_, info = env.step("<think>so")
    assert (reward, info["cut"]) == (-1, False)
    _, reward, terminated, *_ = env.step(whole)
    assert (reward, terminated) == (0.25, True)  # one of the two turns that were not cut


def test_cut_turns_of_a_vector():
    envs = ToolVectorEnv(make_priced, 2)
    envs.reset(seed=0)
    _, rewards, terminated, _, infos = envs.step(["<answer>a</answer>"] * 2, cut={1})
    assert (terminated.tolist(), infos["cut"].tolist(), rewards[1]) == ([True, False], [False, True], 0)
