"""Conversations from files: which tokens are taught, and that they are those an agent would see and write."""

import copy
import json
import random

import gymnasium
import pytest
from tokenizers.processors import TemplateProcessing

import agent_envs  # noqa: F401
from agent_envs.formats.openai import NATIVE_CALLS, OpenAI
from agent_envs.types import ToolCall, ToolResult, Turn
from trainers.imitation.conversations import read_conversations, to_steps, write_calls
from trainers.models.policy import Policy
from trainers.trajectory import to_sequences

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
    return gymnasium.make("AgentR1/MiniWiki-Easy-v0", entities=60, questions=5).unwrapped


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("seed", range(10))
def test_the_assistants_tokens_are_taught_and_no_others(make_policy, kind, seed):
    policy, messages = make_policy(kind), conversation(random.Random(seed))
    inert = [{**message, "content": policy.inert(message["content"])} for message in messages]
    (sequence,) = to_sequences(to_steps(messages, policy))
    decode = policy.tokenizer.decode
    pieces, begin = [], 0
    for place in range(1, len(sequence.ids) + 1):
        if place == len(sequence.ids) or sequence.mask[place] != sequence.mask[place - 1]:
            pieces.append((sequence.mask[begin], decode(sequence.ids[begin:place])))
            begin = place
    taught = [text for is_taught, text in pieces if is_taught]
    assert taught == [m["content"] + "<|im_end|>" for m in inert if m["role"] == "assistant"]
    last = max(place for place, m in enumerate(messages) if m["role"] == "assistant")
    whole = policy.tokenizer.apply_chat_template(inert[: last + 1], tokenize=False)
    assert decode(sequence.ids) == whole.rstrip("\n")


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_ids_are_those_of_a_rollout(make_policy, kind):
    policy = make_policy(kind)
    said = ["<search>the town</search>", "<answer>the author</answer>"]
    messages = [{"role": "system", "content": "Do it."}, {"role": "user", "content": "Where?"}]
    messages += [{"role": "assistant", "content": said[0]}, {"role": "user", "content": "<information>x</information>"}]
    steps = to_steps([*messages, {"role": "assistant", "content": said[1]}], policy)
    assert [policy.decode(step.tokens) for step in steps] == said
    prompt = policy.prompt_ids("Do it.", "Where?")
    assert steps[0].prompt == prompt
    after = policy.observation_ids("<information>x</information>", steps[0].tokens)
    assert steps[1].prompt == prompt + steps[0].tokens + after
    assert all(step.tokens[-1] in policy.end_ids for step in steps)


def calls(*made, name="search"):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} for id, arguments in made
    ]}  # fmt: skip


def test_calls_are_written_as_the_environment_reads_them(env):
    messages = [
        {"role": "user", "content": "Who wrote it?"},
        {**calls(("call_x", '{"query": "the book"}')), "content": "I need the author."},
        {"role": "tool", "tool_call_id": "call_x", "content": "[1] The book: by Ada."},
        {"role": "assistant", "content": "Ada"},
    ]
    written = write_calls(messages, env.format, env.system_prompt)
    turn = Turn(calls=(ToolCall("search", {"query": "the book"}),), thought="I need the author.")
    assert [message["role"] for message in written] == ["system", "user", "assistant", "user", "assistant"]
    assert written[0]["content"] == env.system_prompt
    assert env.format.parse(written[2]["content"]) == turn
    assert written[3]["content"] == env.format.render(turn, [ToolResult("[1] The book: by Ada.")])
    assert env.format.parse(written[4]["content"]) == Turn(answer="Ada")
    # Agents that act by calls call `answer`, and were told so.
    native = [
        {"role": "system", "content": f"A task. {NATIVE_CALLS} To finish, call answer."}, *messages[:3],
        calls(("call_y", '{"text": "Ada"}'), name="answer"),
    ]  # fmt: skip
    assert write_calls(native, env.format, env.system_prompt, env.tools) == [
        *written[:4], {**native[4], "content": written[4]["content"], "tool_calls": None}
    ]  # fmt: skip
    # Its own instructions stay, arguments may be an object, and an answer may be written as a turn already.
    own = [{"role": "system", "content": "Mine."}, *messages]
    own[2] = calls(("call_x", {"query": "the book"}))
    own[4] = {"role": "assistant", "content": "<answer>Ada</answer>"}
    again = write_calls(own, env.format, env.system_prompt)
    assert again[0]["content"] == "Mine."
    assert env.format.parse(again[2]["content"]) == Turn(calls=turn.calls)
    assert again[4]["content"] == written[4]["content"]


def test_text_and_its_calls_in_two_messages_are_one_turn(env):
    told = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Who wrote it?"}]
    aloud = {"role": "assistant", "content": "I need the author."}
    found = {"role": "tool", "tool_call_id": "x", "content": "[1] The book: by Ada."}
    messages = [
        *told,
        aloud,
        calls(("x", '{"query": "the book"}')),
        found,
        aloud,
        {"role": "assistant", "content": "Ada"},
    ]
    written = write_calls(messages, env.format, "", env.tools)
    assert [message["role"] for message in written] == ["system", "user", "assistant", "user", "assistant"]
    thought = "I need the author."
    call = ToolCall("search", {"query": "the book"})
    assert env.format.parse(written[2]["content"]) == Turn(calls=(call,), thought=thought)
    assert env.format.parse(written[4]["content"]) == Turn(answer="Ada", thought=thought)
    # What is no turn of an episode is refused: an answer in its middle, a tool that is not there, half a turn to learn.
    later = [*messages[:5], {"role": "assistant", "content": "Ada?"}, told[1], {"role": "assistant", "content": "Ada"}]
    other = [*told, calls(("x", "{}"), name="weather"), found]
    half = [*told, {**aloud, "weight": 0}, *messages[3:]]
    for broken, said in [
        (later, "more turns follow"),
        (other, "'weather', which is no tool"),
        (half, "has the weight 0"),
    ]:
        with pytest.raises(ValueError, match=said):
            write_calls(broken, env.format, "", env.tools)
    later[5] = {**later[5], "weight": 0}  # read, and not taught
    assert len(write_calls(later, env.format, "", env.tools)) == 7


def test_conversations_with_tools_are_written_alike_with_calls_or_without(make_policy, env, tmp_path):
    policy = make_policy("bytes")
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    asked = {"role": "user", "content": "Who?"}
    lines = [
        {"messages": [asked, {"role": "assistant", "content": "Ada"}], "tools": given}
        for given in (tools, json.dumps(tools))
    ]
    for _, (step,) in read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env):
        said = policy.decode(step.tokens).removesuffix("<|im_end|>")
        assert env.format.parse(said) == Turn(answer="Ada")
        assert env.system_prompt[:40] in policy.decode(step.prompt)
    silent = {"messages": [asked, calls(("x", ""), name="confirm")]}  # no arguments, as some servers write them
    assert write_calls(silent["messages"], OpenAI(()), "")[-1]["content"]


def test_results_of_calls_in_one_turn_come_in_the_order_of_the_calls():
    env = gymnasium.make("AgentR1/MiniWiki-Easy-v0", entities=60, questions=5, format="hermes").unwrapped
    messages = [
        {"role": "user", "content": "Who?"},
        calls(("a", '{"query": "1"}'), ("b", '{"query": "2"}')),
        {"role": "tool", "tool_call_id": "b", "content": "second"},
        {"role": "tool", "tool_call_id": "a", "content": "first"},
        {"role": "assistant", "content": "Ada"},
    ]
    text = write_calls(messages, env.format, "")[3]["content"]
    assert text.index("first") < text.index("second")
    for broken, said in [
        (messages[:3] + messages[4:], "the tool call 'a' has no result"),
        ([*messages[:3], {**messages[3], "tool_call_id": "c"}, messages[4]], "a result of 'c'"),
    ]:
        with pytest.raises(ValueError, match=said):
            write_calls(broken, env.format, "")


def test_formats_of_lines(make_policy, env, tmp_path):
    policy = make_policy("bpe")
    user, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    lines = [
        {"messages": [user, said, user, said]},
        {"prompt": [user, said, user], "completion": [said]},
        {"messages": [user, {**said, "weight": 0}, user, said]},
        {"prompt": "the town", "completion": " the book"},
    ]
    found = list(read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env))
    assert [asked for asked, _ in found] == ["hi", "hi", "hi", "the town"]
    first, second, third, plain = (steps for _, steps in found)
    assert [len(first), len(second), len(third), len(plain)] == [2, 1, 1, 1]
    assert second == third
    assert second[0].prompt == first[1].prompt  # a turn that is not taught is read
    assert policy.tokenizer.decode(plain[0].prompt + plain[0].tokens) == "the town the book<|im_end|>"


def test_the_template_writes_the_calls_or_says_that_it_cannot(make_policy, tmp_path):
    policy = make_policy("bpe", seed=1)
    messages = [{"role": "user", "content": "Who?"}, calls(("a", '{"query": "the book"}'))]
    path = write(tmp_path / "m.jsonl", {"messages": messages})
    with pytest.raises(ValueError, match=r"m.jsonl:1: the chat template leaves tool calls out"):
        list(read_conversations(path, policy, None))
    plain = policy.tokenizer.chat_template
    try:
        policy.tokenizer.chat_template = plain.replace(
            "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}{% endfor %}"
        )  # fmt: skip
        ((_, (step,)),) = read_conversations(path, policy, None)
    finally:
        policy.tokenizer.chat_template = plain  # it is shared
    said = policy.decode(step.tokens).removeprefix("<tool_call>")
    assert json.loads(said) == {"name": "search", "arguments": {"query": "the book"}}


def test_a_template_that_drops_earlier_thoughts_gives_a_sequence_for_each_turn(make_policy):
    policy = make_policy("bytes", seed=1)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "thought|b"}] * 2
    plain = policy.tokenizer.chat_template
    try:
        policy.tokenizer.chat_template = plain.replace(
            "{{ m.content }}", "{{ m.content if loop.last else m.content.split('|')[-1] }}"
        )
        steps = to_steps(messages, policy)
    finally:
        policy.tokenizer.chat_template = plain
    assert [policy.decode(step.tokens) for step in steps] == ["thought|b"] * 2
    assert len(to_sequences(steps)) == 2
    assert "thought" not in policy.decode(steps[1].prompt)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "m.jsonl:2: "),
        ("[]", 'holds "messages"'),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "begins with a system or user message"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "has one of the assistant"),
        ('{"messages": [{"role": "human", "content": "x"}]}', "no role 'human'"),
        ('{"messages": [{"role": "user", "content": [1]}, {"role": "assistant", "content": "x"}]}', "must be text"),
        ('{"messages": [{"content": "x"}]}', "role"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "a"}]}]}',
            '"function"',
        ),
        ('{"prompt": "", "completion": "hello"}', "the prompt is empty"),
        ('{"messages": 5}', "must be lists of objects"),
        ('{"messages": null}', "must be lists of objects"),
        ('{"messages": ["x"]}', "must be lists of objects"),
        ('{"prompt": "x", "completion": [{"role": "assistant", "content": "y"}]}', "completion must be text too"),
        ('{"prompt": [{"role": "user", "content": "x"}], "completion": "y"}', "must be lists of objects"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "must be text"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null}]}', "neither content"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]}',
            "nothing of it is to be taught",
        ),
    ],
)
def test_a_wrong_line_is_named(make_policy, env, tmp_path, line, said):
    path = tmp_path / "m.jsonl"
    good = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=said) as error:
        list(read_conversations(path, make_policy("bytes"), env))
    assert "m.jsonl:2: " in str(error.value)


def test_lines_end_with_line_breaks_alone(make_policy, tmp_path):
    """Text from the web has other separators in it, which JSON need not escape; and some editors write a byte order mark."""
    messages = [{"role": "user", "content": "x\u2028y"}, {"role": "assistant", "content": "a\x85b"}]
    line = json.dumps({"messages": messages}, ensure_ascii=False)
    (tmp_path / "m.jsonl").write_text(f"\ufeff{line}\r\n{line}\n", encoding="utf-8")
    policy = make_policy("bytes")
    found = list(read_conversations(tmp_path / "m.jsonl", policy, None))
    assert [policy.decode(step.tokens) for _, steps in found for step in steps] == ["a\x85b"] * 2


CALLED = [
    {"role": "user", "content": "Where?"}, calls(("a", '{"query": "x"}')),
    {"role": "tool", "tool_call_id": "a", "content": "found"}, {"role": "assistant", "content": "there"},
]  # fmt: skip
ASKED, THERE = CALLED[0], CALLED[-1]
PARTS = [{"type": "text", "text": "Whe"}, {"type": "text", "text": "re?"}]


@pytest.mark.parametrize(
    "lines",
    [
        [{"prompt": "Where? ", "completion": text} for text in ("there", "there<|im_end|>")],  # the end is taught once
        [{"messages": [{"role": role, "content": "Be brief."}, *CALLED]} for role in ("system", "developer")],
        [{"messages": [ASKED, THERE]}, {"prompt": "Where?", "messages": [ASKED, THERE]}],  # a text column called prompt
        [
            {"messages": [ASKED, THERE]},
            {"messages": [ASKED | {"content": PARTS}, THERE]},
        ],  # text in parts, as an API has it
    ],
)
def test_lines_that_mean_the_same(make_policy, env, tmp_path, lines):
    policy = make_policy("bytes")
    (_, one), (_, other) = read_conversations(write(tmp_path / "m.jsonl", *lines), policy, env)
    assert one == other and one[-1].tokens[-1] in policy.end_ids


def test_plain_text_begins_as_the_tokenizer_begins_a_text(tmp_path, make_policy):
    policy = make_policy("bytes", seed=3)
    tokenizer = copy.deepcopy(policy.tokenizer)
    begin = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", begin), ("<|im_end|>", tokenizer.eos_token_id)],
    )
    tokenizer.bos_token = "<|endoftext|>"
    policy = Policy(policy.model, tokenizer)
    lines = [{"prompt": text, "completion": "there"} for text in ("Where?", "<|endoftext|>Where?")]
    found = [steps[0] for _, steps in read_conversations(write(tmp_path / "m.jsonl", *lines), policy, None)]
    assert [step.prompt for step in found] == [[begin, *policy.encode("Where?")]] * 2
    assert [step.tokens for step in found] == [[*policy.encode("there"), policy.eos_id]] * 2


def test_thoughts_in_the_text_beside_calls(make_policy, env, tmp_path):
    """As models that think in tags write them. They stay in the context, whatever the template leaves out of earlier turns."""
    policy = make_policy("bytes", seed=1)
    call = calls(("a", '{"query": "x"}'))
    rest = [{"role": "tool", "tool_call_id": "a", "content": "found"}, {"role": "assistant", "content": "there"}]
    user = {"role": "user", "content": "Where?"}
    ways = (
        {"content": "I look."},
        {"content": "<think>\nI look.\n</think>"},
        {"content": None, "reasoning_content": "I look."},
    )
    path = write(tmp_path / "m.jsonl", *({"messages": [user, call | way, *rest]} for way in ways))
    plain = policy.tokenizer.chat_template
    try:
        policy.tokenizer.chat_template = plain.replace(
            "{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
        )
        one, *others = (steps for _, steps in read_conversations(path, policy, env))
    finally:
        policy.tokenizer.chat_template = plain
    assert others == [one, one]
    assert "I look." in policy.decode(one[0].tokens) and "I look." in policy.decode(one[1].prompt)
    assert len(to_sequences(one)) == 1


def test_a_file_that_cannot_be_read(make_policy, tmp_path):
    (tmp_path / "m.jsonl").write_bytes('{"messages": "é"}'.encode("latin-1"))
    for name, said in (("m.jsonl", "as JSON lines in UTF-8"), ("none.jsonl", "")):
        with pytest.raises(ValueError, match=rf"cannot read .*{name} {said}"):
            list(read_conversations(tmp_path / name, make_policy("bytes"), None))
