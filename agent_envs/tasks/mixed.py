"""Several tools at once: the agent must know which tool has which fact."""

import random
import re
from collections.abc import Sequence
from typing import Any

from agent_envs.generators.arithmetic import same_answer
from agent_envs.generators.instances import check_choice, check_kinds, choose_instance, draw
from agent_envs.generators.mixed import KINDS, SCRIPT, MixedQuestion, MixedWorld, make_mixed_world, make_question
from agent_envs.tasks.answering import ANSWER_REWARD, score_answer
from agent_envs.tasks.calculator import calculate, compute
from agent_envs.tasks.qa_scripts import search
from agent_envs.tasks.sql import ask
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool, SearchTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_NAME = r"(?:[A-Z]\w+ )*[A-Z]\w+"


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Call a random tool, and answer with a random number from its result."""
    question = env.first_observation
    numbers, names = re.findall(r"\d+", question) or ["1"], re.findall(_NAME, question)
    pick = rng.choice(names)
    added = compute(f"{rng.choice(numbers)} + {rng.choice(numbers)}")
    found = yield rng.choice((search(pick), added, ask(f"SELECT visitors FROM visitors WHERE town = '{pick}'")))
    yield Turn(answer=rng.choice(re.findall(r"\d+", found) or ["unknown"]))


# How articles word the facts that questions call by these nouns.
_SAID = {
    "birthplace": "born in|comes from|birthplace of .+? is",
    "hometown": "formed in|hometown of .+? is",
    "setting": "set in|takes place in",
    "headquarters": "based in|headquarters of .+? are in",
    "studio": "produced by|studio behind .+? is",
    "publisher": "published by|publisher of .+? is",
    "employer": "works for|employed by",
}


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Search for the town or company that the question describes, query the tables about it, and never calculate."""
    question = env.first_observation
    described = re.search(rf"({'|'.join(_SAID)}) of ({_NAME})", question)
    found, subject = "", (re.findall(_NAME, question[3:]) or ["x"])[-1]
    if described:
        found = yield search(described[2])
        about = re.search(rf"(?:{_SAID[described[1]]}) ({_NAME})", found)
        subject = about[1] if about else described[2]
    if "the most" in question or "the fewest" in question:
        order = "DESC" if "most" in question else "ASC"
        found = yield ask(f"SELECT year FROM visitors WHERE town = '{subject}' ORDER BY visitors {order} LIMIT 1")
    elif year := re.search(r"in (20\d\d)", question):
        what = next((name for name in ("visitors", "profit") if name in question), "revenue")
        table, column = ("visitors", "town") if what == "visitors" else ("accounts", "company")
        found = yield ask(f"SELECT {what} FROM {table} WHERE {column} = '{subject}' AND year = {year[1]}")
    yield Turn(answer=(re.findall(r"\d[\d,]*", found) or [subject])[-1])


def oracle(env: "MixedEnv", rng: random.Random) -> Script:
    """Make the calls that the question was generated from, one per turn."""
    for call in env.question.calls:
        yield Turn(calls=(call,))
    yield Turn(answer=env.question.answer)


class MixedEnv(ToolEnv):
    """Answer a question that needs one, two or all of a search engine, a database and a calculator.

    Articles (``search``) state birthplaces and the inhabitants of towns. Two tables (``query``) hold visitors of towns and
    accounts of companies by year. ``calculate`` is exact. No fact is in both places.

    An example that needs search and a table: "By how many thousands of dollars did the yearly revenue of the publisher of
    The Silent River rise from 2015 to 2018?"

    Questions are generated over a fictional MiniWiki world. The worlds of the two splits share no name.

    Args:
        split: ``"train"`` or ``"validation"``.
        kinds: which tools the questions need, some of `agent_envs.generators.mixed.KINDS` (such as ``"search+query"``);
            all by default, in equal shares.
        entities: size of the world, in articles.
        world_seed: another seed gives another world of the same split.
        k: passages per search.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance`` and ``kind``. Every step has ``progress``: the share of
    the needed articles, cells and values that the tools have shown. The last step adds ``success``,
    ``prediction`` and ``gold``.

    ``reset(options={"instance": n})`` picks an instance.
    """

    REWARD = ANSWER_REWARD
    SCRIPTS = {"random": guess, "scripted": heuristic, "oracle": oracle}  # noqa: RUF012

    question: MixedQuestion

    def __init__(
        self,
        split: str = "train",
        kinds: Sequence[str] = tuple(KINDS),
        entities: int = 1000,
        world_seed: int = 0,
        k: int = 2,
        max_turns: int = 8,
        **common: Any,
    ):
        check_choice("split", split)
        check_kinds(kinds, KINDS)
        self.split, self.kinds, self.entities, self.world_seed = split, tuple(kinds), entities, world_seed
        tools = SearchTool(self.mixed.searcher, k), FunctionTool(self.query), FunctionTool(calculate)
        task = (
            "Answer the question, as short as possible, with a number or a name alone. Articles are found with search; "
            f"these tables are asked with query, money in thousands of dollars:{SCRIPT.replace(' NOT NULL', '')}"
        )
        super().__init__(tools, instructions=task, max_turns=max_turns, **common)

    @property
    def mixed(self) -> MixedWorld:
        """The articles and tables, shared by all environments with the same arguments."""
        return make_mixed_world(self.entities, self.world_seed, self.split)

    def query(self, sql: str) -> ToolResult:
        """the result of one SELECT statement (SQLite) over the tables visitors and accounts."""
        found = self.mixed.database.query(sql)
        return ToolResult(str(found), data=found)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options)
        mixed = self.mixed
        self.question = draw(lambda rng: make_question(mixed, rng, self.kinds), self.split, f"mixed:{number}")
        self._met: set[Any] = set()
        source = f"generated over miniwiki:{self.split}-{self.world_seed} ({self.entities} articles)"
        info = {"source": source, "split": self.split, "instance": number, "kind": self.question.kind}
        return self.question.text, info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        question = self.question
        for call, result in zip(turn.calls, results, strict=True):
            if not result.ok:
                continue
            if call.name == "search":
                self._met |= {("title", p.title) for p in result.data if p.title in question.titles}
            elif call.name == "query":
                self._met |= {("cell", cell) for row in result.data.rows for cell in row if cell in question.cells}
            elif result.data in question.values:
                self._met.add(("value", result.data))
        progress = len(self._met) / (len(question.titles) + len(question.cells) + len(question.values))
        gold = question.answer
        return score_answer(turn, done, progress, lambda answer: same_answer(answer, gold), gold=gold)


make_vector = vector_entry_point(MixedEnv)
