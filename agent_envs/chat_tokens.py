"""A conversation of several turns as token ids.

Sampled ids are kept: only the prompt and observations are encoded, since byte-pair encodings are not bijective. Takes a
tokenizer of `transformers`, but does not import that library.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agent_envs.chat_messages import (
    Message,
    Schemas,
    find_switch,
    join_switch,
    make_regular,
    part_switch,
    quote_strings,
    read_arguments,
    short_id,
    split_thought_off,
)
from agent_envs.control_tokens import THINK, ControlTokens
from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.dialects import (
    Dialect,
    find_dialect,
    one_line,
    read_by_tokenizer,
    to_tool_call,
    write_known_calls,
    write_turn,
)
from agent_envs.formats.families import Family, Response, find_thought
from agent_envs.formats.json_text import dumps
from retrieval_index.printable import encodable, map_texts

_MARK = "\u2063content\u2063"  # stands for a message while a chat template is taken apart


class ChatTokens(ControlTokens):
    """Turns and observations as ids, by a tokenizer's chat template.

    Functions (the format "native") are written and read in the syntax of the template: it gets their schemas as ``tools``, and
    their results as messages of the role "tool". Sampled ids stay in the context unchanged, even if the template would drop
    earlier thoughts or write arguments differently.

    Args:
        tokenizer: tokenizer of `transformers` with a chat template.
        eos_ids: ids that may end a turn of the model, in addition to the tokenizer's eos.
        thinking: "on" or "off" sets the template's switch (``enable_thinking``, or ``thinking``); "auto" leaves it at its
            default; a number is "on" if there is a switch.

    Attributes:
        dialect: how the template writes calls; None if functions cannot be used with it.
        refusal: why functions cannot be used, in one line; "" if they can.
        template_options: arguments that the template gets in addition to messages and tools.
        opened_thought: how the generation prompt begins a thought, such as ``<think>`` and a line break; "" if the model opens
            its thoughts itself.
        thought_marks: marks around a thought of the model.
        end_ids: ids that end a turn, sampled or written by the template.
        turn_end_ids: ids that the template ends a turn with, up to the first control token. If the template writes no end: the
            token that begins the next message, which its models sample, or else eos.

    Raises:
        ValueError: there is no chat template, or one that fails, leaves out or rewrites messages, or lacks the switch.
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int | None] = (), thinking: str = "auto"):
        if tokenizer.chat_template is None:
            raise ValueError("the tokenizer has no chat template; use an instruction-tuned model")
        super().__init__(tokenizer, eos_ids)
        self.dialect: Dialect | None = None
        self.template_options = find_switch(tokenizer, thinking)
        self._has_system_role, written = self._try_system_message()
        conversation = [("user", "hello"), ("assistant", _MARK), ("user", _MARK)]
        try:
            text = self._render_text(conversation, True)
        except Exception as error:  # templates are programs and may raise anything
            raise ValueError(f"the chat template cannot write a conversation: {one_line(error)}") from error
        if _MARK not in text:
            raise ValueError("the chat template leaves out messages that are text; use a template for text only")
        if text.count(_MARK) != 2:
            raise ValueError("the chat template rewrites earlier messages, so turns cannot be appended to each other")
        _, self._turn_end, self._turn_start = text.split(_MARK)
        opens = self._turn_start.rstrip().endswith("<think>")
        self.opened_thought = self._turn_start[self._turn_start.rindex("<think>") :] if opens else ""
        # The last turn of a conversation may begin differently, and end with another token: the one that models sample.
        last = self._render_text(conversation[:2])
        self._last_end = last.partition(_MARK)[2]
        prompt = self._render_text(conversation[:1], True)
        self._lead, self._last_lead = (
            each[len(prompt) :].partition(_MARK)[0] if each.startswith(prompt) else "" for each in (text, last)
        )
        # What closes a thought that the prompt opened.
        self._no_thought = self._last_lead if "</think>" in self._last_lead else "\n</think>\n\n"
        self._find_control(written + text + self._last_end, write_known_calls(self._render_any))
        self._own_end = self._last_end if self._mark.search(self._last_end) else self._turn_end
        end = self.encode(self._own_end, "\n")
        place = next((place for place, i in enumerate(end, 1) if i in self.control), 0)
        # A model may have several tokens that end its turns, sometimes without eos; an ordinary token is never one.
        self.turn_end_ids = end[:place] or [i for i in [self.eos_id] if i in self.control]
        self.end_ids = {*self._ends, *self.turn_end_ids[-1:]} & self.control.keys()
        self._sample = self.encode(text)
        # The end of earlier turns, if the template ends them with another token than the last turn, whose end is sampled.
        ends = [i for i in self.encode(self._turn_end, "\n") if i in self.control][:1]
        self._other_end = ends if ends != self.turn_end_ids[-1:] else []
        self.refusal = ""
        try:
            has_own = getattr(tokenizer, "response_template", None)
            self.dialect = find_dialect(
                self._render_any,
                lambda turn: self._decode_turn(self._cut(self.encode(turn, "\n"))),
                [read_by_tokenizer(tokenizer, self._turn_start)] if has_own else [],
            )
        except ValueError as reason:
            self.refusal = str(reason)
        else:
            words = tokenizer.get_vocab()
            self.end_ids |= {words[token] for token in self.dialect.family.ends if token in words}
            self.end_ids -= {words[token] for token in self.dialect.family.goes_on if token in words}
        family = self.dialect.family if self.dialect else None
        tokens = [token.content for token in self._added.values()]
        self.thought_marks = find_thought(tokenizer.chat_template, family, tokens) or THINK

    def render(self, messages: list[Message], tools: Schemas | None = None, add_generation_prompt: bool = False) -> str:
        """Render messages by the chat template (`to_template`), with the functions that may be called."""
        # Some templates treat an empty list as functions.
        return self._render_any(messages, self.escape_all(tools) or None, add_generation_prompt)

    def _render_any(self, messages: list[Message], tools: Schemas | None, add_generation_prompt: bool) -> str:
        if self.dialect and self.dialect.family.unquoted:
            messages = [quote_strings(message) for message in messages]
        options = {"tokenize": False, "add_generation_prompt": add_generation_prompt, **self.template_options}
        text: str = self.tokenizer.apply_chat_template(list(map(part_switch, messages)), tools=tools, **options)
        return join_switch(text)

    def _render_text(self, turns: Iterable[tuple[str, str]], add_generation_prompt: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return self._render_any(messages, None, add_generation_prompt)

    def _try_system_message(self) -> tuple[bool, str]:
        """Return whether the template writes a system message and keeps it in place in a longer conversation, and the text.
        The tiny model's, which leaves the role out on purpose, counts as True."""
        try:
            text = self._render_text([(r, _MARK + r) for r in ("system", "user", "assistant", "user")], True)
        except Exception:  # a template may raise anything at an unknown role
            return False, ""
        place = text.find(_MARK + "system")
        by_name = "role != 'system'" in str(self.tokenizer.chat_template)
        return place < text.find(_MARK + "assistant") and (place >= 0 or by_name), text

    def fold_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Move a leading system message into the user message after it where the chat template has no place for it."""
        if self._has_system_role or len(messages) < 2 or [m["role"] for m in messages[:2]] != ["system", "user"]:
            return messages
        first, second, *others = messages
        return [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *others]

    def text_ids(self, text: str, ended: bool = True, last: bool = False) -> list[int]:
        """Encode a turn of text as the ids after a generation prompt, for training on it.

        Args:
            text: the turn. Without a thought it begins as the template begins such turns, perhaps with an empty thought.
            ended: whether to add the end of the turn.
            last: whether the turn is the last of the conversation, which some templates begin differently.
        """
        text = self._continue_prompt(text, last)
        if not ended:
            return self.encode(text, self._turn_start)
        ids = self._cut(self.encode(text + self._own_end, self._turn_start))
        return ids if ids[-1] in self.end_ids else self.encode(text, self._turn_start) + self.turn_end_ids

    def _continue_prompt(self, text: str, last: bool) -> str:
        if self.opened_thought:
            return self._escape_turn(self.continue_prompt(text))
        lead, (begun, closed, rest) = self._last_lead if last else self._lead, text.lstrip().partition("</think>")
        if not closed or not begun.startswith("<think>"):
            return lead + self._escape_turn(text)
        opening, closing = self.thought_marks
        if (opening, closing) == THINK:
            return lead.partition("<think>")[0] + self._escape_turn(text)
        thought = self.escape(begun.removeprefix("<think>").strip()) + "\n" * opening.endswith("\n")
        return opening + thought + closing + lead + self._escape_turn(rest.lstrip())

    def _escape_turn(self, text: str) -> str:
        """Apply `escape` to a turn of the agent, but keep the tags of formats after its thought."""
        begun, closed, rest = text.partition("</think>")
        opening = "<think>" * begun.lstrip().startswith("<think>")
        if not closed or not (opening or self.opened_thought):
            return self.escape(text, {*self.tags, *THINK})
        before, _, thought = begun.partition(opening) if opening else ("", "", begun)
        return before + opening + self.escape(thought) + closed + self.escape(rest, {*self.tags, *THINK})

    def prompt_ids(self, instructions: str, context: str | list[Message], tools: Schemas | None = None) -> list[int]:
        """Encode `prompt_messages`, with the functions that may be called."""
        messages = self.prompt_messages(instructions, context)
        try:
            return self.encode(self.render(messages, tools, True))
        except Exception:  # a template such as Mistral's refuses what may follow a malformed turn
            return self.encode(self.render(make_regular(messages), tools, True))

    def conversation_ids(self, messages: list[Message], tools: Schemas | None = None) -> list[int]:
        """Encode any conversation up to the start of the next turn, with the functions that may be called."""
        written = self.fold_system([self.to_template(message) for message in messages])
        return self.encode(self.render(written, tools, True))

    def prompt_messages(self, instructions: str, context: str | list[Message]) -> list[Message]:
        """Return the messages before a turn: the instructions as system message, then the first observation or the context."""
        first, *others = [{"role": "user", "content": context}] if isinstance(context, str) else context
        if first["role"] == "user":  # it may hold the instructions, if not given above
            first = {**first, "content": (self.escape if instructions else self.escape_instructions)(first["content"])}
        messages = [{"role": "system", "content": instructions}, first, *others]
        return self.fold_system([self.to_template(message) for message in messages])

    def to_template(self, message: Message) -> Message:
        """Convert a message for templates: the arguments of calls become objects, ids have nine letters or digits. Control
        tokens that are spelled out anywhere stay text."""
        kept = {**message, "content": message.get("content") or ""}
        if message["role"] == "assistant" and (self.opened_thought or (self.dialect and self.dialect.shows_thought)):
            kept = split_thought_off(kept)
        if calls := kept.pop("tool_calls", None):
            kept["tool_calls"] = [
                to_tool_call(call["function"]["name"], read_arguments(call), short_id(call.get("id") or ""))
                for call in calls
            ]
        if "tool_call_id" in kept:
            kept["tool_call_id"] = short_id(kept["tool_call_id"])
        thought = kept.pop("reasoning_content", None)
        if thought and self.dialect and not self.dialect.shows_thought:
            if calls:  # the template shows no thoughts, only text beside calls
                kept["content"] = f"{thought}\n\n{kept['content']}".strip()
        elif thought:
            kept |= {"reasoning_content": thought, "thinking": thought}  # gpt-oss uses the second name
        said, made = kept.pop("content"), kept.pop("tool_calls", None)
        by_role: dict[str, Callable[[str], str]] = {"system": self.escape_instructions, "assistant": self._escape_turn}
        escape = by_role.get(kept["role"], partial(self.escape, allowed=self.tags if kept["role"] == "user" else ()))
        kept = self.escape_all(kept) | {"content": escape(said)}
        # Calls are read as JSON first, so the marks of calls may stand in their arguments.
        return kept | {"tool_calls": self.escape_all(made, self._call_marks)} if made else kept

    def continue_prompt(self, text: str) -> str:
        """Return an assistant's text as it follows the generation prompt. If the prompt opened a thought, the text continues it,
        or closes it empty if the text has no thought."""
        said = text.lstrip()
        if not self.opened_thought or ("</think>" in said and "<think>" not in said.partition("</think>")[0]):
            return text
        if said.startswith("<think>"):
            return said.removeprefix("<think>").removeprefix(self.opened_thought.removeprefix("<think>"))
        return self._no_thought + text

    def turn_ids(self, message: Message, tools: Schemas | None = None) -> list[int]:
        """Encode an assistant's message as a turn with its end, for training on it.

        Raises:
            ValueError: the template cannot write the message, or the written turn is not parsed as the same calls.
        """
        text = write_turn(self.render, self.to_template(message), tools)
        calls = message.get("tool_calls") or ()
        wanted = [(call["function"]["name"], read_arguments(call)) for call in calls]
        if self.dialect and wanted and [name for name, _ in wanted] != ["answer"]:  # results follow, so it is not last
            text = text.removeprefix(self.dialect.last_thought)
        ids = self._cut(self.encode(text, self._turn_start))
        read = self.read_turn(ids, tools)
        written = [(call["function"]["name"], read_arguments(call)) for call in read.get("tool_calls") or ()]
        if _without_joiners(wanted) != _without_joiners(written):
            raise ValueError(f"the chat template does not write calls so that they are read back: {read}")
        return ids if ids[-1:] and ids[-1] in self.end_ids else ids + self.end_of(message, tools)

    def end_of(self, message: Message, tools: Schemas | None = None) -> list[int]:
        """Return an end for a turn that the template writes without one; after calls, the token that begins their results."""
        if not message.get("tool_calls"):
            return self.turn_end_ids
        results = [{"role": "tool", "tool_call_id": "call_0", "name": "function", "content": ""}]
        follows = self.encode(self._render_results(results, tools), "\n")[:1]
        return follows if follows and follows[0] in self.control else self.turn_end_ids

    def answer_opening(self, tools: Schemas, thought: str | None = None) -> list[int]:
        """Encode the beginning of a turn that calls ``answer``: the ``thought``, if any, and the call up to its text."""
        call = to_tool_call("answer", {"text": _MARK}, "answer000")
        turn = self.to_template(
            {"role": "assistant", "content": "", "reasoning_content": thought or "", "tool_calls": [call]}
        )
        return self.encode(write_turn(self.render, turn, tools).partition(_MARK)[0], self._turn_start)

    def _cut(self, ids: list[int]) -> list[int]:
        """Cut a turn after its first end, where sampling stops: a template may add a line break, or another end."""
        return ids[: next((place for place, id in enumerate(ids, 1) if id in self.end_ids), len(ids))]

    def observation_ids(
        self, observation: str | list[Message], after: list[int], tools: Schemas | None = None
    ) -> list[int]:
        """Encode what is between a sampled turn ``after`` and the next: its end if not sampled, the observation, the next start.

        ``observation``: a text; a message of the user; or the results of all calls of the turn and any messages after them.
        """
        if isinstance(observation, list) and [message["role"] for message in observation] == ["user"]:
            observation = observation[0]["content"]
        if isinstance(observation, str):
            told = self._turn_end + self.escape(observation, () if tools else self.tags) + self._turn_start
        else:
            told = self._render_results(observation, tools)
        ids = self.encode(told, "\n")
        if after and after[-1] in self.end_ids:
            first = next((place for place, i in enumerate(ids) if i in self.control), 0)
            own = self._other_end if after[-1:] == self.turn_end_ids[-1:] and self._other_end else after[-1:]
            if ids[first : first + 1] == own:
                return ids[first + 1 :]
        return ids

    def _render_results(self, messages: list[Message], tools: Schemas | None) -> str:
        """Return the template's text from the end of a turn to the next, as the difference of two renderings."""
        calls = [
            to_tool_call(message.get("name") or "function", {"text": _MARK}, message["tool_call_id"])
            for message in messages
            if message["role"] == "tool"
        ]
        if self.dialect and not self.dialect.parallel:
            calls = calls[:1]
        turn = {"role": "assistant", "content": "" if calls else _MARK, "tool_calls": calls}
        told = [self.to_template(message) for message in messages]
        opening = [{"role": "user", "content": "hello"}, self.to_template(turn)]
        alone, answered = (
            self.render([*opening, *more], tools, bool(more)).split(_MARK, len(calls) or 1)[-1] for more in ([], told)
        )
        call_end = alone.removesuffix(self._last_end)
        if not answered.startswith(call_end):
            raise ValueError("the chat template rewrites calls once they have results")
        return answered[len(call_end) :]

    def read_turn(self, ids: list[int], tools: Schemas | None = None) -> Message:
        """Parse a sampled turn as an assistant's message; if it is malformed, ``error`` gives the reason.

        Raises:
            ValueError: functions cannot be used with this template.
        """
        if self.dialect is None:
            raise ValueError(
                f"the model cannot call functions: {self.refusal}; choose another format than native, such as hermes"
            )
        try:
            response = self.dialect.read(self._decode_turn(ids), tools or [])
        except Malformed as problem:
            unfinished = {"unfinished": True} if isinstance(problem, Unfinished) else {}
            said = self._with_opening(self.decode(ids))
            return unfinished | {"role": "assistant", "content": said, "error": str(problem)}
        message: Message = {"role": "assistant", "content": self.unbroken(response.text.strip())}
        if thought := "\n".join(response.thoughts):
            message["reasoning_content"] = self.unbroken(thought)
        if response.calls:
            message["tool_calls"] = [
                to_tool_call(self.unbroken(call.name), dumps(self.unbroken(call.arguments)), call.id or f"call_{place}")
                for place, call in enumerate(response.calls)
            ]
        # JSON's escapes can write lone surrogates, which no tokenizer accepts.
        return map_texts(message, encodable)

    def decode_action(self, ids: list[int], tools: Schemas | None = None, marks: str = "") -> str:
        """Decode a sampled turn as an action: with functions (only in the format "native") its message as JSON, else its text,
        including a thought that the prompt opened, without control tokens except those in ``marks``."""
        if tools:
            return dumps(self.read_turn(ids, tools))
        opening, closing = self.thought_marks
        if (opening, closing) == THINK:
            return self._with_opening(self.decode(ids, marks))
        if self.dialect and self.dialect.family.channels:
            return self._read_channels(ids, self.dialect.family)
        text = self.decode(ids, opening + closing + marks)
        begun, closed, rest = text.lstrip().partition(closing)
        if not begun.startswith(opening):
            return self.decode(ids, marks)
        return f"<think>{begun.removeprefix(opening)}{'</think>' * bool(closed)}{rest}"

    def decode_text(self, ids: list[int]) -> str:
        """Decode a turn of a program that gave no functions: as `decode_action`, but with the marks of calls, which the program
        may read itself."""
        frames = {*self._encoded(self._written), *self.end_ids}
        marks = "".join(token.content for i, token in self._added.items() if not token.special and i not in frames)
        return self.decode_action(ids, marks=marks)

    def _read_channels(self, ids: list[int], family: Family) -> str:
        """Return thoughts and the message for the user as text; without the latter, all of it is a thought without end."""
        written = self._decode_turn(ids)
        try:
            response = family.read(written, {})
        except Malformed:
            if "<|message|>" not in written:
                return self.decode(ids)
            response = Response(thoughts=[written.rpartition("<|message|>")[2]])
        thought, text = self.unbroken("\n".join(response.thoughts)), self.unbroken(response.text)
        if not text:
            return f"<think>{thought}"
        return f"<think>\n{thought}\n</think>\n\n{text}" if thought else text

    def _with_opening(self, text: str) -> str:
        return text if text.lstrip().startswith("<think>") else self.opened_thought + text

    def _decode_turn(self, ids: list[int]) -> str:
        """Decode a turn without its end, but with control tokens, which calls may consist of."""
        return self.decode_all(ids[:-1] if ids and ids[-1] in self.end_ids else ids)


def _without_joiners(calls: list[tuple[str, Any]]) -> Any:
    return json.loads(dumps(calls).replace("\u2060", ""))
