"""Adapter for verl's agent loops. Tested with verl 0.9.

The file at ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names the environment:

    - name: agent_r1
      _target_: agent_envs.integrations.verl.AgentR1Loop
      id: AgentR1/MiniWiki-v0
      env_kwargs: {max_turns: 3}

and `dataset` writes the questions, for ``data.train_files``.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from agent_envs.integrations.episode import (
    Episode,
    check_question,
    draw_questions,
    make_in_split,
    retry_on_tool_failure,
)
from agent_envs.integrations.token_episode import TokenEpisode, check_one_sequence, read_thinking

# Random, since several workers may run members of the same group without knowing of each other.
_FIRST_ATTEMPT = secrets.randbelow(2**31)


def dataset(id: str, n: int, *, seed: int = 0, **env_kwargs: Any) -> Any:
    """Make a `datasets.Dataset` of ``n`` questions with verl's columns.

    Write it with ``to_parquet``. ``seed`` draws the questions. ``env_kwargs`` are those of the loop; only ``split`` may differ,
    as a row names its own.
    """
    from datasets import Dataset

    rows = [
        {
            "data_source": id,
            "agent_name": "agent_r1",
            "prompt": messages,
            "reward_model": {"style": "rule", "ground_truth": ""},  # the environment gives the reward
            "extra_info": {"index": i, "seed": s, "split": split},
        }
        for i, (s, split, messages) in enumerate(draw_questions(id, n, seed, **env_kwargs))
    ]
    return Dataset.from_list(rows)


class AgentR1Loop(AgentLoopBase):
    """Agent loop of verl over the environment ``id``.

    Raises a ValueError if the context is rewritten during the episode, and a RuntimeError if a tool fails for ten minutes.
    """

    _attempts: ClassVar[Counter] = Counter()  # by question, in this worker

    def __init__(self, *args: Any, id: str, env_kwargs: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not isinstance(env_kwargs, Mapping | None):
            raise ValueError(f"env_kwargs must be a mapping of arguments, got {env_kwargs!r}")
        self._id, self._env_kwargs = id, OmegaConf.to_container(OmegaConf.create(env_kwargs or {}))

    async def run(self, sampling_params: dict[str, Any], *, extra_info: Any = None, **row: Any) -> AgentLoopOutput:
        """Run the question of a row of `dataset`; the reward is the return, and the task's ``score`` is logged as ``acc``."""
        if not extra_info or "seed" not in extra_info:
            raise ValueError("a row without a seed: train on agent_envs.integrations.verl.dataset(id, n)")
        episode = make_in_split(self._id, extra_info.get("split", ""), **self._env_kwargs)
        try:
            question = (self._id, extra_info.get("split"), int(extra_info["seed"]))
            attempt, self._attempts[question] = self._attempts[question], self._attempts[question] + 1
            start = int(extra_info["seed"]), _FIRST_ATTEMPT + attempt
            run = partial(self._run, episode, sampling_params, start, row["raw_prompt"])
            return await retry_on_tool_failure(run, episode)
        finally:
            episode.close()

    async def _run(
        self, episode: Episode, sampling_params: dict, start: tuple[int, int], prompt: Any
    ) -> AgentLoopOutput:
        check_one_sequence(episode, "verl")
        thinking = read_thinking(self.config.data.get("apply_chat_template_kwargs"))
        tokens = TokenEpisode(episode, self.tokenizer, thinking=thinking)
        messages = tokens.start(*start)
        check_question(messages, prompt)
        if len(tokens.prompt) > self.rollout_config.prompt_length:
            raise ValueError(f"a prompt has {len(tokens.prompt)} tokens: raise data.max_prompt_length")
        options = {**sampling_params, **_stop(self.rollout_config, episode.stop)}
        room, request, told = self.rollout_config.response_length, uuid4().hex, True
        timing: dict[str, float] = {}
        extra: dict[str, Any] = {}

        async def generate(ids: list[int], most: int) -> tuple[list[int], list[float] | None]:
            nonlocal extra
            ask = {"request_id": request, "sampling_params": dict(options)}
            answer = await self.server_manager.generate(prompt_ids=ids, **ask)
            extra = {**answer.extra_fields, **{k: v for k, v in extra.items() if k == "min_global_steps"}}
            return answer.token_ids, answer.log_probs

        while not episode.done:
            with simple_timer("generate_sequences", timing):
                turn, logprobs = await tokens.sample(generate, room - len(tokens.ids))
            told = told and logprobs is not None
            with simple_timer("tool_calls", timing):  # a tool may be slow, and other episodes share this loop
                await asyncio.to_thread(tokens.take, turn, logprobs, room)
        extra |= {"turn_scores": list(episode.rewards), "tool_rewards": []}
        extra["reward_extra_info"] = {"acc": episode.metrics.get("score", 0.0), "env_turns": episode.metrics["turns"]}
        return AgentLoopOutput(
            prompt_ids=tokens.prompt,
            response_ids=tokens.ids,
            response_mask=tokens.mask,
            response_logprobs=tokens.logprobs if told else None,
            reward_score=sum(episode.rewards),
            num_turns=1 + 2 * len(episode.rewards),
            metrics=AgentLoopMetrics(**timing),
            extra_fields=extra,
        )


def _stop(rollout_config: Any, stop: tuple[str, ...]) -> dict[str, Any]:
    """Sampling options to end turns at closing tags and to keep the tags; `TokenEpisode` cuts after them in any case."""
    if rollout_config.name == "vllm":
        return {"stop": list(stop), "include_stop_str_in_output": True}
    if rollout_config.name == "sglang" and not rollout_config.skip_tokenizer_init:
        return {"stop": list(stop), "no_stop_trim": True}
    return {}
