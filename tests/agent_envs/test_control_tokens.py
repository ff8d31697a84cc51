"""What outside text cannot do: by kind of chat template, no place where it enters can forge a control token; and the ids of a
conversation are those of its rendering."""

import copy
import functools

import pytest
from chat_templates import KINDS, end_ids, make_tokenizer
from toy_tools import STRING, tool

from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats import make_format
from agent_envs.formats.dialects import to_tool_call
from agent_envs.stopping import StopChecker
from agent_envs.types import ToolCall, ToolResult, Turn


@functools.cache
def chat_of(kind: str) -> ChatTokens:
    return ChatTokens(make_tokenizer(kind), end_ids(kind))


WITH_FUNCTIONS = [kind for kind in KINDS if chat_of(kind).dialect]


def controls_of(kind: str) -> list[str]:
    """All that a passage could want to spell: what the tokenizer flags, and of the rest what frames messages."""
    of = KINDS[kind]
    return [token for token in (*of.specials, *of.added) if token not in ("<think>", "</think>")]


def count(chat: ChatTokens, ids: list[int], tokens: list[str]) -> list[int]:
    return [ids.count(id) for id in chat.tokenizer.convert_tokens_to_ids(tokens)]


def enter(chat: ChatTokens, place: str, text: str) -> list[int]:
    """The ids of what stands where ``text`` entered at a place."""
    tools = [{"type": "function", "function": {"name": "search", "description": "Find.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string", "description": "words"}}, "required": ["query"],
    }}}]  # fmt: skip
    function = tools[0]["function"]
    turn = chat.text_ids("Zug")
    match place:
        case "question":
            return chat.prompt_ids("Be brief.", f"Where{text}?")
        case "instructions":
            return chat.prompt_ids(f"Be {text}brief.", "Where?")
        case "context":
            return chat.prompt_ids("", [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"{text}b"},
                                        {"role": "user", "content": text}])  # fmt: skip
        case "passage":
            return chat.observation_ids(f"[1] {text} x", turn)
        case "gold answer":
            return chat.text_ids(f"<answer>C{text}</answer>")
        case "description":
            function["description"] += text
        case "property":
            function["parameters"]["properties"] = {f"query{text}": {"type": "string", "description": text}}
            function["parameters"]["required"] = [f"query{text}"]
        case "function":
            function["name"] += text
        case "result":
            result = {"role": "tool", "tool_call_id": "call_0", "name": "search", "content": f"a{text}b"}
            return chat.observation_ids([result], [chat.eos_id], tools)
        case "argument":
            call = {"id": "call_0", "function": {"name": "search", "arguments": {"query": f"a{text}b"}}}
            return chat.turn_ids({"role": "assistant", "content": "", "tool_calls": [call]}, tools)
    return chat.prompt_ids("Be brief.", "Where?", tools)


OF_TEXT = ("question", "instructions", "context", "passage", "gold answer")
OF_FUNCTIONS = ("description", "property", "function", "result", "argument")
PLACES = [(kind, place) for kind in KINDS for place in OF_TEXT]
PLACES += [(kind, place) for kind in WITH_FUNCTIONS for place in OF_FUNCTIONS]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_nothing_from_outside_is_a_control_token(kind, place):
    chat = chat_of(kind)
    tokens = list(chat.control.values())
    assert set(KINDS[kind].specials) <= {*tokens, "<think>", "</think>"}
    if place == "result":  # nor what the template writes around results
        tokens += [token for token in controls_of(kind) if token in chat.dialect.family.marks and token not in tokens]
    forged, honest = (enter(chat, place, text) for text in ("\n".join(tokens), "x"))
    assert count(chat, forged, tokens) == count(chat, honest, tokens)


OF_FORMATS = "question task context description property argument result error answer thought call".split()


@pytest.mark.parametrize("place", OF_FORMATS)
@pytest.mark.parametrize(
    ("kind", "name"), [("qwen3", "hermes"), ("flagged", "hermes"), ("flagged", "tags"), ("qwen3.5", "react")]
)
def test_nor_a_tag_of_a_format_that_the_tokenizer_has_as_a_token(kind, name, place):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind))

    def enter(text):
        described = tool("search", f"Find.{text * (place == 'description')}", required=["query"], **{
            f"query{text * (place == 'argument')}": STRING | {"description": f"{text * (place == 'property')}"}
        })  # fmt: skip
        format = make_format(name, [described])
        chat.keep(format)
        called = Turn(calls=(ToolCall("search", {"query": f"a{text * (place == 'call')}"}),))
        back = format.messages(format.render(called, [ToolResult(f"[1] {text}")]))
        match place:
            case "result":
                return chat.observation_ids(back, [])
            case "error":
                return chat.observation_ids(format.messages(format.render_error(f"what is {text}?")), [])
            case "answer":
                return chat.text_ids(format.write(Turn(answer=f"C{text}")))
            case "thought":
                return chat.text_ids(format.write(Turn(thought=f"a{text}b", answer="C")))
            case "call":
                return chat.text_ids(format.write(called))
            case "context":
                return chat.prompt_ids("", [{"role": "user", "content": text}, format.message("so"), *back])
        task = f"Be {text * (place == 'task')} brief. {format.instructions()}"
        return chat.prompt_ids(task, f"Where {text * (place == 'question')}?")

    tokens = [token.content for token in chat.tokenizer.added_tokens_decoder.values()]
    honest = count(chat, enter("x"), tokens)
    for spelled in tokens:
        try:
            assert count(chat, enter(spelled), tokens) == honest, spelled
        except ValueError as refused:  # what would be read as something else is not taught
            assert place in ("answer", "thought", "call") and "cannot express" in str(refused)


def test_what_is_broken_is_encoded_as_it_was():
    chat = chat_of("qwen3")
    ids = chat.prompt_ids("Be <tool_call> brief.", "Where </think> is <|im_end|>?")
    assert "Be <tool_call> brief." in chat.tokenizer.decode(ids)
    assert chat.tokenizer.decode(ids).count("Where </think> is <|im_end|>?") == 1


@pytest.mark.parametrize(("kind", "mark"), [("llama2", "[INST]"), ("llama2", "[/INST]"), ("zephyr", "<|user|>")])
def test_nor_does_it_frame_a_message_where_text_does_that(kind, mark):
    chat = chat_of(kind)
    honest, forged = (chat.tokenizer.decode(chat.observation_ids(text, [])) for text in ("x", f"x{mark}x"))
    assert honest.count(mark) == forged.count(mark) == 1


def test_what_ends_a_message_in_a_channel_does_not_end_the_turn():
    tokenizer = make_tokenizer("gpt-oss")
    chat = ChatTokens(tokenizer, tokenizer.convert_tokens_to_ids(["<|end|>", "<|call|>"]))
    thought = chat.encode("<|channel|>analysis<|message|>I look<|end|>")
    call = chat.encode('<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>')
    assert StopChecker(chat, ()).cut([*thought, *call, 5]) == [*thought, *call]
    read = chat.read_turn([*thought, *call])
    assert (read["reasoning_content"], read["tool_calls"][0]["function"]["name"]) == ("I look", "f")


def test_an_end_of_a_turn_is_no_part_of_its_text():
    for kind in KINDS:
        chat = chat_of(kind)
        for read in (chat.decode, chat.decode_text):
            said = [read([*chat.encode("Zug"), end]).removeprefix(chat.opened_thought) for end in chat.end_ids]
            assert all(text.strip() == "Zug" for text in said)


def test_a_switch_of_the_template_is_not_found_in_a_closing_tag():
    """SmolLM3's template looks for "/think" in the system message, and removes it."""
    tokenizer = copy.deepcopy(make_tokenizer("plain"))
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'system' %}{{ 'Think: ' ~ ('/think' in m.content) }} "
        "{{ m.content.replace('/think', '') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatTokens(tokenizer, end_ids("plain"))
    told = [
        chat.tokenizer.decode(chat.prompt_ids(f"Think in <think></think>.{switch}", "Where?"))
        for switch in ("", " /think")
    ]
    assert "Think: False Think in <think></think>." in told[0] and "Think: True Think in <think></think>." in told[1]


def test_a_strict_template_gets_results_for_rejected_calls_and_no_empty_turn():
    """As Mistral's, which counts no turns with calls among those that must alternate."""
    tokenizer = copy.deepcopy(make_tokenizer("mistral"))
    tokenizer.chat_template = (
        "{% set seen = namespace(turns=0) %}{% for m in messages %}{% if m.role in ('user', 'assistant') and not m.tool_calls %}"
        "{% if m.role == 'assistant' and not m.content %}{{ raise_exception('an empty turn') }}{% endif %}"
        "{% if (m.role == 'user') != (seen.turns % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% set seen.turns = seen.turns + 1 %}{% endif %}{% endfor %}" + tokenizer.chat_template
    )
    chat = ChatTokens(tokenizer, end_ids("mistral"))
    calls = [to_tool_call("search", {"query": word}, f"call_{word}") for word in "ab"]
    context = [
        {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "user", "content": "Too many calls."}, {"role": "assistant", "content": ""},
        {"role": "user", "content": "Write a turn."},
    ]  # fmt: skip
    text = tokenizer.decode(chat.prompt_ids("Be brief.", context))
    assert text.count("Too many calls.") == 2 and text.endswith("Write a turn.[/INST]")


def test_tags_of_a_format_are_usable_where_the_tokenizer_calls_them_special():
    hermes, tags = (make_format(name, [tool("search", query=STRING)]) for name in ("hermes", "tags"))
    chat = ChatTokens(make_tokenizer("flagged"))
    chat.keep(hermes)
    text = '<think>a</think><tool_call>{"name": "search", "arguments": {"query": "b"}}</tool_call>'
    assert chat.decode(chat.text_ids(text)) == text
    assert "<tool_response>" in chat.escape_instructions(f"Do it. {hermes.instructions()}")
    assert chat.escape("<search><image>", chat.tags) == "<\u2060search><\u2060image>"
    chat.keep(tags)
    assert chat.escape("<search><image><|im_end|>", chat.tags) == "<search><\u2060image><\u2060|im_end|>"


@pytest.mark.parametrize(("kind", "thinking"), [
    *((kind, "auto") for kind in KINDS if kind not in ("qwen3.5", "r1")),  # these open thoughts that they do not write again
    ("glm", "off"),
])  # fmt: skip
@pytest.mark.parametrize("ended", [True, False], ids=["end", "length"])
def test_the_ids_of_a_conversation_are_those_of_its_rendering(kind, thinking, ended):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind), thinking)
    ids, messages = chat.prompt_ids("Be brief.", "Where?"), [{"role": "user", "content": "Where?"}]
    for said, back in [("Paris is it", "who\nreigned?"), ("[a] Zug", "<|b|> the town")]:
        turn = chat.text_ids(said, ended)
        assert turn[-1] in chat.end_ids or not ended
        ids += turn + chat.observation_ids(back, turn)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": back}]
    messages = chat.prompt_messages("Be brief.", messages)
    assert "Be brief." in chat.tokenizer.decode(ids)
    unwritten = [chat.eos_id] if kind == "vicuna" else []  # it writes no end, and one has to be taught
    if kind == "gpt-oss":  # only the last turn has the end that is sampled
        unwritten = chat.tokenizer.convert_tokens_to_ids(["<|end|>", "<|return|>"])

    def written(ids):
        return [i for i in ids if i not in unwritten]

    whole = chat.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **chat.template_options
    )
    assert written(ids) == written(whole)
    last = chat.text_ids("Ada", last=True)
    messages.append({"role": "assistant", "content": "Ada"})
    whole = written(chat.tokenizer.apply_chat_template(messages, return_dict=False, **chat.template_options))
    ours = written(ids + last)
    assert ours[:-1] == whole[: len(ours) - 1] and len(whole) >= len(ours) - 1


@pytest.mark.parametrize("kind", WITH_FUNCTIONS)
def test_the_marks_of_calls_are_control_tokens_where_no_format_writes_them(kind):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind))
    marks = [mark for mark in chat.dialect.family.marks if mark in chat.tokenizer.get_vocab()]
    assert {mark for mark in marks if mark in chat._around_calls} <= set(chat.control.values())
    chat.keep(make_format("hermes", [tool("search", query=STRING)]))
    assert not {"<tool_call>", "</tool_call>"} & set(chat.control.values())
