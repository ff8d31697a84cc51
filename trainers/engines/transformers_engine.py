"""Sampling from a `transformers` model, with keys and values kept across turns."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import torch

from agent_envs.stopping import StopChecker
from trainers.engines.engine import Completion, SamplingParams, turn_lengths
from trainers.engines.library_sampler import LibrarySampler
from trainers.engines.model_runner import ModelRunner
from trainers.engines.prefix_cache import CachedSequence, PrefixCache
from trainers.engines.sampling import sample
from trainers.engines.turns import OpenTurn, ThoughtBudget, next_noise
from trainers.models.policy import Policy
from trainers.models.prefix_trees import common_prefix_length

MAX_PREFILL_TOKENS = 8192  # in one pass, padding included
MAX_ROW = 2048  # of a row in one pass: its attention mask has as many times the row's length
MIN_SHARED_PREFIX = 16  # tokens; a shared start of all new prompts, such as instructions, runs once from this length on
STEPS_AT_ONCE = 4  # on a GPU: each look at tokens makes it wait for 2 ms, a quarter of a 3 B model's step

Drawn = tuple[list[int], list[float]]  # tokens of one conversation, and their log-probabilities


class TransformersEngine:
    """An `Engine` with continuous batching over a KV cache of shared prefixes.

    For a model that keeps state other than keys and values, `LibrarySampler` draws the turns, with a warning.

    Raises:
        ValueError: the library's own `generate` does not agree with the model's forward pass either.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...]):
        self.policy, self.runner, self._is_complete = policy, ModelRunner(policy), StopChecker(policy, stop)
        self.max_length, self.processed = policy.max_length, self.runner.processed
        self._budget = ThoughtBudget(policy, policy.thought_tokens) if policy.thought_tokens else None
        # How many tokens are drawn before the program looks at the first.
        self._steps_at_once = 1 if self.runner.graphs is None else STEPS_AT_ONCE
        self._library: LibrarySampler | None = None
        if reason := self.runner.unfit:
            self._library = LibrarySampler(policy, self.runner.processed)
            how = "with the library's own cache" if self._library.keeps_cache else "without a cache, token by token"
            warnings.warn(
                f"{type(policy.model).__name__} is sampled from {how}, which is slower: {reason}", stacklevel=2
            )
        self.reset()

    def reset(self) -> None:
        """See `Engine.reset`."""
        self._cache = PrefixCache(self.runner.reset())
        self._open: dict[int, OpenTurn] = {}  # by conversation
        self._running: list[CachedSequence] = []  # those with open turns
        self._waiting: dict[int, list[int]] = {}  # prompts for the library
        self._params = SamplingParams(max_new_tokens=1)  # of the open turns
        self._generator: torch.Generator | None = None

    def submit(
        self, prompts: dict[int, list[int]], params: SamplingParams, seeds: Mapping[int, int] | None = None
    ) -> None:
        """See `Engine.submit`. Turns that are open at the same time must agree in all parameters except ``max_new_tokens``."""
        if self._open and replace(params, max_new_tokens=self._params.max_new_tokens) != self._params:
            raise ValueError(f"turns are open with {self._params}, got {params}: wait for them first")
        lengths = turn_lengths(prompts, params.max_new_tokens, self.max_length, self._open)
        self._params = params
        for key, length in lengths.items():
            turn = OpenTurn(longest=length, is_complete=self._is_complete, budget=self._budget)
            if seeds is not None:
                turn.seed_noise(seeds[key])
            self._open[key] = turn
        if self._library is not None:
            self._waiting |= prompts
            return
        matched = self._cache.match(prompts)
        with torch.no_grad(), self.policy.autocast():
            self._prefill({sequence: ids[:-1] for sequence, ids in matched.items()})
        for sequence, ids in matched.items():
            sequence.next_id = ids[-1]
        self._running += matched

    def wait(self) -> dict[int, Completion]:
        """See `Engine.wait`."""
        done: dict[int, Completion] = {}
        enough = len(self._open) // 8  # return several at a time, or prefills would be small
        # Autocast is around the whole loop, so that weights are rounded once, not for each token.
        with torch.no_grad(), self.policy.autocast():
            while self._open and len(done) <= enough:
                done |= self._decode() if self._library is None else self._sample_by(self._library)
        return done

    def _sample_by(self, library: LibrarySampler) -> dict[int, Completion]:
        """Sample whole turns of some of the waiting conversations."""
        prompts = {key: self._waiting.pop(key) for key in library.choose(self._waiting, self._open)}
        turns = {key: self._open.pop(key) for key in prompts}
        library.sample_turns(prompts, turns, self._params)
        return {key: turn.completion for key, turn in turns.items()}

    def _prefill(self, wanted: dict[CachedSequence, list[int]]) -> None:
        """Fill the KV cache with all of these ids."""
        fresh = {sequence: ids for sequence, ids in wanted.items() if not sequence.ids}
        shared = _common_prefix(list(fresh.values())) if len(fresh) > 1 else []
        if len(shared) >= MIN_SHARED_PREFIX:
            first, *others = fresh
            self._append({first: shared})
            self._cache.copy_prefix(first, others, shared)
        # The longest come first, so that the sequences of a pass need little padding.
        waiting = sorted(
            (sequence for sequence in wanted if len(wanted[sequence]) > len(sequence.ids)),
            key=lambda sequence: len(sequence.ids) - len(wanted[sequence]),
        )
        while waiting:
            count = max(1, MAX_PREFILL_TOKENS // (len(wanted[waiting[0]]) - len(waiting[0].ids)))
            self._append({sequence: wanted[sequence][len(sequence.ids) :] for sequence in waiting[:count]})
            del waiting[:count]

    def _append(self, new_ids: dict[CachedSequence, list[int]]) -> None:
        """Append ids to cached sequences, long ones in parts."""
        while new_ids:
            rows, lengths = [sequence.index for sequence in new_ids], [len(sequence.ids) for sequence in new_ids]
            self.runner.prefill([ids[:MAX_ROW] for ids in new_ids.values()], rows, lengths)
            for sequence, ids in new_ids.items():
                sequence.ids += ids[:MAX_ROW]
            new_ids = {sequence: ids[MAX_ROW:] for sequence, ids in new_ids.items() if len(ids) > MAX_ROW}

    def _decode(self) -> dict[int, Completion]:
        """Draw the next tokens of each open turn; return the turns that they complete."""
        running, cache, policy, params = self._running, self._cache, self.policy, self._params
        num_rows = 1 + max(sequence.index for sequence in running)
        if num_rows > 2 * len(running):
            cache.move_to_front(running)
            num_rows = len(running)
        # Rows in between without an open turn run too; what that writes after their end is overwritten later.
        cached = cache.sequences[: self.runner.padded_rows(num_rows)]
        keys = [key for sequence in running for key in sequence.keys]
        row_of_key = [number for number, sequence in enumerate(running) for _ in sequence.keys]
        places = torch.tensor([sequence.index for sequence in running], device=policy.device)
        rows = torch.tensor(row_of_key, device=policy.device)
        # A row continues with the token drawn for the first of its conversations.
        leaders = {sequence: sequence.keys[0] for sequence in running}
        first = torch.tensor([0, *accumulate(len(sequence.keys) for sequence in running[:-1])], device=policy.device)
        turns = [self._open[key] for key in keys]
        steps = min(self._steps_at_once, max(turn.longest - len(turn.completion.tokens) for turn in turns))
        noise = self._next_noise(turns, steps)
        drawn: list[torch.Tensor] = []

        def draw(hidden: torch.Tensor) -> torch.Tensor:
            of_step = None if noise is None else noise[len(drawn)]
            logits = self.runner.logits(hidden[places])
            tokens, logprobs = sample(logits, rows, params.temperature, params.top_p, params.min_p, of_step)
            drawn.append(torch.stack([tokens.double(), logprobs.double()]))  # both are exact
            return tokens.new_full((len(hidden),), policy.pad_id).index_put((places,), tokens[first])

        self.runner.decode(
            [policy.pad_id if sequence.next_id is None else sequence.next_id for sequence in cached],
            [len(sequence.ids) for sequence in cached],
            1 + max(len(sequence.ids) for sequence in running), draw, steps,
        )  # fmt: skip
        tokens, logprobs = torch.stack(drawn, -1).cpu()
        drawn_for = dict(zip(keys, zip(tokens.long().tolist(), logprobs.tolist(), strict=True), strict=True))
        return self._read_drawn(leaders, drawn_for)

    def _next_noise(self, turns: list[OpenTurn], steps: int) -> torch.Tensor | None:
        """Return `next_noise`. For unseeded turns on a GPU, draw from a generator of this rollout. That of the process seeds
        it, but is reset by an update that compiles in another thread."""
        noise = next_noise(turns, steps, self.policy.device)
        if noise is not None or self.runner.graphs is None or not self._params.temperature:
            return noise
        if self._generator is None:
            seed = int(torch.randint(2**62, ()))
            self._generator = torch.Generator(self.policy.device).manual_seed(seed)
        size = steps, len(turns)
        return torch.rand(size, dtype=torch.float64, device=self.policy.device, generator=self._generator)

    def _read_drawn(self, leaders: dict[CachedSequence, int], drawn: dict[int, Drawn]) -> dict[int, Completion]:
        """Append the tokens drawn for each conversation; return the turns that they complete."""
        done: dict[int, Completion] = {}
        self._running = []
        for sequence, leader in leaders.items():
            turn, (tokens, logprobs) = self._open[leader], drawn[leader]
            if len(sequence.keys) == 1 and turn.goes_on(len(tokens)) and self._is_complete.may_end.isdisjoint(tokens):
                # Appended one by one, the tokens of 256 rows would take 1.1 ms a step.
                turn.completion.tokens += tokens
                turn.completion.logprobs += logprobs
                assert sequence.next_id is not None  # its turn is open
                sequence.ids += [sequence.next_id, *tokens[:-1]]
                sequence.next_id = tokens[-1]
                self._running.append(sequence)
            else:
                done |= self._read_row(sequence, leader, drawn)
        self._cache.copy_forks()
        return done

    def _read_row(self, sequence: CachedSequence, leader: int, drawn: dict[int, Drawn]) -> dict[int, Completion]:
        """Append the tokens drawn for the conversations of one row, one by one; return the turns that they complete.

        The row continued with the tokens of ``leader``. A conversation that drew another token gets its own row. Tokens drawn
        for it after that one are dropped, as are tokens after the end of a turn.
        """
        done: dict[int, Completion] = {}
        row = drawn[leader][0]
        for number, token in enumerate(row):
            assert sequence.next_id is not None  # its turn is open
            sequence.ids.append(sequence.next_id)
            complete: dict[int, Completion] = {}
            continuing: dict[int, list[int]] = {}  # by token
            for key in sequence.keys:
                tokens, logprobs = drawn[key]
                appended = self._open[key].append(tokens[number], logprobs[number])
                if self._open[key].ended:
                    complete[key] = self._open.pop(key).completion
                else:
                    continuing.setdefault(appended, []).append(key)
            done |= complete
            if complete and continuing:
                self._cache.fork(sequence, list(complete))
            followed = token if number + 1 < len(row) else None
            for appended in sorted(continuing, key=lambda appended: appended == followed):  # the last keeps the row
                fork = self._cache.fork(sequence, continuing[appended])
                fork.next_id = appended
                if appended != followed:
                    self._running.append(fork)
            if followed not in continuing:
                break
        return done


def _common_prefix(sequences: list[list[int]]) -> list[int]:
    first, last = min(sequences), max(sequences)
    return first[: common_prefix_length(first, last)]
