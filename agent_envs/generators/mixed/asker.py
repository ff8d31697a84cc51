"""The builder of a question over a `MixedWorld`."""

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agent_envs.generators import Redraw
from agent_envs.generators.arithmetic import evaluate, number_text
from agent_envs.generators.miniwiki.schema import RELATION
from agent_envs.generators.mixed.world import YEARS, MixedWorld
from agent_envs.types import ToolCall

_POPULATION = RELATION["town", "population"]


@dataclass(frozen=True, slots=True)
class MixedQuestion:
    """``kind`` names the tools that it takes, ``calls`` use them; the needs are what the tools have to bring up on the
    way: ``titles`` of articles, ``cells`` of query results, ``values`` of calculations."""

    text: str
    answer: str
    kind: str
    calls: tuple[ToolCall, ...]
    titles: frozenset[str] = frozenset()
    cells: frozenset[int | str] = frozenset()
    values: frozenset[Fraction] = frozenset()


class Asker:
    """Draws facts of a world at random, and records the calls that look them up.

    Methods raise `Redraw` where the facts allow no question.
    """

    def __init__(self, mixed: MixedWorld, rng: random.Random):
        self.mixed, self.world, self.rng = mixed, mixed.world, rng
        self.calls: list[ToolCall] = []
        self.titles: list[str] = []
        self.cells: list[int | str] = []
        self.values: list[Fraction] = []
        self.year, self.column = rng.choice(YEARS), 0

    def hop(self, relations: tuple) -> tuple[str, int]:
        """A phrase such as "the birthplace of Ada Berg" and the number of what it means, or a year, looked up."""
        relation = self.rng.choice(relations)
        subject = self.rng.randrange(len(self.world.names[relation.subject]))
        value = self.world.value(relation, subject)
        if value < 0:
            raise Redraw
        name = self.world.names[relation.subject][subject]
        self.look_up(name)
        return f"the {relation.noun} of {name}", value

    def population(self, town: int) -> int:
        """The number of inhabitants of a town, looked up in its article."""
        self.look_up(self.world.names["town"][town])
        return self.world.value(_POPULATION, town)

    def look_up(self, title: str) -> None:
        """Search for the article of this title.

        Raises:
            Redraw: it was looked up before.
        """
        if title in self.titles:
            raise Redraw
        self.titles.append(title)
        self.calls.append(ToolCall("search", {"query": title}))

    def query(self, sql: str) -> Any:
        """Run a query that selects one value, an int or a str, and return it."""
        self.calls.append(ToolCall("query", {"sql": sql}))
        (row,) = self.mixed.database.query(sql).rows
        self.cells.append(row[0])
        return row[0]

    def compute(self, expression: str) -> Fraction:
        """The exact value of an expression, worked out with the calculator."""
        self.calls.append(ToolCall("calculate", {"expression": expression}))
        self.values.append(evaluate(expression))
        return self.values[-1]

    def question(self, text: str, answer: Fraction | int | str, kind: str) -> MixedQuestion:
        """The finished question, with the calls so far and what they have to bring up."""
        said = answer if isinstance(answer, str) else number_text(answer)
        needs = frozenset(self.titles), frozenset(self.cells), frozenset(self.values)
        return MixedQuestion(text, said, kind, tuple(self.calls), *needs)
