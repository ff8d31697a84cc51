"""Many episodes at once: the policy takes turns with a vector of environments."""

import math
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np

from agent_envs.context import Messages
from agent_envs.utils.scripts import EpisodeRecorder, begin
from agent_envs.vector import ToolVectorEnv, info_of
from trainers.engines.engine import Completion, Engine, SamplingParams
from trainers.models.policy import Policy
from trainers.rollouts.timing import Timing
from trainers.runtime.errors import UserError
from trainers.trajectory import Step, Trajectory

LEAST_TURN = 32  # tokens that a model must be able to write behind what it has read; its longest turn may be longer


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
    transcripts: list[list[dict]] | None = None,
    timing: Timing | None = None,
) -> list[Trajectory]:
    """Play one episode in each environment to its end, which is at the latest where the model can't read another turn.

    Args:
        seeds: one per group; the ``group_size`` environments of a group get the same seed, so the same question.
        questions: instead of seeds, numbers of instances (`agent_envs.utils.scripts.begin`), one per group. May be fewer than
            there are environments.
        max_new_tokens: of one turn.
        top_p, min_p: what is cut off before sampling, `trainers.engines.sampling.truncate`.
        transcripts: if given, filled with each episode's `Trajectory.turns`.
        timing: if given, gets what ``prefill`` (of new ids), ``decode`` and ``tools`` took.

    Returns:
        One trajectory per environment played, in order.
    """
    engine.reset()
    observations, infos = _reset(envs, seeds, questions, group_size)
    asked = seeds or questions or []
    instructions, count = infos["instructions"], len(asked) * group_size
    recorders = [EpisodeRecorder(envs.envs[i], info_of(infos, i)) for i in range(count)]
    trajectories = [
        Trajectory(
            group=i // group_size,
            instance={"instance": asked[i // group_size], "sample": i % group_size, **recorders[i].instance},
            messages=policy.prompt_messages(instructions[i], observations[i]),
        )
        for i in range(count)
    ]
    contexts = {i: policy.prompt_ids(instructions[i], observations[i]) for i in range(count)}  # of unfinished episodes
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, min_p=min_p)
    play = _Play(envs, engine, timing or Timing(), params)
    completions = play.submit(contexts, sum(map(len, contexts.values())))

    def has_room(i: int, observation: str, rewritten: Messages | None) -> bool:  # for another turn after this one
        if rewritten is None:
            sampled = completions[i].tokens
            length = len(contexts[i]) + len(sampled) + len(policy.observation_ids(observation, sampled))
        else:
            length = len(policy.prompt_ids(instructions[i], rewritten))
        return length + min(max_new_tokens, LEAST_TURN) <= engine.max_length

    for i in contexts if engine.max_length < math.inf else ():
        envs.envs[i].fits = partial(has_room, i)
    while contexts:
        actions = [policy.decode(completions[i].tokens) if i in completions else None for i in range(len(envs.envs))]
        shown, anchors = observations, {i: envs.envs[i].anchor() for i in completions}
        (observations, rewards, terminated, truncated, infos), next_completions = play.step(actions)
        num_new_ids = 0
        for i, completion in completions.items():
            trajectory = trajectories[i]
            trajectory.anchors.append(anchors[i])
            said = {"observation": shown[i], "action": actions[i], "next_observation": observations[i]}
            _add_step(trajectory, contexts[i], completion, float(rewards[i]), infos, i)
            _add_turn(trajectory, said, float(rewards[i]), infos, i, recorders[i])
            if terminated[i] or truncated[i]:
                trajectory.info = {k: v for k, v in info_of(infos, i).items() if not isinstance(v, dict)}
                trajectory.truncated = bool(truncated[i])
                del contexts[i]
            elif "context" in infos and infos["_context"][i]:  # rewritten: the next step starts a sequence of its own
                contexts[i] = policy.prompt_ids(instructions[i], infos["context"][i])
                trajectory.messages += policy.prompt_messages(instructions[i], infos["context"][i])
                num_new_ids += len(contexts[i])
            else:  # what was sampled stays as it is, and the observation is encoded behind it
                observation_ids = policy.observation_ids(observations[i], completion.tokens)
                contexts[i] = contexts[i] + completion.tokens + observation_ids
                num_new_ids += len(observation_ids)
                trajectory.messages.append({"role": "user", "content": policy.inert(observations[i])})
        unfinished = {i: contexts[i] for i in completions if i in contexts}
        completions = play.submit(unfinished, num_new_ids, next_completions)
    for env in envs.envs[:count]:
        env.fits = None  # which knows the policy and the engine
    engine.reset()  # keys and values that take much memory need not lie in it while what was played is learned from
    if transcripts is not None:
        transcripts += [trajectory.turns for trajectory in trajectories]
    return trajectories


def _add_step(
    trajectory: Trajectory, prompt: list[int], completion: Completion, reward: float, infos: dict[str, Any], i: int
) -> None:
    """Add a turn to what is learned from of environment ``i``."""
    trajectory.steps.append(Step(prompt=prompt, tokens=completion.tokens, logprobs=completion.logprobs, reward=reward))
    trajectory.failed |= bool(infos["tool_faults"][i])
    trajectory.tool_faults += int(infos["tool_faults"][i])


def _add_turn(
    trajectory: Trajectory,
    said: dict[str, Any],
    reward: float,
    infos: dict[str, Any],
    i: int,
    recorder: EpisodeRecorder,
) -> None:
    """Add a turn to the record of environment ``i``: what was said, what it earned, and the agent's message."""
    terms = {name: float(value) for name, value in info_of(infos["reward_terms"], i).items()}
    for name, value in terms.items():
        trajectory.reward_terms[name] = trajectory.reward_terms.get(name, 0.0) + value
    earned = {"reward": reward, "reward_terms": terms}
    trajectory.turns.append({"message": len(trajectory.messages), **said, **earned, **recorder.record_turn()})
    trajectory.messages.append({"role": "assistant", "content": said["action"] or ""})


class _Play:
    """An engine and environments at work, in turn, or at the same time where tools wait for something."""

    def __init__(
        self,
        envs: ToolVectorEnv,
        engine: Engine,
        timing: Timing,
        params: SamplingParams,
    ):
        self.envs, self.engine, self.timing, self.params = envs, engine, timing, params
        # While some tools wait for a server or a process, the policy goes on with other turns.
        io_bound = any(getattr(tool, "io_bound", False) for env in envs.envs for tool in env.tools.values())
        self.pool = ThreadPoolExecutor(1) if io_bound else None

    def submit(
        self, prompts: dict[int, list[int]], num_new_ids: int, completions: dict[int, Completion] | None = None
    ) -> dict[int, Completion]:
        """Begin turns; returns ``completions``, where there are some already, or the next that are complete."""
        with self.timing.measure("prefill", num_new_ids):
            self.engine.submit(prompts, self.params)
        return completions or self._wait()

    def step(self, actions: list[str | None]) -> tuple[tuple, dict[int, Completion]]:
        """A step of the environments, and the turns that were completed while their tools waited.

        The order of events does not depend on how long they take, so a seed repeats. Where no tool waits, one batch with
        all turns is faster.
        """
        if self.pool is None:
            return self._step(actions), {}
        completions = self.pool.submit(self._wait)
        try:
            stepped = self._step(actions)
        finally:
            wait([completions])
        return stepped, completions.result()

    def _step(self, actions: list[str | None]) -> tuple:
        with self.timing.measure("tools"):
            return self.envs.step(actions)

    def _wait(self) -> dict[int, Completion]:
        with self.timing.measure("decode"):
            completions = self.engine.wait()
        self.timing.count("decode", sum(len(completion.tokens) for completion in completions.values()))
        return completions


def _reset(envs: ToolVectorEnv, seeds: list[int] | None, questions: list[int] | None, group_size: int):
    """Start an episode in each environment of each group; returns what the vector's ``reset`` does."""
    if (seeds is None) == (questions is None):
        raise UserError("give either seeds or questions")
    check_formats(envs)
    asked = seeds or questions or []
    groups = len(asked)
    if groups * group_size > envs.num_envs:
        raise UserError(f"{groups} groups of {group_size} do not fit in {envs.num_envs} environments")
    count = groups * group_size
    repeated = [value for value in asked for _ in range(group_size)]
    if seeds is None:
        return begin(envs, repeated, [i % group_size for i in range(count)])
    options: dict[str, Any] = {"reset_mask": np.arange(envs.num_envs) < count}
    if envs.envs[0].TAKES_NOISE_SEED:  # or attempts at one instance would all have the same random outcomes
        options["noise_seed"] = [i % group_size for i in range(envs.num_envs)]
    return envs.reset(seed=repeated + [0] * (envs.num_envs - count), options=options)


def check_formats(envs: ToolVectorEnv) -> None:
    """Raise a ValueError where turns are written in tokens that a chat template reserves."""
    for format in (format for env in envs.envs[:1] for format in env.formats):
        if format.special_tokens:
            raise UserError(f"the format {format.name!r} needs a chat template of its own; choose another one")
