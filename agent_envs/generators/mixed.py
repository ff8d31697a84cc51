"""Questions that need a search, a query, a calculation, or a chain of these, over a MiniWiki world and tables of statistics.
No fact is both in an article and in a table."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

import retrieval_index
from agent_envs.generators.arithmetic import evaluate, number_text
from agent_envs.generators.instances import Redraw
from agent_envs.generators.miniwiki import World
from agent_envs.generators.miniwiki.schema import RELATION, RELATIONS
from agent_envs.generators.sql.sqlite import Database
from agent_envs.generators.stories import make_problem
from agent_envs.types import ToolCall

YEARS = range(2015, 2020)
SCRIPT = """
CREATE TABLE visitors (town TEXT NOT NULL, year INTEGER NOT NULL, visitors INTEGER NOT NULL);
CREATE TABLE accounts (company TEXT NOT NULL, year INTEGER NOT NULL, revenue INTEGER NOT NULL, profit INTEGER NOT NULL);
"""
_SPLITS = {"train": "train", "validation": "heldout"}
_TO_TOWN, _TO_COMPANY, _YEARS_OF = (tuple(r for r in RELATIONS if r.target == t) for t in ("town", "company", "year"))


@dataclass(frozen=True)
class MixedWorld:
    """Articles about a world, and tables with the visitors of its towns and the accounts of its companies."""

    world: World
    searcher: retrieval_index.Searcher
    database: Database


@lru_cache(maxsize=4)
def make_mixed_world(entities: int, seed: int, split: str) -> MixedWorld:
    """Make the world of a seed, cached in the process; worlds of different splits share no name."""
    world = World(entities, seed, _SPLITS[split])
    rng = np.random.default_rng([seed, *split.encode()])
    towns, companies = world.names["town"], world.names["company"]
    visitors = _avoid_hundreds(rng.integers(3_000, 90_000, (len(towns), len(YEARS))))
    revenue = _avoid_hundreds(rng.integers(12_000, 90_000, (len(companies), len(YEARS))))
    profit = _avoid_hundreds((revenue * rng.uniform(0.2, 0.5, revenue.shape)).astype(np.int64))
    rows: dict[str, list[tuple]] = {
        "visitors": [(t, y, int(visitors[i, j])) for i, t in enumerate(towns) for j, y in enumerate(YEARS)],
        "accounts": [
            (c, y, int(revenue[i, j]), int(profit[i, j])) for i, c in enumerate(companies) for j, y in enumerate(YEARS)
        ],
    }
    return MixedWorld(world, world.build_index(), Database(SCRIPT, rows))


def _avoid_hundreds(values: np.ndarray) -> np.ndarray:
    """Add 1 to multiples of 100, to avoid numbers of articles: years, days, lengths below 1,000, inhabitants in hundreds."""
    return values + (values % 100 == 0)


@dataclass(frozen=True, slots=True)
class MixedQuestion:
    """A question. ``kind`` names the tools that it needs, ``calls`` answer it. The tools must return the ``titles`` of
    articles, ``cells`` of query results and ``values`` of calculations."""

    text: str
    answer: str
    kind: str
    calls: tuple[ToolCall, ...]
    titles: frozenset[str] = frozenset()
    cells: frozenset[int | str] = frozenset()
    values: frozenset[Fraction] = frozenset()


class Asker:
    """Draws facts of a world and records the calls that look them up. Raises `Redraw` if the facts allow no question."""

    def __init__(self, mixed: MixedWorld, rng: random.Random, kind: str):
        self.mixed, self.world, self.rng, self.kind = mixed, mixed.world, rng, kind
        self.calls: list[ToolCall] = []
        self.titles: list[str] = []
        self.cells: list[int | str] = []
        self.values: list[Fraction] = []
        self.year = rng.choice(YEARS)

    def hop(self, relations: tuple) -> tuple[str, int]:
        """Look up a random fact: a phrase such as "the birthplace of Ada Berg", and its value, an entity number or a year."""
        relation = self.rng.choice(relations)
        subject = self.rng.randrange(len(self.world.names[relation.subject]))
        value = self.world.value(relation, subject)
        if value < 0:
            raise Redraw
        name = self.world.names[relation.subject][subject]
        self.look_up(name)
        return f"the {relation.noun} of {name}", value

    def population(self, town: int) -> int:
        """Look up the number of inhabitants of a town in its article."""
        self.look_up(self.world.names["town"][town])
        return self.world.value(RELATION["town", "population"], town)

    def look_up(self, title: str) -> None:
        """Search for the article with this title. Raises `Redraw` if the question has looked it up already."""
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
        """Compute the exact value of an expression with the calculator."""
        self.calls.append(ToolCall("calculate", {"expression": expression}))
        self.values.append(evaluate(expression))
        return self.values[-1]

    def question(self, text: str, answer: Fraction | int | str) -> MixedQuestion:
        """The finished question, with the calls so far and what they must return."""
        gold = answer if isinstance(answer, str) else number_text(answer)
        needs = frozenset(self.titles), frozenset(self.cells), frozenset(self.values)
        return MixedQuestion(text, gold, self.kind, tuple(self.calls), *needs)


def make_question(mixed: MixedWorld, rng: random.Random, kinds: tuple[str, ...]) -> MixedQuestion:
    """A random question of one of ``kinds``, see `KINDS`."""
    kind = rng.choice(kinds)
    make = rng.choice(KINDS[kind])
    while True:
        try:
            return make(Asker(mixed, rng, kind))
        except Redraw:
            continue


# -- kinds -------------------------------------------------------------------------------------------------------------


def word_problem(a: Asker) -> MixedQuestion:
    """An easy word problem, which needs only the calculator."""
    problem = make_problem(a.rng, "easy")
    for step in problem.steps:
        a.compute(step)
    return a.question(problem.text, problem.answer)


def compositional(a: Asker) -> MixedQuestion:
    """The mayor, river or country of a town that is described by another article."""
    phrase, town = a.hop(_TO_TOWN)
    relation = a.rng.choice((RELATION["town", "mayor"], RELATION["town", "river"], RELATION["town", "country"]))
    a.look_up(a.world.names["town"][town])
    who = "Who" if relation.target == "person" else "What"
    return a.question(f"{who} is the {relation.noun} of {phrase}?", a.world.text(relation, town))


def best_year(a: Asker) -> MixedQuestion:
    """The year in which a town had the most, or the fewest, visitors; never a tie."""
    town = a.rng.choice(a.world.names["town"])
    more, order = a.rng.choice((("most", "DESC"), ("fewest", "ASC")))
    ordered = f"FROM visitors WHERE town = '{town}' ORDER BY visitors {order} LIMIT"
    if len(set(a.mixed.database.query(f"SELECT visitors {ordered} 2").rows)) == 1:
        raise Redraw
    year = a.query(f"SELECT year {ordered} 1")
    return a.question(f"In which of the years {YEARS[0]} to {YEARS[-1]} did {town} have the {more} visitors?", year)


def total_revenue(a: Asker) -> MixedQuestion:
    """The revenue of a company over several years."""
    company = a.rng.choice(a.world.names["company"])
    first, last = sorted(a.rng.sample(YEARS, 2))
    where = f"company = '{company}' AND year BETWEEN {first} AND {last}"
    total = a.query(f"SELECT SUM(revenue) FROM accounts WHERE {where}")
    return a.question(
        f"What was the revenue of {company} from {first} to {last} together, in thousands of dollars?", total
    )


def busier(a: Asker) -> MixedQuestion:
    """Which of two towns had more visitors in a year; never a tie."""
    one, other = a.rng.sample(a.world.names["town"], 2)
    towns = f"FROM visitors WHERE town IN ('{one}', '{other}') AND year = {a.year}"
    if a.mixed.database.query(f"SELECT COUNT(DISTINCT visitors) {towns}").rows != ((2,),):
        raise Redraw
    town = a.query(f"SELECT town {towns} ORDER BY visitors DESC LIMIT 1")
    return a.question(f"Which town had more visitors in {a.year}, {one} or {other}?", town)


def years_between(a: Asker) -> MixedQuestion:
    """The distance between two years, each from an article."""
    (first, one), (second, other) = a.hop(_YEARS_OF), a.hop(_YEARS_OF)
    if one == other:
        raise Redraw
    gap = a.compute(f"{max(one, other)} - {min(one, other)}")
    return a.question(f"How many years lie between {first} and {second}?", gap)


def together(a: Asker) -> MixedQuestion:
    """The inhabitants of two towns, one of them described by another article, added up."""
    phrase, one = a.hop(_TO_TOWN)
    other = a.rng.randrange(len(a.world.names["town"]))
    total = a.compute(f"{a.population(one)} + {a.population(other)}")
    return a.question(f"How many inhabitants do {phrase} and {a.world.names['town'][other]} have together?", total)


def visitors_of(a: Asker) -> MixedQuestion:
    """The visitors in a year of a town that an article names."""
    phrase, town = a.hop(_TO_TOWN)
    return a.question(f"How many visitors did {phrase} have in {a.year}?", a.query(_visitors(a, town)))


def profit_of(a: Asker) -> MixedQuestion:
    """The revenue or profit in a year of a company that an article names."""
    phrase, company = a.hop(_TO_COMPANY)
    what = a.rng.choice(("revenue", "profit"))
    name = a.world.names["company"][company]
    number = a.query(f"SELECT {what} FROM accounts WHERE company = '{name}' AND year = {a.year}")
    return a.question(f"What was the {what} of {phrase} in {a.year}, in thousands of dollars?", number)


def margin(a: Asker) -> MixedQuestion:
    """The costs of a company in a year: its revenue minus its profit."""
    company = a.rng.choice(a.world.names["company"])
    where = f"FROM accounts WHERE company = '{company}' AND year = {a.year}"
    revenue, profit = a.query(f"SELECT revenue {where}"), a.query(f"SELECT profit {where}")
    costs = a.compute(f"{revenue} - {profit}")
    what = f"the costs of {company} in {a.year}, that is, its revenue less its profit"
    return a.question(f"What were {what}, in thousands of dollars?", costs)


def two_towns(a: Asker) -> MixedQuestion:
    """The visitors of two towns in a year, added up."""
    one, other = a.rng.sample(range(len(a.world.names["town"])), 2)
    first, second = a.query(_visitors(a, one)), a.query(_visitors(a, other))
    if first == second:
        raise Redraw
    names = a.world.names["town"]
    text = f"How many visitors did {names[one]} and {names[other]} have together in {a.year}?"
    return a.question(text, a.compute(f"{first} + {second}"))


def visitors_and_inhabitants(a: Asker) -> MixedQuestion:
    """The difference between visitors and inhabitants of a town that an article names."""
    phrase, town = a.hop(_TO_TOWN)
    people, visitors = a.population(town), a.query(_visitors(a, town))
    if people == visitors:
        raise Redraw
    text = f"What is the difference between the number of inhabitants of {phrase} and the number of visitors it had in {a.year}?"
    difference = a.compute(f"{max(people, visitors)} - {min(people, visitors)}")
    return a.question(text, difference)


def growth(a: Asker) -> MixedQuestion:
    """The change in revenue between two years of a company that an article names."""
    phrase, company = a.hop(_TO_COMPANY)
    first, last = sorted(a.rng.sample(YEARS, 2))
    where = f"FROM accounts WHERE company = '{a.world.names['company'][company]}' AND year ="
    before, after = a.query(f"SELECT revenue {where} {first}"), a.query(f"SELECT revenue {where} {last}")
    if before == after:
        raise Redraw
    change = a.compute(f"{max(before, after)} - {min(before, after)}")
    verb = "rise" if after > before else "fall"
    text = f"By how many thousands of dollars did the yearly revenue of {phrase} {verb} from {first} to {last}?"
    return a.question(text, change)


def _visitors(a: Asker, town: int) -> str:
    return f"SELECT visitors FROM visitors WHERE town = '{a.world.names['town'][town]}' AND year = {a.year}"


KINDS: dict[str, tuple[Callable[[Asker], MixedQuestion], ...]] = {
    "calculate": (word_problem,),
    "search": (compositional,),
    "query": (best_year, total_revenue, busier),
    "search+calculate": (years_between, together),
    "search+query": (visitors_of, profit_of),
    "query+calculate": (margin, two_towns),
    "search+query+calculate": (visitors_and_inhabitants, growth),
}
