"""Questions that take a search, a query, a calculation, or a chain of these."""

import random
from collections.abc import Callable

from agent_envs.generators import Redraw
from agent_envs.generators.arithmetic import parse_number, same_number, same_text
from agent_envs.generators.miniwiki.schema import RELATION, RELATIONS
from agent_envs.generators.mixed.asker import Asker, MixedQuestion
from agent_envs.generators.mixed.world import YEARS, MixedWorld
from agent_envs.generators.stories.word_problems import make_problem

_TO_TOWN = tuple(r for r in RELATIONS if r.target == "town")
_TO_COMPANY = tuple(r for r in RELATIONS if r.target == "company")
_YEARS_OF = tuple(r for r in RELATIONS if r.target == "year")


def make_question(mixed: MixedWorld, rng: random.Random, kinds: tuple[str, ...]) -> MixedQuestion:
    """A random question of one of ``kinds``, see `KINDS`."""
    make = rng.choice(KINDS[rng.choice(kinds)])
    while True:
        try:
            return make(Asker(mixed, rng))
        except Redraw:
            continue


def is_right(question: MixedQuestion, answer: str) -> bool:
    """Whether an answer is the gold one: as a number where it is one, as text otherwise."""
    gold = parse_number(question.answer)
    return same_text(answer, question.answer) if gold is None else same_number(answer, gold)


# -- kinds -------------------------------------------------------------------------------------------------------------


def word_problem(a: Asker) -> MixedQuestion:
    """An easy word problem, which takes the calculator alone."""
    problem = make_problem(a.rng, "easy")
    for step in problem.steps:
        a.compute(step)
    return a.question(problem.text, problem.answer, "calculate")


def compositional(a: Asker) -> MixedQuestion:
    """The mayor, river or country of a town that is described by another article."""
    phrase, town = a.hop(_TO_TOWN)
    relation = a.rng.choice((RELATION["town", "mayor"], RELATION["town", "river"], RELATION["town", "country"]))
    a.look_up(a.world.names["town"][town])
    who = "Who" if relation.target == "person" else "What"
    return a.question(f"{who} is the {relation.noun} of {phrase}?", a.world.text(relation, town), "search")


def best_year(a: Asker) -> MixedQuestion:
    """The year in which a town had the most, or the fewest, visitors."""
    town = a.rng.choice(a.world.names["town"])
    more, order = a.rng.choice((("most", "DESC"), ("fewest", "ASC")))
    year = a.query(f"SELECT year FROM visitors WHERE town = '{town}' ORDER BY visitors {order} LIMIT 1")
    return a.question(
        f"In which of the years {YEARS[0]} to {YEARS[-1]} did {town} have the {more} visitors?", year, "query"
    )


def total_revenue(a: Asker) -> MixedQuestion:
    """The revenue of a company over several years."""
    company = a.rng.choice(a.world.names["company"])
    first, last = sorted(a.rng.sample(YEARS, 2))
    total = a.query(
        f"SELECT SUM(revenue) FROM accounts WHERE company = '{company}' AND year BETWEEN {first} AND {last}"
    )
    text = f"What was the revenue of {company} from {first} to {last} together, in thousands of dollars?"
    return a.question(text, total, "query")


def busier(a: Asker) -> MixedQuestion:
    """Which of two towns had more visitors in a year; never a tie."""
    one, other = a.rng.sample(a.world.names["town"], 2)
    towns = f"FROM visitors WHERE town IN ('{one}', '{other}') AND year = {a.year}"
    if a.mixed.database.query(f"SELECT COUNT(DISTINCT visitors) {towns}").rows != ((2,),):
        raise Redraw
    town = a.query(f"SELECT town {towns} ORDER BY visitors DESC LIMIT 1")
    return a.question(f"Which town had more visitors in {a.year}, {one} or {other}?", town, "query")


def years_between(a: Asker) -> MixedQuestion:
    """The distance between two years, each from an article."""
    (first, one), (second, other) = a.hop(_YEARS_OF), a.hop(_YEARS_OF)
    if one == other:
        raise Redraw
    gap = a.compute(f"{max(one, other)} - {min(one, other)}")
    return a.question(f"How many years lie between {first} and {second}?", gap, "search+calculate")


def together(a: Asker) -> MixedQuestion:
    """The inhabitants of two towns, one of them described by another article, added up."""
    phrase, one = a.hop(_TO_TOWN)
    other = a.rng.randrange(len(a.world.names["town"]))
    total = a.compute(f"{a.population(one)} + {a.population(other)}")
    text = f"How many inhabitants do {phrase} and {a.world.names['town'][other]} have together?"
    return a.question(text, total, "search+calculate")


def visitors_of(a: Asker) -> MixedQuestion:
    """The visitors in a year of a town that an article names."""
    phrase, town = a.hop(_TO_TOWN)
    number = a.query(_visitors(a, town))
    return a.question(f"How many visitors did {phrase} have in {a.year}?", number, "search+query")


def profit_of(a: Asker) -> MixedQuestion:
    """The revenue or profit in a year of a company that an article names."""
    phrase, company = a.hop(_TO_COMPANY)
    what = a.rng.choice(("revenue", "profit"))
    number = a.query(
        f"SELECT {what} FROM accounts WHERE company = '{a.world.names['company'][company]}' AND year = {a.year}"
    )
    return a.question(f"What was the {what} of {phrase} in {a.year}, in thousands of dollars?", number, "search+query")


def margin(a: Asker) -> MixedQuestion:
    """The costs of a company in a year: its revenue less its profit."""
    company = a.rng.choice(a.world.names["company"])
    where = f"FROM accounts WHERE company = '{company}' AND year = {a.year}"
    revenue, profit = a.query(f"SELECT revenue {where}"), a.query(f"SELECT profit {where}")
    costs = a.compute(f"{revenue} - {profit}")
    text = (
        f"What were the costs of {company} in {a.year}, that is, its revenue less its profit, in thousands of dollars?"
    )
    return a.question(text, costs, "query+calculate")


def two_towns(a: Asker) -> MixedQuestion:
    """The visitors of two towns in a year, added up."""
    one, other = a.rng.sample(range(len(a.world.names["town"])), 2)
    first, second = a.query(_visitors(a, one)), a.query(_visitors(a, other))
    if first == second:
        raise Redraw
    names = a.world.names["town"]
    text = f"How many visitors did {names[one]} and {names[other]} have together in {a.year}?"
    return a.question(text, a.compute(f"{first} + {second}"), "query+calculate")


def visitors_and_inhabitants(a: Asker) -> MixedQuestion:
    """The difference between visitors and inhabitants of a town that an article names."""
    phrase, town = a.hop(_TO_TOWN)
    people, visitors = a.population(town), a.query(_visitors(a, town))
    if people == visitors:
        raise Redraw
    text = f"What is the difference between the number of inhabitants of {phrase} and the number of visitors it had in {a.year}?"
    difference = a.compute(f"{max(people, visitors)} - {min(people, visitors)}")
    return a.question(text, difference, "search+query+calculate")


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
    return a.question(text, change, "search+query+calculate")


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
