"""An episode as token ids, for adapters to libraries that train on the sampled ids."""

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from agent_envs.chat_tokens import ChatTokens
from agent_envs.integrations.episode import Episode, Message, Reply
from agent_envs.stopping import StopChecker

_TAIL = 64  # ids that hold a stop string at the end of a turn


class TokenEpisode:
    """An `Episode` in token ids, the same as in `trainers.rollouts.rollout`.

    ``eos_ids``: ids that may end a turn, besides the tokenizer's own eos. ``thinking``: as in `ChatTokens`.

    Attributes:
        prompt: ids before the first turn, or before the next turn if the environment rewrites the context.
        ids: ids after the prompt: sampled turns and the environment's replies.
        mask: 1 for each of ``ids`` that was sampled, else 0.
        logprobs: log-probabilities of ``ids``, 0.0 in the environment's text.
        was_cut: sampling reached its limit before the last turn ended; the turn is no action.
    """

    def __init__(self, episode: Episode, tokenizer: Any, eos_ids: tuple[int, ...] = (), thinking: str = "auto"):
        self.episode, self.chat = episode, _chat(tokenizer, eos_ids, thinking)
        self._ends_turn = _stop_checker(tokenizer, eos_ids, thinking, episode.stop)

    def start(self, seed: int, attempt: int | None = None) -> list[Message]:
        """Begin an episode; return the messages of `Episode.start`."""
        messages = self.episode.start(seed, attempt=attempt)
        self._system, self._format = messages[0]["content"], self.episode.env.format
        self._tools = self._format.schemas()
        self.chat.keep(self._format)
        self._begin(self.chat.prompt_ids(self._system, messages[1:], self._tools))
        return messages

    def _begin(self, prompt: list[int]) -> None:
        self.prompt, self.ids, self.mask, self.logprobs = prompt, list[int](), list[int](), list[float]()

    @property
    def done(self) -> bool:
        """The episode is over."""
        return self.episode.done

    def cut(self, sampled: list[int]) -> list[int]:
        """Return a turn up to the token that ends it: the model's end of turn, or the one that completes a closing tag."""
        return self._ends_turn.cut(sampled)

    async def sample(
        self, generate: Callable[[list[int], int], Awaitable[tuple[list[int], list[float] | None]]], longest: int
    ) -> tuple[list[int], list[float] | None]:
        """Sample a turn of at most ``longest`` ids by ``generate(ids before it, most ids)``. A server that looks for stop strings
        everywhere also stops inside a thought, where none counts: it is asked to go on."""
        turn: list[int] = []
        logprobs: list[float] | None = []
        while True:
            ids, their = await generate(self.prompt + self.ids + turn, longest - len(turn))
            turn = (turn + ids)[:longest]
            logprobs = None if logprobs is None or their is None else (logprobs + their)[:longest]
            tail = self.chat.tokenizer.decode(turn[-_TAIL:])
            has_stop = any(text in tail for text in self.episode.stop)
            if not ids or len(turn) == longest or not has_stop or self._ends_turn(self.cut(turn)):
                return turn, logprobs

    def take(self, sampled: list[int], logprobs: list[float] | None = None, room: int | None = None) -> Reply:
        """Take a turn.

        Args:
            sampled: ids of the turn; those after its end are dropped.
            logprobs: their log-probabilities.
            room: number of ids that may follow the prompt. The episode is truncated if none is left for another turn.
        """
        text = self.append_turn(sampled, logprobs)
        if room is not None:
            self.bound(room)
        reply = self.episode.step(text, cut=self.was_cut)
        self.append_reply(reply)
        return reply

    def bound(self, room: int) -> None:
        """Truncate the episode at the turn that was appended last if fewer than ``room`` ids after the prompt leave none for
        another turn."""
        left, turn = room - len(self.ids), self._turn
        # A rewritten context begins a new prompt.
        self.episode.env.fits = lambda observation, context: (
            context is not None or len(self._observation_ids(observation, turn)) < left
        )

    def append_turn(self, sampled: list[int], logprobs: list[float] | None = None) -> str:
        """Append a sampled turn; return its text. First half of `take`, for turns of many episodes at once."""
        self._turn = self.cut(sampled)
        self.was_cut = not self._turn or not self._ends_turn(self._turn)
        self._append(self._turn, True, (logprobs or [0.0] * len(sampled))[: len(self._turn)])
        return self.chat.decode_action(self._turn, self._tools)

    def append_reply(self, reply: Reply) -> None:
        """Append the environment's reply to the turn. Second half of `take`."""
        if reply.done:
            return
        if reply.context is not None:
            self._begin(self.chat.prompt_ids(self._system, reply.context, self._tools))
            return
        response = self._observation_ids(reply.text, self._turn)
        self._append(response, False, [0.0] * len(response))

    def _observation_ids(self, observation: str, turn: list[int]) -> list[int]:
        return self.chat.observation_ids(self._format.messages(observation), turn, self._tools)

    def _append(self, ids: list[int], sampled: bool, logprobs: list[float]) -> None:
        self.ids += ids
        self.mask += [int(sampled)] * len(ids)
        self.logprobs += logprobs


def check_text(episode: Episode, library: str) -> None:
    """Raise a ValueError for function calls: a library that passes turns on as text cannot tell them from other text."""
    if episode.native:
        raise ValueError(f"{library} passes turns on as text: choose another format than native")


def check_one_sequence(episode: Episode, library: str) -> None:
    """Raise a ValueError if the context is rewritten during the episode."""
    if episode.env.context is not None:
        raise ValueError(f"{library} trains an episode as one sequence: leave context at 'append'")


def read_thinking(options: Mapping[str, Any] | None) -> str:
    """Read a library's options of the chat template, where only the switch for thoughts reaches an episode."""
    options = dict(options or {})
    switch = options.pop("enable_thinking", options.pop("thinking", None))
    if options:
        raise ValueError(f"template options {sorted(options)} have no effect here: set them in the chat template")
    return "auto" if switch is None else "on" if switch else "off"


# Made once for each tokenizer in a process, since both read the whole vocabulary.
_chat = lru_cache(maxsize=8)(ChatTokens)


@lru_cache(maxsize=8)
def _stop_checker(tokenizer: Any, eos_ids: tuple[int, ...], thinking: str, stop: tuple[str, ...]) -> StopChecker:
    return StopChecker(_chat(tokenizer, eos_ids, thinking), stop)
