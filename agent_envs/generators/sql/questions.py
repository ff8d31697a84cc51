"""Questions over the databases of `databases`, with the query that answers each."""

import random
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agent_envs.games.split import SPLITS
from agent_envs.generators.arithmetic import normalize_text, parse_number
from agent_envs.generators.sql.databases import SCHEMAS, open_database, rows_of
from agent_envs.generators.sql.sqlite import QueryResult
from agent_envs.generators.sql.templates import TEMPLATES

DIFFICULTIES = ("easy", "normal", "hard")
DATABASES = 2000  # numbers of a schema; even ones are for training, odd ones for validation
_MOST_NAMES = 6
_TRIES = 5  # of a database, before another is made
_MONTHS = "January February March April May June July August September October November December".split()
_SLOT = re.compile(r"\{([\w.-]+)\}")
_FORMAT_REQUESTS = {
    "average": " Give two decimals.",
    "percentage": " Give two decimals.",
    "names": " Separate the names with commas.",
}
_HALF_A_CENT = Fraction(1, 200)


@dataclass(frozen=True, slots=True)
class SQLQuestion:
    """A question over database ``number`` of ``schema``; ``golds`` are what ``sql`` selects, ``tables`` what it reads."""

    text: str
    schema: str
    number: int
    level: str
    kind: str
    sql: str
    golds: tuple[Any, ...]
    tables: frozenset[str]


def make_question(
    rng: random.Random, split: str, difficulty: str, schemas: tuple[str, ...] = tuple(SCHEMAS)
) -> SQLQuestion:
    """A random question with a unique, non-empty answer, over a database of ``split``."""
    tries = 0
    while True:
        if tries % _TRIES == 0:
            schema = rng.choice(schemas)
            number = rng.randrange(0, DATABASES, 2) + SPLITS.index(split)
        tries += 1
        level, kind, texts, sql = rng.choice([t for t in TEMPLATES[schema] if t[0] == difficulty])
        in_text, in_sql = _draw_slot_values(texts + sql, schema, number, rng)
        text, sql = _fill_slots(in_text, rng.choice(texts.split(" | "))), _fill_slots(in_sql, sql)
        found = open_database(schema, number).query(sql)
        golds = tuple(row[0] for row in found.rows)
        if _is_askable(kind, golds):
            return SQLQuestion(
                text + _FORMAT_REQUESTS.get(kind, ""), schema, number, level, kind, sql, golds, found.tables
            )


def _is_askable(kind: str, golds: tuple) -> bool:
    if kind == "names":
        return 1 <= len(golds) <= _MOST_NAMES
    return len(golds) == 1 and golds[0] not in (None, 0)


def _draw_slot_values(
    template: str, schema: str, number: int, rng: random.Random
) -> tuple[dict[str, str], dict[str, str]]:
    """What to put in each slot: in the question, and in the SQL."""
    in_text: dict[str, str] = {}
    in_sql: dict[str, str] = {}
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


def _fill_slots(fills: dict[str, str], template: str) -> str:
    return _SLOT.sub(lambda slot: fills[slot[1]], template)


def _column_values(schema: str, number: int, table: str, column: str) -> list[str]:
    """The different values of a column, in order."""
    definition = SCHEMAS[schema].script.split(f"CREATE TABLE {table} (")[1]
    place = [part.split()[0] for part in definition.split(");")[0].replace(" (id)", "").split(",")].index(column)
    return sorted({row[place] for row in rows_of(schema, number)[table]})


# -- comparison of answers ---------------------------------------------------------------------------------------------


def is_right(question: SQLQuestion, answer: str) -> bool:
    """Whether a final answer says what the gold query selects; names in any order, averages and percentages to two decimals."""
    if question.kind != "names":
        return _equal(question.kind, answer.strip(), question.golds[0])
    names = [normalize_text(name) for name in re.split(r",\s*and\s|\sand\s|[,;\n]", answer) if name.strip()]
    return sorted(names) == sorted(map(normalize_text, question.golds))


def matches(question: SQLQuestion, found: QueryResult) -> bool:
    """Whether a column of a result holds the gold values and nothing else, in any order."""
    columns = [sorted(map(_key, column)) for column in zip(*found.rows, strict=True)]
    return not found.more and sorted(map(_key, question.golds)) in columns


def _equal(kind: str, answer: str, gold: Any) -> bool:
    if isinstance(gold, str):
        return normalize_text(answer) == normalize_text(gold)
    value = parse_number(answer.removesuffix("%") if kind == "percentage" else answer)
    tolerance = _HALF_A_CENT if kind in ("average", "percentage") else 0
    return value is not None and abs(value - Fraction(gold)) <= tolerance


def _key(value: Any) -> tuple[str, str]:
    """Numbers that differ by rounding to two decimals count as one."""
    return (
        ("number", f"{round(value, 2):.2f}") if isinstance(value, int | float) else ("text", normalize_text(str(value)))
    )
