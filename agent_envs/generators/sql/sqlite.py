"""SQLite for untrusted queries: read-only, in memory, and the same on every machine.

SQLite's authorizer and limits bound what a query may do. Its time is bounded by a count of virtual machine instructions
instead of a clock, so the same query always ends the same way.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from threading import Lock
from typing import Any

MAX_ROWS = 50  # of a result that are fetched and shown
MAX_CELL = 200  # characters of a value that are shown
_MAX_SQL = 4_000  # characters
_MAX_INSTRUCTIONS = 1_000_000
_MAX_LIKE = 1_000_000  # characters that LIKE compares in a query
_MAX_VALUE = 1_000  # bytes of a string or row
# Bytes of SQLite in this process. It copies what a query names several times, so 1,000 characters of SQL can take gigabytes.
_MAX_HEAP = 256 << 20
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_VALUE,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 60,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
}
_DATES = ("date", "time", "datetime", "julianday", "strftime")
# No random numbers, clock or files, and nothing that makes long strings or runs long within one instruction.
_FUNCTIONS = frozenset(
    """abs avg coalesce count cume_dist dense_rank first_value floor ceil ceiling group_concat iif ifnull lag
    last_value lead length like lower max min mod nth_value ntile nullif percent_rank rank round
    row_number sign substr substring sum total typeof unicode upper""".split()
) | set(_DATES)
_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class QueryError(ValueError):
    """A query cannot be run or completed; the message is for the author of the query."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: at most `MAX_ROWS` rows (``more``: there were further ones), and the tables it read."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    tables: frozenset[str]
    more: bool = False

    def __str__(self) -> str:
        if not self.rows:
            return f"{' | '.join(self.columns)}\n(no rows)"
        lines = [" | ".join(map(_format_cell, row)) for row in (self.columns, *self.rows)]
        return "\n".join([*lines, f"(only the first {MAX_ROWS} rows are shown)"] if self.more else lines)


class Database:
    """A database in memory, read-only once it is made from ``script``, SQL that creates the tables, and their ``rows``."""

    def __init__(self, script: str, rows: Mapping[str, Iterable[tuple]]):
        # Without the statement cache the authorizer sees every query, and so records which tables it reads.
        self._connection = connection = sqlite3.connect(":memory:", cached_statements=0, check_same_thread=False)
        connection.executescript(script)
        for table, values in rows.items():
            values = list(values)
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
        connection.commit()
        connection.executescript("PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;")
        connection.execute(f"PRAGMA hard_heap_limit = {_MAX_HEAP}")
        self._guard = guard = _Guard()
        for name in _DATES:
            connection.create_function(name, -1, partial(guard.date, name), deterministic=True)
        for arguments in (2, 3):
            connection.create_function("like", arguments, guard.like, deterministic=True)
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(guard.authorize)
        self._lock = Lock()  # one database serves many environments, perhaps in several threads

    def query(self, sql: str) -> QueryResult:
        """Run one SELECT statement. Raises QueryError if it is something else, is wrong, or takes too much time or memory."""
        if len(sql) > _MAX_SQL:
            raise QueryError(f"a query may have {_MAX_SQL} characters at most.")
        with self._lock:
            return self._run(sql)

    def _run(self, sql: str) -> QueryResult:
        self._guard.begin()
        ticks = chain(repeat(0, _MAX_INSTRUCTIONS // 1000), repeat(1))
        self._connection.set_progress_handler(ticks.__next__, 1000)
        try:
            cursor = self._connection.execute(sql)
            found = cursor.fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            too_large = "the query takes too much memory; make it simpler." if isinstance(error, MemoryError) else ""
            raise QueryError(self._guard.rejection or too_large or _explain(str(error))) from None
        finally:
            self._connection.set_progress_handler(None, 0)
        if cursor.description is None:
            raise QueryError("write a SELECT statement.")
        columns = tuple(column[0] for column in cursor.description)
        cursor.close()
        return QueryResult(columns, tuple(found[:MAX_ROWS]), frozenset(self._guard.tables), len(found) > MAX_ROWS)


_MEANINGS = {
    **dict.fromkeys(("not authorized", "prohibited"), "this database can only be read, with SELECT."),
    "interrupted": "the query takes too long; make it simpler.",
    "one statement": "one statement at a time.",
}


def _explain(message: str) -> str:
    return next((meaning for part, meaning in _MEANINGS.items() if part in message), message[:300])


class _Guard:
    """The callbacks of SQLite while a query runs, and what they record. They must not refer to the connection: it keeps them
    where the garbage collector does not see them, so it would never be freed."""

    def __init__(self):
        self._plain = sqlite3.connect(":memory:", check_same_thread=False)  # an empty database that computes dates
        self.begin()

    def begin(self) -> None:
        self.tables: set[str] = set()
        self.rejection, self._like_steps = "", 0

    def authorize(self, action: int, first: str | None, second: str | None, *_) -> int:
        if action == sqlite3.SQLITE_READ and first:
            self.tables.add(first)
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() not in _FUNCTIONS:
            self.rejection = f"the function {second} is not available."
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _ACTIONS else sqlite3.SQLITE_DENY

    def date(self, name: str, *given: Any) -> Any:
        """SQLite's date functions without the clock and the time zone of the machine."""
        texts = (value.split("\0")[0] for value in given if isinstance(value, str))  # SQLite ignores the rest
        words = {text.strip().casefold() for text in texts}
        missing = len(given) < 1 + (name == "strftime") or bytes in map(type, given)
        if missing or words & {"now", "localtime", "utc", "subsec", "subsecond"}:
            self.rejection = f"{name} needs a date, and there is no current time here."
            raise ValueError
        return self._plain.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]

    def like(self, pattern: Any, text: Any, escape: Any = None) -> bool | None:
        if pattern is None or text is None:
            return None
        found, steps = _match_like(str(pattern).lower(), str(text).lower())
        self._like_steps += steps
        if escape is not None or self._like_steps > _MAX_LIKE:
            self.rejection = "LIKE takes too long." if escape is None else "LIKE knows no ESCAPE here."
            raise ValueError
        return found


def _match_like(pattern: str, text: str) -> tuple[bool, int]:
    """Whether LIKE matches, and the steps taken: at most pattern times text. SQLite's LIKE is exponential in the ``%``."""
    p = t = steps = 0
    star = back = -1
    while t < len(text):
        steps += 1
        if p < len(pattern) and pattern[p] == "%":
            star, back, p = p, t, p + 1
        elif p < len(pattern) and pattern[p] in ("_", text[t]):
            p, t = p + 1, t + 1
        elif star >= 0:
            p, back, t = star + 1, back + 1, back + 1
        else:
            return False, steps
    return not pattern[p:].strip("%"), steps


def _format_cell(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL else text[:MAX_CELL] + "…"
