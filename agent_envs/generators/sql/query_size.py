"""An upper bound of the size of a query after SQLite has expanded it.

Common table expressions are copied wherever they are named, and expressions of subqueries wherever their columns are: a
query of a thousand characters can take gigabytes before it runs, and neither a limit of SQLite nor an interrupt stops
that. So the size is estimated beforehand, from above.
"""

import re
from collections import Counter
from collections.abc import Iterator

TOO_LARGE = 1_000_000  # no estimate goes beyond
_DEEPEST = 60  # parentheses within parentheses; SQLite's parser gives up at fewer
# Comments; names in the four kinds of quotes that SQLite takes, strings being one of them; words; parentheses.
_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z) | '((?:[^']|'')*)(?:'|\Z) | "((?:[^"]|"")*)(?:"|\Z) | `([^`]*)(?:`|\Z) | \[([^\]]*)(?:\]|\Z)
    | (\w+) | ([()])""",
    re.DOTALL | re.VERBOSE,
)
_TABLES = {"select", "values"}  # one of these stands in everything that makes a table
Group = list  # of words and, for what stands in parentheses, groups


def expanded_size(sql: str) -> int:
    """An upper bound, in words, of a query with all its copies; `TOO_LARGE` where it is that or more, and where a WITH
    stands in parentheses, whose bound is not worth the trouble."""
    query = _parse_groups(sql)
    if query is None or any(_definitions(group) for group in _nested_groups(query)):
        return TOO_LARGE
    bodies = _definitions(query)
    tables = dict.fromkeys(bodies, 1)
    for _ in bodies:  # one may name another that is defined after it, so there can be as many rounds as there are
        before = dict(tables)
        for name, body in bodies.items():
            tables[name] = _size(body, {**tables, name: 1})
        if tables == before or max(tables.values()) >= TOO_LARGE:
            break
    return _size(query, tables)


def _parse_groups(sql: str) -> Group | None:
    """What stands in parentheses, as groups in groups; None if they are too deep."""
    stack: list[Group] = [[]]
    for token in _TOKEN.finditer(sql):
        *names, bracket = token.groups()
        if len(stack) > _DEEPEST:
            return None
        if bracket == "(":
            stack.append([])
            stack[-2].append(stack[-1])
        elif bracket == ")" and len(stack) > 1:
            stack.pop()
        elif word := next(filter(None, names), None):
            stack[-1].append(word.lower())
    return stack[0]


def _iter_words(group: Group) -> Iterator[str]:
    for part in group:
        if isinstance(part, str):
            yield part
        else:
            yield from _iter_words(part)


def _nested_groups(group: Group) -> Iterator[Group]:
    for part in group:
        if not isinstance(part, str):
            yield part
            yield from _nested_groups(part)


def _size(group: Group, tables: dict[str, int]) -> int:
    """``tables``: sizes of the common table expressions that may be named here."""
    copies = sum(tables.get(part, 0) for part in group if isinstance(part, str))
    inner = 0
    for part in group:
        if not isinstance(part, str):
            size = _size(part, tables)
            inner, copies = (inner, copies + size) if _TABLES & set(_iter_words(part)) else (inner + size, copies)
    most = max(Counter(_iter_words(group)).values(), default=1)  # how often at most anything is named here
    return min(TOO_LARGE, len(group) + inner + most * copies)


def _definitions(group: Group) -> dict[str, Group]:
    """``name AS (…)``, with or without columns and MATERIALIZED, anywhere in the group."""
    found: dict[str, Group] = {}
    for i, part in enumerate(group):
        if isinstance(part, str) or not _TABLES & set(_iter_words(part)):
            continue
        before = group[max(0, i - 6) : i]
        while before and before[-1] in ("not", "materialized"):
            before.pop()
        if before and before.pop() == "as":
            names = [word for word in before if isinstance(word, str)]
            if names:
                found[names[-1]] = part
    return found
