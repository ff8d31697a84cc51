"""Thoughts that the prompt opens, that the model opens, and that are cut."""

from dataclasses import replace

import chat_templates
import pytest
from chat_templates import end_ids, make_tokenizer
from toy_tools import STRING, tool

from agent_envs import chat_tokens
from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats import make_format
from agent_envs.formats.json_text import dumps
from agent_envs.integrations import hosting
from agent_envs.rewards import Format, Invalid, Reward
from agent_envs.stopping import StopChecker
from agent_envs.types import Turn
from agent_envs.vector import ToolVectorEnv


def make_chat(kind: str) -> ChatTokens:
    return ChatTokens(make_tokenizer(kind), end_ids(kind))


SEARCH = tool("search", required=["query"], query=STRING)
ANSWERS = {
    "tags": "<answer>{}</answer>",
    "hermes": "<answer>{}</answer>",
    "react": "Final Answer: {}",
    "native": '<tool_call>{{"name": "answer", "arguments": {{"text": "{}"}}}}</tool_call>',
}


@pytest.mark.parametrize(("kind", "opening"), [("qwen3.5", ""), ("qwen3", "<think>\n")])
def test_a_draft_of_a_call_in_a_thought_is_no_action(kind, opening):
    chat, format = make_chat(kind), make_format("native", [SEARCH])
    answer = ANSWERS["native"]
    if kind == "qwen3.5":
        answer = "<tool_call><function=answer><parameter=text>{}</parameter></function></tool_call>"
    said = f"{opening}Maybe {answer.format('Paris')}? No.\n</think>\n\n{answer.format('London')}"
    ids = StopChecker(chat, format.stop).cut([*chat.encode(said), *chat.turn_end_ids])
    assert format.parse(chat.decode_action(ids, format.schemas())).answer == "London"
    open_thought = chat.decode_action(chat.encode(said.partition("</think>")[0]), format.schemas())
    assert "think>" in (format.parse(open_thought).error or "")


IN_CHANNELS = {  # of families: a thought, and a text for the user after it
    "gpt-oss": ("<|channel|>analysis<|message|>{}", "<|end|><|start|>assistant", "<|channel|>final<|message|>"),
    "muse": (" to=self<|message|>{}", "<|eom|><|start|>assistant", " to=user<|message|>"),
    "gemma4": ("<|channel>thought\n{}", "<channel|>", ""),
    "mistral": ("[THINK]{}", "[/THINK]", ""),
}


@pytest.mark.parametrize("name", ["tags", "hermes", "react"])
@pytest.mark.parametrize("kind", IN_CHANNELS)
def test_a_format_of_text_sees_the_thought_and_the_text_of_channels(kind, name):
    chat, format = make_chat(kind), make_format(name, [SEARCH])
    thought, closing, channel = IN_CHANNELS[kind]
    begun = thought.format(f"Maybe {ANSWERS[name].format('Paris')}?")
    said = f"{begun}{closing}{channel}{ANSWERS[name].format('London')}"
    ids = StopChecker(chat, format.stop).cut([*chat.encode(said), *chat.turn_end_ids])
    turn = format.parse(chat.decode_action(ids))
    assert (turn.answer, turn.thought) == ("London", f"Maybe {ANSWERS[name].format('Paris')}?")
    assert format.parse(chat.decode_action(chat.encode(begun))).unfinished
    assert format.parse(chat.decode_action(chat.encode(f"{channel}{ANSWERS[name].format('Rome')}"))).answer == "Rome"
    # What is taught is what is read.
    text = f"<think>so</think>{ANSWERS[name].format('London')}"
    taught = chat.text_ids(text)
    assert format.parse(chat.decode_action(taught)) == format.parse(text) and taught[-1] in chat.end_ids
    written = thought.format("so") + "\n" * (kind == "gemma4") + closing + chat._lead + text.partition("</think>")[2]
    assert taught[:-1] == chat.encode(written)


def test_a_model_without_its_familys_tokens_for_thoughts_thinks_in_plain_tags(monkeypatch):
    kind = chat_templates.KINDS["mistral"]
    tokens = [token for token in kind.specials if "THINK" not in token]
    monkeypatch.setitem(chat_templates.KINDS, "nemo", replace(kind, specials=tokens))
    chat = make_chat("nemo")
    assert chat.dialect.family.name == "Mistral" and chat.thought_marks == ("<think>", "</think>")
    assert chat.decode(chat.text_ids("<think>hm</think>x", ended=False)).strip() == "<think>hm</think>x"


def test_a_text_in_no_channel_for_the_user_is_no_action():
    chat, format = make_chat("gpt-oss"), make_format("tags", [SEARCH])
    for said in (
        "<|channel|>analysis<|message|><answer>a</answer><|end|>",
        "<|channel|>analysis<answer>a</answer><|message|>b",
    ):
        assert format.parse(chat.decode_action(chat.encode(said))).answer is None


def test_a_thought_is_known_where_the_template_is_refused_for_calls(monkeypatch):
    def refuse(*arguments):
        raise ValueError("not like this")

    monkeypatch.setattr(chat_tokens, "find_dialect", refuse)
    policy = ChatTokens(make_tokenizer("gemma4"))
    ids = policy.encode("<|channel>thought\nMaybe <answer>Paris</answer>?\n<channel|><answer>London</answer>", "\n")
    assert policy.refusal == "not like this"
    assert policy.decode_action(ids) == "<think>Maybe <answer>Paris</answer>?\n</think><answer>London</answer>"


@pytest.mark.parametrize("kind", ["hermes", "qwen3", "qwen3.5"])
def test_the_mark_of_a_thought_within_a_call_is_an_argument(kind):
    chat, format = make_chat(kind), make_format("native", [SEARCH])
    call = {"function": {"name": "search", "arguments": {"query": "what is </think> and <think>?"}}}
    for thought in ("", "so"):
        message = {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]}
        turn = format.parse(chat.decode_action(chat.turn_ids(message, format.schemas()), format.schemas()))
        assert turn.calls[0].arguments == call["function"]["arguments"]
    text = '<tool_call>{"name": "search", "arguments": {"query": "a </think> b"}}</tool_call>'
    assert make_format("hermes", [SEARCH]).parse(text).calls[0].arguments == {"query": "a </think> b"}


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


def test_stop_strings_within_a_long_thought_take_linear_time(monkeypatch):
    chat = make_chat("qwen3.5")
    ids, decode, decoded = chat.encode("so </answer>" * 4000), chat.tokenizer.decode, list[int]()
    ends_turn, read = StopChecker(chat, ("</answer>",)), list[int]()
    monkeypatch.setattr(ends_turn, "_decode", lambda some: decoded.append(len(some)) or decode(some))
    for count in (len(ids) // 8, len(ids)):
        decoded.clear()
        assert not any(ends_turn(ids[:n]) for n in range(count - 400, count))
        read.append(sum(decoded))
    assert read[1] <= read[0] + 2 * max(decoded)  # as many tokens, but for where the 400 begin


def message(arguments: str) -> str:
    call = {"id": "a", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return dumps({"role": "assistant", "content": None, "tool_calls": [call]})


def make_priced(**options):
    rewards = Reward(price=(-1.0, Invalid()), readable=(0.5, Format()))
    return hosting.make(
        "AgentR1/MiniWiki-Easy-v0", entities=60, questions=20, rewards=rewards, **{"max_turns": 6} | options
    )


BEGUN = {  # where a call or an answer has begun
    "tags": ["<answer>", "<answer>Zug", "so <search>who", "<think>a</think><search>"],
    "hermes": [
        "<answer>Zu",
        "<tool_call>",
        '<tool_call>\n{"name": "search", "arguments": {"query": "an </tool_call> in',
    ],
    "react": ["Action:", "Action: search", 'Action: search\nAction Input: {"query": "wh', "Final Answer:"],
    "native": [message('{"query": "wh'), message("{"), '{"role": "assistant", "error": "no end", "unfinished": true}'],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_cut_turn_is_no_action_and_priced_only_where_none_had_begun(name):
    env = make_priced(format=name, max_turns=9)
    env.reset(seed=0)
    whole = env.format.write(Turn(answer="Zug"))
    for said in (whole, "<think>so", f"<think>{whole}", *BEGUN[name]):
        told, reward, terminated, truncated, info = env.step(said, cut=True)
        assert "cut" in told and (reward, terminated, truncated) == (0, False, False)
        assert (info["cut"], info["valid"]) == (True, False)
    malformed = '{"role": "user"}' if name == "native" else "so"
    _, reward, *_, info = env.step(malformed, cut=True)
    assert (reward, info["cut"]) == (-1, True)
    _, reward, terminated, *_, info = env.step(whole)
    assert (reward, terminated, info["cut"]) == (0.25, True, False)  # one of the two turns that count


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tags", "<search></search> and so on"),
        ("tags", "<information>[1] it is"),  # which a tool would write
        ("hermes", "<tool_call>{}</tool_call> and so on"),
        ("hermes", "<answer>a</answer></answer>"),
        ("react", "Observation: it is"),
    ],
)
def test_what_is_wrong_with_a_turn_beside_its_cut_is_priced(name, said):
    env = make_priced(format=name)
    env.reset(seed=0)
    assert env.step(said, cut=True)[1] == -1


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        *(("qwen3", "<tool_call>"), ("qwen3.5", "<tool_call>"), ("glm", "<tool_call>"), ("mistral", "[TOOL_CALLS]")),
        *(("llama3.1", "{"), ("gemma4", "<|tool_call>"), ("gpt-oss", "{"), ("lfm2", "<|tool_call_start|>")),
        ("deepseek", "<｜tool▁calls▁begin｜>"),
    ],
)
def test_a_call_of_any_family_that_its_length_cut_is_unfinished(kind, mark):
    chat, format = make_chat(kind), make_format("native", [SEARCH])
    call = {"function": {"name": "search", "arguments": {"query": 'who "is" it'}}}
    ids = chat.turn_ids({"role": "assistant", "content": "", "tool_calls": [call]}, format.schemas())
    text = chat.tokenizer.decode(ids)
    begun = next(n for n in range(len(ids)) if mark in chat.tokenizer.decode(ids[:n]))
    for n in range(begun, len(ids)):
        turn = format.parse(chat.decode_action(ids[:n], format.schemas()))
        assert turn.unfinished or (turn.calls and n > len(ids) - 4), text
    assert format.parse(chat.decode_action(ids, format.schemas())).calls


def test_a_turn_that_is_cut_at_the_last_position_of_the_model_is_truncated_only():
    env = make_priced()
    env.reset(seed=0)
    env.fits = lambda observation, context: False
    _, reward, terminated, truncated, info = env.step("so", cut=True)
    assert (reward, terminated, truncated, info["cut"]) == (0, False, True, True)


@pytest.mark.parametrize("name", ["tags", "native"])
@pytest.mark.parametrize(
    ("kind", "context", "kept"),
    [
        ("hermes", "template", {"tags": 2, "native": 2}),  # it has no place for thoughts, so they are text
        ("qwen3", "template", {"tags": 0, "native": 2}),  # dropped before a message of the user, and results are none
        ("drops", "template", {"tags": 0, "native": 0}),
        ("qwen3.5", "append", {"tags": None, "native": None}),
    ],
)
def test_earlier_thoughts_are_kept_as_the_template_keeps_them(kind, context, kept, name):
    chat, env = make_chat(kind), make_priced(format=name, context=context)
    _, opening = env.reset(seed=0)
    format, infos = env.format, []
    for query in ("a", "b"):
        call = {"function": {"name": "search", "arguments": {"query": query}}}
        message = {"role": "assistant", "content": "", "reasoning_content": "so-it-is", "tool_calls": [call]}
        said = f"<think>\nso-it-is\n</think>\n\n<search>{query}</search>"
        ids = chat.turn_ids(message, format.schemas()) if name == "native" else chat.text_ids(said)
        infos.append(env.step(chat.decode_action(ids, format.schemas()))[-1])
    assert all(info["valid"] for info in infos) and ("context" in infos[-1]) == (context == "template")
    if context == "template":
        prompt = chat.decode(chat.prompt_ids(opening["instructions"], infos[-1]["context"], format.schemas()))
        assert prompt.count("so-it-is") == kept[name]


@pytest.mark.parametrize(
    ("kind", "thinking", "ending", "opened"),
    [
        ("qwen3", "on", "assistant\n", ""),
        ("qwen3", "off", "<think>\n\n</think>\n\n", ""),
        ("qwen3.5", "auto", "<think>\n", "<think>\n"),
        ("qwen3.5", "off", "<think>\n\n</think>\n\n", ""),
    ],
)
def test_the_switch_of_the_template(kind, thinking, ending, opened):
    chat = ChatTokens(make_tokenizer(kind), thinking=thinking)
    user = [{"role": "user", "content": "hello"}]
    for tools in (None, make_format("native", [SEARCH]).schemas()):
        assert chat.decode(chat.prompt_ids("", user, tools)).endswith(ending)
    assert chat.opened_thought == opened and chat.dialect.opens_thought == bool(opened)
    assert chat.decode(chat.observation_ids("more", [])).endswith(ending)


def test_a_template_without_a_switch_is_refused():
    with pytest.raises(ValueError, match="has no switch for thoughts, got thinking 'off': leave it at auto"):
        ChatTokens(make_tokenizer("r1"), thinking="off")


MODEL_OPENS = ("plain", "hermes", "qwen3", "drops", "llama3.1", "mistral", "glm", "gemma", "phi3")


@pytest.mark.parametrize(
    ("kind", "thought"),
    [(kind, thought) for kind in MODEL_OPENS for thought in ("model", "none")]
    + [("r1", "prompt"), ("qwen3.5", "prompt")],
)
@pytest.mark.parametrize("end", ["eos", "stop", "length"])
def test_turns_of_all_kinds(kind, thought, end):
    """A draft in the thought, then the answer, with more behind it; or nothing but the thought."""
    chat, format = make_chat(kind), make_format("tags", [SEARCH])
    assert bool(chat.opened_thought) == (thought == "prompt")
    inside = "Is it <answer>Paris</answer>? No."
    said = {"prompt": f"{inside}\n</think>\n\n", "model": f"<think>{inside}</think>", "none": ""}[thought]
    if end == "length":
        said = said.partition("</think>")[0] or "<answer>Lond"
    else:
        said += "<answer>London</answer>" + " and more" * (end == "stop")
    ids, ends_turn = chat.encode(said), StopChecker(chat, format.stop)
    ids += [min(chat.end_ids)] * (end == "eos")
    ends = [n for n in range(1, len(ids) + 1) if ends_turn(ids[:n])]
    if end == "length":
        assert not ends and format.parse(chat.decode_action(ids)).error
    else:
        turn = format.parse(chat.decode_action(ids[: ends[0]]))
        assert (turn.answer, turn.thought) == ("London", None if thought == "none" else inside)


def test_cut_turns_of_a_vector():
    envs = ToolVectorEnv(make_priced, 2)
    envs.reset(seed=0)
    _, rewards, terminated, _, infos = envs.step(["<answer>a</answer>"] * 2, cut={1})
    assert (terminated.tolist(), infos["cut"].tolist(), rewards[1]) == ([True, False], [False, True], 0)
