"""Checks of arguments against the JSON schema of a tool; neither is trusted.

A schema is compiled with its tool, and refused if it cannot be used. References stay inside it, patterns run in a linear-time
engine (Rust's, from pydantic), and the work of a check is bounded.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any
from urllib.parse import unquote

MAX_SCHEMA = 100_000  # characters of a schema as JSON
MAX_PATTERNS = 50  # of up to 1,000 characters each: compiling one takes half a second at worst
MAX_STEPS = 20_000  # schemas and values visited in one check, about 0.1 s; a reference counts as ten
_ERRORS = 50  # errors to collect, of which the agent is told the first by place

_LEAVES = frozenset(
    "type enum const required format pattern multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength "
    "minItems maxItems minProperties maxProperties".split()
)  # keywords that do not go into a value; each is at most once in an object of a schema
_VALUES = frozenset(("const", "enum", "default", "examples"))
_NAMED = frozenset(("properties", "$defs", "definitions", "dependentSchemas", "dependencies"))
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_ENCODER = json.JSONEncoder(allow_nan=False, sort_keys=True)

Check = Callable[[Any], str | None]


class _TooMuchWork(Exception):
    pass


def compile_parameters(parameters: Mapping[str, Any]) -> Check:
    """Return the check of a tool's arguments, which returns the problem in words for the agent, or None if they fit.

    Equal schemas are compiled once.

    Raises:
        ValueError: the schema cannot be used; the message gives the reason.
    """
    try:
        text = _ENCODER.encode(parameters)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema has no JSON form: {error}") from None
    return _compile(text)


@lru_cache(maxsize=1024)
def _compile(text: str) -> Check:
    import jsonschema
    from referencing.jsonschema import EMPTY_REGISTRY  # jsonschema's own would fetch other documents from the network

    if len(text) > MAX_SCHEMA:
        raise ValueError(f"the schema has {len(text):,} characters, {MAX_SCHEMA:,} at most")
    schema = json.loads(text)
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ValueError("the schema of a tool's arguments is an object, and so are its properties")
    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        patterns = _compile_patterns(schema)
        for part in (schema, *_find_referred(schema)):  # an unknown keyword may hold one
            kind.check_schema(part, format_checker=jsonschema.FormatChecker(()))  # the default uses Python's regexes
        check = partial(_find_problem, _bounded(kind, patterns)(schema, registry=EMPTY_REGISTRY))
        for arguments in ({}, dict.fromkeys(schema.get("properties", {}), "the first town")):
            check(arguments, strict=True)
    except jsonschema.SchemaError as error:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise ValueError(f"the schema{place} is wrong: {error.message[:300]}") from None
    except RecursionError:
        raise ValueError("the schema is nested too deeply, or its references go round in circles") from None
    except _TooMuchWork:
        raise ValueError("the schema is so tangled that a check of arguments would take too long") from None
    except ValueError:
        raise
    except Exception as error:  # the library may raise anything for an untrusted schema
        raise ValueError(f"the schema cannot be used: {type(error).__name__}: {error}"[:300]) from None
    return check


def one_text(name: str) -> dict[str, Any]:
    """The schema of a tool that takes one argument, a string."""
    properties = {name: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


# -- what a schema may hold --------------------------------------------------------------------------------------------


def _parts(schema: Any, named: bool = False) -> Iterator[dict[str, Any]]:
    """Iterate over the objects in a schema that are schemas. ``named``: its keys are names of properties or definitions."""
    if isinstance(schema, dict):
        if not named:
            yield schema
        for key, part in schema.items():
            if named or key not in _VALUES:
                yield from _parts(part, not named and key in _NAMED)
    elif isinstance(schema, list):
        for part in schema:
            yield from _parts(part)


def _compile_patterns(schema: dict[str, Any]) -> dict[str, Callable[[str], bool]]:
    parts = list(_parts(schema))
    if any("patternProperties" in part for part in parts):  # the library matches names by Python's engine
        raise ValueError("the schema has patternProperties, which are not supported: name the properties")
    found = {part["pattern"] for part in parts if isinstance(part.get("pattern"), str)}
    if len(found) > MAX_PATTERNS:
        raise ValueError(f"the schema has {len(found)} patterns, {MAX_PATTERNS} at most")
    return {pattern: _linear(pattern) for pattern in sorted(found)}


def _linear(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text contains the pattern, in time linear in the text."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if len(pattern) > 1000:
        raise ValueError(f"the schema has a pattern of {len(pattern):,} characters, 1,000 at most")
    try:
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        reason = str(error).strip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
        raise ValueError(f"the schema has the pattern {pattern[:100]!r}, which cannot be used: {reason}") from None
    return engine.isinstance_python


def _find_referred(schema: dict[str, Any]) -> Iterator[Any]:
    """Iterate over the targets of a schema's references. Raises ValueError if one is not a schema inside it."""
    parts = list(_parts(schema))
    schemas = {id(part) for part in parts}
    for part in parts:
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError("the schema has an $id inside it; references go to #/... of the whole")
        for keyword in _REFERENCES:
            reference = part.get(keyword)
            if not isinstance(reference, str):
                continue
            place = look_up(reference, schema)
            if place is None:
                raise ValueError(f"the schema refers to {reference[:100]!r}; references must be to #/... inside it")
            if not isinstance(place, bool) and id(place) not in schemas:  # it was not checked
                raise ValueError(f"the schema refers to {reference[:100]!r}, which is not a schema there")
            yield place


def look_up(reference: str, schema: dict[str, Any]) -> Any:
    """Resolve a reference inside a schema; None if it leads nowhere."""
    place: Any = schema
    if reference != "#" and not reference.startswith("#/"):
        return None
    for name in unquote(reference).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list):
            place = dict(enumerate(place)).get(int(name) if name.isdecimal() else -1)
        else:
            place = place.get(name) if isinstance(place, dict) else None
    return place


# -- a check -----------------------------------------------------------------------------------------------------------

_work = threading.local()


def _find_problem(validator: Any, arguments: Any, strict: bool = False) -> str | None:
    """Tell the agent what is wrong with the arguments; None if they fit. ``strict``: raise if they cannot be checked."""
    _work.left = MAX_STEPS
    try:
        errors = list(islice(validator.iter_errors(arguments), _ERRORS))
        if not errors:
            return None
        first = min(errors, key=lambda error: list(map(str, error.path)))
        place = "".join(f"[{part!r}]" for part in first.absolute_path)
        return f"the arguments{place} do not fit: {first.message[:300]}."
    except Exception as error:
        if strict:
            raise
        if isinstance(error, RecursionError | _TooMuchWork):
            return f"the arguments are {'nested too deeply' if isinstance(error, RecursionError) else 'too large'}."
        # Numbers such as NaN, or too long to be shown.
        return f"the arguments cannot be checked: {error}."[:300]


def _bounded(kind: Any, patterns: Mapping[str, Callable[[str], bool]]) -> Any:
    """Extend a class of validators by a bound on the work of a check, and by these compiled patterns."""
    import jsonschema

    def check_pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not patterns[pattern](value):
            yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")

    checks = {**kind.VALIDATORS, "pattern": check_pattern}
    counted = {name: check if name in _LEAVES else _counted(name, check) for name, check in checks.items()}
    return jsonschema.validators.extend(kind, counted)


def _counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
    steps, unique = 10 if name in _REFERENCES else 1, name == "uniqueItems"

    def counted(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
        count = len(value) if isinstance(value, list | dict) else 0
        if unique and isinstance(value, list) and not all(isinstance(item, str) for item in value):
            count = count**2 // 50  # each is compared with each
        _work.left -= steps + count
        if _work.left < 0:
            raise _TooMuchWork
        return check(validator, keyword, value, schema)

    return counted
