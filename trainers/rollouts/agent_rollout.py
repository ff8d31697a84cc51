"""Roll out episodes of a program; `trainers.rollouts.rollout.rollout` does so for the policy itself."""

import itertools
import secrets
import threading
import time
import warnings
from collections.abc import Sequence
from functools import partial

import torch

from agent_envs.utils.scripts import EpisodeRecorder
from agent_envs.vector import ToolVectorEnv, info_of
from trainers.agents.calls import Session
from trainers.agents.programs import AT_ONCE, Command, Function, load_program, run_program
from trainers.agents.tasks import Episode, Task
from trainers.engines.engine import Engine, SamplingParams
from trainers.models.policy import Policy
from trainers.rollouts.dispatcher import Dispatcher
from trainers.rollouts.rollout import reset_groups
from trainers.rollouts.timing import Timing
from trainers.runtime.retry import ToolsFailed
from trainers.trajectory import Trajectory

_MOST_TOLD = 5  # kinds of failures to warn of


class AgentRollout:
    """Lets a program act in environments, with the policy at an endpoint. Called like `trainers.rollouts.rollout.rollout`.

    Args:
        agent: "module:function", or a command.
        timeout: the longest time between two calls of the program, in seconds.
        max_calls: the most calls of an episode.
    """

    def __init__(self, agent: str, timeout: float = 300.0, max_calls: int = 50):
        from trainers.agents.endpoint import Endpoint  # imports FastAPI, which no other run needs

        self.program, self._timeout, self._max_calls = load_program(agent), timeout, max_calls
        self._episodes: dict[str, Episode] = {}  # the running ones, by key
        self._endpoint = Endpoint(self._episodes.get)
        if isinstance(self.program, Function):
            self.program.find = self._episodes.get
        self._told: set[str] = set()  # kinds of failures that were warned of
        self._slots = threading.Semaphore(AT_ONCE if isinstance(self.program, Command) else 2**16)

    def close(self) -> None:
        """End the endpoint."""
        self._endpoint.close()

    def __call__(
        self, envs: ToolVectorEnv, policy: Policy, engine: Engine, *, seeds: list[int] | None = None,
        questions: list[int] | None = None, group_size: int = 1, max_new_tokens: int = 64, temperature: float = 1.0,
        top_p: float = 1.0, min_p: float = 0.0, timing: Timing | None = None,
    ) -> list[Trajectory]:  # fmt: skip
        """Roll out one episode in each environment."""
        engine.reset()
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, min_p=min_p)
        dispatcher = Dispatcher(engine, params, timing or Timing(), self._timeout)
        _, infos = reset_groups(envs, seeds, questions, group_size)
        requested = seeds or questions or []
        count = len(requested) * group_size
        noise = draw_seeds(count) if temperature else [None] * count
        numbers, episodes = itertools.count().__next__, list[Episode]()
        for i in range(count):
            recorder = EpisodeRecorder(envs.envs[i], info_of(infos, i))
            instance = {"instance": requested[i // group_size], "sample": i % group_size, **recorder.instance}
            trajectory = Trajectory(group=i // group_size, instance=instance)
            session = Session(policy, trajectory, numbers, seed=noise[i], max_calls=self._max_calls)
            episodes.append(Episode(i, envs.envs[i], recorder, session))
        keys = {secrets.token_hex(16): episode for episode in episodes}
        tasks = {key: Task(episode, self._endpoint.url, key) for key, episode in keys.items()}
        self._episodes |= keys
        try:
            for key, episode in keys.items():
                episode.submit = partial(dispatcher.submit, episode)
                episode.cancel = partial(self.program.cancel, tasks[key])
                if self._slots.acquire(blocking=False):  # counts as running from now on: a batch waits for its calls
                    episode.running, episode.since = True, time.monotonic()
                threading.Thread(target=self._run, args=(tasks[key], episode, dispatcher), daemon=True).start()
            dispatcher.run(episodes)
        finally:
            dispatcher.close()
            for key, episode in keys.items():
                del self._episodes[key]
                if not episode.ended:
                    episode.fail("the rollout was broken off")
        engine.reset()
        self._tell_of_failures([episode.trajectory for episode in episodes])
        return [episode.trajectory for episode in episodes]

    def _run(self, task: Task, episode: Episode, dispatcher: Dispatcher) -> None:
        """Run the program; the body of the episode's thread."""
        if not episode.running:
            self._slots.acquire()
            with dispatcher.changed:
                episode.running, episode.since = True, time.monotonic()
        try:
            if not episode.ended:
                run_program(self.program, task, episode)
        finally:
            self._slots.release()
        with dispatcher.changed:
            dispatcher.changed.notify_all()

    def _tell_of_failures(self, trajectories: list[Trajectory]) -> None:
        """Warn of each kind of failure of the program once."""
        for cause in filter(None, map(cause_of_failure, trajectories)):
            told = cause.strip().partition("\n")[0][:300]
            if (kind := told.partition(":")[0]) not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(kind)
                warnings.warn(f"the program failed in an episode: {told}", stacklevel=2)


def cause_of_failure(trajectory: Trajectory) -> str:
    """Return why the program failed; "" if it did not fail, or if a tool failed."""
    failed = trajectory.failed and not trajectory.tool_faults
    return str(trajectory.messages[-1]["content"]) or "no reason is known" if failed else ""


def stop_if_all_failed(failed: Sequence[bool], causes: Sequence[str]) -> None:
    """Raise ToolsFailed if all episodes of a batch or an evaluation failed, at least half of them because of the program.
    Rolling out again would not help. ``causes``: the `cause_of_failure` of each episode."""
    if failed and all(failed) and 2 * sum(map(bool, causes)) >= len(failed):
        first = next(filter(None, causes))
        raise ToolsFailed(f"the agent failed in all {len(failed)} episodes; in the first: {first}")


def draw_seeds(count: int) -> list[int]:
    """Draw ``count`` seeds for the noise of episodes from torch's global generator."""
    return torch.randint(2**62, (count,)).tolist()
