"""Questions that are answered with the help of a program."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_envs import sandbox
from agent_envs.generators.arithmetic import same_answer
from agent_envs.generators.instances import check_choice, check_integers, check_kinds, choose_instance, draw
from agent_envs.generators.puzzles import KINDS, make_puzzle
from agent_envs.sandbox.probe import choose_backend
from agent_envs.sandbox.runner import MAX_CODE
from agent_envs.tasks.answering import ANSWER_REWARD, call, score_answer
from agent_envs.tool_env import ToolEnv
from agent_envs.tools.schema import one_text
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point


@dataclass(frozen=True)
class PythonTool:
    """A tool that runs programs in `agent_envs.sandbox`, those of a batch in parallel.

    Args:
        backend: backend of the sandbox, see `agent_envs.sandbox.run`.
        timeout: seconds per run.
        memory_mb: MiB per run.
        max_output: characters of a result that the agent reads, and bytes kept of stdout and of stderr.
    """

    name: ClassVar[str] = "python"
    description: ClassVar[str] = "run a Python program (standard library alone) and get what it prints."
    parameters: ClassVar[dict[str, Any]] = one_text("code")
    io_bound: ClassVar[bool] = True
    interchangeable: ClassVar[bool] = True

    backend: str = "auto"
    timeout: float = 5.0
    memory_mb: int = 256
    max_output: int = 4000

    @property
    def batch_key(self) -> tuple:
        """Equal for tools whose programs can run in one batch."""
        return "python", self.backend, self.timeout, self.memory_mb, self.max_output

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Run programs in parallel. A result holds what a program printed, and is ``ok`` if the exit status is 0."""
        limits: dict[str, Any] = {"timeout": self.timeout, "memory_mb": self.memory_mb, "max_output": self.max_output}
        codes = [one["code"] for one in arguments]
        runs = sandbox.run_batch([code for code in codes if len(code) <= MAX_CODE], backend=self.backend, **limits)
        done, too_long = map(self._report, runs), f"A program may have {MAX_CODE:,} characters at most."
        return [next(done) if len(code) <= MAX_CODE else ToolResult(too_long, ok=False) for code in codes]

    def _report(self, done: sandbox.Completed | Exception) -> ToolResult:
        if isinstance(done, Exception):
            return ToolResult(f"python failed: {type(done).__name__}: {done}"[:500], ok=False, fault=True)
        ending = [done.stderr.strip()]
        if done.timed_out:
            ending.append(f"[stopped after {self.timeout:g} seconds]")
        elif done.returncode:
            ending.append(f"[exit status {done.returncode}]")
        ended = _shorten("\n".join(filter(None, ending)), self.max_output // 2)
        shown = [_shorten(done.stdout.rstrip("\n"), self.max_output - len(ended) - 1), ended]
        return ToolResult("\n".join(filter(None, shown)) or "[nothing was printed]", data=done, ok=done.returncode == 0)


def _shorten(text: str, longest: int) -> str:
    """Keep the beginning and the end: results are printed last, and the last lines of a traceback name the error."""
    half = (longest - len(_LEFT_OUT)) // 2
    return text if len(text) <= longest or half <= 0 else text[:half] + _LEFT_OUT + text[-half:]


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Compute something with two numbers of the question, and answer with the result."""
    numbers = list(map(int, re.findall(r"\d+", env.first_observation) or ["1"]))
    found = yield call("python", code=f"print({rng.choice(numbers)} {rng.choice('+-*')} {rng.choice(numbers)})")
    yield Turn(answer=(re.findall(r"-?\d+", found) or ["0"])[-1])


_LEFT_OUT = "\n[... the middle is left out ...]\n"
_DATE = re.compile(r"([\d,]+) days after (\d{4}-\d\d-\d\d)")
_SEQUENCE = re.compile(
    r"a\(1\) = (\d+) .*a\(2\) = (\d+)\. .* is (\d+) times .* plus (\d+) times .* modulo (\d+)\. .*a\((\d+)\)"
)


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Write one of two programs, for dates or for sequences; for all other questions, count the words."""
    question = env.first_observation
    code = f"print({len(question.split())})"
    if found := _DATE.search(question):
        form = "%A" if "day of the week" in question else "%Y-%m-%d"
        code = (
            f"from datetime import date, timedelta\nday = date.fromisoformat('{found[2]}')\n"
            f"print((day + timedelta({found[1].replace(',', '')})).strftime('{form}'))"
        )
    elif found := _SEQUENCE.search(question):
        a, b, x, y, modulus, n = found.groups()
        code = f"a, b = {a}, {b}\nfor _ in range({n} - 1):\n    a, b = b, ({x} * b + {y} * a) % {modulus}\nprint(a)"
    printed = re.sub(r"<[^>]*>", " ", (yield call("python", code=code))).split()
    yield Turn(answer=printed[-1] if printed else "0")


def oracle(env: "PythonEnv", rng: random.Random) -> Script:
    """Run a program that solves the puzzle, and give the gold answer."""
    yield call("python", code=env.puzzle.program)
    yield Turn(answer=env.puzzle.answer)


class PythonEnv(ToolEnv):
    """Answer a question by writing and running a program.

    The agent runs programs with ``python`` and reads what they print. Every call is a process of its own in
    `agent_envs.sandbox`, and nothing is kept between calls. The episode terminates with an answer, a number, a word or
    a date.

    Fifteen kinds of puzzles are generated (numbers, dates, texts, a table, a graph, …). A digest of the question
    decides the split. If isolation is not available, `reset` raises `SandboxError`; ``sandbox="unsafe"`` runs without it
    (docs/sandbox.md).

    Args:
        split: ``"train"`` or ``"validation"``.
        kinds: kinds of puzzles, some of `agent_envs.generators.puzzles.KINDS`; all by default.
        sandbox: backend of the sandbox, see `agent_envs.sandbox.run`.
        timeout: seconds per program.
        memory_mb: MiB per program.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance`` and ``kind``. Every step has ``progress``: 1 once the last
    line of an output has been the gold answer. The last step adds ``success``, ``prediction`` and ``gold``.

    ``reset(options={"instance": n})`` picks an instance.
    """

    REWARD = ANSWER_REWARD
    SCRIPTS = {"random": guess, "scripted": heuristic, "oracle": oracle}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        kinds: Sequence[str] = tuple(KINDS),
        sandbox: str = "auto",
        timeout: float = 5.0,
        memory_mb: int = 256,
        max_turns: int = 5,
        **common: Any,
    ):
        check_choice("split", split)
        check_kinds(kinds, KINDS)
        check_integers(64, memory_mb=memory_mb)
        if not (0 < timeout <= 3600 and memory_mb <= 1 << 20):
            raise ValueError(
                f"timeout must be in (0, 3600] and memory_mb in 64..1048576, got {timeout} and {memory_mb}"
            )
        self.split, self.kinds, self.sandbox = split, tuple(kinds), sandbox
        task = "Answer the question with the help of programs, as short as possible."
        tool = PythonTool(sandbox, timeout, memory_mb)
        super().__init__((tool,), instructions=task, max_turns=max_turns, **common)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        choose_backend(self.sandbox)  # fail here: at the first call, the agent would read the error
        number = choose_instance(self.np_random, options)
        self.puzzle = draw(lambda rng: make_puzzle(rng, self.kinds), self.split, f"python:{number}")
        self._printed = False
        info = {"source": "generated", "split": self.split, "instance": number, "kind": self.puzzle.kind}
        return self.puzzle.text, info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        lines = [result.data.stdout.strip().rpartition("\n")[2] for result in results if result.ok]
        gold = self.puzzle.answer
        self._printed |= any(same_answer(line, gold) for line in lines)
        return score_answer(turn, done, float(self._printed), lambda answer: same_answer(answer, gold), gold=gold)


make_vector = vector_entry_point(PythonEnv)
