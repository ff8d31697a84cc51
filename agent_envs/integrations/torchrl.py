"""Adapter for TorchRL's text environments. Tested with TorchRL 0.14.

``GymEnv("AgentR1/MiniWiki-v0", instructions_in_observation=True)`` needs no adapter: strings in, strings out. `chat_env` makes
a `ChatEnv`, for TorchRL's language model policies:

    env = chat_env("AgentR1/MiniWiki-v0", tokenizer, num_envs=16, group_size=8)
    policy = TransformersWrapper(model, tokenizer=tokenizer, input_mode="tokens", generate=True, pad_output=False)
    env.rollout(env.max_turns, policy)
"""

import secrets
from typing import Any

import numpy as np
from tensordict import TensorDict, TensorDictBase, lazy_stack
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm.policies import Masks, Tokens

from agent_envs.integrations.episode import Episode, raise_on_tool_failure
from agent_envs.integrations.token_episode import TokenEpisode


def chat_env(id: str, tokenizer: Any, *, num_envs: int = 1, group_size: int = 1, **env_kwargs: Any) -> "AgentR1ChatEnv":
    """Make a `ChatEnv` over token ids.

    Its observation is ``("tokens", "prompt")``, all ids before the next turn. Its action is ``("tokens", "full")``, the same ids
    followed by the turn.

    Args:
        tokenizer: the policy's tokenizer, with a chat template.
        num_envs: batch size.
        group_size: number of neighbouring environments that get the same question, as in GRPO.

    Raises:
        ValueError: ``group_size`` does not divide ``num_envs``.
    """
    if num_envs < 1 or group_size < 1 or num_envs % group_size:
        raise ValueError(f"group_size must divide num_envs, got {group_size} and {num_envs}")
    episodes = [Episode(id, **env_kwargs) for _ in range(num_envs)]
    return AgentR1ChatEnv([TokenEpisode(episode, tokenizer) for episode in episodes], tokenizer, group_size)


class AgentR1ChatEnv(ChatEnv):
    """The environment of `chat_env`.

    ``set_seed`` decides all questions, unless a reset of all environments passes ``"seed"``, integers [num_envs]. A finished
    environment waits for its reset.

    Attributes:
        metrics: one dictionary for each environment, for logs.
        stop: strings that end a turn, for ``model.generation_config.stop_strings``.
        max_turns: turns after which an episode is truncated.
    """

    def __init__(self, token_episodes: list[TokenEpisode], tokenizer: Any, group_size: int):
        super().__init__(input_mode="tokens", tokenizer=tokenizer, batch_size=(len(token_episodes),))
        self._token_episodes, self._group_size = token_episodes, group_size
        self._ends = [(False, False)] * len(token_episodes)
        self._set_seed(None)

    def _make_specs_tokens(self) -> None:
        super()._make_specs_tokens()
        masks = Masks.default_spec(shape=self.batch_size, keys=["all_attention_mask"])
        self.full_observation_spec["masks"] = masks
        self.full_observation_spec["seed"] = Unbounded(shape=self.batch_size, dtype=_tensor(0).dtype)
        self.full_state_spec = Composite(shape=self.batch_size)
        self.reward_spec = Unbounded(shape=(*self.batch_size, 1))
        shape, dtype = (*self.batch_size, 1), _tensor([False]).dtype
        ends = {name: Categorical(2, shape=shape, dtype=dtype) for name in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(ends, shape=self.batch_size)

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [one.episode.metrics for one in self._token_episodes]

    @property
    def stop(self) -> tuple[str, ...]:
        return self._token_episodes[0].episode.stop

    @property
    def max_turns(self) -> int:
        return self._token_episodes[0].episode.max_turns

    def _set_seed(self, seed: int | None) -> None:
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._begun, self._seeds = [0] * len(self._token_episodes), [0] * len(self._token_episodes)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = None if tensordict is None else tensordict.get("seed", None)
        wanted = range(len(self._token_episodes)) if mask is None else mask.view(-1).nonzero().view(-1).tolist()
        members: dict[int, int] = {}
        for i in wanted:
            seed = self._draw(i) if mask is not None or chosen is None else int(chosen[i])
            self._begun[i] += 1
            members[seed] = members.get(seed, -1) + 1
            attempt = i % self._group_size if self._group_size > 1 else members[seed]
            self._token_episodes[i].start(seed, attempt)
            self._seeds[i], self._ends[i] = seed, (False, False)
        return self._observe()

    def _draw(self, i: int) -> int:
        """Draw a question's seed, the same for all environments of a group, whenever each of them resets."""
        rng = np.random.default_rng([self._seed, i // self._group_size, self._begun[i]])
        return int(rng.integers(2**31))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rewards = [0.0] * len(self._token_episodes)
        fulls = tensordict["tokens"].get("full", as_list=True)
        for i, (one, full) in enumerate(zip(self._token_episodes, fulls, strict=True)):
            if one.done:
                continue
            before, full = one.prompt + one.ids, full.tolist()
            if full[: len(before)] != before:
                raise ValueError("the turn does not follow its prompt: make the policy with pad_output=False")
            reply = one.take(full[len(before) :])
            raise_on_tool_failure(reply, "TorchRL")
            rewards[i], self._ends[i] = reply.reward, (reply.terminated, reply.truncated)
        return self._observe(rewards)

    def _observe(self, rewards: list[float] | None = None) -> TensorDictBase:
        rows = []
        for i, one in enumerate(self._token_episodes):
            terminated, truncated = self._ends[i]
            row = {"done": terminated or truncated, "terminated": terminated, "truncated": truncated}
            made = TensorDict({name: _tensor([value]) for name, value in row.items()})
            if rewards is not None:
                made.set("reward", _tensor(np.array([rewards[i]], dtype=np.float32)))
            prompt = one.prompt + one.ids
            made.set("tokens", Tokens(prompt=_tensor(prompt)))
            # Without it, a policy would read its next prompt with the mask of the last turn.
            made.set("masks", Masks(all_attention_mask=_tensor([True] * len(prompt))))
            made.set("seed", _tensor(self._seeds[i]))
            rows.append(made)
        return lazy_stack(rows)


def _tensor(values: Any) -> Any:
    """Make a tensor without importing torch."""
    return TensorDict({"values": np.array(values)})["values"]
