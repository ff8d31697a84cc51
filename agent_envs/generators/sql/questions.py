"""Questions about small synthetic databases (a shop, a library, a league and an airport), with the query that answers
each. A database is a pure function of its number."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any

from agent_envs.generators.arithmetic import normalize_text, parse_number
from agent_envs.generators.instances import SPLITS
from agent_envs.generators.people import FAMILY_NAMES, GIVEN_NAMES
from agent_envs.generators.sql.sqlite import Database, QueryResult
from agent_envs.generators.sql.templates import TEMPLATES

Slots = dict[str, str]
TableRows = dict[str, list[tuple]]

CITIES = "Ashford Brighton Calder Dunmore Elmstead Fairview Glenrock Harwick Ironbridge Kingsley".split()
COUNTRIES = "Norway Brazil Japan Kenya Canada Italy Chile Egypt".split()
_ADJECTIVES = "Silent Golden Hidden Distant Frozen Broken Crimson Gentle Lost Endless Quiet Burning Pale Wild".split()
_NOUNS = "Harbour River Garden Mountain Letter Mirror Lantern Orchard Winter Voyage Castle Bridge Forest Island".split()
_MATERIALS = "Oak Steel Linen Copper Bamboo Glass Wool Ceramic".split()
_PRODUCTS = {
    "kitchen": ["Kettle", "Pan", "Knife", "Bowl", "Teapot"],
    "garden": ["Rake", "Bench", "Planter", "Lantern", "Spade"],
    "office": ["Desk", "Lamp", "Chair", "Shelf", "Clock"],
    "travel": ["Bag", "Bottle", "Blanket", "Trunk", "Umbrella"],
}

SHOP = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined DATE NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id),
    ordered DATE NOT NULL, status TEXT NOT NULL);
CREATE TABLE order_items (order_id INTEGER NOT NULL REFERENCES orders (id),
    product_id INTEGER NOT NULL REFERENCES products (id), quantity INTEGER NOT NULL);
"""
LIBRARY = """
CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL, born INTEGER NOT NULL);
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER NOT NULL REFERENCES authors (id),
    genre TEXT NOT NULL, year INTEGER NOT NULL, pages INTEGER NOT NULL);
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT NOT NULL, town TEXT NOT NULL, joined DATE NOT NULL);
CREATE TABLE loans (id INTEGER PRIMARY KEY, book_id INTEGER NOT NULL REFERENCES books (id),
    member_id INTEGER NOT NULL REFERENCES members (id), borrowed DATE NOT NULL, returned DATE);
"""
LEAGUE = """
CREATE TABLE teams (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, founded INTEGER NOT NULL);
CREATE TABLE players (id INTEGER PRIMARY KEY, name TEXT NOT NULL, team_id INTEGER NOT NULL REFERENCES teams (id),
    position TEXT NOT NULL, born DATE NOT NULL);
CREATE TABLE matches (id INTEGER PRIMARY KEY, played DATE NOT NULL, home_id INTEGER NOT NULL REFERENCES teams (id),
    away_id INTEGER NOT NULL REFERENCES teams (id), home_goals INTEGER NOT NULL, away_goals INTEGER NOT NULL);
CREATE TABLE goals (match_id INTEGER NOT NULL REFERENCES matches (id),
    player_id INTEGER NOT NULL REFERENCES players (id), minute INTEGER NOT NULL);
"""
AIRPORT = """
CREATE TABLE airlines (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL);
CREATE TABLE destinations (code TEXT PRIMARY KEY, city TEXT NOT NULL, country TEXT NOT NULL, distance INTEGER NOT NULL);
CREATE TABLE flights (id INTEGER PRIMARY KEY, airline_id INTEGER NOT NULL REFERENCES airlines (id),
    code TEXT NOT NULL REFERENCES destinations (code), day DATE NOT NULL, passengers INTEGER NOT NULL,
    delay INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a kind of database (``script``, SQL), and the function that makes their rows."""

    script: str
    fill: Callable[[random.Random], TableRows]


def _random_day(rng: random.Random, first: int = 2023, last: int = 2024) -> str:
    start = date(first, 1, 1)
    return str(start + timedelta(rng.randrange((date(last, 12, 31) - start).days + 1)))


def _random_people(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{given} {family}" for given in GIVEN_NAMES for family in FAMILY_NAMES], count)


def _fill_shop(rng: random.Random) -> TableRows:
    people = _random_people(rng, rng.randint(30, 45))
    cities = rng.sample(CITIES, 6)
    customers = [(i, name, rng.choice(cities), _random_day(rng, 2018, 2022)) for i, name in enumerate(people, 1)]
    kinds = [(f"{of} {thing}", kind) for kind, things in _PRODUCTS.items() for thing in things for of in _MATERIALS]
    chosen = rng.sample(kinds, rng.randint(24, 32))
    products = [(i, name, kind, rng.randrange(5, 300)) for i, (name, kind) in enumerate(chosen, 1)]
    states = ("delivered", "delivered", "delivered", "shipped", "pending", "cancelled")
    days = sorted(_random_day(rng) for _ in range(rng.randint(90, 140)))
    orders = [(i, rng.randint(1, len(customers)), day, rng.choice(states)) for i, day in enumerate(days, 1)]
    items = []
    for order in orders:
        chosen_ids = sorted(rng.sample(range(1, len(products) + 1), rng.randint(1, 4)))
        items += [(order[0], product, rng.randint(1, 6)) for product in chosen_ids]
    return {"customers": customers, "products": products, "orders": orders, "order_items": items}


def _fill_library(rng: random.Random) -> TableRows:
    people = _random_people(rng, 60)
    writers, readers = people[: rng.randint(12, 18)], people[18 : rng.randint(45, 60)]
    countries, towns = rng.sample(COUNTRIES, 5), rng.sample(CITIES, 5)
    authors = [(i, name, rng.choice(countries), rng.randrange(1900, 1990)) for i, name in enumerate(writers, 1)]
    genres = rng.sample(["crime", "fantasy", "history", "travel", "poetry", "science", "romance"], 5)
    titles = [f"The {adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    books = []
    for i, title in enumerate(rng.sample(titles, rng.randint(45, 65)), 1):
        author = rng.choice(authors)
        year = min(2022, author[3] + rng.randint(22, 60))
        books.append((i, title, author[0], rng.choice(genres), year, rng.randrange(90, 900)))
    members = [(i, name, rng.choice(towns), _random_day(rng, 2016, 2022)) for i, name in enumerate(readers, 1)]
    loans = []
    for i, borrowed in enumerate(sorted(_random_day(rng) for _ in range(rng.randint(120, 180))), 1):
        back = str(date.fromisoformat(borrowed) + timedelta(rng.randint(2, 60))) if rng.random() < 0.85 else None
        loans.append((i, rng.randint(1, len(books)), rng.randint(1, len(members)), borrowed, back))
    return {"authors": authors, "books": books, "members": members, "loans": loans}


def _fill_league(rng: random.Random) -> TableRows:
    animals = rng.sample("Falcons Lions Wolves Ravens Bears Otters Foxes Hawks Bulls Sharks".split(), 8)
    cities = rng.sample(CITIES, 8)
    named = enumerate(zip(cities, animals, strict=True), 1)
    teams = [(i, f"{city} {animal}", city, rng.randrange(1890, 2001)) for i, (city, animal) in named]
    positions = ["goalkeeper", "defender", "defender", "defender", "midfielder", "midfielder", "forward", "forward"]
    slots = [(team[0], position) for team in teams for position in positions]
    people = _random_people(rng, len(slots))
    taken = enumerate(zip(people, slots, strict=True), 1)
    players = [(i, name, *slot, _random_day(rng, 1985, 2004)) for i, (name, slot) in taken]
    fixtures = [(home, away) for home in range(1, 9) for away in range(1, 9) if home != away]
    rng.shuffle(fixtures)
    matches, goals = [], []
    for i, (day, pair) in enumerate(zip(sorted(_random_day(rng) for _ in fixtures), fixtures, strict=True), 1):
        score = [rng.choice((0, 0, 1, 1, 1, 2, 2, 3, 4)) for _ in pair]
        matches.append((i, day, *pair, *score))
        for team, count in zip(pair, score, strict=True):
            shares = {"forward": 4, "midfielder": 2}
            scorers = [p[0] for p in players if p[2] == team for _ in range(shares.get(p[3], 1))]
            goals += [(i, rng.choice(scorers), rng.randint(1, 90)) for _ in range(count)]
    return {"teams": teams, "players": players, "matches": matches, "goals": goals}


def _fill_airport(rng: random.Random) -> TableRows:
    places = rng.sample(COUNTRIES, 6)
    words = rng.sample("Aurora Meridian Zephyr Horizon Polar Coral Summit Atlas".split(), 6)
    kinds = ("Air", "Airways", "Wings")
    airlines = [(i, f"{word} {rng.choice(kinds)}", rng.choice(places)) for i, word in enumerate(words, 1)]
    cities = rng.sample([f"{a} {b}" for a in ("Port", "New", "Saint", "Upper") for b in FAMILY_NAMES], 14)
    codes = rng.sample([a + b + c for a in "BCDFGK" for b in "AEIOU" for c in "LMNRST"], 14)
    pairs = zip(codes, cities, strict=True)
    destinations = [(code, city, rng.choice(places), rng.randrange(150, 9000, 10)) for code, city in pairs]
    flights = []
    for i, day in enumerate(sorted(_random_day(rng) for _ in range(rng.randint(180, 260))), 1):
        delay = max(0, rng.randint(-40, 120))
        flights.append((i, rng.randint(1, 6), rng.choice(codes), day, rng.randrange(40, 380), delay))
    return {"airlines": airlines, "destinations": destinations, "flights": flights}


SCHEMAS = {
    "shop": Schema(SHOP, _fill_shop),
    "library": Schema(LIBRARY, _fill_library),
    "league": Schema(LEAGUE, _fill_league),
    "airport": Schema(AIRPORT, _fill_airport),
}


@lru_cache(maxsize=128)
def rows_of(schema: str, number: int) -> TableRows:
    """The rows of database ``number`` of a schema, by table."""
    return SCHEMAS[schema].fill(random.Random(f"database:{schema}:{number}"))


@lru_cache(maxsize=128)
def open_database(schema: str, number: int) -> Database:
    """Database ``number`` of a schema. One copy is shared, since it is read-only."""
    return Database(SCHEMAS[schema].script, rows_of(schema, number))


def describe(schema: str, number: int) -> str:
    """The tables as SQL, and how many rows they have."""
    counts = ", ".join(f"{table}: {len(rows)}" for table, rows in rows_of(schema, number).items())
    return f"{SCHEMAS[schema].script.strip()}\n-- rows: {counts}"


# -- questions ---------------------------------------------------------------------------------------------------------

DIFFICULTIES = ("easy", "normal", "hard")
DATABASES = 2000  # of a schema; those with even numbers are for training, with odd ones for validation
_MOST_NAMES = 6
_TRIES = 5  # questions that are tried on a database before another is drawn
_MONTHS = "January February March April May June July August September October November December".split()
_SLOT = re.compile(r"\{([\w.-]+)\}")
_FORMAT_REQUESTS = dict.fromkeys(("average", "percentage"), " Give two decimals.")
_FORMAT_REQUESTS["names"] = " Separate the names with commas."
_HALF_A_CENT = Fraction(1, 200) + Fraction(1, 10**9)  # as a float, 54.175 is slightly less; 54.18 must count


@dataclass(frozen=True, slots=True)
class SQLQuestion:
    """A question over database ``number`` of ``schema``; ``golds`` are the values that ``sql`` selects, from ``tables``."""

    text: str
    schema: str
    number: int
    kind: str
    sql: str
    golds: tuple[Any, ...]
    tables: frozenset[str]


def make_question(rng: random.Random, split: str, difficulty: str) -> SQLQuestion:
    """A random question with a unique, non-empty answer, over a database of ``split``."""
    tries = 0
    while True:
        if tries % _TRIES == 0:
            schema = rng.choice(tuple(SCHEMAS))
            number = rng.randrange(0, DATABASES, 2) + SPLITS.index(split)
        tries += 1
        _, kind, texts, sql = rng.choice([t for t in TEMPLATES[schema] if t[0] == difficulty])
        in_text, in_sql = _draw_slot_values(texts + sql, schema, number, rng)
        text, sql = _fill_slots(in_text, rng.choice(texts.split(" | "))), _fill_slots(in_sql, sql)
        found = open_database(schema, number).query(sql)
        golds = tuple(row[0] for row in found.rows)
        if _is_askable(kind, golds):
            text += _FORMAT_REQUESTS.get(kind, "")
            return SQLQuestion(text, schema, number, kind, sql, golds, found.tables)


def _is_askable(kind: str, golds: tuple) -> bool:
    if kind == "names":
        return 1 <= len(golds) <= _MOST_NAMES
    return len(golds) == 1 and golds[0] not in (None, 0)


def _draw_slot_values(template: str, schema: str, number: int, rng: random.Random) -> tuple[Slots, Slots]:
    """Draw the values of the slots, as the question and as the SQL write them."""
    in_text, in_sql = Slots(), Slots()
    for slot in dict.fromkeys(_SLOT.findall(template)):
        if slot == "month":
            year, month = rng.choice((2023, 2024)), rng.randint(1, 12)
            in_text[slot], in_sql[slot] = f"{_MONTHS[month - 1]} {year}", f"'{year}-{month:02d}'"
        elif "." in slot:
            in_text[slot] = rng.choice(_column_values(schema, number, *slot.split(".")))
            in_sql[slot] = f"'{in_text[slot]}'"
        else:
            in_text[slot] = in_sql[slot] = str(rng.randint(*map(int, slot.split("-"))))
    return in_text, in_sql


def _fill_slots(values: Slots, template: str) -> str:
    return _SLOT.sub(lambda slot: values[slot[1]], template)


def _column_values(schema: str, number: int, table: str, column: str) -> list[str]:
    """The distinct values of a column, sorted."""
    definition = SCHEMAS[schema].script.split(f"CREATE TABLE {table} (")[1]
    place = [part.split()[0] for part in definition.split(");")[0].replace(" (id)", "").split(",")].index(column)
    return sorted({row[place] for row in rows_of(schema, number)[table]})


# -- comparison of answers ---------------------------------------------------------------------------------------------


def is_right(question: SQLQuestion, answer: str) -> bool:
    """Whether an answer is right: names in any order, averages and percentages to two decimals, other answers exactly."""
    if question.kind != "names":
        gold, answer, rounded = question.golds[0], answer.strip(), question.kind in ("average", "percentage")
        if isinstance(gold, str):
            return normalize_text(answer) == normalize_text(gold)
        value = parse_number(answer.removesuffix("%") if question.kind == "percentage" else answer)
        return value is not None and abs(value - Fraction(gold)) <= (_HALF_A_CENT if rounded else 0)
    names = [normalize_text(name) for name in re.split(r",\s*and\s|\sand\s|[,;\n]", answer) if name.strip()]
    return sorted(names) == sorted(map(normalize_text, question.golds))


def matches(question: SQLQuestion, found: QueryResult) -> bool:
    """Whether a column of a result holds the gold values and nothing else, in any order."""
    columns = [sorted(map(_key, column)) for column in zip(*found.rows, strict=True)]
    return not found.more and sorted(map(_key, question.golds)) in columns


def _key(value: Any) -> tuple[str, str]:
    """A key for comparison; numbers that are equal after rounding to two decimals have the same key."""
    if isinstance(value, int | float):
        return "number", f"{round(value, 2):.2f}"
    return "text", normalize_text(str(value))
