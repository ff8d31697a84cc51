"""Questions about a database."""

import random
import re
from typing import Any

from agent_envs.generators.instances import check_choice, choose_instance, draw
from agent_envs.generators.sql.questions import DIFFICULTIES, describe, is_right, make_question, matches, open_database
from agent_envs.tasks.answering import ANSWER_REWARD, call, score_answer
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point


def ask(sql: str) -> Turn:
    """A turn with one query."""
    return call("query", sql=sql)


def _first_value(observation: str) -> str:
    """The first cell of the first row, below the names of the columns."""
    lines = re.sub(r"<[^>]*>", "", observation).strip().splitlines()
    return lines[1].split(" | ")[0] if len(lines) > 1 else "unknown"


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Look at a random table, and answer with the first cell of one of its first ten rows."""
    found = yield call("schema")
    table = rng.choice(re.findall(r"CREATE TABLE (\w+)", found) or ["x"])
    found = yield ask(f"SELECT * FROM {table} LIMIT 1 OFFSET {rng.randint(0, 9)}")
    yield Turn(answer=_first_value(found))


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Find the table that holds the name in the question, and count the rows that "How many" asks about. For other
    questions, select the column that the question names."""
    question = env.first_observation
    found = yield call("schema")
    tables = dict(re.findall(r"CREATE TABLE (\w+) \(([^;]*)\);", found))
    columns = {name: re.findall(r"(\w+) [A-Z]+ (?:NOT|PRIMARY)", body) for name, body in tables.items()}
    names = re.findall(r"'([^']+)'|(?<!^)\b([A-Z]\w+(?: [A-Z]\w+)*)", question)
    value = "".join(names[0]) if names else ""
    where = {name: " OR ".join(f"{column} = '{value}'" for column in columns[name]) or "0" for name in tables}
    holders = [f"SELECT '{name}' WHERE EXISTS (SELECT * FROM {name} WHERE {where[name]})" for name in tables]
    found = yield ask(" UNION ALL ".join(holders) or "SELECT 0")
    holder = _first_value(found)
    counted = next((name for name in tables if name in question.lower()), holder)
    link = re.search(rf"(\w+) \w+ NOT NULL REFERENCES {holder} ", tables.get(counted, ""))
    condition = f"{link[1]} IN (SELECT id FROM {holder} WHERE {where[holder]})" if link else where.get(holder, "0")
    wanted = [name for name in columns.get(holder, []) if name[:4] in question.lower()]
    if question.startswith("How many") and (link or counted == holder):
        found = yield ask(f"SELECT COUNT(*) FROM {counted} WHERE {condition}")
    else:
        found = yield ask(f"SELECT {wanted[0] if wanted else '*'} FROM {holder} WHERE {where.get(holder, '0')}")
    yield Turn(answer=_first_value(found))


def oracle(env: "SQLEnv", rng: random.Random) -> Script:
    """Run the gold query, and give the gold answer."""
    yield ask(env.question.sql)
    golds = (f"{gold:.2f}" if isinstance(gold, float) else str(gold) for gold in env.question.golds)
    yield Turn(answer=", ".join(golds))


class SQLEnv(ToolEnv):
    """Answer a question about a database by querying it in SQL.

    The agent may look at the tables with ``schema`` and runs SELECT statements (SQLite, read-only, no clock, no
    randomness) with ``query``. The episode terminates with an answer: a number, a name, or a few names in any order.
    Averages count if they are right to two decimals; other numbers must be exact.

    There are four schemas (shop, library, league, airport), 2,000 databases of each, and 60 kinds of questions. The
    splits share neither databases (even and odd numbers) nor questions (a digest decides).

    Args:
        split: ``"train"`` or ``"validation"``.
        difficulty: ``"easy"`` (one table), ``"normal"`` (one or two tables) or ``"hard"`` (several, with groups,
            rankings, sums over joins, dates, and rows that are *not* there).
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance``, ``schema`` and ``kind`` (of answer). Every step has
    ``progress``: half the share of the gold query's tables that have been read, plus 0.5 once a column of a result has
    held exactly the gold values. The last step adds ``success``, ``prediction`` and ``golds``.

    ``reset(options={"instance": n})`` picks an instance.
    """

    REWARD = ANSWER_REWARD
    SCRIPTS = {"random": guess, "scripted": heuristic, "oracle": oracle}  # noqa: RUF012

    def __init__(self, split: str = "train", difficulty: str = "normal", max_turns: int = 6, **common: Any):
        check_choice("split", split)
        check_choice("difficulty", difficulty, DIFFICULTIES)
        self.split, self.difficulty = split, difficulty
        task = "Answer the question about the database, as short as possible."
        tools = FunctionTool(self.schema), FunctionTool(self.query)
        super().__init__(tools, instructions=task, max_turns=max_turns, **common)

    def schema(self) -> str:
        """the tables of the database, as CREATE statements."""
        return describe(self.question.schema, self.question.number)

    def query(self, sql: str) -> ToolResult:
        """the result of one SELECT statement (SQLite)."""
        found = open_database(self.question.schema, self.question.number).query(sql)
        return ToolResult(str(found), data=found)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options)
        key = f"sql:{self.split}:{self.difficulty}:{number}"
        self.question = draw(lambda rng: make_question(rng, self.split, self.difficulty), self.split, key)
        self._read: set[str] = set()
        self._matched = False
        info = {"source": "generated", "split": self.split, "instance": number}
        return self.question.text, {**info, "schema": self.question.schema, "kind": self.question.kind}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        for made, result in zip(turn.calls, results, strict=True):
            if made.name == "query" and result.ok:
                self._read |= result.data.tables & self.question.tables
                self._matched |= matches(self.question, result.data)
        question = self.question
        progress = 0.5 * len(self._read) / len(question.tables) + 0.5 * self._matched
        golds = list(map(str, question.golds))
        return score_answer(turn, done, progress, lambda answer: is_right(question, answer), golds=golds)


make_vector = vector_entry_point(SQLEnv)
