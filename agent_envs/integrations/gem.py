"""Adapter for GEM's environments. Tested with gem-llm 0.1.0.

    from agent_envs.integrations import gem as plug

    plug.register()
    env = gem.make("AgentR1/MiniWiki-v0", split="validation")
    vector = gem.make_vec(["AgentR1/MiniWiki-v0"] * 8, seed=0)

The instructions precede the first observation, as in GEM's own games.
"""

from functools import partial
from typing import Any

import gem
import numpy as np
from gem.envs.registration import ENV_REGISTRY

from agent_envs.integrations.episode import Episode
from agent_envs.integrations.token_episode import check_one_sequence, check_text
from agent_envs.registration import IDS


def register(*ids: str, **env_kwargs: Any) -> None:
    """Register environments for ``gem.make`` and ``gem.make_vec``.

    Args:
        ids: ids to register; all of this suite by default.
        env_kwargs: arguments of the environments; ``gem.make`` adds its own.
    """
    for id in ids or IDS:
        ENV_REGISTRY.pop(id, None)  # GEM refuses to register an id twice, as a notebook may do
        gem.register(id, partial(GemEnv, id), **env_kwargs)


class GemEnv(gem.Env):
    """An environment of this suite in GEM.

    ``reset(seed)`` asks the question of that seed. Resets without a seed draw one from the constructor's seed, which
    ``gem.make_vec`` gives to each environment of a vector. Infos hold numbers for logs."""

    def __init__(self, id: str, seed: int | None = None, **env_kwargs: Any):
        self._id, self._env_kwargs = id, env_kwargs
        self._rng = np.random.default_rng(seed)
        self._episode = Episode(id, **env_kwargs)
        check_one_sequence(self._episode, "GEM")
        check_text(self._episode, "GEM")

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode. GEM seeds the global generators of Python and NumPy, which are not used here."""
        chosen = int(self._rng.integers(2**31)) if seed is None else seed
        system, user = (message["content"] for message in self._episode.start(chosen))
        return f"{system}\n\n{user}", {"seed": chosen}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reply = self._episode.step(action)
        return reply.text, reply.reward, reply.terminated, reply.truncated, dict(reply.metrics)

    def sample_random_action(self) -> str:
        return self._episode.env.action_space.sample()

    def spawn(self, same_state: bool = False, **env_kwargs: Any) -> "GemEnv":
        if same_state:
            raise ValueError("an episode cannot be forked: spawn another and reset both with one seed")
        return GemEnv(self._id, **self._env_kwargs | env_kwargs)
