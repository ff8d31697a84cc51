"""A conversation of several turns as token ids.

Sampled ids are kept: only the prompt and observations are encoded, since byte-pair encodings are not bijective. Takes a
tokenizer of `transformers` and imports none of it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_MARK = "\u2063content\u2063"  # stands for a message while a chat template is taken apart
_TAG = re.compile(r"</?\w+>")  # <think>, </tool_call>: formats are made of these, and some tokenizers call them special
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTokens:
    """Turns and observations as ids, by the chat template of a tokenizer.

    Args:
        tokenizer: of `transformers`, with a chat template.
        eos_ids: what the model may end a turn with beside the tokenizer's own eos.

    Attributes:
        end_ids: special tokens that end a turn, whoever wrote them.
        turn_end_ids: the one that the template ends turns with, if any.

    Raises:
        ValueError: it has no chat template, or one that rewrites earlier messages.
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int | None] = ()):
        if tokenizer.chat_template is None:
            raise ValueError("the tokenizer has no chat template; use an instruction-tuned model")
        self.tokenizer = tokenizer
        # Attempts at one question read the same, again and again.
        self._encoded = lru_cache(2**10)(lambda text: tuple(tokenizer(text, add_special_tokens=False).input_ids))
        self.eos_id = tokenizer.eos_token_id
        # Padding is masked, so without a token for it any will do.
        self.pad_id = next(i for i in (tokenizer.pad_token_id, self.eos_id, 0) if i is not None)
        self._has_system_role = self._accepts_system_messages()
        conversation = [("user", "hello"), ("assistant", _MARK), ("user", _MARK)]
        text = self._template([{"role": r, "content": c} for r, c in conversation], add_generation_prompt=True)
        if text.count(_MARK) != 2:
            raise ValueError("the chat template rewrites earlier messages, so turns cannot be appended to each other")
        _, self._turn_end, self._turn_start = text.split(_MARK)
        # A model may end its turns with several tokens, eos not always among them; an ordinary token is never one.
        ends = {self.eos_id, *eos_ids, *self.encode(self._turn_end)[:1]}
        self.end_ids = ends & {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        # What a turn should end with.
        self.turn_end_ids = [i for i in self.encode(self._turn_end)[:1] if i in self.end_ids]
        named = {getattr(tokenizer, name) for name in _NAMED}  # <s> and </s> are no tags
        self._control = {
            i: token.content
            for i, token in tokenizer.added_tokens_decoder.items()
            if token.special and (token.content in named or not _TAG.fullmatch(token.content))
        }
        specials = sorted(map(re.escape, self._control.values()), key=len, reverse=True)
        self._special = re.compile("|".join(specials) or r"(?!)")
        self._sample = self.encode(text)

    def _template(self, messages: list[dict[str, str]], **kwargs) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        assert isinstance(text, str)
        return text

    def _accepts_system_messages(self) -> bool:
        messages = [{"role": role, "content": _MARK} for role in ("system", "user")]
        try:
            self._template(messages, add_generation_prompt=True)
        except Exception:  # a template raises what it likes at a role that it does not know
            return False
        return True

    def fold_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Move a leading system message into the user message after it where the chat template refuses the system role."""
        if self._has_system_role or len(messages) < 2 or [m["role"] for m in messages[:2]] != ["system", "user"]:
            return messages
        first, second, *others = messages
        return [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *others]

    def encode(self, text: str) -> list[int]:
        """Encode a text without the ids that a tokenizer adds around it."""
        return list(self._encoded(text))

    def inert(self, text: str) -> str:
        """Break spelled-out control tokens in outside text with a word joiner, so that they stay text."""
        return self._special.sub(lambda found: f"{found[0][:1]}\u2060{found[0][1:]}", text)

    def prompt_ids(self, instructions: str, context: str | list[dict[str, str]]) -> list[int]:
        """The ids of `prompt_messages`."""
        return self.encode(self._template(self.prompt_messages(instructions, context), add_generation_prompt=True))

    def prompt_messages(self, instructions: str, context: str | list[dict[str, str]]) -> list[dict[str, str]]:
        """The messages before a turn: the instructions as system message, then the first observation or a rewritten context."""
        messages = [{"role": "user", "content": context}] if isinstance(context, str) else context
        messages = [{"role": "system", "content": instructions}, *messages]
        return self.fold_system([{**message, "content": self.inert(message["content"])} for message in messages])

    def observation_ids(self, observation: str, after: list[int]) -> list[int]:
        """The ids from a sampled turn ``after`` to the next: its end if not sampled, the observation, the next turn's start."""
        ids = self.encode(self._turn_end + self.inert(observation) + self._turn_start)
        if after and after[-1] in self.end_ids and ids[:1] == after[-1:]:
            return ids[1:]
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, without control tokens."""
        text = self.tokenizer.decode([i for i in ids if i not in self._control], skip_special_tokens=False)
        assert isinstance(text, str)
        return text


class StopChecker:
    """Whether the last token ends a turn: by an end-of-turn token, or by completing a stop string."""

    def __init__(self, policy: ChatTokens, stop: tuple[str, ...]):
        self._decode, self._end_ids, self._stop = policy.tokenizer.decode, policy.end_ids, stop
        last_characters = {s[-1] for s in stop}
        texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        # A stop string can only be completed by a token that holds its last character, so no other one is looked at.
        # A token that holds only a part of a character is decoded to U+FFFD; it may hold the last part of that one.
        self._may_stop = {
            i for i, text in enumerate(texts) if "\ufffd" in text or any(last in text for last in last_characters)
        }
        # Tokens of at least a byte each, and those of a character that comes before.
        self._tail = 4 + max((len(s.encode()) for s in stop), default=0)

    def __call__(self, tokens: list[int]) -> bool:
        """Whether the last of a turn's tokens ends it."""
        if tokens[-1] in self._end_ids:
            return True
        if tokens[-1] not in self._may_stop:
            return False
        tail = self._decode(tokens[-self._tail :])
        return any(s in tail for s in self._stop)

    def cut(self, tokens: list[int]) -> list[int]:
        """A turn up to the token that ends it; all of it where none does."""
        return next((tokens[:n] for n in range(1, len(tokens)) if self(tokens[:n])), tokens)
