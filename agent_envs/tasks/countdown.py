"""Countdown: reach a target with the given numbers."""

import random
import re
from itertools import product
from typing import Any

from agent_envs.games import countdown
from agent_envs.generators.instances import check_choice, check_integers, check_options, check_pair
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point


def _read(env: ToolEnv) -> tuple[list[str], int]:
    found = re.search(r"Numbers: ([\d, ]+)\nTarget: (\d+)", env.first_observation)
    assert found is not None  # as `CountdownEnv.begin` writes it
    return found[1].split(", "), int(found[2])


def any_expression(env: ToolEnv, rng: random.Random) -> Script:
    """Join the numbers in random order by random operations: well-formed, but rarely right."""
    numbers, _ = _read(env)
    rng.shuffle(numbers)
    yield Turn(answer="".join(f"{number} {rng.choice('+-*/')} " for number in numbers[:-1]) + numbers[-1])


def sums(env: ToolEnv, rng: random.Random) -> Script:
    """Try all sums and differences; if none makes the target, give the sum of all numbers."""
    numbers, target = _read(env)
    for signs in product("+-", repeat=len(numbers)):
        answer = " ".join(f"{sign} {number}" for sign, number in zip(signs, numbers, strict=True)).removeprefix("+ ")
        if countdown.evaluate(answer)[0] == target:
            break
    else:
        answer = " + ".join(numbers)
    yield Turn(answer=answer)


def solution(env: "CountdownEnv", rng: random.Random) -> Script:
    """Give the expression that the puzzle was made from."""
    yield Turn(answer=env.puzzle.solution)


class CountdownEnv(ToolEnv):
    """Write an expression that makes the target from the given numbers, each used exactly once.

    The answer is an expression of integers, + - * / and brackets, such as ``(2 + 5) * 3``, computed exactly. The reward
    is 1 if its value is the target, 0.1 if it only uses the right numbers, and 0 if it is malformed, divides by zero,
    or uses other numbers. After RAGEN and TinyZero. Solutions may need products and quotients, unlike RAGEN's. TinyZero
    also pays 0.1 for malformed answers.

    Args:
        split: ``"train"`` or ``"validation"``, by a digest of the numbers, in ascending order, and the target.
        numbers: the smallest and the largest count of numbers, within 2 to 8.
        largest: the numbers are 1 to ``largest``, of 5 to 1,000. Targets are 10 to 99. Sums and differences solve about seven of
            eight puzzles with numbers up to 99, and one of three with numbers up to 12.
        max_turns: more than 1 forgives malformed turns; the last turn ends the game in any case.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``numbers`` and ``target``. The step adds the metrics ``correct``,
    ``format`` (1 for the right numbers and the wrong value) and ``success``. It also adds ``value`` (of the expression)
    and ``problem``: strings, empty if there is none.
    """

    REWARD = Reward(correct=(1.0, Metric("correct")), format=(0.1, Metric("format")))
    SCRIPTS = {"random": any_expression, "scripted": sums, "oracle": solution}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        numbers: tuple[int, int] = (3, 4),
        largest: int = 99,
        max_turns: int = 1,
        **common: Any,
    ):
        check_choice("split", split)
        self.split, self.largest = split, largest
        check_pair("numbers", numbers, 2, 8)
        check_integers(5, largest=largest)
        self.counts = (numbers[0], numbers[1])
        if largest > 1000:  # of larger numbers few sets have a target under 100
            raise ValueError(f"largest must be in 5..1000, got {largest}")
        task = (
            "Make the target from the numbers: write an expression with + - * / and brackets that uses each number "
            "exactly once and has the target as its value, and give it as the answer, without an equals sign."
        )
        super().__init__((), instructions=task, max_turns=max_turns, **common)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        check_options(options)
        rng = random.Random(int(self.np_random.integers(2**63)))
        self.puzzle = countdown.generate(rng, self.counts, self.largest, self.split)
        numbers, target = list(self.puzzle.numbers), self.puzzle.target
        text = f"Numbers: {', '.join(map(str, numbers))}\nTarget: {target}"
        return text, {"source": "generated", "split": self.split, "numbers": numbers, "target": target}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        value, problem = None, ""
        try:
            value, used = countdown.evaluate(turn.answer or "")
            if sorted(used) != sorted(self.puzzle.numbers):
                problem = "it does not use exactly the given numbers"
        except ValueError as error:
            problem = str(error)
        correct = float(not problem and value == self.puzzle.target)
        metrics = {"correct": correct, "format": float(not problem and not correct), "success": correct}
        over = len(self.history.turns) + 1 >= self.max_turns  # the last turn is part of the game: no truncation
        return TurnOutcome(metrics, {"value": "" if value is None else str(value), "problem": problem}, terminated=over)


make_vector = vector_entry_point(CountdownEnv)
