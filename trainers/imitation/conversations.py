"""Read conversations from JSON lines as the steps of an episode: the assistant's messages are its turns.

A line is in OpenAI's format, ``{"messages": [{"role": …, "content": …, "tool_calls": […]}, …]}``, or in TRL's, which also allows
``{"prompt": […], "completion": […]}``. An assistant's message in a prompt, or with ``"weight": 0``, is not taught and may be
malformed.

A turn is the text that the chat template adds for an assistant's message after a generation prompt, up to the token that ends
it. Pieces are encoded one by one, as in a rollout, so it is known which tokens are the assistant's.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_envs.chat_messages import Message, Schemas, read_arguments
from agent_envs.formats.base import Format
from agent_envs.formats.blocks import split_thought
from agent_envs.formats.native import NATIVE_CALLS, Native
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, ToolResult, Turn
from trainers.imitation.arguments import are_readable, calls_to_text, clean_calls, drop_nulls
from trainers.models.policy import Policy
from trainers.runtime.errors import UserError
from trainers.trajectory import Step


def read_conversations(path: Path, policy: Policy, env: ToolEnv | None) -> Iterator[tuple[str, list[Step]]]:
    """Read the first user message of each conversation in a file, and its steps.

    Args:
        env: tool calls, their results and the final answer are written in this environment's format, under its instructions
            if the conversation has none; with None, by the chat template.

    Raises:
        ValueError: a line is not a conversation, or cannot be written in the format; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as JSON lines in UTF-8: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question, steps = _read_line(line, policy, env)
            if not steps:
                raise UserError("there is nothing to teach: all messages of the assistant have weight 0")
            yield question, steps
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path}:{number}: {error}") from error


def _read_line(line: str, policy: Policy, env: ToolEnv | None) -> tuple[str, list[Step]]:
    data = json.loads(line)
    if not isinstance(data, dict) or not ("messages" in data or {"prompt", "completion"} <= set(data)):
        raise UserError('a line holds "messages", or "prompt" and "completion"')
    tools = data.get("tools")
    if isinstance(tools, str):  # a JSON string, which TRL accepts too
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise UserError(f"its tools are a string that is not JSON: {error}") from error
    tools = drop_nulls(tools)
    messages = _join(data)
    _check(messages)
    functions = [tool.get("function", tool) for tool in tools or ()]
    parameters = {function.get("name"): function.get("parameters") for function in functions}
    if env is not None:
        parameters = {name: tool.parameters for name, tool in env.tools.items()}
    messages = [clean_calls(message, parameters) for message in messages]
    question = next((message["content"] or "" for message in messages if message["role"] == "user"), "")
    if env is not None:
        policy.keep(env.format)
    if env is not None and (tools or any(message.get("tool_calls") for message in messages)):
        # Tags in users' messages are escaped: only tool results and the format's own text have tags.
        messages = [{**m, "content": policy.escape(m["content"] or "")} if m["role"] == "user" else m for m in messages]
        written = write_calls(messages, env.format, env.system_prompt, env.tools)
        if env.instructions_in_observation and written[1]["role"] == "user":
            first, second, *others = written
            told = {**second, "content": f"{first['content'] or ''}\n\n{second['content']}"}
            written = [{"role": "system", "content": ""}, told, *others]
        return question, to_episode_steps(written, policy, env.format.schemas())
    return question, to_steps(messages, policy, tools)


def _join(data: dict[str, Any]) -> list[Message]:
    """Return the messages of a line, with strings as content."""
    parts = (data["messages"],) if "messages" in data else (data["prompt"], data["completion"])
    if not all(isinstance(part, list) and all(isinstance(message, dict) for message in part) for part in parts):
        raise UserError("messages, or prompt and completion, must be lists of objects with role and content")
    messages = parts[-1] if len(parts) == 1 else [*({**message, "weight": 0} for message in parts[0]), *parts[1]]
    messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
    messages = [{**message, "content": _to_text(message.get("content"))} for message in messages]
    return [
        m if m.get("weight") != 0 or are_readable(m.get("tool_calls") or ()) else calls_to_text(m) for m in messages
    ]


def _to_text(content: Any) -> str | None:
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text") or "") for part in content)
    if content is not None and not isinstance(content, str):
        raise UserError("the content of a message must be text: pictures and the like cannot be learned from")
    if content and not content.isprintable() and any("\ud800" <= character <= "\udfff" for character in content):
        raise UserError("the content of a message is no Unicode text: it holds half of a surrogate pair")
    return content


def _check(messages: list[Message]) -> None:
    roles = [str(message.get("role")) for message in messages]
    if unknown := sorted(set(roles) - {"system", "developer", "user", "assistant", "tool"}):
        raise UserError(f"there is no role {unknown[0]!r}")
    if "assistant" not in roles or roles[0] in ("assistant", "tool"):
        raise UserError("a conversation begins with a system or user message and has one of the assistant")
    for message in messages:
        if message.get("weight") not in (None, 0, 1):
            raise UserError(f"the weight of a message is 0 or 1, got {message['weight']!r}")
        is_target = message["role"] == "assistant" and message.get("weight") != 0
        if is_target and not (message["content"] or message.get("tool_calls")):
            raise UserError("a message of the assistant has neither content nor tool_calls")
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise UserError('a tool call holds a "function" with its "name" and "arguments"')
            try:
                read_arguments(call)
            except (ValueError, RecursionError) as error:
                raise UserError(f"the arguments of a call of {function['name']!r} are no JSON: {error}") from error


def to_episode_steps(messages: list[Message], policy: Policy, tools: Schemas | None = None) -> list[Step]:
    """Convert the assistant's messages to steps of a rollout: each turn stays in the context as written, including thoughts.

    ``tools``: for the format "native", the functions that may be called.
    """
    ids: list[int] = []
    steps: list[Step] = []
    read: list[Message] = []  # messages since the last turn
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            read.append({**message, "content": message["content"] or ""})
            continue
        if steps:
            told: Any = read if any(m["role"] == "tool" for m in read) else "\n\n".join(m["content"] for m in read)
            ids = ids + steps[-1].tokens + policy.observation_ids(told, steps[-1].tokens, tools)
        else:
            first = [_for_template(m, policy) for m in read]
            ids = policy.encode(_write(policy, first, tools, add_generation_prompt=True))
        said = message["content"] or ""
        tokens = _turn_ids(message, policy, tools) if tools else policy.text_ids(said, last=place == last)
        steps.append(Step(prompt=ids, tokens=tokens, logprobs=[0.0] * len(tokens)))
        read = []
    weights = [message.get("weight") for message in messages if message["role"] == "assistant"]
    return [step for step, weight in zip(steps, weights, strict=True) if weight != 0]


def _turn_ids(message: Message, policy: Policy, tools: Schemas) -> list[int]:
    """Encode a turn; one that is not taught as text, if the template cannot write its calls."""
    try:
        return policy.turn_ids(message, tools)
    except Exception:  # templates are programs that can raise any error
        if message.get("weight") != 0:
            raise
    return policy.text_ids(calls_to_text(message)["content"])


def to_steps(messages: list[Message], policy: Policy, tools: list[dict] | None = None) -> list[Step]:
    """Convert the assistant's messages to steps, with the chat template. A step whose prompt does not extend the previous one, as
    with a template that drops earlier thoughts, begins a new row.

    Raises:
        ValueError: the template fails, leaves tool calls out, or does not put a turn after its generation prompt.
    """
    written = [_for_template(message, policy) for message in messages]
    steps: list[Step] = []
    ids: list[int] = []
    own_end: list[int] = []  # the end tokens of the last turn, if the template writes none
    written_out = ""  # the text that ``ids`` encode
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        before = _write(policy, written[:place], tools, add_generation_prompt=True)
        after = _write(policy, written[: place + 1], tools)
        if policy.opened_thought and not after.startswith(before):
            after = _write_thought(policy, written[place], before, after)
        turn = after.removeprefix(before)
        if len(turn) + len(before) != len(after):
            raise UserError("the chat template does not put a turn after its generation prompt")
        for call in message.get("tool_calls") or ():
            if policy.escape(call["function"]["name"]) not in turn:
                raise UserError(_LEFT_OUT)
        if len(calls := written[place].get("tool_calls") or []) > 1:
            fewer = _write(policy, [*written[:place], {**written[place], "tool_calls": calls[:-1]}], tools)
            if fewer == after:
                raise UserError(_LEFT_OUT)
        if not before.startswith(written_out):
            ids, written_out = [], ""
        new = policy.encode(before[len(written_out) :], written_out[-_CONTEXT:])
        if ids and new[:1] == ids[-1:] == own_end:  # the end token was taught; the following text begins with it too
            new = new[1:]
        ids = ids + new
        tokens = policy.encode(turn, before[-_CONTEXT:])
        end = next((i for i, token in enumerate(tokens, 1) if token in policy.end_ids), 0)
        own_end = [] if end else policy.end_of(written[place], tools)
        targets = tokens[:end] if end else tokens + own_end  # a template may write text after the end, or no end
        if end:
            head, mark, _ = turn.partition(policy.control[tokens[end - 1]])
            turn = head + mark
        steps.append(Step(prompt=ids, tokens=targets, logprobs=[0.0] * len(targets)))
        ids, written_out = ids + targets, before + turn
    return steps


_CONTEXT = 64  # characters of preceding text with which a piece is encoded
_LEFT_OUT = "the chat template leaves tool calls out: use --tool-calls environment"


def _write_thought(policy: Policy, message: Message, before: str, after: str) -> str:
    """Add a thought to the text ``after`` a message, if the template leaves it out although the generation prompt, at the end of
    ``before``, opens one."""
    stem, thought = before.removesuffix(policy.opened_thought), message.get("reasoning_content")
    if not after.startswith(stem):
        return after
    begun = f"{policy.opened_thought}{thought}\n</think>\n\n" if thought else ""
    return before + policy.continue_prompt(begun + after[len(stem) :])


def _write(
    policy: Policy, messages: list[Message], tools: list[dict] | None = None, add_generation_prompt: bool = False
) -> str:
    try:
        return policy.render(policy.fold_system(messages), tools, add_generation_prompt)
    except Exception as error:  # templates are programs that can raise any error
        raise UserError(f"the chat template cannot write this: {error}") from error


def _for_template(message: Message, policy: Policy) -> Message:
    """Convert a message for chat templates (`ChatTokens.to_template`)."""
    kept = {name: value for name, value in message.items() if name != "weight"}
    if message["role"] == "developer":  # OpenAI's newer name of "system", which most templates drop or reject
        kept["role"] = "system"
    return policy.to_template(kept)


# -- tool calls in an environment's own format ---------------------------------------------------------------------


def write_calls(
    messages: list[Message], format: Format, instructions: str, tools: Collection[str] = ()
) -> list[Message]:
    """Rewrite a conversation in a format: turns and tool results become text, or, in the format "native", messages again.

    Text beside calls is the turn's thought. A message without calls is the final answer, unless it is a valid turn of the
    format. A call of `answer` is the final answer too, unless ``tools`` has that name. ``instructions`` are used if the
    conversation has no system message, or replace one that describes function calls. A message with weight 0 stays as it is
    where it cannot be read or written, and its calls need no results if a user message follows.

    Raises:
        ValueError: a result without a call, a call without a result (except in the last turn), a call of a tool not in ``tools``
            (if given), a turn after the answer, or a turn that the format cannot express.
    """
    has_own = messages[0]["role"] in ("system", "developer")
    if has_own and NATIVE_CALLS in (messages[0].get("content") or ""):
        messages, has_own = messages[1:], False
    written: list[Message] = [] if has_own else [{"role": "system", "content": instructions}]
    turn = Turn()  # the assistant's latest turn; below, its calls that wait for results, and the results
    open_calls: list[str] = []
    results: dict[str, str] = {}
    ended = is_context = False  # whether an answer that is taught has come, whether the turn has weight 0

    def answer_calls(need_none: bool) -> None:
        if open_calls and (results or not need_none):
            if missing := [id for id in open_calls if id not in results]:
                raise UserError(f"the tool call {missing[0]!r} has no result")
            given = [ToolResult(results[id]) for id in open_calls]
            written.extend(format.messages(format.render(turn, given)))
        open_calls.clear()

    for message in messages:
        if message["role"] == "tool":
            id = message.get("tool_call_id") or next((id for id in open_calls if id not in results), "")
            if id not in open_calls:
                raise UserError(f"a result of {id!r}, which the previous turn did not call")
            results[id] = message.get("content") or ""
            continue
        answer_calls(need_none=is_context and message["role"] == "user")
        if message["role"] != "assistant":
            written.append(message)
            continue
        if ended:
            raise UserError(
                "a message of the assistant without calls is the answer that ends an episode, and here more turns follow it: "
                "join it with the calls after it, or keep the conversation as it is with --tool-calls template"
            )
        turn, results, is_context = Turn(), {}, message.get("weight") == 0
        try:
            turn = _read_known_turn(message, format, tools)
            open_calls += [call.id or f"call_{i}" for i, call in enumerate(turn.calls)]
            turn = replace(turn, calls=tuple(replace(call, id="") for call in turn.calls))  # few formats can write ids
            written.append({"weight": message.get("weight"), **format.message(format.write(turn))})
        except ValueError:
            if not is_context:
                raise
            is_text = message.get("tool_calls") and not format.schemas()
            written.append(calls_to_text(message) if is_text else message)
        ended = turn.answer is not None and not is_context
    return written


def _read_known_turn(message: Message, format: Format, tools: Collection[str]) -> Turn:
    """Read a turn. Raises ValueError if one that is taught calls no tool of ``tools``, or one with weight 0 is malformed."""
    turn, is_context = _read_turn(message, format), message.get("weight") == 0
    if is_context and not message.get("tool_calls") and (error := format.parse(message.get("content") or "").error):
        raise UserError(error)
    if tools and not is_context and (unknown := sorted({call.name for call in turn.calls} - {"answer", *tools})):
        raise UserError(
            f"it calls {unknown[0]!r}, which is no tool of the environment: it has {', '.join(sorted(tools))}"
        )
    match turn.calls:
        case (ToolCall("answer", {"text": str(text)}),) if "answer" not in tools:
            return replace(turn, calls=(), answer=text.strip())
    return turn


_NATIVE = Native(())
_THINK = re.compile(r"</?think>(.*?)(?=</?think>|\Z)", re.DOTALL)


def _read_turn(message: Message, format: Format) -> Turn:
    content, calls = message.get("content") or "", message.get("tool_calls")
    if not calls:
        turn = format.parse(content)
        if turn.error:
            thoughts, answer = split_thought(content)
            thoughts = [*filter(None, [message.get("reasoning_content")]), *thoughts]
            return Turn(answer=answer.strip(), thought="\n".join(thoughts) if thoughts else None)
        return replace(turn, thought=turn.thought or message.get("reasoning_content"))
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(read_arguments(call))}} for call in calls
    ]  # some data sets hold objects instead of the API's strings
    content = _THINK.sub(r"\1", content).strip()  # some models write thoughts in the text beside calls
    thought = {"reasoning_content": content} if content and "reasoning_content" not in message else {}
    turn = _NATIVE.parse(json.dumps({**message, "content": None, "tool_calls": calls, **thought}))
    if turn.error:
        raise UserError(turn.error)
    return turn
