"""A conversation of several turns as token ids.

Sampled ids are kept: only the prompt and observations are encoded, since byte-pair encodings are not bijective. Takes a
tokenizer of `transformers` and imports none of it.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.dialects import (
    find_dialect,
    one_line,
    read_by_tokenizer,
    to_tool_call,
    write_known_calls,
    write_turn,
)
from agent_envs.formats.json_text import dumps

Message = dict[str, Any]
Schemas = list[dict[str, Any]]  # of functions, as chat templates take them
_MARK = "\u2063content\u2063"  # stands for a message while a chat template is taken apart
_THINK = ("<think>", "</think>")  # every format has thoughts
# As messages are framed where no special tokens do it.
_MARK_UP = re.compile(r"<\|[^|<>\s]+\|>|</?\w+>|\[/?[A-Z_]+\]")
_NO_WORD = re.compile(r"[^\w\s]")  # a token that is a word or white space is text


class ChatTokens:
    """Turns and observations as ids, by the chat template of a tokenizer.

    Functions (the format "native") are written and read as the template does: their schemas are its ``tools``, results are
    messages of the role "tool". What was sampled stays in the context as it is, also where the template would drop earlier
    thoughts, or write arguments in another way.

    Args:
        tokenizer: of `transformers`, with a chat template.
        eos_ids: what the model may end a turn with beside the tokenizer's own eos.
        thinking: "on" or "off" sets the template's switch (``enable_thinking``, or ``thinking``), "auto" leaves it as it is; a
            number is "on" where there is a switch.

    Attributes:
        dialect: how the template writes calls; None where functions cannot be used with it.
        refusal: why not, in one line.
        template_options: what the template is given beside messages and tools.
        opened_thought: what the generation prompt begins a thought with, such as ``<think>`` and a line break; "" where
            thoughts are the model's to open.
        control: the control tokens, by their ids; outside text never holds one.
        end_ids: those that end a turn, whoever wrote them.
        turn_end_ids: what the template ends a turn with, up to the first of them. A template that writes no end has the token
            that begins the next message here, which its models sample, or else eos.

    Raises:
        ValueError: it has no chat template, or one that rewrites earlier messages; or none with such a switch.
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int | None] = (), thinking: str = "auto"):
        if tokenizer.chat_template is None:
            raise ValueError("the tokenizer has no chat template; use an instruction-tuned model")
        self.tokenizer = tokenizer
        self.template_options = _find_switch(tokenizer, thinking)
        # Attempts at one question read the same, again and again.
        self._encoded = lru_cache(2**10)(lambda text: tuple(tokenizer(text, add_special_tokens=False).input_ids))
        self.eos_id = tokenizer.eos_token_id
        # Padding is masked, so without a token for it any will do.
        self.pad_id = next(i for i in (tokenizer.pad_token_id, self.eos_id, 0) if i is not None)
        # Some tokenizers put a space before a text that is encoded alone.
        self._prepends = self._encoded("x\ny") != self._encoded("x\n") + self._encoded("y")
        self._written = ""  # what holds the tokens that the template writes around messages
        self._has_system_role = self._keeps_system_messages()
        conversation = [("user", "hello"), ("assistant", _MARK), ("user", _MARK)]
        try:
            text = self._template([{"role": r, "content": c} for r, c in conversation], add_generation_prompt=True)
        except Exception as error:  # templates are programs, and raise what they like
            raise ValueError(f"the chat template cannot write a conversation: {one_line(error)}") from error
        if _MARK not in text:
            raise ValueError("the chat template leaves out messages that are text; use another one, for text alone")
        if text.count(_MARK) != 2:
            raise ValueError("the chat template rewrites earlier messages, so turns cannot be appended to each other")
        _, self._turn_end, self._turn_start = text.split(_MARK)
        opens = self._turn_start.rstrip().endswith("<think>")
        self.opened_thought = self._turn_start[self._turn_start.rindex("<think>") :] if opens else ""
        # The last turn of a conversation may end with another token, which is then the one that is sampled.
        last = self._template([{"role": r, "content": c} for r, c in conversation[:2]]).partition(_MARK)[2]
        self._last_end = last
        lead = self._find_lead()
        self._lead = "" if "think>" in lead else lead
        self._no_thought = lead if "</think>" in lead else "\n</think>\n\n"  # closes the one that the prompt opened
        self._written += text + last
        self._written_for_calls = write_known_calls(self._render_any)
        self._kept: set[str] = set()
        self._ends = {
            self.eos_id,
            *({*eos_ids} - _find_closing_tags(tokenizer)),
        }  # tags are text, which a format ends with
        self.keep(_THINK)
        self._own_end = last if self._special.search(last) else self._turn_end
        end = self.encode(self._own_end, "\n")
        place = next((place for place, i in enumerate(end, 1) if i in self.control), 0)
        # A model may end its turns with several tokens, eos not always among them; an ordinary token is never one.
        self.turn_end_ids = end[:place] or [i for i in [self.eos_id] if i in self.control]
        self.end_ids = {*self._ends, *self.turn_end_ids[-1:]} & self.control.keys()
        self._sample = self.encode(text)
        self.dialect, self.refusal = None, ""
        try:
            has_own = getattr(tokenizer, "response_template", None)
            self.dialect = find_dialect(
                self._render,
                lambda turn: self._decode_turn(self._cut(self.encode(turn, "\n"))),
                [read_by_tokenizer(tokenizer, self._turn_start)] if has_own else [],
            )
        except ValueError as reason:
            self.refusal = str(reason)
        else:
            words = tokenizer.get_vocab()
            self.end_ids |= {words[token] for token in self.dialect.family.ends if token in words}
            self.end_ids -= {words[token] for token in self.dialect.family.goes_on if token in words}

    def _render(self, messages: list[Message], tools: Schemas | None, add_generation_prompt: bool) -> str:
        # Some templates take an empty list for functions.
        return self._template(
            messages, tools=self.escape_all(tools) or None, add_generation_prompt=add_generation_prompt
        )

    def _render_any(self, messages: list[Message], tools: Schemas | None, add_generation_prompt: bool) -> str:
        return self._template(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def _template(self, messages: list[Message], **kwargs) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **self.template_options, **kwargs)
        assert isinstance(text, str)
        return text

    def _keeps_system_messages(self) -> bool:
        """Whether the template writes a system message, and leaves it where it is when the conversation goes on. One that leaves
        out the role by name, as the tiny model's, does so on purpose."""
        roles = ("system", "user", "assistant", "user")
        try:
            text = self._template([{"role": r, "content": _MARK + r} for r in roles], add_generation_prompt=True)
        except Exception:  # a template raises what it likes at a role that it does not know
            return False
        self._written = text
        place = text.find(_MARK + "system")
        return place < text.find(_MARK + "assistant") and (place >= 0 or "system" in str(self.tokenizer.chat_template))

    def _find_lead(self) -> str:
        """What the template writes between the start of a turn and its text, an empty thought perhaps."""
        question = [{"role": "user", "content": "hello"}]
        before = self._template(question, add_generation_prompt=True)
        turn = self._template([*question, {"role": "assistant", "content": _MARK}])
        return turn[len(before) :].partition(_MARK)[0] if turn.startswith(before) else ""

    def keep(self, tags: Iterable[str]) -> None:
        """Let turns and instructions hold the tags of a format (`Format.tags`) that the tokenizer has as special tokens. Every
        other special token is control, and so is every token that the template writes around messages."""
        if (kept := self._kept | {*tags}) == self._kept:
            return
        self._kept = kept
        added = {i: token for i, token in self.tokenizer.added_tokens_decoder.items() if _NO_WORD.search(token.content)}
        written = {*self._encoded(self._written), *self._ends} & added.keys()
        written -= {i for i in written if added[i].content in _THINK}
        around_calls = self._encoded(self._written_for_calls)
        self.control = {
            i: token.content
            for i, token in added.items()
            if i in written or ((token.special or i in around_calls) and token.content not in self._kept)
        }
        # What a template writes around messages may be several tokens, as [INST] and <|user|> are to some tokenizers.
        marks = {*self.control.values(), *_MARK_UP.findall(self._written)} - self._kept
        of_calls = {*_MARK_UP.findall(self._written_for_calls)} - self._kept - {*_MARK_UP.findall(self._written)}
        of_calls -= {token.content for token in added.values() if token.special}
        self._special, self._special_in_own = _any_of(marks | of_calls), _any_of(marks - of_calls)

    def fold_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Move a leading system message into the user message after it where the chat template has no place for it."""
        if self._has_system_role or len(messages) < 2 or [m["role"] for m in messages[:2]] != ["system", "user"]:
            return messages
        first, second, *others = messages
        return [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *others]

    def encode(self, text: str, after: str = "") -> list[int]:
        """Encode a text, or a piece of one as it stands ``after`` another, without the ids that a tokenizer adds around it."""
        if self._prepends and after:
            for other in (after, "\n", "]"):
                before, whole = self._encoded(other), self._encoded(other + text)
                if whole[: len(before)] == before:
                    return list(whole[len(before) :])
        return list(self._encoded(text))

    def text_ids(self, text: str, ended: bool = True) -> list[int]:
        """A turn that is text, as the ids after a generation prompt, for teaching it. ``ended``: with its end."""
        text = self._lead + self.escape(self.continue_prompt(text))
        if not ended:
            return self.encode(text, self._turn_start)
        ids = self._cut(self.encode(text + self._own_end, self._turn_start))
        return ids if ids[-1] in self.end_ids else self.encode(text, self._turn_start) + self.turn_end_ids

    def escape(self, text: str, own: bool = False) -> str:
        """Break spelled-out control tokens in outside text with a word joiner, so that they stay text."""
        return (self._special_in_own if own else self._special).sub(
            lambda found: f"{found[0][:1]}\u2060{found[0][1:]}", text
        )

    def prompt_ids(self, instructions: str, context: str | list[Message], tools: Schemas | None = None) -> list[int]:
        """The ids of `prompt_messages`, with the functions that may be called."""
        return self.encode(self._render(self.prompt_messages(instructions, context), tools, True))

    def conversation_ids(self, messages: list[Message], tools: Schemas | None = None) -> list[int]:
        """The ids of any conversation up to the start of the next turn, with the functions that may be called."""
        written = self.fold_system([self.to_template(message) for message in messages])
        return self.encode(self._render(written, tools, True))

    def prompt_messages(self, instructions: str, context: str | list[Message]) -> list[Message]:
        """The messages before a turn: the instructions as system message, then the first observation or a rewritten context."""
        messages = [{"role": "user", "content": context}] if isinstance(context, str) else context
        messages = [{"role": "system", "content": instructions}, *messages]
        return self.fold_system([self.to_template(message) for message in messages])

    def to_template(self, message: Message) -> Message:
        """A message as templates want it: the arguments of calls are objects, ids have nine letters or digits; control tokens
        that are spelled out anywhere stay text."""
        kept = {**message, "content": message.get("content") or ""}
        if message["role"] == "assistant" and (self.opened_thought or (self.dialect and self.dialect.shows_thought)):
            kept = _split_message(kept)
        if calls := kept.pop("tool_calls", None):
            kept["tool_calls"] = [
                to_tool_call(call["function"]["name"], read_arguments(call), _short_id(call.get("id") or ""))
                for call in calls
            ]
        if "tool_call_id" in kept:
            kept["tool_call_id"] = _short_id(kept["tool_call_id"])
        thought = kept.pop("reasoning_content", None)
        if thought and self.dialect and not self.dialect.shows_thought:
            if calls:  # text beside calls is all that there is
                kept["content"] = f"{thought}\n\n{kept['content']}".strip()
        elif thought:
            kept |= {"reasoning_content": thought, "thinking": thought}  # gpt-oss has the other name
        if kept.get("role") == "tool" and self.dialect:  # nor can a result pose as two, or as a call
            for mark in self.dialect.family.marks:
                kept["content"] = kept["content"].replace(mark, f"{mark[:1]}\u2060{mark[1:]}")
        calls = {"tool_calls": self.escape_all(kept.pop("tool_calls"), own=True)} if "tool_calls" in kept else {}
        return self.escape_all(kept) | calls

    def escape_all(self, value: Any, own: bool = False) -> Any:
        """`escape` for all texts in a JSON value, names too. The agent's ``own`` calls may hold marks of calls in strings."""
        if isinstance(value, str):
            return self.escape(value, own)
        if isinstance(value, dict):
            return {self.escape(name, own): self.escape_all(item, own) for name, item in value.items()}
        return [self.escape_all(item, own) for item in value] if isinstance(value, list) else value

    def continue_prompt(self, text: str) -> str:
        """What follows the generation prompt of an assistant's text: its thought goes on where the prompt opened one, and is
        empty where the text has none."""
        said = text.lstrip()
        if not self.opened_thought or ("</think>" in said and "<think>" not in said.partition("</think>")[0]):
            return text
        if said.startswith("<think>"):
            return said.removeprefix("<think>").removeprefix(self.opened_thought.removeprefix("<think>"))
        return self._no_thought + text

    def turn_ids(self, message: Message, tools: Schemas | None = None) -> list[int]:
        """An assistant's message as the ids of a turn with its end, for teaching it.

        Raises:
            ValueError: the template cannot write it, or what it writes is not read as these calls.
        """
        given = self.to_template(message)
        ids = self._cut(self.encode(write_turn(self._render, given, tools), self._turn_start))
        wanted = [(call["function"]["name"], read_arguments(call)) for call in given.get("tool_calls") or ()]
        read = self.read_turn(ids, tools)
        written = [(call["function"]["name"], read_arguments(call)) for call in read.get("tool_calls") or ()]
        if wanted != written:
            raise ValueError(f"the chat template does not write calls so that they are read back: {read}")
        return ids if ids[-1:] and ids[-1] in self.end_ids else ids + self.end_of(message, tools)

    def end_of(self, message: Message, tools: Schemas | None = None) -> list[int]:
        """The end of a turn that the template writes without one: what the model samples there begins the next message."""
        if not message.get("tool_calls"):
            return self.turn_end_ids
        results = [{"role": "tool", "tool_call_id": "call_0", "name": "function", "content": ""}]
        follows = self.encode(self._render_results(results, tools), "\n")[:1]
        return follows if follows and follows[0] in self.control else self.turn_end_ids

    def answer_opening(self, tools: Schemas, thought: str | None = None) -> list[int]:
        """The beginning of a turn that calls the function ``answer``, after a ``thought`` if there is one, up to its text."""
        call = to_tool_call("answer", {"text": _MARK}, "answer000")
        turn = self.to_template(
            {"role": "assistant", "content": "", "reasoning_content": thought or "", "tool_calls": [call]}
        )
        return self.encode(write_turn(self._render, turn, tools).partition(_MARK)[0], self._turn_start)

    def _cut(self, ids: list[int]) -> list[int]:
        """A turn up to its first end, where sampling stops: a template may go on with a line break, or another end."""
        return ids[: next((place for place, id in enumerate(ids, 1) if id in self.end_ids), len(ids))]

    def observation_ids(
        self, observation: str | list[Message], after: list[int], tools: Schemas | None = None
    ) -> list[int]:
        """The ids from a sampled turn ``after`` to the next: its end if not sampled, what came back, the next turn's start.

        ``observation``: a text, or messages: what the user said, or the results of all calls of the turn and what follows.
        """
        if isinstance(observation, list) and [message["role"] for message in observation] == ["user"]:
            observation = observation[0]["content"]
        if isinstance(observation, str):
            told = self._turn_end + self.escape(observation) + self._turn_start
        else:
            told = self._render_results(observation, tools)
        ids = self.encode(told, "\n")
        if after and after[-1] in self.end_ids:
            first = next((place for place, i in enumerate(ids) if i in self.control), 0)
            if ids[first : first + 1] == after[-1:]:
                return ids[first + 1 :]
        return ids

    def _render_results(self, messages: list[Message], tools: Schemas | None) -> str:
        """What the template writes from the end of a turn to the next: what two renderings differ in."""
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
            self._render([*opening, *more], tools, bool(more)).split(_MARK, len(calls) or 1)[-1] for more in ([], told)
        )
        call_end = alone.removesuffix(self._last_end)
        if not answered.startswith(call_end):
            raise ValueError("the chat template rewrites calls once they have results")
        return answered[len(call_end) :]

    def read_turn(self, ids: list[int], tools: Schemas | None = None) -> Message:
        """A sampled turn as an assistant's message; its ``error`` says why it is none.

        Raises:
            ValueError: functions cannot be used with this template.
        """
        if self.dialect is None:
            raise ValueError(f"the model cannot call functions: {self.refusal}; choose another format than native")
        try:
            response = self.dialect.read(self._decode_turn(ids), tools or [])
        except Malformed as problem:
            unfinished = {"unfinished": True} if isinstance(problem, Unfinished) else {}
            return unfinished | {
                "role": "assistant",
                "content": self._with_opening(self.decode(ids)),
                "error": str(problem),
            }
        message: Message = {"role": "assistant", "content": response.text.strip()}
        if thought := "\n".join(response.thoughts):
            message["reasoning_content"] = thought
        if response.calls:
            message["tool_calls"] = [
                to_tool_call(call.name, dumps(call.arguments), call.id or f"call_{place}")
                for place, call in enumerate(response.calls)
            ]
        return message

    def decode_action(self, ids: list[int], tools: Schemas | None = None) -> str:
        """A sampled turn as an action: its text with the thought that the prompt opened, or where there are functions, as only
        the format "native" has, its message."""
        if tools:
            return dumps(self.read_turn(ids, tools))
        return self._with_opening(self.decode(ids))

    def _with_opening(self, text: str) -> str:
        return text if text.lstrip().startswith("<think>") else self.opened_thought + text

    def _decode_turn(self, ids: list[int]) -> str:
        """The text of a turn without its end: calls may be made of control tokens."""
        ids = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def decode(self, ids: list[int]) -> str:
        """The text of ids, without control tokens."""
        text = self.tokenizer.decode([i for i in ids if i not in self.control], skip_special_tokens=False)
        assert isinstance(text, str)
        return text


def read_arguments(call: Message) -> Any:
    """The arguments of a call as an object; some APIs and files have none, or text."""
    given = call["function"].get("arguments")
    if given in (None, ""):
        return {}
    return json.loads(given) if isinstance(given, str) else given


def _find_closing_tags(tokenizer: Any) -> set[int]:
    """The ids of closing tags, such as ``</search>``, that are tokens without being special ones."""
    added = tokenizer.added_tokens_decoder.items()
    return {i for i, token in added if not token.special and re.fullmatch(r"</\w+>", token.content)}


def _find_switch(tokenizer: Any, thinking: str) -> dict[str, bool]:
    """The options of a chat template that turn thoughts "on" or "off"; none for "auto", or a number where it has no switch."""
    if thinking == "auto":
        return {}
    options = [dict.fromkeys(("enable_thinking", "thinking"), on) for on in (True, False)]
    hello = [{"role": "user", "content": "hello"}]
    write = partial(tokenizer.apply_chat_template, hello, tokenize=False, add_generation_prompt=True)
    try:
        prompts = [write(**each) for each in options]
    except Exception as error:  # a template raises what it likes
        raise ValueError(f"the chat template cannot write a conversation: {error}") from error
    if prompts[0] == prompts[1] and thinking.isdecimal():
        return {}
    if prompts[0] == prompts[1]:
        raise ValueError(f"the chat template has no switch for thoughts, got thinking {thinking!r}: leave it at auto")
    return options[thinking == "off"]


def _split_message(message: Message) -> Message:
    """The thought at the start of a message's content as ``reasoning_content``."""
    begun, closed, rest = message["content"].lstrip().partition("</think>")
    if not closed or not begun.startswith("<think>") or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": begun.removeprefix("<think>").strip(), "content": rest.lstrip()}


def _any_of(marks: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(sorted(map(re.escape, marks), key=len, reverse=True)) or r"(?!)")


def _short_id(id: str) -> str:
    """The id itself where it has the form that Mistral's templates want, else one that stands for it."""
    return id if re.fullmatch(r"[a-zA-Z0-9]{9}", id) else hashlib.sha256(id.encode()).hexdigest()[:9]
