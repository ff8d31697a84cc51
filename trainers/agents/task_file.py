"""An environment with the tasks of a user's file, in which a function or the program itself scores the result."""

import json
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from agent_envs.generators.instances import check_choice, choose_instance, digest
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import OWN_ENTRIES, ToolEnv
from agent_envs.types import ToolResult, Turn, TurnOutcome
from trainers.runtime.errors import UserError

HELD_OUT_SHARE = 10  # one task in ten is held out, of those that name no split
Outcome = dict[str, Any]


class TaskEnv(ToolEnv):
    """Tasks of a JSON Lines file, one object a line, for a program that brings its own tools.

    Args:
        path: the file. A line may name its ``split``, "train" or "validation"; of the others a digest holds out one in ten.
        reward: "module:function" that scores a result: ``reward(task, result)`` gives a number, or {"reward": …, "metrics":
            {…}}. Default: ``reward`` in the module of the agent's function.

    Attributes:
        scorer: the function ``reward``, or None.
        outcome: reward and metrics of the running episode, set before its last turn.
    """

    REWARD = Reward(score=(1.0, Metric("score")))
    PRIMARY_METRIC: ClassVar[str] = "score"
    questions: Sequence[Any]  # tasks as the file has them
    stop = ()  # a program reads whole turns

    def __init__(self, path: str, split: str = "train", reward: str = ""):
        check_choice("split", split)
        self.split, self.path = split, path
        self.scorer = find_function(reward) if reward else None
        self.questions = _read_tasks(path, Path(path).stat().st_mtime_ns)[split]
        if not self.questions:
            raise UserError(
                f"{path} has no task to {'train on' if split == 'train' else 'hold out'}: give more of them"
            )
        super().__init__((), max_turns=1)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options, range(len(self.questions)), "question")
        self.task: dict[str, Any] = deepcopy(self.questions[number])  # programs may change it
        self.outcome: Outcome = {"reward": 0.0}
        text = str(self.task.get("question") or json.dumps(self.task, ensure_ascii=False))
        return text, {"source": self.describe_source()}

    def describe_source(self) -> str:
        return f"local:{self.path}"

    def describe_instance(self) -> dict[str, Any]:
        return {"id": str(self.task["id"])} if "id" in self.task else {}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        return TurnOutcome({"score": self.outcome["reward"], **self.outcome.get("metrics", {})})

    def take_result(self, result: Any, fallback: Callable[..., Any] | None) -> None:
        """Score a result. Raises ValueError or TypeError if there is no valid score."""
        if isinstance(result, dict) and "reward" in result:
            self.outcome = _read_outcome(result)
        elif score := self.scorer or fallback:
            self.outcome = _read_outcome(score(self.task, result))
        else:
            raise ValueError(f"nothing scores {result!r:.100}: return {{'reward': …}}, or define reward(task, result)")


def _read_outcome(value: Any) -> Outcome:
    outcome = value if isinstance(value, Mapping) else {"reward": value}
    metrics = dict(outcome.get("metrics") or {})
    numbers = {"reward": outcome.get("reward"), **metrics}
    if taken := OWN_ENTRIES & metrics.keys():
        raise ValueError(f"rename the metrics {sorted(taken)}: each episode reports its own of these names")
    if wrong := [n for n, value in numbers.items() if not isinstance(value, Real) or not math.isfinite(value)]:
        raise TypeError(f"{wrong[0]} must be a finite number, got {numbers[wrong[0]]!r:.100}")
    floats = {name: float(number) for name, number in metrics.items() if name != "score"}
    return {"reward": float(outcome["reward"]), "metrics": floats}


@lru_cache(maxsize=8)
def _read_tasks(path: str, stamp: int) -> dict[str, tuple[dict[str, Any], ...]]:
    split: dict[str, list[dict[str, Any]]] = {"train": [], "validation": []}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: strings may hold its other line ends
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no JSON: {error}") from error
        if not isinstance(task, dict):
            raise UserError(f"{path}, line {number}: a task is a JSON object, got {line[:100]!r}")
        is_held_out = int(digest(json.dumps(task, sort_keys=True)), 16) % HELD_OUT_SHARE == 0
        name = task.get("split", "validation" if is_held_out else "train")
        if name not in split:
            raise UserError(f"{path}, line {number}: split must be 'train' or 'validation', got {name!r}")
        split[name].append(task)
    return {name: tuple(tasks) for name, tasks in split.items()}


def find_function(name: str) -> Callable[..., Any]:
    """Find a function by "module:function". Raises UserError if there is none."""
    if os.getcwd() not in sys.path:  # as with `python -m`
        sys.path.append(os.getcwd())
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            raise UserError(f"{name} cannot be imported: {error}") from error
        raise UserError(f"there is no function {name!r} in this folder or installed: {error}") from error
    if not callable(found):
        raise UserError(f"{name} is no function, got {type(found).__name__}")
    return found
