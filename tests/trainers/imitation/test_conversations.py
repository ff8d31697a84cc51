"""Conversations from files: which tokens are taught, and that they are those an agent would see and write."""

import json
import random

import gymnasium
import pytest
from chat_templates import KINDS, end_ids, make_tokenizer

import agent_envs  # noqa: F401
from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats.native import NATIVE_CALLS, Native
from agent_envs.types import ToolCall, ToolResult, Turn
from trainers.imitation.arguments import drop_nulls
from trainers.imitation.conversations import read_conversations, to_episode_steps, to_steps, write_calls
from trainers.imitation.demonstrations import episode_rows, target_spans
from trainers.trajectory import to_rows

EASY, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 60, "questions": 5}
WORDS = ["the", "search", " for", "town", "\n", "<answer>", "é", "木", "  ", "author.", "<|im_end|>", "book was born"]


def conversation(rng):
    """Random text, with control tokens spelled out in it, and turns of both sides in a random number."""

    def text():
        return "".join(rng.choices(WORDS, k=rng.randint(1, 8)))

    messages = [{"role": "system", "content": text()}] * rng.randint(0, 1)
    for _ in range(rng.randint(1, 4)):
        messages += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    return messages + [{"role": "user", "content": text()}] * rng.randint(0, 1)


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def env():
    return gymnasium.make(EASY, **SMALL).unwrapped


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("seed", range(10))
def test_the_assistants_tokens_are_taught_and_no_others(make_policy, kind, seed):
    policy, messages = make_policy(kind), conversation(random.Random(seed))
    inert = [{**message, "content": policy.escape(message["content"])} for message in messages]
    (sequence,) = to_rows(to_steps(messages, policy))
    decode = policy.tokenizer.decode
    pieces, begin = [], 0
    for place in range(1, len(sequence.ids) + 1):
        if place == len(sequence.ids) or sequence.mask[place] != sequence.mask[place - 1]:
            pieces.append((sequence.mask[begin], decode(sequence.ids[begin:place])))
            begin = place
    taught = [text for is_taught, text in pieces if is_taught]
    assert taught == [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    last = max(place for place, m in enumerate(messages) if m["role"] == "assistant")
    whole = policy.tokenizer.apply_chat_template(inert[: last + 1], tokenize=False)
    assert decode(sequence.ids) == decode(policy.encode(whole.rstrip("\n")))


def calls(*made, name="search"):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} for id, arguments in made
    ]}  # fmt: skip


USER, ADA = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}
FOUND = {"role": "tool", "tool_call_id": "a", "content": "[1] The book: by Ada."}
BOOK = '{"query": "the book"}'


def change_template(monkeypatch, policy, content):
    """Let the chat template write ``content`` where it writes a message's."""
    changed = policy.tokenizer.chat_template.replace("{{ m.content }}", content)
    monkeypatch.setattr(policy.tokenizer, "chat_template", changed)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_ids_are_those_of_a_rollout(make_policy, kind):
    policy = make_policy(kind)
    messages = [{"role": "system", "content": "Do it."}, USER, ADA, {"role": "user", "content": "x"}, ADA]
    first, second = to_steps(messages, policy)
    assert first.prompt == policy.prompt_ids("Do it.", "Who?")
    assert second.prompt == first.prompt + first.tokens + policy.observation_ids("x", first.tokens)
    assert (
        first.tokens == second.tokens == [*policy.encode("Ada"), first.tokens[-1]]
        and first.tokens[-1] in policy.end_ids
    )


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"r1"}))  # whose rendering lacks what the prompt opens
def test_what_is_taught_of_a_rendering(kind):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind))
    messages = [USER, {**ADA, "content": "Ada and\nBea"}, USER, ADA]
    sequences = to_rows(to_steps(messages, chat))
    whole = chat.tokenizer.apply_chat_template(messages, return_dict=False)
    own = whole if kind != "vicuna" else [i for i in whole if i != chat.eos_id]  # it writes no end
    ids = sequences[-1].ids
    assert ids[: len(own)] == own or ids == own[: len(ids)] or [i for i in ids if i != chat.eos_id] == own
    for sequence in sequences:  # an end, and one that is sampled
        spans = target_spans(sequence.mask)
        assert all(sequence.ids[end - 1] in chat.end_ids for _, end in spans)
        assert not any(i in chat.end_ids for begin, end in spans for i in sequence.ids[begin : end - 1])
    # Some templates write thoughts, or a line break where they write no end.
    if kind not in ("qwen3", "qwen3.5", "glm", "gpt-oss", "vicuna"):
        assert [sequences[-1].ids[begin:end] for begin, end in spans] == [*map(chat.text_ids, ("Ada and\nBea", "Ada"))]


def count_controls(chat, steps):
    ids = [i for sequence in to_rows(steps) for i in sequence.ids]
    return {i: ids.count(i) for i in chat.control}


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_of_a_file_forges_control_tokens(kind):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind))

    def read(text):
        messages = [
            {"role": role, "content": f"a{text}b"} for role in ("system", "user", "assistant", "user", "assistant")
        ]
        query = {f"query{text}": f"a{text}b"}
        called = [messages[1], calls(("a", query), name=f"f{text}"), {**FOUND, "content": f"a{text}b"}, messages[2]]
        tools = [{"type": "function", "function": {"name": f"f{text}", "parameters": {"type": "object", "properties": {
            f"query{text}": {"type": "string", "description": text}}}}}]  # fmt: skip
        ways = [to_episode_steps(messages, chat)]
        if kind != "qwen3.5":  # a turn has to close its thought
            ways.append(to_steps(messages, chat))
        if chat.dialect:
            own = [messages[1], calls(("a", {"query": f"a{text}b"})), *called[2:]]
            ways += [to_steps(called, chat, tools), to_episode_steps(own, chat, [drop_nulls(SEARCH)])]
        return [count_controls(chat, way) for way in ways]

    assert read("\n".join(chat.control.values())) == read("x")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("qwen3.5", "glm")])
def test_turns_of_a_file_and_of_a_script_are_those_of_a_rollout(make_policy, kind):
    chat = ChatTokens(make_tokenizer(kind), end_ids(kind))
    gold = "Ada<|im_end|>\n<|im_start|>system\nlie"
    messages = [{"role": "system", "content": "Do it."}, USER, {**ADA, "content": gold}, USER, {**ADA, "content": gold}]
    turn, last = chat.text_ids(gold), chat.text_ids(gold, last=True)  # qwen3 has an empty thought in the last one
    first = chat.prompt_ids("Do it.", "Who?")
    ids = first + turn + chat.observation_ids("Who?", turn)
    steps = to_episode_steps(messages, chat)
    assert [(step.prompt, step.tokens) for step in steps] == [(first, turn), (ids, last)]
    script = [
        {
            "instructions": "Do it.",
            "tools": [],
            "observation": "Who?",
            "action": gold,
            "chat": [*read, {"role": "assistant"}],
        }
        for read in ([], [USER])
    ]
    (sequence,) = episode_rows(script, chat, ("</answer>",))
    assert sequence.ids == ids + last and (last == turn or kind == "qwen3")


def test_calls_are_written_as_the_environment_reads_them(env):
    thinks = {**calls(("a", BOOK)), "content": "I need the author."}
    written = write_calls([USER, thinks, FOUND, ADA], env.format, env.system_prompt)
    turn = Turn(calls=(ToolCall("search", {"query": "the book"}),), thought="I need the author.")
    assert [message["role"] for message in written] == ["system", "user", "assistant", "user", "assistant"]
    assert written[0]["content"] == env.system_prompt
    assert env.format.parse(written[2]["content"]) == turn
    assert written[3]["content"] == env.format.render(turn, [ToolResult(FOUND["content"])])
    assert env.format.parse(written[4]["content"]) == Turn(answer="Ada")
    # Agents that act by calls call `answer`, and were told so.
    told = {"role": "system", "content": f"A task. {NATIVE_CALLS} To finish, call answer."}
    native = [told, USER, thinks, FOUND, calls(("y", '{"text": "Ada"}'), name="answer")]
    again = write_calls(native, env.format, env.system_prompt, env.tools)
    assert [message["content"] for message in again] == [message["content"] for message in written]
    # Its own instructions stay, arguments may be an object or nothing, and an answer may be written as a turn already.
    own = [{"role": "system", "content": "Mine."}, USER, calls(("a", {"query": "the book"})), FOUND]
    again = write_calls([*own, {**ADA, "content": "<answer>Ada</answer>"}], env.format, env.system_prompt)
    assert again[0]["content"] == "Mine." and again[4]["content"] == written[4]["content"]
    assert env.format.parse(again[2]["content"]) == Turn(calls=turn.calls)
    assert write_calls([USER, calls(("x", ""), name="confirm")], Native(()), "")[-1]["tool_calls"]


def test_results_of_calls_in_one_turn_come_in_the_order_of_the_calls():
    env = gymnasium.make(EASY, **SMALL, format="hermes").unwrapped
    results = [{**FOUND, "tool_call_id": id, "content": f"result {id}"} for id in "ba"]
    text = write_calls([USER, calls(("a", BOOK), ("b", BOOK)), *results, ADA], env.format, "")[3]["content"]
    assert text.index("result a") < text.index("result b")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([USER, calls(("a", BOOK), ("b", BOOK)), FOUND, ADA], "the tool call 'b' has no result"),
        ([USER, calls(("b", BOOK)), FOUND, ADA], "a result of 'a'"),
        ([USER, calls(("a", BOOK)), FOUND, ADA, USER, ADA], "more turns follow"),
        ([USER, calls(("a", "{}"), name="weather"), FOUND], "'weather', which is no tool"),
    ],
)
def test_what_is_no_episode_is_refused(env, messages, said):
    with pytest.raises(ValueError, match=said):
        write_calls(messages, env.format, "", env.tools)


def test_an_answer_in_the_middle_that_is_not_taught_is_read(env):
    messages = [USER, calls(("a", BOOK)), FOUND, {**ADA, "weight": 0}, USER, ADA]
    assert len(write_calls(messages, env.format, "", env.tools)) == 7


def test_formats_of_lines(make_policy, env, tmp_path):
    policy = make_policy("bpe")
    lines = [
        {"messages": [USER, ADA, USER, ADA]},
        {"prompt": [USER, ADA, USER], "completion": [ADA]},
        {"messages": [USER, {**ADA, "weight": 0}, USER, ADA], "prompt": "a text column called prompt"},
        {"messages": [{**USER, "content": [{"type": "text", "text": text} for text in ("Wh", "o?")]}, ADA, USER, ADA]},
    ]
    found = list(read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env))
    assert [question for question, _ in found] == ["Who?"] * 4
    both, prompted, weighted, parts = (steps for _, steps in found)
    assert prompted == weighted == both[1:]  # a turn that is not taught is read
    assert parts == both and len(both) == 2


@pytest.mark.parametrize("role", ["system", "developer"])
def test_conversations_with_tools_are_in_the_format_of_the_environment(make_policy, env, tmp_path, role):
    """With calls, or where there might have been some; tools may be a column of text."""
    policy, tools = make_policy("bytes"), [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    lines = [{"messages": [USER, ADA], "tools": given} for given in (tools, json.dumps(tools))]
    lines.append({"messages": [{"role": role, "content": "Be brief."}, USER, calls(("a", BOOK)), FOUND, ADA]})
    *plain, called = (steps for _, steps in read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env))
    for (step,) in plain:
        assert env.format.parse(policy.decode(step.tokens).removesuffix("<|im_end|>")) == Turn(answer="Ada")
        assert env.system_prompt[:40] in policy.decode(step.prompt)
    assert called[0].prompt == policy.prompt_ids("Be brief.", "Who?")


def test_instructions_are_where_a_rollout_has_them(make_policy, tmp_path):
    policy, env = make_policy("bytes"), gymnasium.make(EASY, **SMALL, instructions_in_observation=True).unwrapped
    path = write(tmp_path / "m.jsonl", {"messages": [USER, calls(("a", BOOK)), FOUND, ADA]})
    ((_, steps),) = read_conversations(path, policy, env)
    assert steps[0].prompt == policy.prompt_ids("", f"{env.system_prompt}\n\nWho?")


def test_the_template_writes_the_calls_or_says_that_it_cannot(make_policy, tmp_path, monkeypatch):
    policy, path = make_policy("bpe"), write(tmp_path / "m.jsonl", {"messages": [USER, calls(("a", BOOK))]})
    with pytest.raises(ValueError, match=r"m.jsonl:1: the chat template leaves tool calls out"):
        list(read_conversations(path, policy, None))
    write_call = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}{% endfor %}"
    change_template(monkeypatch, policy, "{{ m.content }}" + write_call)
    ((_, (step,)),) = read_conversations(path, policy, None)
    said = policy.decode(step.tokens).removeprefix("<tool_call>")
    assert json.loads(said) == {"name": "search", "arguments": {"query": "the book"}}


def test_a_template_that_drops_earlier_thoughts_gives_a_sequence_for_each_turn(make_policy, monkeypatch):
    policy = make_policy("bytes")
    change_template(monkeypatch, policy, "{{ m.content if loop.last else m.content.split('|')[-1] }}")
    steps = to_steps([USER, {**ADA, "content": "thought|b"}] * 2, policy)
    assert [policy.decode(step.tokens) for step in steps] == ["thought|b"] * 2
    assert len(to_rows(steps)) == 2 and "thought" not in policy.decode(steps[1].prompt)


def test_thoughts_beside_calls_stay_whatever_the_template_drops(make_policy, env, tmp_path, monkeypatch):
    policy = make_policy("bytes")
    change_template(monkeypatch, policy, "{{ m.content if loop.last else m.content.split('</think>')[-1] }}")
    ways = {"content": "I look."}, {"content": "<think>\nI look.\n</think>"}, {"reasoning_content": "I look."}
    lines = ({"messages": [USER, calls(("a", BOOK)) | way, FOUND, ADA]} for way in ways)
    one, *others = (steps for _, steps in read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env))
    assert others == [one, one] and len(to_rows(one)) == 1
    assert "I look." in policy.decode(one[0].tokens) and "I look." in policy.decode(one[1].prompt)


NULLED = {
    "query": {"type": "string", "enum": None}, "k": {"type": ["integer", "null"]}, "expr": None,
    "where": {"type": "object", "properties": {"year": {"type": "integer"}}},
    "by": {"anyOf": [{"$ref": "#/$defs/by"}, {"type": "null"}]},
}  # fmt: skip
BY = {"type": "object", "properties": {"name": {"type": ["string", "null"]}}, "required": ["name"]}
PARAMETERS = {"properties": NULLED, "$defs": {"by": BY}}
SEARCH = {"type": "function", "function": {"name": "search", "strict": None, "parameters": PARAMETERS}}


@pytest.mark.parametrize("tools", [[SEARCH], json.dumps([SEARCH]), [], None])
def test_nulls_that_a_table_filled_in_are_dropped(tmp_path, tools):
    """As Arrow writes structs: every one has the keys of all."""
    chat = ChatTokens(make_tokenizer("llama3.1"))
    arguments = {"query": "a", "k": None, "expr": None, "where": {"year": 1900, "month": None}}
    arguments["by"] = {"name": None, "age": None}
    called = calls((None, arguments)) | {"weight": None}
    called["tool_calls"][0]["type"] = None
    line = {"messages": [{**USER, "tool_calls": None}, called, {"role": "tool", "content": "x"}, ADA], "tools": tools}
    ((_, steps),) = read_conversations(write(tmp_path / "m.jsonl", line), chat, None)
    text = chat.tokenizer.decode(steps[-1].prompt)
    kept, name = (', "k": null', '"name": null') if tools else ("", "")  # which the schema allows
    assert f'{{"query": "a"{kept}, "where": {{"year": 1900}}, "by": {{{name}}}}}' in text
    assert not {"expr", "month", "age", "enum", "strict"} & {word.strip('":') for word in text.split()}
    assert ("ipython" in text.partition("Who?")[0]) == bool(tools)  # no functions are none, and no empty list


@pytest.mark.parametrize("arguments", [{"query": 5}, {}, {"query": "a", "more": 1}])
def test_arguments_that_do_not_fit_are_refused(env, tmp_path, arguments):
    """With the tools of the line, or of the environment; a turn that is not taught may hold them."""
    chat, tools = ChatTokens(make_tokenizer("hermes")), Native([*env.tools.values()]).schemas()
    wrong = {"messages": [USER, calls(("a", arguments)), FOUND, ADA], "tools": tools}
    unread = {"messages": [USER, calls(("a", arguments)) | {"weight": 0}, FOUND, ADA], "tools": tools}
    path = write(tmp_path / "m.jsonl", unread, wrong)
    for own in (None, env):
        with pytest.raises(
            ValueError, match=r"a call of 'search' cannot be taught: the arguments.* do not fit"
        ) as error:
            list(read_conversations(path, chat, own))
        assert "m.jsonl:2:" in str(error.value)
        path = write(tmp_path / "m.jsonl", {"messages": [USER, ADA]}, wrong)


def test_calls_that_a_template_drops_are_refused(tmp_path):
    chat = ChatTokens(make_tokenizer("gpt-oss"))
    line = {"messages": [USER, calls(("a", {"query": "a"}), ("b", {"query": "b"}))]}
    with pytest.raises(ValueError, match=r"m.jsonl:1: the chat template leaves tool calls out"):
        list(read_conversations(write(tmp_path / "m.jsonl", line), chat, None))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "m.jsonl:2: "),
        ("[]", 'holds "messages"'),
        ({"messages": [ADA]}, "begins with a system or user message"),
        ({"messages": [USER]}, "has one of the assistant"),
        ({"messages": [{"role": "human", "content": "x"}]}, "no role 'human'"),
        ({"messages": [{**USER, "content": [{"type": "image_url"}]}, ADA]}, "must be text"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]}, '"function"'),
        ({"messages": ["x"]}, "must be lists of objects"),
        ({"prompt": [USER], "completion": "y"}, "must be lists of objects"),
        ({"prompt": "x", "completion": "y"}, "must be lists of objects"),
        ({"messages": [USER, {**ADA, "content": None}]}, "neither content"),
        (
            {"messages": [USER, {**ADA, "weight": 0}]},
            "there is nothing to teach: all messages of the assistant have weight 0",
        ),
        ({"messages": [USER, {**ADA, "weight": 0.5}]}, "weight of a message is 0 or 1, got 0.5"),
        ({"messages": [USER, {**ADA, "weight": "0"}]}, "weight of a message is 0 or 1, got '0'"),
        ({"messages": [USER, ADA], "tools": "search"}, "tools are a string that is not JSON"),
        ({"messages": [USER, calls(("a", "{"))]}, "arguments of a call of 'search' are no JSON"),
        ({"messages": [USER, {**ADA, "content": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_a_wrong_line_is_named(make_policy, env, tmp_path, line, said):
    path = write(tmp_path / "m.jsonl", {"messages": [USER, ADA]})
    path.write_text(path.read_text() + (line if isinstance(line, str) else json.dumps(line)))
    with pytest.raises(ValueError, match=said) as error:
        list(read_conversations(path, make_policy("bytes"), env))
    assert "m.jsonl:2: " in str(error.value)


def test_lines_end_with_line_breaks_alone(make_policy, tmp_path):
    """Text from the web has other separators in it, which JSON need not escape; and some editors write a byte order mark."""
    line = json.dumps({"messages": [{**USER, "content": "x\u2028y"}, {**ADA, "content": "a\x85b"}]}, ensure_ascii=False)
    (tmp_path / "m.jsonl").write_text(f"\ufeff{line}\r\n{line}\n", encoding="utf-8")
    policy = make_policy("bytes")
    found = list(read_conversations(tmp_path / "m.jsonl", policy, None))
    assert [policy.decode(step.tokens) for _, steps in found for step in steps] == ["a\x85b"] * 2
    (tmp_path / "m.jsonl").write_bytes('{"messages": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"cannot read .*m\.jsonl as JSON lines in UTF-8"):
        list(read_conversations(tmp_path / "m.jsonl", policy, None))


@pytest.mark.parametrize("kind", ["qwen3.5", "r1", "qwen3"])
@pytest.mark.parametrize(
    ("teach", "own"),
    [
        (teach, own)
        for teach in (to_steps, to_episode_steps)
        for own in ("<think>\nso\n</think>\n\n", "<think>so</think>", "")
    ]
    + [(to_steps, "field")],
)
def test_a_thought_that_the_prompt_opened_is_continued_or_closed(kind, own, teach):
    chat, act = ChatTokens(make_tokenizer(kind)), "<answer>Zug</answer>"
    message = {"role": "assistant", "content": act if own == "field" else own + act}
    message |= {"reasoning_content": "so"} if own == "field" else {}
    user = {"role": "user", "content": "Where?"}
    (step,) = teach([user, message], chat)
    assert step.prompt == chat.prompt_ids("", "Where?")[-len(step.prompt) :]
    said = chat.decode(step.prompt + step.tokens)
    assert (said.count("<think>"), said.count("</think>")) in ([(1, 1), (0, 0)] if kind == "qwen3" else [(1, 1)])
    assert step.tokens[-1] in chat.end_ids
    tags = gymnasium.make(EASY, **SMALL).unwrapped.format
    turn = tags.parse(chat.decode_action(step.tokens))
    assert (turn.answer, turn.thought or None) == ("Zug", "so" if own else None)
    # A rollout that sampled this text has the same ids.
    assert step.tokens[:-1] == chat.encode(chat.continue_prompt(chat.decode_action(step.tokens)))
