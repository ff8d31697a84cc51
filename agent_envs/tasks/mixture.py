"""Several tasks as one."""

import json
import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gymnasium

from agent_envs.formats import Format
from agent_envs.generators.instances import choose_instance
from agent_envs.integrations.hosting import find_spec, lacks_split, make_registered
from agent_envs.tool_env import StepResult, ToolEnv
from agent_envs.types import ToolResult, Turn
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_DEFAULT = {"AgentR1/MiniWiki-Easy-v0": 2.0, "AgentR1/Calculator-v0": 1.0, "AgentR1/Sokoban-v0": 1.0}


def _delegate(env: "MixtureEnv", rng: random.Random, name: str) -> Script:
    return env.current.SCRIPTS[name](env.current, rng)


def _interleave(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(task, number of its question) for all questions of all tasks, those of each task spread evenly."""
    places = [((i + 0.5) / count, id, i) for id, count in counts.items() for i in range(count)]
    return [(id, i) for _, id, i in sorted(places)]


class MixtureEnv(ToolEnv):
    """Each episode is one of several tasks, drawn by weight.

    The agent sees, may do and earns what it would in that task: its own tools, format, budgets and reward. ``info``
    names it in ``task`` and gives its measure as ``score`` at the end, and ``env.statistics`` keeps count of what was
    played, task by task, over the life of the environment.

    Args:
        tasks: registered ids with their weights, such as ``{"AgentR1/MiniWiki-Easy-v0": 2, "AgentR1/Bandit-v0": 1}``; for a
            task with arguments of its own, in place of the weight ``{"weight": 1, "kwargs": {"max_turns": 3}}``.
        kwargs: arguments for all of the tasks, such as ``split`` or ``format``.

    ``reset(options={"task": id})`` picks the task; other options are passed on to it. Where every task has a list of
    questions, the mixture has one too, all of theirs, each once whatever the weights: ``{"question": i}`` without a task
    is number ``i`` of it. Any beginning of the list has the tasks in the shares of the whole.
    """

    PRIMARY_METRIC = "score"
    TAKES_NOISE_SEED = True  # for those tasks that take it
    SCRIPTS: ClassVar = {name: partial(_delegate, name=name) for name in ("random", "scripted", "oracle")}

    def __init__(self, tasks: Mapping[str, Any] | None = None, render_mode: str | None = None, **kwargs: Any):
        self.weights: dict[str, float] = {}
        self.tasks: dict[str, ToolEnv] = {}
        if tasks is not None and not isinstance(tasks, Mapping):
            raise ValueError(f"tasks must be ids with their weights, such as {json.dumps(_DEFAULT)}, got {tasks!r}")
        for id, asked in (_DEFAULT if tasks is None else tasks).items():
            asked = dict(asked) if isinstance(asked, Mapping) else {"weight": asked}
            weight, own = asked.pop("weight", 1.0), asked.pop("kwargs", {})
            if not isinstance(own, Mapping):
                raise ValueError(f"{id}: kwargs must be arguments by name, got {own!r}")
            if (
                asked
                or isinstance(weight, bool)
                or not isinstance(weight, int | float)
                or not 0 < weight < float("inf")
            ):
                raise ValueError(
                    f"{id}: give a weight above 0, or {{'weight': …, 'kwargs': {{…}}}}, got {asked or weight!r}"
                )
            arguments, spec = {**kwargs, **own, "render_mode": render_mode}, find_spec(id)
            split = arguments.pop("split", None) if lacks_split(spec) else None
            task = make_registered(spec, **arguments).unwrapped
            if not isinstance(task, ToolEnv):
                raise ValueError(f"{id} is no environment of this kind")
            if split is not None:
                task.hold_out(split)
            self.weights[id], self.tasks[id] = float(weight), task
        if not self.tasks:
            raise ValueError("a mixture needs at least one task")
        self.current = next(iter(self.tasks.values()))
        super().__init__(render_mode=render_mode)
        phrases = tuple(dict.fromkeys(p for task in self.tasks.values() for p in task.action_space.phrases))
        self.action_space.phrases = phrases
        scripts = set.intersection(*(set(task.SCRIPTS) for task in self.tasks.values()))
        self.SCRIPTS = {name: partial(_delegate, name=name) for name in sorted(scripts)}  # type: ignore[misc]
        self._places = _interleave({id: len(task.questions or ()) for id, task in self.tasks.items()})
        if all(task.questions is not None for task in self.tasks.values()):
            asked = ((id, (self.tasks[id].questions or ())[i]) for id, i in self._places)
            # Two tasks may have a question of one id each, and scores are kept by it.
            self.questions = tuple(replace(question, id=f"{id}: {question.id}") for id, question in asked)
        self._played = {id: [0, 0.0, 0.0] for id in self.tasks}  # episodes, sum of returns, sum of scores

    # What others read off an environment is that of the task at hand. The setters only serve the constructor of ToolEnv.
    tools = property(lambda self: self.current.tools, lambda self, value: None)
    format = property(lambda self: self.current.format, lambda self, value: None)
    reward = property(lambda self: self.current.reward, lambda self, value: None)
    history = property(lambda self: self.current.history, lambda self, value: None)
    first_observation = property(lambda self: self.current.first_observation, lambda self, value: None)
    answers = property(lambda self: self.current.answers, lambda self, value: None)
    instructions = property(lambda self: self.current.instructions, lambda self, value: None)
    max_calls = property(lambda self: self.current.max_calls, lambda self, value: None)
    max_total_calls = property(lambda self: self.current.max_total_calls, lambda self, value: None)
    max_tokens = property(lambda self: self.current.max_tokens, lambda self, value: None)
    feedback = property(lambda self: self.current.feedback, lambda self, value: None)
    results = property(lambda self: self.current.results, lambda self, value: None)
    fits = property(lambda self: self.current.fits, lambda self, value: setattr(self.current, "fits", value))
    # One that rewrites is enough: an episode of it is not one sequence.
    context = property(
        lambda self: next((task.context for task in self.tasks.values() if task.context is not None), None),
        lambda self, value: None,
    )

    @property
    def max_turns(self) -> int:
        """Of the task that has the most: which comes next is not known."""
        return max(task.max_turns for task in self.tasks.values())

    @max_turns.setter
    def max_turns(self, value: int) -> None:
        pass

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of all tasks."""
        return tuple(format for task in self.tasks.values() for format in task.formats)

    @property
    def count_tokens(self) -> Callable[[str], int] | None:
        """What counts tokens, of the task at hand; setting it sets that of all tasks."""
        return self.current.count_tokens

    @count_tokens.setter
    def count_tokens(self, function: Callable[[str], int] | None) -> None:
        for task in self.tasks.values() if function is not None else ():
            task.count_tokens = function

    @property
    def statistics(self) -> dict[str, dict[str, float]]:
        """By task: finished ``episodes``, mean ``return`` and mean ``score``."""
        return {
            id: {"episodes": count, "return": paid / max(count, 1), "score": score / max(count, 1)}
            for id, (count, paid, score) in self._played.items()
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        options = dict(options or {})
        id, inner = options.pop("task", None), int(self.np_random.integers(2**31))
        if id is None and self.questions is not None and options.get("question") is not None:
            number = choose_instance(
                self.np_random, {"question": options["question"]}, range(len(self.questions)), "question"
            )
            id, options["question"] = self._places[number]
        if id is None:
            shares = list(self.weights.values())
            id = list(self.tasks)[self.np_random.choice(len(shares), p=[share / sum(shares) for share in shares])]
        self.current._running = False  # stays so where the options are rejected
        if id not in self.tasks:
            raise ValueError(f"task must be one of {list(self.tasks)}, got {id!r}")
        self.id, self.current, self._paid = id, self.tasks[id], 0.0
        noise_seed = options.pop("noise_seed", None)
        if self.current.TAKES_NOISE_SEED and noise_seed is not None:
            options["noise_seed"] = noise_seed
        observation, info = self.current.reset(seed=inner, options=options)
        return observation, {**info, "task": id}

    def hold_out(self, split: str) -> None:
        for task in self.tasks.values():
            task.hold_out(split)

    def parse(self, action: str) -> Turn:
        return self.current.parse(action)

    def resolve(self, action: str, turn: Turn, results: list[ToolResult]) -> StepResult:
        observation, reward, terminated, truncated, info = self.current.resolve(action, turn, results)
        self._paid += reward
        info = {**info, "task": self.id}
        if terminated or truncated:
            info["score"] = float(info.get(self.current.PRIMARY_METRIC, 0.0))
            for i, value in enumerate((1, self._paid, info["score"])):
                self._played[self.id][i] += value
        return observation, reward, terminated, truncated, info

    def anchor(self) -> Hashable | None:
        return self.current.anchor()

    def describe_source(self) -> str:
        found = {id: task.describe_source() for id, task in self.tasks.items()}
        if len({*found.values()}) == 1:
            return next(iter(found.values()))
        return "; ".join(f"{id}: {source}" for id, source in found.items())

    @property
    def active_env(self) -> ToolEnv:
        return self.current.active_env

    def describe_instance(self) -> dict[str, Any]:
        return self.current.describe_instance()

    def found_evidence(self) -> list[bool]:
        return self.current.found_evidence()

    def state_text(self) -> str:
        return self.current.state_text()

    def render(self) -> str | None:
        return self.current.render()

    def close(self) -> None:
        for task in self.tasks.values():
            task.close()

    @property
    def _running(self) -> bool:
        return self.current._running

    @_running.setter
    def _running(self, value: bool) -> None:
        pass


make_vector = vector_entry_point(MixtureEnv)
