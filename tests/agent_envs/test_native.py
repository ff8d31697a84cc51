"""Function calls as models of each kind of chat template write them: ids, reading back, what is refused."""

import functools
import json
import time
from itertools import pairwise

import pytest
from chat_templates import KINDS, end_ids, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats import Native
from agent_envs.formats.dialects import Dialect
from agent_envs.formats.families import FAMILIES, find_thought, read_typed
from agent_envs.formats.notations import read_calls
from agent_envs.tools import FunctionTool
from agent_envs.types import CUT, ToolCall, ToolResult, Turn

FAMILY = {
    "hermes": "Hermes", "qwen3": "Hermes", "qwen3.5": "Qwen3-Coder", "drops": "Hermes", "llama3.1": "Llama",
    "mistral": "Mistral", "glm": "GLM", "gpt-oss": "harmony", "gemma4": "Gemma 4", "lfm2": "LFM2", "lfm2.5": "LFM2.5",
    "deepseek": "DeepSeek", "muse": "Muse",
}  # fmt: skip
ONE_CALL = ("llama3.1", "gpt-oss")


def search(query: str, k: int = 3, exact: bool = False, among: list[str] | None = None) -> str:
    """Find passages.

    Args:
        query: what is looked for
    """
    return query


NATIVE = Native([FunctionTool(search)])
TOOLS = NATIVE.schemas()
QUERY = 'explain "the </tool_call> token" of\nZürich\'s C:\\new: {a: [1, 2]}, 5, and </think>'


@functools.cache
def chat_of(kind: str) -> ChatTokens:
    return ChatTokens(make_tokenizer(kind), end_ids(kind))


def turn_of(*queries: str, thought: str | None = None, **more) -> dict:
    calls = tuple(ToolCall("search", {"query": query, **more}) for query in queries)
    return NATIVE.message(NATIVE.write(Turn(calls=calls, thought=thought)))


def results_of(turn: dict, *texts: str) -> list[dict]:
    calls = NATIVE.parse(json.dumps(turn)).calls
    return NATIVE.messages(NATIVE.render(Turn(calls=calls), [ToolResult(text) for text in texts]))


def converse(chat: ChatTokens, messages: list[dict]) -> list[int]:
    """The ids of a conversation piece by piece, as a rollout makes them."""
    ids = chat.prompt_ids("Be brief.", "Where?", TOOLS)
    for turn, back in zip(messages[::2], messages[1::2], strict=True):
        tokens = chat.turn_ids(turn, TOOLS)
        ids += tokens + chat.observation_ids(back, tokens, TOOLS)
    return ids


@pytest.mark.parametrize("kind", FAMILY)
def test_the_ids_of_a_conversation_are_those_of_its_messages(kind):
    chat = chat_of(kind)
    assert chat.dialect.family.name == FAMILY[kind] and chat.dialect.parallel == (kind not in ONE_CALL)
    queries = ("a", "b")[: 1 if kind in ONE_CALL else 2]
    thought = "hm" if chat.dialect.shows_thought and kind != "drops" else None
    first, second = turn_of(*queries, thought=thought), turn_of("c", thought=thought, k=2)
    back = results_of(first, *(f"result {query}" for query in queries))
    ids = converse(chat, [first, back, second, results_of(second, "result c")])

    def render(back):
        messages = [{"role": "user", "content": "Where?"}, first, *back, second, *results_of(second, "result c")]
        whole = chat.prompt_messages("Be brief.", messages)
        return chat.tokenizer.apply_chat_template(whole, tools=TOOLS, add_generation_prompt=True, return_dict=False)

    assert ids == render(back)
    text = chat.tokenizer.decode(ids)
    places = [text.index(f"result {query}") for query in (*queries, "c")]
    assert all(one < other for one, other in pairwise(places))
    if len(queries) == 2:  # and results in another order would be seen
        assert converse(chat, [first, back[::-1], second, results_of(second, "result c")]) != ids


def test_a_thought_that_the_template_drops_is_kept():
    chat, first = chat_of("drops"), turn_of("a", thought="I wonder")
    text = chat.tokenizer.decode(converse(chat, [first, results_of(first, "x")]))
    messages = [{"role": "user", "content": "Where?"}, first, *results_of(first, "x")]
    whole = chat.tokenizer.apply_chat_template(chat.prompt_messages("", messages), tools=TOOLS, tokenize=False)
    assert "I wonder" in text and "I wonder" not in whole


@pytest.mark.parametrize("kind", FAMILY)
def test_what_the_template_writes_is_read_back(kind):
    chat = chat_of(kind)
    queries = (QUERY, "42")[: 1 if kind in ONE_CALL else 2]
    turn = turn_of(*queries, thought="hm", exact=True, among=["x", "ü\n"], k=7)
    read = NATIVE.parse(chat.decode_action(chat.turn_ids(turn, TOOLS), TOOLS))
    assert [call.arguments for call in read.calls] == [
        {"query": query, "exact": True, "among": ["x", "ü\n"], "k": 7} for query in queries
    ]
    assert (read.thought == "hm") == chat.dialect.shows_thought
    answer = NATIVE.message(NATIVE.write(Turn(answer="42")))
    assert NATIVE.parse(chat.decode_action(chat.turn_ids(answer, TOOLS), TOOLS)) == Turn(answer="42")
    for thought in (None, "hm"):
        answer = NATIVE.message(NATIVE.write(Turn(answer="42", thought=thought)))
        opening = chat.answer_opening(TOOLS, thought)
        assert opening == chat.turn_ids(answer, TOOLS)[: len(opening)] and len(opening) > 3


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind not in ONE_CALL])
def test_a_lone_surrogate_that_an_escape_writes_is_gone(kind):
    chat = chat_of(kind)
    ids = chat.turn_ids(turn_of("QQQ"), TOOLS)
    message = chat.read_turn(chat.encode(chat.decode(ids).replace("QQQ", "\\ud800")), TOOLS)
    json.dumps(message, ensure_ascii=False).encode()  # or a server cannot send it
    chat.turn_ids(message, TOOLS)


def test_the_message_of_a_cut_turn_is_no_excuse_in_the_text_of_an_agent():
    forged = NATIVE.parse(json.dumps({"role": "assistant", "error": CUT.error}))
    assert forged.error == CUT.error and forged.is_mistake and not CUT.is_mistake


@pytest.mark.parametrize("kind", FAMILY)
def test_text_without_a_call_is_no_answer(kind):
    chat = chat_of(kind)
    channel = {"gpt-oss": "<|channel|>final<|message|>Zug", "muse": " to=user<|message|>Zug"}
    text = {"qwen3.5": "hm</think>\n\nZug", **channel}.get(kind, "Zug")
    ids = [*chat.encode(text), *chat.turn_end_ids]
    assert chat.read_turn(ids, TOOLS)["content"] == "Zug"
    assert "No function was called" in NATIVE.parse(chat.decode_action(ids, TOOLS)).error
    assert NATIVE.parse(chat.decode_action([], TOOLS)).error


MALFORMED = {  # beside calls that are cut: see test_thoughts.py
    "hermes": [
        '<tool_call>{"name": "search", "arguments": {"query": "a"</tool_call>',
        '<tool_call>{"name": "search", "parameters": {}}</tool_call>',
        '<tool_call>["search"]</tool_call>',
        '<tool_call>{"name": "search", "arguments": {}, "id": 1}</tool_call>',
        "Zug</tool_call>",
        '<tool_call>{"name": "search", "arguments": {}}</tool_call><tool_response>x</tool_response>',
    ],
    "qwen3.5": [
        "Zug",  # still in the thought that the prompt opened
        "</think><tool_call><function=search><parameter=query>a</function></tool_call>",
        "</think><tool_call>search</tool_call>",
        "</think><tool_call><function=search><parameter=query>a</parameter><parameter=query>b</parameter></function></tool_call>",
        "</think><function=search></function>",
    ],
    "glm": ["<tool_call>search<arg_key>query</arg_key></tool_call>", "<tool_call></tool_call>"],
    "llama3.1": [
        '{"name": "search", "parameters": {"query": "a"}} and then',
        '{"name": "search", "parameters": {}}; {"name": "search", "parameters": {}}',  # its template writes one
        '{"name": "search", "parameters": "a"}',
        "I call <|python_tag|>",
    ],
    "mistral": ["[TOOL_CALLS]", "[TOOL_RESULTS] Zug"],
    "lfm2": [
        "<|tool_call_start|>[search(query='a)]<|tool_call_end|>",
        "<|tool_call_start|>[search('a')]<|tool_call_end|>",
        "<|tool_call_start|>[search(query='a', query='b')]<|tool_call_end|>",
        "<|tool_call_start|>[search(query=a)]<|tool_call_end|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "a"}<｜tool▁call▁end｜>',
    ],
    "muse": [
        "Zug",
        " to=self<|message|>hm<|eot|>",
        " to=search<|message|>a<|eot|>",
        ' to=search<|message|><atem:function_calls><atem:invoke name="search"></atem:function_calls><|eot|>',
    ],
    "gpt-oss": ["Zug", "<|channel|>analysis<|message|>Zug"],
    "gemma4": [
        '<|tool_call>call:search{query:<|"|>a}<tool_call|>',
        "<|tool_call>call:search{query:a}<tool_call|>",
        "<|tool_call>search{}<tool_call|>",
        "<|tool_call>call:search{k:1,k:2}<tool_call|>",
        "<|tool_call>call:search" + "{a:" * 60,
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in MALFORMED.items() for text in texts])
def test_malformed_turns(kind, text):
    chat = chat_of(kind)
    turn = NATIVE.parse(chat.decode_action(chat.encode(text), TOOLS))
    assert turn.error and turn == Turn(error=turn.error)


PARTS = [
    *dict.fromkeys(mark for family in FAMILIES for mark in family.marks), "</think>", "<think>", "{", "}", "[", "]", '"', ",",
    '{"name": "search", "arguments": {"query": "a"}}', "call:search{", '<|"|>', "query:", "</parameter>", "</arg_value>",
    "<|start|>assistant", "<|message|>", "<|channel|>final", "<tool_call|>", "<|call|>", "\n", "search",
]  # fmt: skip


@given(parts=st.lists(st.sampled_from(PARTS) | st.text(max_size=5), max_size=12))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", FAMILY)
def test_any_text_is_a_turn(kind, parts):
    chat = chat_of(kind)
    turn = NATIVE.parse(chat.decode_action(chat.encode("".join(parts)), TOOLS))
    assert (turn.error is not None) + (turn.answer is not None) + bool(turn.calls) == 1


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_reading_takes_linear_time(family):
    dialect = Dialect(family)
    begun = time.perf_counter()
    for part in (*PARTS, '<tool_call>{"', '[TOOL_CALLS]{"a": "', "<tool_call><function=f><parameter=a>", "[[", '{"a":'):
        try:
            dialect.read(part * 20_000, TOOLS)
        except ValueError:
            continue
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"), ("5", {"type": "integer"}, 5), ("True", {"type": "boolean"}, True),
        ("[1]", {"type": "array"}, [1]), ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("five", {"type": "integer"}, "five"), ("5", {"enum": ["5", "6"]}, "5"), ("a", {}, "a"), ("[1", {}, "[1"),
        ("5", {"type": None}, 5), ("5", {"enum": 5, "anyOf": {"a": {}}, "type": [None, "string"]}, "5"),
    ],
)  # fmt: skip
def test_values_without_quotes_have_the_type_of_their_schema(text, schema, value):
    assert read_typed(text, schema) == value and type(read_typed(text, schema)) is type(value)


@pytest.mark.parametrize(
    ("kind", "old", "new", "why"),
    [
        ("plain", "", "", "does not take tools"),
        ("hermes", "tool_call>", "invocation>", "nothing here reads calls"),
        ("hermes", "{% for call in m.tool_calls %}", "{% for call in [] %}", "leaves calls out"),
        (
            "gemma4",
            "{% if last.role != 'tool' %}<|turn>model",
            "{% if True %}<|turn>model",
            "begins a turn after results in another way",
        ),
        ("hermes", "{{ m.content }}\n</tool_response>", "</tool_response>", "leaves out results"),
        ("hermes", "{% for m in messages %}", "{% for m in messages | sort(attribute='role') %}", "after its generation prompt"),
        (
            "hermes", "<tool_response>\n{{ m.content }}",
            "<tool_response>\n{{ messages[5 - loop.index0].content }}",
            "changes their order",
        ),
    ],
)  # fmt: skip
def test_a_template_is_refused_with_the_reason(kind, old, new, why):
    tokenizer = make_tokenizer(kind)
    other = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token=tokenizer.eos_token, bos_token=tokenizer.bos_token,
        chat_template=tokenizer.chat_template.replace(old, new),
    )  # fmt: skip
    chat = ChatTokens(other)
    assert chat.dialect is None and why in chat.refusal and "\n" not in chat.refusal
    with pytest.raises(ValueError, match="choose another format than native"):
        chat.decode_action([5], TOOLS)


def test_a_tokenizer_that_reads_its_own_calls():
    tokenizer = make_tokenizer("hermes")
    own = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token=tokenizer.eos_token,
        chat_template=tokenizer.chat_template.replace("tool_call>", "invocation>"),
        response_template={
            "defaults": {"role": "assistant"},
            "start_anchor": "<|im_start|>assistant\n",
            "fields": {
                "tool_calls": {
                    "open_pattern": r"\s*<invocation>", "close": "</invocation>", "repeats": True, "content": "json",
                    "transform": {"type": "function", "function": "{content}"},
                },
                "content": {"content": "text"},
            },
        },
    )  # fmt: skip
    chat, turn = ChatTokens(own), turn_of("a", QUERY)
    ids = chat.turn_ids(turn, TOOLS)
    assert chat.dialect.family.name == "its own tokenizer" and "<invocation>" in own.decode(ids)
    assert [call.arguments["query"] for call in NATIVE.parse(chat.decode_action(ids, TOOLS)).calls] == ["a", QUERY]
    assert chat.read_turn(chat.encode("Zug"), TOOLS) == {"role": "assistant", "content": "Zug"}
    assert "error" in chat.read_turn(chat.encode("<invocation>{</invocation>"), TOOLS)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("gemma4", "<|channel>thought\nI wonder<channel|>Zug"), ("mistral", "[THINK]I wonder[/THINK]Zug")],
)
def test_thoughts_between_tokens_of_the_family(kind, text):
    chat = chat_of(kind)
    said = {"role": "assistant", "content": "Zug", "reasoning_content": "I wonder"}
    assert chat.read_turn(chat.encode(text), TOOLS) == said
    assert "error" in chat.read_turn(chat.encode(text.replace("<channel|>", "").replace("[/THINK]", "")), TOOLS)


def test_thoughts_of_cohere():
    dialect = Dialect(next(family for family in FAMILIES if family.name == "Cohere"))
    call = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "a"}}]<|END_ACTION|>'
    thought = "<|START_THINKING|>I wonder<|END_THINKING|>"
    read = dialect.read(thought + call, TOOLS)
    assert (read.thoughts, [made.arguments for made in read.calls], read.text) == (["I wonder"], [{"query": "a"}], "")
    assert find_thought(thought, None, ()) == dialect.family.thought
    assert find_thought("… '<seed:think>' … '</seed:think>'", None, ()) == ("<seed:think>", "</seed:think>")


def test_what_would_be_read_as_something_else_is_not_taught():
    call = {"function": {"name": "search", "arguments": {"<query>": "a"}}}
    with pytest.raises(ValueError, match="read back"):
        chat_of("glm").turn_ids({"role": "assistant", "content": "", "tool_calls": [call]}, TOOLS)


def test_calls_in_python():
    text = "[search(query='it\\'s', k=2), search(query=\"a\\u00fc\\n\", among=['x', {'y': None}])] and"
    calls, end = read_calls(text, 0)
    assert text[end:] == " and"
    assert [call.arguments for call in calls] == [
        {"query": "it's", "k": 2},
        {"query": "aü\n", "among": ["x", {"y": None}]},
    ]


@pytest.mark.parametrize("kind", FAMILY)
def test_a_mark_that_text_spells_is_not_read_as_one(kind):
    """As a model copies it from a passage, in tokens of text."""
    chat = chat_of(kind)
    spelled = chat.escape("\n".join([*chat.control.values(), *chat.dialect.family.marks]))
    turn = turn_of(f"a{spelled}b")
    read = NATIVE.parse(chat.decode_action(chat.turn_ids(turn, TOOLS), TOOLS))
    (call,) = read.calls
    assert call.arguments["query"].replace("\u2060", "") == f"a{spelled}b".replace("\u2060", "")
    if kind == "hermes":
        ids = [
            id
            for part in ("<tool", '_call>{"name": "search", "arguments": {}}</', "tool_call>")
            for id in chat.encode(part)
        ]
        assert chat.read_turn(ids, TOOLS)["content"].startswith("<tool_call>")


@pytest.mark.parametrize(("kind", "ends"), [("gpt-oss", ["<|call|>", "<|return|>"]), ("mistral", ["</s>"])])
def test_the_tokens_that_end_a_turn(kind, ends):
    chat = chat_of(kind)
    assert sorted(chat.tokenizer.convert_ids_to_tokens(chat.end_ids)) == ends


def test_all_kinds_are_covered():
    without = {"plain", "r1", "unflagged", "flagged", "gemma", "phi3", "llama2", "zephyr", "vicuna"}
    assert set(KINDS) == {*FAMILY, *without}
