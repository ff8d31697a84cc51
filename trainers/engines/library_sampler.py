"""Whole turns by the library's own `generate` and cache, for models that keep other states than keys and values.

Prompts are run anew in each turn, and rows of a batch wait for the longest turn among them.
"""

import collections
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from trainers.engines.engine import Completion, SamplingParams
from trainers.engines.model_runner import PROBE_TEXT
from trainers.engines.sampling import sample
from trainers.engines.turns import OpenTurn, next_noise
from trainers.models.policy import Policy
from trainers.runtime.errors import UserError

PROBE_TOKENS = 3
MAX_BATCH_TOKENS = 2**15  # of the prompts of a batch, padding included

Turns = Mapping[int, OpenTurn]  # by conversation


class LibrarySampler:
    """Sampler of whole turns by the library's `generate`.

    Args:
        processed: the counter `Engine.processed`.

    Attributes:
        keeps_cache: whether the library's cache agrees with a pass without one; otherwise each token runs the turn anew.

    Raises:
        ValueError: `generate` does not agree with the model's forward pass.
    """

    def __init__(self, policy: Policy, processed: collections.Counter[str]):
        self._policy, self._processed = policy, collections.Counter[str]()  # a counter of its own for the passes below
        # Prompts of different lengths in a batch are padded on the left, if that changes nothing.
        for self._pads, self.keeps_cache in ((True, True), (False, True), (False, False)):
            if not (reason := self._find_difference()):
                self._processed = processed
                return
        raise UserError(
            f"{type(policy.model).__name__} cannot be sampled from by the library ({reason}): try --engine vllm"
        )

    def choose(self, prompts: dict[int, list[int]], turns: Turns) -> list[int]:
        """Choose the conversations of the next batch: those with the longest prompts, all of one length if it must not pad."""
        ordered = sorted(prompts, key=lambda key: len(prompts[key]), reverse=True)
        longest = len(prompts[ordered[0]])
        room = self._policy.max_length - longest  # rows that have ended move on to the next position too
        fitting = [
            key for key in ordered if turns[key].longest <= room and (self._pads or len(prompts[key]) == longest)
        ]
        return fitting[: max(1, MAX_BATCH_TOKENS // longest)]

    @torch.no_grad()
    def sample_turns(self, prompts: dict[int, list[int]], turns: Turns, params: SamplingParams) -> None:
        """Sample the turns of a batch into their completions."""
        policy, longest = self._policy, max(map(len, prompts.values()))
        rows = [[policy.pad_id] * (longest - len(prompt)) + prompt for prompt in prompts.values()]
        is_real = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()]
        ids, attention_mask = torch.tensor([rows, is_real], device=policy.device)
        sampler = _TurnSampler([turns[key] for key in prompts], params)
        config = GenerationConfig(
            max_new_tokens=max(turn.longest for turn in sampler.turns),
            do_sample=False,
            pad_token_id=policy.pad_id,
            use_cache=self.keeps_cache,
        )
        with _as_sampled(policy):
            policy.model.generate(
                ids,
                attention_mask=attention_mask,
                generation_config=config,
                logits_processor=LogitsProcessorList([sampler]),
                stopping_criteria=StoppingCriteriaList([sampler.ended_rows]),
            )
        steps = sampler.steps - 1  # after the pass over the prompts
        self._processed["prefill"] += ids.numel()
        again = steps * longest + steps * (steps - 1) // 2  # tokens that a row runs anew without a cache
        self._processed["decode"] += len(rows) * (steps if self.keeps_cache else steps + again)
        self._processed["decode_steps"] += steps

    def _find_difference(self) -> str:
        """State how `generate` differs from a pass without a cache; "" if it does not."""
        policy = self._policy
        ids = policy.encode(PROBE_TEXT)
        prompts = {0: ids, 1: ids[: 1 + len(ids) // 2]}
        turns = {key: OpenTurn(longest=PROBE_TOKENS, is_complete=lambda tokens: False) for key in prompts}
        params, error = SamplingParams(max_new_tokens=PROBE_TOKENS, temperature=0), 0.0
        try:
            with policy.autocast():
                for batch in [prompts] if self._pads else [{key: prompt} for key, prompt in prompts.items()]:
                    self.sample_turns(batch, turns, params)
                for key, prompt in prompts.items():
                    error = max(error, self._error(prompt, turns[key].completion))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as problem:  # a model may fail on padding in any way
            return f"{type(problem).__name__}: {problem}"
        tolerance = 1e-3 if policy.dtype == torch.float32 else 0.25
        return "" if error <= tolerance else f"log-probabilities differ by {error:.2g}"

    @torch.no_grad()
    def _error(self, prompt: list[int], completion: Completion) -> float:
        """Return the largest difference between a greedy turn's log-probabilities and those of one forward pass."""
        tokens, device = torch.tensor(completion.tokens, device=self._policy.device), self._policy.device
        ids = torch.tensor([prompt + completion.tokens], device=device)
        hidden = self._policy.backbone(ids, use_cache=False)[0][0, len(prompt) - 1 : -1]
        expected = self._policy.logits(hidden).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return float((expected - torch.tensor(completion.logprobs, device=device)).abs().max())


class _TurnSampler(LogitsProcessor):
    """Draw a token for each row, and leave it as the only possible one."""

    def __init__(self, turns: list[OpenTurn], params: SamplingParams):
        self.turns, self._params, self.steps = turns, params, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        params, rows = self._params, torch.arange(len(scores), device=scores.device)
        noise = next_noise(self.turns, 1, scores.device)
        own = None if noise is None else noise[0]
        drawn, logprobs = sample(scores, rows, params.temperature, params.top_p, params.min_p, own)
        self.steps += 1
        triples = zip(self.turns, drawn.tolist(), logprobs.tolist(), strict=True)
        tokens = [token if turn.ended else turn.append(token, logprob) for turn, token, logprob in triples]
        chosen = torch.tensor(tokens, device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)

    def ended_rows(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """Which rows have ended."""
        return torch.tensor([turn.ended for turn in self.turns], device=input_ids.device)


@contextmanager
def _as_sampled(policy: Policy) -> Iterator[None]:
    """Run the model's head in float32, as `Policy.logits` does, without the generation defaults of the model."""
    model, head = policy.model, policy.model.get_output_embeddings()
    kept, forward = model.generation_config, head.forward

    def exact(hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return forward(hidden.float())

    model.generation_config, head.forward = GenerationConfig(), exact
    try:
        yield
    finally:
        model.generation_config = kept
        del head.forward
