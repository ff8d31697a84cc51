"""Control tokens of a tokenizer, and text that never contains one.

Only a chat template may write control tokens, and only a format its tags. If data spell one out, a word joiner breaks it
(`ControlTokens.escape`). It is then encoded as ordinary text, without the joiner (`ControlTokens.encode`).
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any

from agent_envs.formats.base import Format
from retrieval_index.printable import map_texts

THINK = ("<think>", "</think>")  # every format has thoughts
_JOINER = "\u2060"
# Marks around messages in templates that do not use special tokens for them.
_MARK_UP = re.compile(r"<\|[^|<>\s]+\|>|</?\w+>|\[/?[A-Z_]+\]")
_NO_WORD = re.compile(r"[^\w\s]")  # a token that is a word or white space is text


class ControlTokens:
    """A tokenizer of `transformers` that keeps control tokens and text apart.

    Attributes:
        control: the control tokens by id; text from outside never contains one.
        tags: the tags of formats, which some tokenizers have as special tokens.
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int | None] = ()):
        self.tokenizer = tokenizer
        tokenizer.clean_up_tokenization_spaces = False  # before transformers 5.7 it changes what a model wrote, as " ?"
        # Rollouts of one question encode the same texts many times.
        self._encoded = lru_cache(2**10)(lambda text: tuple(tokenizer(text, add_special_tokens=False).input_ids))
        self.eos_id = tokenizer.eos_token_id
        # Padding is masked, so any token will do if the tokenizer has none for it.
        self.pad_id = next(i for i in (tokenizer.pad_token_id, self.eos_id, 0) if i is not None)
        self._ends = {self.eos_id, *({*eos_ids} - _find_closing_tags(tokenizer))}
        # Some tokenizers put a space before a text that is encoded alone.
        self._prepends = self._encoded("x\ny") != self._encoded("x\n") + self._encoded("y")
        self._added = {
            i: token for i, token in tokenizer.added_tokens_decoder.items() if _NO_WORD.search(token.content)
        }
        self._token = _any_of(token.content for token in self._added.values())
        self.tags: set[str] = set()
        self._instructions: dict[str, None] = {}  # the latest that formats wrote
        self._written = self._around_calls = (
            ""  # texts with the tokens that the template writes around messages and calls
        )

    def _find_control(self, written: str, around_calls: str) -> None:
        """Find the control tokens of a template in texts that it wrote: ``written`` has no calls, ``around_calls`` has one."""
        self._written, self._around_calls = written, around_calls
        kept = {*self.tags, *THINK}
        around = {*self._encoded(written), *self._ends} & self._added.keys()
        around -= {i for i in around if self._added[i].content in THINK}
        of_calls = self._encoded(around_calls)
        self.control = {
            i: token.content
            for i, token in self._added.items()
            if i in around or ((token.special or i in of_calls) and token.content not in kept)
        }
        # A mark around messages may be several tokens, as [INST] and <|user|> are in some tokenizers.
        texts = {*_MARK_UP.findall(written)} - {*THINK}
        self._frames = {*self.control.values(), *texts, *(t.content for t in self._added.values() if t.content in kept)}
        self._call_marks = {*_MARK_UP.findall(around_calls)} - self._frames
        marks = self._frames | self._call_marks | self.tags
        self._mark = _any_of(marks)
        # Broken tags, and broken text that is one token to the tokenizer, lose the joiner when they are encoded.
        parted = [*(token.content for token in self._added.values()), *self.tags, *THINK]
        self._broken = re.compile(
            "|".join(f"(?<={re.escape(t[:1])}){_JOINER}(?={re.escape(t[1:])})" for t in parted) or r"(?!)"
        )

    def keep(self, *formats: Format) -> None:
        """Allow the tags of these formats in turns and instructions, even if the tokenizer has them as special tokens. All other
        special tokens are control tokens, as are all tokens that the template writes around messages."""
        tags = self.tags.union(*(format.tags for format in formats))
        for format in formats:
            self._instructions[format.instructions().strip()] = None
        for old in list(self._instructions)[: -(2**10)]:  # some tasks draw other tools for each episode
            del self._instructions[old]
        if tags != self.tags:
            self.tags = tags
            self._find_control(self._written, self._around_calls)

    def escape(self, text: str, allowed: Iterable[str] = ()) -> str:
        """Break spelled-out control tokens and other marks of templates and formats, except those ``allowed``, so that they stay
        text."""
        return self._mark.sub(lambda found: found[0] if found[0] in allowed else _break(found), text)

    def escape_all(self, value: Any, allowed: Iterable[str] = ()) -> Any:
        """Apply `escape` to all strings in a JSON value, including names."""
        return map_texts(value, lambda text: self.escape(text, allowed))

    def escape_instructions(self, text: str) -> str:
        """Apply `escape` to instructions, but keep the tags in the part that a format wrote."""
        written = [own for own in self._instructions if own]
        own = next((own for own in written if text.endswith(own)), None) or next(
            (own for own in written if own in text), None
        )
        before, own, after = text.rpartition(own) if own else ("", "", text)
        return self.escape(before) + self.escape(own, {*self.tags, *THINK}) + self.escape(after)

    def encode(self, text: str, after: str = "") -> list[int]:
        """Encode a text, as it follows the text ``after``, without the ids that a tokenizer adds around it."""
        if _JOINER not in text:
            return self._encode_piece(text, after)
        ids: list[int] = []
        for piece in self._broken.split(text):
            ids += self._encode_piece(piece, after)
            after = piece or after
        return ids

    def _encode_piece(self, text: str, after: str) -> list[int]:
        if self._prepends and after:
            for other in (after, "\n", "]"):
                before, whole = self._encoded(other), self._encoded(other + text)
                if whole[: len(before)] == before:
                    return list(whole[len(before) :])
        return list(self._encoded(text))

    def decode_all(self, ids: list[int]) -> str:
        """Decode ids with control tokens; one that other tokens spell out is broken, so it is not read as that token."""
        text = self._decode(ids)
        if all(text.count(token.content) <= ids.count(i) for i, token in self._added.items() if token.content in text):
            return text
        runs = [(own, self._decode(list(run))) for own, run in groupby(ids, self._added.__contains__)]
        return "".join(said if own else self._token.sub(_break, said) for own, said in runs)

    def unbroken(self, value: Any) -> Any:
        """Remove the joiners from broken tokens and tags in all strings of a JSON value."""
        return map_texts(value, lambda text: self._broken.sub("", text))

    def decode(self, ids: list[int], marks: str = "") -> str:
        """Decode ids without control tokens, except those in ``marks``."""
        kept = [i for i in ids if i not in self.control or self.control[i] in marks]
        return self._decode(kept)

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _any_of(marks: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(sorted(map(re.escape, marks), key=len, reverse=True)) or r"(?!)")


def _break(found: re.Match[str]) -> str:
    return f"{found[0][:1]}{_JOINER}{found[0][1:]}"


def _find_closing_tags(tokenizer: Any) -> set[int]:
    """The ids of closing tags, such as ``</search>``, that are tokens without being special ones."""
    added = tokenizer.added_tokens_decoder.items()
    return {i for i, token in added if not token.special and re.fullmatch(r"</\w+>", token.content)}
