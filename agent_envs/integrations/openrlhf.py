"""Adapter for OpenRLHF's agents. Tested with OpenRLHF 0.11.

Write this to the file that ``--train.agent_func_path`` names; `dataset` makes its data:

    from agent_envs.integrations.openrlhf import executor

    AgentExecutor = executor("AgentR1/MiniWiki-v0")
"""

import asyncio
import json
from collections import Counter
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from openrlhf.utils.agent import AgentExecutorBase

from agent_envs.integrations.episode import Episode, Reply, draw_questions, make_in_split, retry_on_tool_failure
from agent_envs.integrations.token_episode import TokenEpisode, check_one_sequence


def dataset(id: str, n: int, *, seed: int = 0, **env_kwargs: Any) -> Any:
    """Make a `datasets.Dataset` of ``n`` questions with the columns ``input`` and ``label``.

    ``input`` is the question, ``label`` its seed and split as JSON: for ``--data.input_key input --data.label_key label``.
    ``seed`` draws the questions. ``env_kwargs`` are those of `executor`; only ``split`` may differ, as a row names its own.
    """
    from datasets import Dataset

    rows = [
        {"input": messages[-1]["content"], "label": json.dumps({"seed": s, "split": split})}
        for s, split, messages in draw_questions(id, n, seed, **env_kwargs)
    ]
    return Dataset.from_list(rows)


def executor(id: str, **env_kwargs: Any) -> type[AgentExecutorBase]:
    """Make an ``AgentExecutor`` that runs the questions of `dataset`.

    The tokenizer's chat template writes the prompts. Raises a ValueError if the context is rewritten during an episode.
    """
    check_one_sequence(Episode(id, **env_kwargs), "OpenRLHF")
    make = staticmethod(lambda split: make_in_split(id, split, **env_kwargs))
    return type("AgentExecutor", (_Executor,), {"_make": make})


class _Executor(AgentExecutorBase):
    _make: Any

    def __init__(self):
        self._idle: dict[str, list[Episode]] = {}
        self._attempts: Counter = Counter()

    async def execute(self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None):
        """Run the question of a row of `dataset`; vLLM's ``max_tokens`` bounds a turn, ``max_length`` the whole episode.
        Raises a ValueError if the dataset does not fit the environment or the prompt is too long, a RuntimeError if a tool fails
        for ten minutes."""
        seed, split = _read(label)
        pool = self._idle.setdefault(split, [])
        episode = pool.pop() if pool else self._make(split)
        tokens = TokenEpisode(episode, hf_tokenizer)
        attempt, self._attempts[label] = self._attempts[label], self._attempts[label] + 1
        again = partial(self._run, tokens, seed, attempt, prompt, sampling_params, max_length, llm_engine)
        reply = await retry_on_tool_failure(again, episode)
        pool.append(episode)
        start = len(tokens.prompt)
        edges = (start + np.flatnonzero(np.diff([0, *tokens.mask, 0]))).tolist()  # where sampled turns begin and end
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": None,
            "observation_tokens": tokens.prompt + tokens.ids,
            "action_ranges": list(zip(edges[::2], edges[1::2], strict=True)),
            "rollout_log_probs": None if sampling_params.logprobs is None else [0.0] * start + tokens.logprobs,
            "truncated": not reply.terminated,
            "reward": sum(episode.rewards),
            "scores": episode.metrics.get("score", 0.0),
            "extra_logs": {
                name: episode.metrics.get(name, 0.0) for name in (*_term_names(episode), "turns", "tool_faults")
            },
        }

    async def _run(
        self, tokens: TokenEpisode, seed: int, attempt: int, prompt: str, sampling_params, max_length: int, llm_engine
    ) -> Reply:
        """Run an episode from its start; return the last reply."""
        messages = tokens.start(seed, attempt)
        if messages[-1]["content"].strip() not in prompt:
            raise ValueError("the dataset has other questions than the environment: give both the same arguments")
        room = max_length - len(tokens.prompt)
        if room < 1:
            raise ValueError(f"the prompt has {len(tokens.prompt)} of {max_length} tokens: raise --data.max_len")
        options = deepcopy(sampling_params)
        options.stop, options.include_stop_str_in_output = list(tokens.episode.stop), True

        async def generate(ids: list[int], most: int) -> tuple[list[int], list[float] | None]:
            options.max_tokens = most
            answer = await llm_engine.generate(ids, deepcopy(options), multi_modal_data=None)
            (output,) = answer.outputs[:1]
            turn = list(output.token_ids)
            if sampling_params.logprobs is None:
                return turn, None
            return turn, [by_id[token].logprob for token, by_id in zip(turn, output.logprobs, strict=True)]

        while not tokens.done:
            left = room - len(tokens.ids)
            turn, logprobs = await tokens.sample(generate, min(sampling_params.max_tokens or left, left))
            # In a thread, since a tool may be slow and other episodes share this event loop.
            reply = await asyncio.to_thread(tokens.take, turn, logprobs, room)
        return reply


def _term_names(episode: Episode) -> list[str]:
    """The reward terms of all tasks of a mixture: OpenRLHF joins the logs of a batch, which must have the same names."""
    terms = (term for task in episode.env.members.values() for term, (weight, _) in task.reward.items() if weight)
    return sorted({f"reward/{term}" for term in terms})


def _read(label: str) -> tuple[int, str]:
    try:
        question = json.loads(label)
        return int(question["seed"]), str(question["split"])
    except (ValueError, TypeError, KeyError):
        raise ValueError("a label without a seed: train on agent_envs.integrations.openrlhf.dataset(id, n)") from None
