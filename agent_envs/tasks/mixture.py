"""Several tasks as one."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gymnasium

from agent_envs.data.question import Question
from agent_envs.formats import Format
from agent_envs.generators.instances import check_seed, choose_instance
from agent_envs.integrations.hosting import make
from agent_envs.tool_env import StepResult, ToolEnv
from agent_envs.types import ToolResult, Turn
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_DEFAULT = {"AgentR1/MiniWiki-Easy-v0": 2.0, "AgentR1/Calculator-v0": 1.0, "AgentR1/Sokoban-v0": 1.0}


def _delegate(env: "MixtureEnv", rng: random.Random, name: str) -> Script:
    return env.current.SCRIPTS[name](env.current, rng)


def _interleave(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Pairs (task, number of its question) for all questions of all tasks, those of each task spread evenly."""
    places = [((i + 0.5) / count, id, i) for id, count in counts.items() for i in range(count)]
    return [(id, i) for _, id, i in sorted(places)]


def _weight_and_arguments(id: str, requested: Any) -> tuple[float, Mapping[str, Any]]:
    rest = dict(requested) if isinstance(requested, Mapping) else {"weight": requested}
    weight, own = rest.pop("weight", 1.0), rest.pop("kwargs", {})
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if rest or not number or not 0 < weight < float("inf") or not isinstance(own, Mapping):
        raise ValueError(f"{id}: give a weight above 0, or {{'weight': …, 'kwargs': {{…}}}}, got {requested!r}")
    return float(weight), own


def _of_current(name: str) -> Any:
    """A property that reads an attribute of the current task. Its setter does nothing: `ToolEnv.__init__` needs one."""
    return property(lambda self: getattr(self.current, name), lambda self, value: None)


class MixtureEnv(ToolEnv):
    """Each episode is one of several tasks, drawn by weight.

    Tools, format, budgets and reward are those of the task drawn. ``info["task"]`` names it; ``score`` is its own primary
    metric, at the end.

    Args:
        tasks: registered ids with their weights, such as ``{"AgentR1/MiniWiki-Easy-v0": 2, "AgentR1/Bandit-v0": 1}``;
            for a task with its own arguments, ``{"weight": 1, "kwargs": {"max_turns": 3}}`` instead of the weight.
        others: those of all tasks, such as ``split`` or ``format``.

    ``reset(options={"task": id})`` picks the task; other options are passed on to it. If every task has a list of
    questions, ``{"question": i}`` without a task picks number ``i`` of the mixture. It has each question once, whatever
    the weights, with tasks spread evenly.
    """

    PRIMARY_METRIC = "score"
    TAKES_NOISE_SEED = True  # passed on to the tasks that take it
    SCRIPTS: ClassVar = {name: partial(_delegate, name=name) for name in ("random", "scripted", "oracle")}

    def __init__(self, tasks: Mapping[str, Any] | None = None, render_mode: str | None = None, **kwargs: Any):
        self.weights: dict[str, float] = {}
        self.tasks: dict[str, ToolEnv] = {}
        self._with_format: set[str] = set()
        kwargs |= {"render_mode": render_mode} if render_mode else {}  # not every task has the argument
        if tasks is not None and not isinstance(tasks, Mapping):
            raise ValueError(f"tasks must be ids with their weights, such as {json.dumps(_DEFAULT)}, got {tasks!r}")
        for id, requested in (_DEFAULT if tasks is None else tasks).items():
            weight, own = _weight_and_arguments(id, requested)
            self.weights[id], self.tasks[id] = weight, make(id, **{**kwargs, **own})
            self._with_format |= {id} if "format" in own else set()
        if not self.tasks:
            raise ValueError("a mixture needs at least one task")
        self.current = next(iter(self.tasks.values()))
        super().__init__(render_mode=render_mode)
        phrases = tuple(dict.fromkeys(p for task in self.tasks.values() for p in task.action_space.phrases))
        self.action_space.phrases = phrases
        scripts = set.intersection(*(set(task.SCRIPTS) for task in self.tasks.values()))
        self.SCRIPTS = {name: partial(_delegate, name=name) for name in sorted(scripts)}  # type: ignore[misc]
        self._places = _interleave({id: len(task.questions or ()) for id, task in self.tasks.items()})
        if all(
            isinstance(question, Question) for task in self.tasks.values() for question in task.questions or (None,)
        ):
            pairs = ((id, (self.tasks[id].questions or ())[i]) for id, i in self._places)
            # Two tasks may have questions with the same id, and scores are kept by id.
            self.questions = tuple(replace(question, id=f"{id}: {question.id}") for id, question in pairs)

    tools, format, reward, history, results = map(_of_current, ("tools", "format", "reward", "history", "results"))
    answers, instructions, feedback = map(_of_current, ("answers", "instructions", "feedback"))
    max_calls, max_total_calls, max_tokens = map(_of_current, ("max_calls", "max_total_calls", "max_tokens"))
    first_observation, _running = map(_of_current, ("first_observation", "_running"))
    parse, render, anchor, active_env = map(_of_current, ("parse", "render", "anchor", "active_env"))
    state_text, describe_instance = map(_of_current, ("state_text", "describe_instance"))
    found_evidence = _of_current("found_evidence")
    members = property(lambda self: self.tasks)
    fits = property(lambda self: self.current.fits, lambda self, value: setattr(self.current, "fits", value))
    # The largest of all tasks, because the next task is not known.
    max_turns = property(lambda self: max(task.max_turns for task in self.tasks.values()), lambda self, value: None)
    # One task that rewrites its context is enough: its episode is not one sequence.
    context = property(
        lambda self: next((task.context for task in self.tasks.values() if task.context is not None), None),
        lambda self, value: None,
    )

    @property
    def formats(self) -> tuple[Format, ...]:
        return tuple(format for task in self.tasks.values() for format in task.formats)

    @property
    def count_tokens(self) -> Callable[[str], int] | None:
        """The function that counts tokens; setting it sets it for all tasks."""
        return self.current.count_tokens

    @count_tokens.setter
    def count_tokens(self, function: Callable[[str], int] | None) -> None:
        for task in self.tasks.values() if function is not None else ():
            task.count_tokens = function

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        check_seed(seed)
        gymnasium.Env.reset(self, seed=seed)
        options = dict(options or {})
        id, inner = options.pop("task", None), int(self.np_random.integers(2**31))
        if id is None and self.questions is not None and options.get("question") is not None:
            only = {"question": options["question"]}
            number = choose_instance(self.np_random, only, range(len(self.questions)), "question")
            id, options["question"] = self._places[number]
        if id is None:
            shares = list(self.weights.values())
            id = list(self.tasks)[self.np_random.choice(len(shares), p=[share / sum(shares) for share in shares])]
        self.current._running = False  # it stays False if the options are rejected
        if id not in self.tasks:
            raise ValueError(f"task must be one of {list(self.tasks)}, got {id!r}")
        self.id, self.current = id, self.tasks[id]
        noise_seed = options.pop("noise_seed", None)
        if self.current.TAKES_NOISE_SEED and noise_seed is not None:
            options["noise_seed"] = noise_seed
        observation, info = self.current.reset(seed=inner, options=options)
        return observation, {**info, "task": id}

    def use_format(self, name: str | None) -> None:
        """Set the format of the tasks that were made without one of their own."""
        for id, task in self.tasks.items():
            if id not in self._with_format:
                task.use_format(name)

    def hold_out(self, split: str) -> None:
        for task in self.tasks.values():
            task.hold_out(split)

    def resolve(self, action: str, turn: Turn, results: list[ToolResult]) -> StepResult:
        observation, reward, terminated, truncated, info = self.current.resolve(action, turn, results)
        info = {**info, "task": self.id}
        if terminated or truncated:
            info["score"] = float(info.get(self.current.PRIMARY_METRIC, 0.0))
        return observation, reward, terminated, truncated, info

    def describe_source(self) -> str:
        found = {id: task.describe_source() for id, task in self.tasks.items()}
        if len({*found.values()}) == 1:
            return next(iter(found.values()))
        return "; ".join(f"{id}: {source}" for id, source in found.items())

    def close(self) -> None:
        for task in self.tasks.values():
            task.close()


make_vector = vector_entry_point(MixtureEnv)
