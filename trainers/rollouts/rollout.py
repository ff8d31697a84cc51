"""Roll out many episodes at once, in a vector of environments."""

import math
import warnings
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import jinja2

from agent_envs.context import Messages
from agent_envs.tool_env import ToolEnv
from agent_envs.utils.scripts import EpisodeRecorder, begin
from agent_envs.vector import ToolVectorEnv, info_of
from trainers.engines.engine import LEAST_TURN, Completion, Engine, SamplingParams
from trainers.models.policy import Policy
from trainers.rollouts.timing import Timing
from trainers.runtime.errors import UserError
from trainers.trajectory import Step, Trajectory


def rollout(
    envs: ToolVectorEnv,
    policy: Policy,
    engine: Engine,
    *,
    seeds: list[int] | None = None,
    questions: list[int] | None = None,
    group_size: int = 1,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    timing: Timing | None = None,
) -> list[Trajectory]:
    """Roll out one episode in each environment to its end.

    An episode also ends when the model's context has no room for another turn. Without room for the first one, it has failed.

    Args:
        seeds: one per group; the ``group_size`` environments of a group get the same seed, so the same question.
        questions: instead of seeds, numbers of instances (`agent_envs.utils.scripts.begin`), one per group. The episodes may
            be fewer than the environments.
        max_new_tokens: the longest turn.
        top_p, min_p: see `trainers.engines.sampling.truncate`.
        timing: if given, receives the seconds of ``prefill`` (of new ids), ``decode`` and ``tools``.

    Returns:
        One trajectory per episode, in the order of the environments.
    """
    engine.reset()
    observations, infos = reset_groups(envs, seeds, questions, group_size)
    episodes = [
        _Episode(i, policy, envs.envs[i], observations[i], info_of(infos, i), number, i % group_size, i // group_size)
        for i, number in enumerate(number for number in seeds or questions or [] for _ in range(group_size))
    ]
    for env, episode in zip(envs.envs, episodes, strict=False):
        if engine.max_length < math.inf:
            env.fits = partial(episode.has_room, min(max_new_tokens, LEAST_TURN), engine.max_length)
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, min_p=min_p)
    turns = _Turns(envs, engine, timing or Timing(), params)
    for episode in episodes:
        episode.check_room(engine.max_length)
    running = [episode for episode in episodes if not episode.ended]
    turns.submit(running, sum(len(episode.context) for episode in running))
    completions = turns.wait()
    while completions:
        actions: list[str | None] = [None] * envs.num_envs
        for i, completion in completions.items():
            actions[i] = episodes[i].record_sampled(completion, envs.envs[i].anchor())
        cut = {i for i, completion in completions.items() if completion.finish_reason == "length"}
        (observations, rewards, terminated, truncated, infos), next_completions = turns.step(actions, cut)
        num_new_ids = 0
        for i in completions:
            ended = bool(terminated[i]), bool(truncated[i])
            num_new_ids += episodes[i].observe(actions[i], observations[i], float(rewards[i]), *ended, infos)
        turns.submit([episodes[i] for i in completions if not episodes[i].ended], num_new_ids)
        completions = next_completions or turns.wait()
    for env, episode in zip(envs.envs, episodes, strict=False):
        episode.trajectory.score = float(episode.trajectory.info.get(env.PRIMARY_METRIC, 0.0))
        env.fits = None  # it holds references to the policy and the engine
    engine.reset()  # the update needs the memory of the key-value cache
    return [episode.trajectory for episode in episodes]


class _Episode:
    """A running episode in environment ``number``.

    Attributes:
        context: the ids that its next turn is sampled after.
        observation: the latest observation.
        sampled: the ids of the latest turn.
    """

    def __init__(
        self, number: int, policy: Policy, env: ToolEnv, observation: str, info: dict[str, Any], instance: int,
        sample: int, group: int,
    ):  # fmt: skip
        self.number, self.policy, self.observation, self.ended = number, policy, observation, False
        self.recorder, self.instructions = EpisodeRecorder(env, info), info["instructions"]
        self.format, self.tools, self.metric = env.format, env.format.schemas(), env.PRIMARY_METRIC
        policy.keep(self.format)
        self.sampled: list[int] = []
        self.context = policy.prompt_ids(self.instructions, observation, self.tools)
        self.trajectory = Trajectory(
            group=group, instance={"instance": instance, "sample": sample, **self.recorder.instance},
            messages=policy.prompt_messages(self.instructions, observation),
        )  # fmt: skip

    def check_room(self, max_length: float) -> None:
        """End the episode as failed if the model cannot read its first prompt."""
        if len(self.context) >= max_length:
            told = (
                f"the first prompt has {len(self.context)} tokens, and the model reads {max_length:.0f} at most: take fewer or "
                "shorter passages (k, max_chars), or another model"
            )
            self.ended = self.trajectory.failed = True
            self.trajectory.info = {self.metric: 0.0}
            self.trajectory.messages.append({"role": "error", "content": told})
            warnings.warn(told, stacklevel=3)

    def record_sampled(self, completion: Completion, anchor: Hashable) -> str:
        """Record a sampled turn and return its text. `observe` adds its reward."""
        self.sampled = completion.tokens
        step = Step(prompt=self.context, tokens=completion.tokens, logprobs=completion.logprobs)
        self.trajectory.steps.append(step)
        self.trajectory.anchors.append(anchor)
        return self.policy.decode_action(completion.tokens, self.tools)

    def has_room(self, turn: int, max_length: float, observation: str, rewritten: Messages | None) -> bool:
        """Whether the model's context has room for the next observation and another turn of ``turn`` tokens."""
        if rewritten is None:
            new = self.policy.observation_ids(self.format.messages(observation), self.sampled, self.tools)
            length = len(self.context) + len(self.sampled) + len(new)
        else:
            try:
                length = len(self.policy.prompt_ids(self.instructions, rewritten, self.tools))
            except jinja2.TemplateError:  # the chat template refuses what the model has written
                return False
        return length + turn <= max_length

    def observe(
        self,
        action: str | None,
        observation: str,
        reward: float,
        terminated: bool,
        truncated: bool,
        infos: dict[str, Any],
    ) -> int:
        """Record the environment's reply to the turn; return the number of new ids in the context of the next turn."""
        i, trajectory = self.number, self.trajectory
        trajectory.steps[-1].reward = reward
        trajectory.failed |= bool(infos["tool_faults"][i])
        trajectory.tool_faults += int(infos["tool_faults"][i])
        self._record_turn(action, observation, reward, infos)
        self.observation = observation
        if terminated or truncated:
            self.ended, trajectory.truncated = True, truncated
            trajectory.info = {k: v for k, v in info_of(infos, i).items() if not isinstance(v, dict)}
            return 0
        if "context" in infos and infos["_context"][i]:  # rewritten: the next step starts a row of its own
            self.context = self.policy.prompt_ids(self.instructions, infos["context"][i], self.tools)
            messages = self.policy.prompt_messages(self.instructions, infos["context"][i])
            if messages[0]["role"] != "system":  # as records mark where a row begins
                messages.insert(0, {"role": "system", "content": ""})
            trajectory.messages += messages
            return len(self.context)
        # The sampled ids stay as they are; the observation is encoded after them.
        messages = self.format.messages(observation)
        observation_ids = self.policy.observation_ids(messages, self.sampled, self.tools)
        self.context = self.context + self.sampled + observation_ids
        trajectory.messages += self.policy.escape_all(messages, self.policy.tags)
        return len(observation_ids)

    def _record_turn(self, action: str | None, observation: str, reward: float, infos: dict[str, Any]) -> None:
        """Add the turn to the record of the episode, and the agent's message to its conversation."""
        trajectory = self.trajectory
        terms = {name: float(value) for name, value in info_of(infos["reward_terms"], self.number).items()}
        for name, value in terms.items():
            trajectory.reward_terms[name] = trajectory.reward_terms.get(name, 0.0) + value
        texts = {"observation": self.observation, "action": action, "next_observation": observation}
        earned = {"reward": reward, "reward_terms": terms}
        trajectory.turns.append({"message": len(trajectory.messages), **texts, **earned, **self.recorder.record_turn()})
        trajectory.messages.append(self.format.message(action or ""))


class _Turns:
    """Runs an engine and environments alternately, or at the same time if tools wait for a server or a process."""

    def __init__(self, envs: ToolVectorEnv, engine: Engine, timing: Timing, params: SamplingParams):
        self.envs, self.engine, self.timing, self.params = envs, engine, timing, params
        # While such tools wait, the policy continues with other turns.
        io_bound = any(getattr(tool, "io_bound", False) for env in envs.envs for tool in env.tools.values())
        self.pool = ThreadPoolExecutor(1) if io_bound else None

    def submit(self, episodes: list[_Episode], num_new_ids: int) -> None:
        """Begin the next turn of episodes."""
        with self.timing.measure("prefill", num_new_ids):
            self.engine.submit({episode.number: episode.context for episode in episodes}, self.params)

    def wait(self) -> dict[int, Completion]:
        """Wait for the next complete turns; return them by environment number, or an empty dict if no turn is open."""
        with self.timing.measure("decode"):
            completions = self.engine.wait()
        self.timing.count("decode", sum(len(completion.tokens) for completion in completions.values()))
        return completions

    def step(self, actions: list[str | None], cut: set[int]) -> tuple[tuple, dict[int, Completion]]:
        """Step the environments; return their result, and the turns that were completed while their tools waited.

        ``cut``: the environments whose turn reached ``max_new_tokens`` or the model's last position before its end.

        The order of events does not depend on their duration, so a run with the same seed gives the same result. If no tool
        waits, one batch with all turns is faster.
        """
        meanwhile = [self.pool.submit(self.wait)] if self.pool else []
        try:
            with self.timing.measure("tools"):
                stepped = self.envs.step(actions, cut=cut)
        finally:
            wait(meanwhile)
        return stepped, meanwhile[0].result() if meanwhile else {}


def reset_groups(envs: ToolVectorEnv, seeds: list[int] | None, questions: list[int] | None, group_size: int):
    """Start an episode in each environment of each group; return the result of the vector's ``reset``."""
    if (seeds is None) == (questions is None):
        raise UserError("give either seeds or questions")
    requested = seeds or questions or []
    repeated = [value for value in requested for _ in range(group_size)]
    if len(repeated) > envs.num_envs:
        raise UserError(f"{len(requested)} groups of {group_size} do not fit in {envs.num_envs} environments")
    attempts = [i % group_size for i in range(len(repeated))]
    return begin(envs, repeated, attempts, as_seeds=seeds is not None)
