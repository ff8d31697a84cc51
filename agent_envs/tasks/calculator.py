"""Word problems with a calculator."""

import random
import re
from functools import lru_cache
from typing import Any

from agent_envs.data.question import Question
from agent_envs.generators.arithmetic import evaluate, number_text, parse_number
from agent_envs.generators.instances import INSTANCES, check_choice, choose_instance, draw
from agent_envs.generators.stories import DIFFICULTIES, make_problem
from agent_envs.generators.tales import Problem
from agent_envs.tasks.answering import ANSWER_REWARD, call, score_answer
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_NUMBER = r"\d+(?:\.\d+)?"


def calculate(expression: str) -> ToolResult:
    """the exact value of an expression with numbers, + - * / // % ** and parentheses."""
    value = evaluate(expression)
    return ToolResult(number_text(value), data=value)


def compute(expression: str) -> Turn:
    """A turn with one calculation."""
    return call("calculate", expression=expression)


def _numbers(env: ToolEnv) -> list[str]:
    return re.findall(_NUMBER, env.first_observation.replace(",", "")) or ["1"]


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Compute two random numbers of the problem with a random operation, and answer with the result."""
    numbers = _numbers(env)
    found = yield compute(f"{rng.choice(numbers)} {rng.choice('+-*')} {rng.choice(numbers)}")
    yield Turn(answer=(re.findall(_NUMBER, found) or ["1"])[0])


# A dozen phrases, and what each does to a running value, {0}; {1} and {2} are the numbers in the phrase.
_PHRASES = (
    (r"(\d+)% (?:of that|full)", "{0} * {1} / 100"),
    (r"(\d+)% (?:is|are|less|goes|of the pay)", "{0} * (100 - {1}) / 100"),
    (r"(\d+) (?:crates|boxes) (?:of|with) (\d+)", "{0} + {1} * {2}"),
    (r"(\d+) \w+ (?:turn out|are thrown)", "{0} - {1}"),
    (r"(\d+) \w+ are brought back", "{0} + {1}"),
    (r"at \$([\d.]+)", "{0} * {1}"),
    (r"\bhalf\b", "{0} / 2"),
    (r"(?:packed in \w+ of|put on|shared equally by) (\d+)", "{0} / {1}"),
    (r"([\d.]+) litres a minute for (\d+)", "{0} + {1} * {2}"),
    (r"pages and reads (\d+) pages a day for (\d+)", "{0} - {1} * {2}"),
    (r"pays with \$(\d+)", "{1} - {0}"),
    (r"(\d+) hours", "{0} * 60 * {1}"),
)


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Start with the first number, and apply every known phrase to it, in the order of the sentences."""
    value = _numbers(env)[0]
    sentences = re.split(r"(?<=[.?]) ", env.first_observation.replace(",", ""))
    known = [(found, step) for one in sentences for phrase, step in _PHRASES if (found := re.search(phrase, one))]
    for found, step in known[: env.max_turns - 1]:
        response = yield compute(step.format(value, *(group.rstrip(".") for group in found.groups())))
        value = (re.findall(_NUMBER, response) or ["1"])[0]
    yield Turn(answer=value)


def oracle(env: "CalculatorEnv", rng: random.Random) -> Script:
    """Compute one step after the other, and give the answer. GSM8K's problems have no steps."""
    for step in env.problem.steps:
        yield compute(step)
    yield Turn(answer=number_text(env.problem.answer))


class CalculatorEnv(ToolEnv):
    """Solve a word problem of several steps with the help of a calculator.

    ``calculate`` is exact. The episode terminates with an answer, which must be the exact number. $, commas between
    thousands and trailing zeros do not matter.

    Problems are generated from 12 stories (shopping, journeys, tanks, wages, …) of 2 to 6 steps, with distractors.
    A digest of the text decides the split. ``source="gsm8k"`` takes the problems of GSM8K (Cobbe et al., arXiv 2110.14168).

    Args:
        source: ``"generated"`` or ``"gsm8k"``.
        split: ``"train"`` or ``"validation"``; for GSM8K the latter is its test split.
        difficulty: of generated problems: ``"easy"`` (2 steps), ``"normal"`` (3 or 4) or ``"hard"`` (5 or 6).
        data: folder or file with GSM8K, see `agent_envs.data.load_benchmark`.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance`` and ``kind``. Every step has ``progress``: the share of
    the gold steps up to the furthest one whose value the agent has computed (for GSM8K, 1 once it has computed the
    answer). The last step adds ``success``, ``prediction`` and ``gold``.

    ``reset(options={"instance": n})`` picks an instance, ``{"question": n}`` one of GSM8K's.

    Raises:
        LookupError, FileNotFoundError: GSM8K is requested and cannot be found.
    """

    REWARD = ANSWER_REWARD
    SCRIPTS = {"random": guess, "scripted": heuristic, "oracle": oracle}  # noqa: RUF012

    def __init__(
        self,
        source: str = "generated",
        split: str = "train",
        difficulty: str = "normal",
        data: str | None = None,
        max_turns: int = 8,
        **common: Any,
    ):
        check_choice("source", source, ("generated", "gsm8k"))
        check_choice("split", split)
        check_choice("difficulty", difficulty, DIFFICULTIES)
        if data is not None and source != "gsm8k":
            raise ValueError('data is the place of GSM8K: give source="gsm8k" as well')
        self.split, self.difficulty, self.data = split, difficulty, data
        if source == "gsm8k":  # fail here, not at the first reset, if GSM8K cannot be found
            if difficulty != "normal":
                raise ValueError('difficulty applies only to generated problems: leave it out with source="gsm8k"')
            from agent_envs.tasks.qa_data import stamp_places, warn_of_shared

            self._problems, self.questions, source = _gsm8k(split, data, stamp_places("gsm8k", data))
            if split == "train":
                warn_of_shared(data)
        self.source, self.drawn = source, source == "generated"
        task = "Solve the problem. The answer is a number alone: exact, without a unit."
        super().__init__((FunctionTool(calculate),), instructions=task, max_turns=max_turns, **common)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.questions is not None:
            name = "question" if "question" in options else "instance"
            numbers = range(len(self._problems)) if options else INSTANCES
            number = choose_instance(self.np_random, options, numbers, name) % len(self._problems)
            self.problem = self._problems[number]
        else:
            number = choose_instance(self.np_random, options)
            key = f"calculator:{self.difficulty}:{number}"
            self.problem = draw(lambda rng: make_problem(rng, self.difficulty), self.split, key)
        self._values = self.problem.values or (self.problem.answer,)
        self._reached = 0
        info = {"source": self.source, "split": self.split, "instance": number, "kind": self.problem.kind}
        return self.problem.text, info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        computed = {result.data for result in results if result.ok}
        places = [place for place, value in enumerate(self._values, start=1) if value in computed]
        self._reached = max([self._reached, *places])
        answer, progress = self.problem.answer, self._reached / len(self._values)
        return score_answer(turn, done, progress, lambda given: parse_number(given) == answer, gold=number_text(answer))


@lru_cache(maxsize=4)
def _gsm8k(split: str, data: str | None, places: tuple) -> tuple[tuple[Problem, ...], tuple[Question, ...], str]:
    """The problems, their questions and their origin; ``places`` is only part of the cache key."""
    from agent_envs.data import load_benchmark

    found = load_benchmark("gsm8k", split=split, data=data, questions_only=True)
    problems = []
    for question in found.questions:
        answer = parse_number(question.answer)
        if answer is None:
            raise ValueError(f"question {question.id} of {found.source}: its answer {question.answer!r} is no number")
        problems.append(Problem(question.question, answer, (), "gsm8k"))
    return tuple(problems), found.questions, found.source


make_vector = vector_entry_point(CalculatorEnv)
