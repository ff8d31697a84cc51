"""Adapter for SkyRL's environments. Tested with skyrl-gym 0.4.

from agent_envs.integrations.skyrl import dataset, register

register("AgentR1/MiniWiki-v0")  # in a module that SkyRL's workers import
dataset("AgentR1/MiniWiki-v0", 1000).to_parquet("train.parquet")
"""

from collections import Counter
from typing import Any, ClassVar

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from agent_envs.integrations.episode import check_question, draw_questions, make_in_split, raise_on_tool_failure
from agent_envs.integrations.token_episode import check_one_sequence, check_text


def register(id: str, **env_kwargs: Any) -> None:
    """Register an environment for ``skyrl_gym.make``, under its own id.

    The id is the ``env_class`` of the dataset's rows.
    """
    skyrl_gym.registry.pop(id, None)  # SkyRL refuses to register an id twice, as a notebook may do
    skyrl_gym.register(id, "agent_envs.integrations.skyrl:AgentR1Env", {"env_id": id, **env_kwargs})


def dataset(id: str, n: int, *, seed: int = 0, **env_kwargs: Any) -> Any:
    """Make a `datasets.Dataset` of ``n`` questions with SkyRL's columns, ``seed`` and ``split``.

    ``seed`` draws the questions. ``env_kwargs`` are those of `register`; only ``split`` may differ, as a row names its own.
    """
    from datasets import Dataset

    rows = [
        {"data_source": id, "env_class": id, "prompt": messages, "seed": s, "split": split}
        for s, split, messages in draw_questions(id, n, seed, **env_kwargs)
    ]
    return Dataset.from_list(rows)


class AgentR1Env(BaseTextEnv):
    """An episode of this suite. SkyRL makes one for each trajectory; ``extras`` are the columns of the dataset's row."""

    _attempts: ClassVar[Counter] = Counter()  # by question, in this process

    def __init__(self, env_config: Any = None, extras: Any = None, *, env_id: str, **env_kwargs: Any):
        super().__init__()
        row = dict(extras or {})
        if "seed" not in row:
            raise ValueError("a row without a seed: train on agent_envs.integrations.skyrl.dataset(id, n)")
        self._episode = make_in_split(env_id, row.get("split", ""), **env_kwargs | dict(env_config or {}))
        check_one_sequence(self._episode, "SkyRL")
        check_text(self._episode, "SkyRL")
        self._seed, self.max_turns = int(row["seed"]), self._episode.max_turns
        self._question = (env_id, row.get("split"), self._seed)

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin an episode; ``prompt`` already holds the question."""
        # Attempts at a question differ only in the task's randomness, if it has any.
        messages = self._episode.start(self._seed, attempt=self._attempts[self._question])
        self._attempts[self._question] += 1
        check_question(messages, prompt)
        self.turns = 0
        return messages, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take a turn. The observation is a user message; numbers for logs are in ``metadata``.
        Raises RuntimeError after a tool failure."""
        reply = self._episode.step(action)
        raise_on_tool_failure(reply, "SkyRL")
        self.turns += 1
        observations = [] if reply.done else [{"role": "user", "content": reply.text}]
        numbers = dict(reply.metrics)
        return BaseTextEnvStepOutput(observations=observations, reward=reply.reward, done=reply.done, metadata=numbers)

    def get_metrics(self) -> dict[str, float]:
        """Return `Episode.metrics`, which SkyRL averages over episodes. ``score`` is 0 until the episode ends."""
        return {"score": 0.0, **self._episode.metrics}

    def close(self) -> None:
        self._episode.close()
