"""Many episodes at once: the policy takes turns with a vector of environments."""

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from agent_envs.play import begin
from agent_envs.vector import ToolVectorEnv
from trainers.engines.engine import Completion, Engine
from trainers.models.policy import Policy
from trainers.runs.timing import Timing
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
    transcripts: list[list[dict]] | None = None,
    timing: Timing | None = None,
) -> list[Trajectory]:
    """Play one episode in each environment to its end.

    Args:
        seeds: one per group; the ``group_size`` environments of a group get the same seed, so the same question.
        questions: instead of seeds, numbers of instances (`agent_envs.play.begin`), one per group. May be fewer than
            there are environments.
        max_new_tokens: of one turn.
        transcripts: if given, filled with each episode's turns as text (observation, action, reward, terms).
        timing: if given, gets what ``prefill`` (of new ids), ``decode`` and ``tools`` took.

    Returns:
        One trajectory per environment played, in order.
    """
    engine.reset()
    observations, infos = _start(envs, seeds, questions, group_size)
    count = len(seeds or questions or ()) * group_size
    trajectories = [Trajectory(group=i // group_size) for i in range(count)]
    instructions = infos["instructions"]
    contexts = {i: policy.prompt_ids(instructions[i], observations[i]) for i in range(count)}
    said: list[list[dict]] = [[] for _ in range(count)]
    play = _Play(envs, engine, timing or Timing(), max_new_tokens, temperature)
    completions = play.submit(contexts, sum(map(len, contexts.values())))
    while contexts:
        actions = [policy.decode(completions[i].tokens) if i in completions else None for i in range(len(envs.envs))]
        before, anchors = observations, {i: envs.envs[i].anchor() for i in completions}
        (observations, rewards, terminated, truncated, infos), following = play.step(actions)
        new = 0
        for i in completions:
            done, trajectory = completions[i], trajectories[i]
            trajectory.anchors.append(anchors[i])
            trajectory.failed |= bool(infos["tool_faults"][i])
            trajectory.steps.append(
                Step(prompt=contexts[i], tokens=done.tokens, logprobs=done.logprobs, reward=float(rewards[i]))
            )
            paid = infos["reward_terms"]
            terms = {name: float(paid[name][i]) for name in paid if name[0] != "_" and paid[f"_{name}"][i]}
            for name, value in terms.items():
                trajectory.reward_terms[name] = trajectory.reward_terms.get(name, 0.0) + value
            said[i].append(
                {"observation": before[i], "action": actions[i], "reward": rewards[i], "reward_terms": terms}
            )
            if terminated[i] or truncated[i]:
                trajectory.info = {k: v[i] for k, v in infos.items() if k[0] != "_" and not isinstance(v, dict)}
                trajectory.truncated = bool(truncated[i])
                del contexts[i]
            elif "context" in infos and infos["_context"][i]:  # rewritten: the next step starts a sequence of its own
                contexts[i] = policy.prompt_ids(instructions[i], infos["context"][i])
                new += len(contexts[i])
            else:
                seen = policy.observation_ids(observations[i], done.tokens)
                contexts[i] = contexts[i] + done.tokens + seen
                new += len(seen)
        completions = play.submit({i: contexts[i] for i in completions if i in contexts}, new, following)
    engine.reset()  # keys and values need not lie in memory while what was played is learned from
    if transcripts is not None:
        transcripts += said
    return trajectories


class _Play:
    """An engine and environments at work, by turns or beside each other."""

    def __init__(self, envs: ToolVectorEnv, engine: Engine, timing: Timing, max_new_tokens: int, temperature: float):
        self.envs, self.engine, self.timing = envs, engine, timing
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        # Tools that spend their time waiting, for a server or for a process, need not be waited for by all.
        beside = any(getattr(tool, "io_bound", False) for env in envs.envs for tool in env.tools.values())
        self.pool = ThreadPoolExecutor(1) if beside else None

    def submit(self, prompts: dict[int, list[int]], new: int, completions: dict[int, Completion] | None = None):
        """Begin turns, and return some that are complete: those that are known, or the next ones."""
        with self.timing.measure("prefill", new):
            self.engine.submit(prompts, self.max_new_tokens, self.temperature)
        return completions or self._finished()

    def step(self, actions: list[str | None]) -> tuple[tuple, dict[int, Completion]]:
        """A step of the environments; and turns that were completed while their tools waited.

        What happens in what order does not depend on how long it takes, so a seed repeats. Where tools do not wait, it is
        better to go on with all turns in one batch.
        """
        if self.pool is None:
            return self._step(actions), {}
        following = self.pool.submit(self._finished)
        try:
            stepped = self._step(actions)
        finally:
            wait([following])
        return stepped, following.result()

    def _step(self, actions: list[str | None]) -> tuple:
        with self.timing.measure("tools"):
            return self.envs.step(actions)

    def _finished(self) -> dict[int, Completion]:
        with self.timing.measure("decode"):
            completions = self.engine.wait()
        self.timing.count("decode", sum(len(done.tokens) for done in completions.values()))
        return completions


def _start(envs: ToolVectorEnv, seeds: list[int] | None, questions: list[int] | None, group_size: int):
    if (seeds is None) == (questions is None):
        raise ValueError("give either seeds or questions")
    check_formats(envs)
    asked = seeds or questions or []
    groups = len(asked)
    if groups * group_size > envs.num_envs:
        raise ValueError(f"{groups} groups of {group_size} do not fit in {envs.num_envs} environments")
    count = groups * group_size
    spread = [value for value in asked for _ in range(group_size)]
    if seeds is None:
        return begin(envs, spread)
    options: dict[str, Any] = {"reset_mask": np.arange(envs.num_envs) < count}
    if envs.envs[0].TAKES_NOISE_SEED:  # attempts at one instance must not all toss the same coin
        options["noise_seed"] = [i % group_size for i in range(envs.num_envs)]
    return envs.reset(seed=spread + [0] * (envs.num_envs - count), options=options)


def check_formats(envs: ToolVectorEnv) -> None:
    """Raise a ValueError where turns are written in tokens that a conversation here keeps for its own frame."""
    for format in (format for env in envs.envs[:1] for format in env.formats):
        if format.special_tokens:
            raise ValueError(f"the format {format.name!r} needs a chat template of its own; choose another one")
