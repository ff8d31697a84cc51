"""The command line of a trainer: its arguments in groups, with the docstrings of their fields as help.

Nothing here imports torch, so that ``--help`` and mistakes answer at once.
"""

import ast
import contextlib
import inspect
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import field, fields, make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn, TypeVar, get_origin

import tyro

from trainers import config, inputs
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

T = TypeVar("T")


def parse(defaults: T, description: str | None, command: str, words: Sequence[str] | None = None) -> T:
    """The arguments on the command line, checked. With --resume, what is not given is as it was in that run. After a mistake the
    process ends with status 2 and one line.

    Args:
        defaults: a dataclass; what is not given stays as it is there.
        description: the docstring of the command's module.
        command: its name, as in "python -m trainers.<command>".
        words: by default those of the process; then what they name is looked at, too (`trainers.inputs`, or
            ``check_inputs`` of the dataclass).
    """
    program, is_command = f"python -m trainers.{command}", words is None
    if is_command:
        sys.excepthook = partial(_report_end, program)
    words = sys.argv[1:] if words is None else list(words)
    for word in words:
        old = word.partition("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")
        if word.startswith("--") and old in config.RENAMED:
            new = config.RENAMED[old]
            _fail(program, f"--{old.replace('_', '-')} is now called --{new.replace('_', '-')}")
    try:
        resumed = _find_resumed(words) if hasattr(defaults, "resume") else None  # before the rest can be understood
        if resumed:
            from trainers.checkpoints import settings

            defaults = settings.restore(defaults, resumed)
        given = _fill_in(defaults, program, description, words)
        if resumed:
            settings.check_resumed(resumed, settings.settings(defaults), given)
        if is_command and os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks for all
            if isinstance(given, config.TrainArgs):
                inputs.check_trainer(given)
            elif hasattr(given, "check_inputs"):
                given.check_inputs()
        return given
    except ValueError as error:  # nothing is done yet but to look at what was asked for
        _fail(program, str(error))
    except (ImportError, OSError) as error:
        if not _is_for_user(error):
            raise
        _fail(program, str(error))


def _find_resumed(words: Sequence[str]) -> Path | None:
    """The folder that follows --resume, unless help is asked for."""
    if {"-h", "--help"} & set(words):
        return None
    for word, following in itertools.zip_longest(words, words[1:]):
        name, is_one_word, value = word.partition("=")
        if name == "--resume" and (value or (following and not is_one_word and not following.startswith("--"))):
            return Path(value or following)
    return None


def _fill_in(defaults: T, program: str, description: str | None, words: Sequence[str]) -> T:
    """``defaults`` with what the command line gives. An option that is repeated is given anew: it adds nothing to the default."""
    form = _build_form(defaults)
    text = (description or "").replace("``", "")
    with _in_one_line(program):
        given: Any = tyro.cli(form, prog=program, description=text, args=words, config=(tyro.conf.OmitArgPrefixes,))
    groups = [getattr(given, group.name) for group in fields(given)] if hasattr(defaults, "GROUP") else [given]
    values = {argument.name: getattr(group, argument.name) for group in groups for argument in fields(group)}
    appended = [argument.name for argument in fields(defaults) if _is_appended(argument.type)]  # type: ignore[arg-type]
    values = {name: value for name, value in values.items() if name not in appended or value}
    return replace(defaults, **values)  # type: ignore[type-var]


@contextlib.contextmanager
def _in_one_line(program: str) -> Iterator[None]:
    """What tyro says about a mistake, in one line: it draws a box."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        lines = [
            line.strip("│╭╮╰╯─ ") for line in said.getvalue().splitlines()[1:]
        ]  # a rule between parts is left empty
        parts = [" ".join(part) for empty, part in itertools.groupby(lines, key=lambda line: not line) if not empty]
        told = [part.rstrip(".") for part in parts if not part.startswith("For full helptext")]
        _fail(program, f"{'; '.join(told)}. --help explains all options")


def _is_appended(kind: Any) -> bool:
    return get_origin(kind) is Annotated and tyro.conf.UseAppendAction in kind.__metadata__


def _report_end(program: str, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """End a command: what its user can do something about is one line, and a fault of this package keeps its traceback."""
    if _is_for_user(error):
        _fail(program, str(error))
    if issubclass(kind, KeyboardInterrupt):
        print(f"{program}: stopped", file=sys.stderr)
    elif issubclass(kind, TrainingStopped) or _find_write_failure(error):
        print(f"{program}: {_join_lines(str(error))}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _is_for_user(error: BaseException) -> bool:
    """Whether an error was written for the user. What the system or Python's import raises has a number or a name."""
    if isinstance(error, OSError):
        return error.errno is None
    return isinstance(error, UserError) or (isinstance(error, ImportError) and error.name is None)


def _join_lines(text: str) -> str:
    """A message in one line; what is listed below one another is then in a row."""
    first, *rest = (line.strip().removeprefix("- ") for line in text.strip().splitlines() or [""])
    return " ".join([first, "; ".join(filter(None, rest))]).strip()


def _find_write_failure(error: BaseException) -> str | None:
    from retrieval_index.durable import (
        find_write_failure,  # here: the package takes its time, and most commands end well
    )

    return find_write_failure(error)


def _fail(program: str, message: str) -> NoReturn:
    print(f"{program}: {_join_lines(message)}", file=sys.stderr)
    raise SystemExit(2)


def _build_form(defaults: Any) -> type:
    """What tyro shows and fills in: a dataclass with the arguments and their help. Those of a trainer are in groups, each a
    dataclass in a field of its own."""
    groups: dict[str, list] = {}
    for argument in fields(defaults):
        owner = next(c for c in reversed(type(defaults).__mro__) if argument.name in getattr(c, "__annotations__", {}))
        texts = (_read_help(c).get(argument.name) for c in type(defaults).__mro__ if c is not object)
        help = tyro.conf.arg(help=next(filter(None, texts), ""))
        default = () if _is_appended(argument.type) else getattr(defaults, argument.name)
        entry = (argument.name, Annotated[argument.type, help], field(default=default))
        groups.setdefault(vars(owner).get("GROUP", "algorithm"), []).append(entry)
    if not hasattr(defaults, "GROUP"):
        return make_dataclass("Arguments", groups["algorithm"], kw_only=True)
    made = {name: make_dataclass(name, entries, kw_only=True) for name, entries in groups.items()}
    for group in made.values():
        group.__doc__ = ""  # or tyro shows the signature
    return make_dataclass("Arguments", [(name, group, field(default_factory=group)) for name, group in made.items()])


@cache
def _read_help(owner: type) -> dict[str, str]:
    """By name, the docstrings under the fields of a class, each in one line; none where there is no source to read."""
    found: dict[str, str] = {}
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, TypeError):
        return found
    for statement, following in itertools.pairwise(definition.body):  # type: ignore[attr-defined]
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found
