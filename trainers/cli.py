"""The command line of a trainer: options with their docstrings as help, configuration files, and one-line errors.

Nothing here imports torch, so that ``--help`` and errors appear at once.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn, TypeVar, get_origin, get_type_hints

import tyro
from docstring_parser import parse_from_object

from trainers import config, inputs
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

T = TypeVar("T")


def parse(defaults: T, description: str | None, command: str, words: Sequence[str] | None = None) -> T:
    """Read and check the arguments of a command, which override those of --resume and --config.

    An error ends the process with status 2. ``command``: the name in "python -m trainers.<command>", or a whole module name.
    ``words``: the words after it. By default they are those of the process, and `trainers.inputs` or ``check_inputs`` also checks
    the files, models and packages that they name.
    """
    program = f"python -m {command if '.' in command else f'trainers.{command}'}"
    is_command = words is None
    if is_command:
        from retrieval_index.command_line import shorten_warnings  # here: importing its package takes time

        sys.excepthook = partial(_report_end, program)
        shorten_warnings()
    words = sys.argv[1:] if words is None else list(words)
    try:
        restored = _restore(defaults, words, command)
        given = _fill_in(restored, program, description, words)
        if resumed := getattr(given, "resume", None):
            from trainers.checkpoints import settings

            settings.check_resumed(resumed, settings.settings(restored), given)
        if is_command and os.environ.get("RANK", "0") == "0":  # under torchrun, only the first process checks
            if isinstance(given, config.TrainArgs):
                inputs.check_trainer(given)
            elif hasattr(given, "check_inputs"):
                given.check_inputs()
        return given
    except ValueError as error:  # only arguments were read so far, so it is about them
        _fail(program, str(error))
    except (ImportError, OSError) as error:
        if not _is_for_user(error):
            raise
        _fail(program, str(error))


def _restore(defaults: T, words: Sequence[str], command: str) -> T:
    """Return ``defaults`` with the arguments of --resume and --config; unchanged if help is requested."""
    if {"-h", "--help", "--help-all"} & set(words):
        return defaults
    if hasattr(defaults, "resume") and (run := _find_value("--resume", words)):
        from trainers.checkpoints import settings

        defaults = settings.restore(defaults, Path(run))
    if hasattr(defaults, "config") and (name := _find_value("--config", words)):
        defaults = copy(defaults)
        for key, value in config.read_config(name, defaults, command.split()[0]).items():
            setattr(defaults, key, value)  # unchecked: options may still change them
    return defaults


def _find_value(option: str, words: Sequence[str]) -> str:
    """Find the value of one option, before the others can be parsed."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument(option, dest="value", nargs="?", default="", const="")
    return reader.parse_known_args(words)[0].value


def _fill_in(defaults: T, program: str, description: str | None, words: Sequence[str]) -> T:
    """Return ``defaults`` with the values of the command line. The values of a repeatable option replace its default."""
    in_configs = set(config.select_options(defaults, "config"))
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")
        if word.startswith("--") and name in in_configs:
            raise UserError(f"{name} is a key of a configuration file, and no option: --config FILE.toml")
    shows_all = not {"-h", "--help"} & set(words)  # tyro takes no option that it does not show
    words = ["--help"] if "--help-all" in words else words
    form = _build_form(defaults, shows_all)
    appended = [f.name for f in fields(defaults) if _is_appended(f.type)]  # type: ignore[arg-type]
    start = form(**{f.name: () if f.name in appended else getattr(defaults, f.name) for f in fields(defaults)})  # type: ignore[arg-type]
    from retrieval_index.command_line import in_one_line  # here: importing its package takes time

    with in_one_line(program):
        given: Any = tyro.cli(
            form, default=start, prog=program, description=_describe(defaults, description, shows_all), args=words
        )
    values = {f.name: getattr(given, f.name) for f in fields(given)}
    return replace(defaults, **{n: v for n, v in values.items() if n not in appended or v})  # type: ignore[type-var]


def _build_form(defaults: Any, shows_all: bool) -> type:
    """Build the dataclass that tyro fills in: a subclass with help texts and hidden options, and without the checks."""
    kind, texts = type(defaults), dict[str, str]()
    for owner in reversed(kind.__mro__[:-1]):  # the last class that declares an argument explains it
        texts |= _read_docstrings(owner)
    markers = {f.name: [tyro.conf.arg(help=texts.get(f.name, ""))] for f in fields(defaults)}
    for name in config.select_options(defaults, "config"):
        markers[name] += [tyro.conf.Suppress, tyro.conf.Fixed]
    for name in () if shows_all else config.select_options(defaults, "advanced"):
        markers[name] += [tyro.conf.Suppress]
    hints = get_type_hints(kind, include_extras=True)
    marked = {name: Annotated[(hints[name], *marks)] for name, marks in markers.items()}
    members = {"__annotations__": marked, "__module__": kind.__module__, "__post_init__": lambda self: None}
    return dataclass(kw_only=True)(type(kind.__name__, (kind,), members))


@cache
def _read_docstrings(owner: type) -> dict[str, str]:
    """The docstring of each argument that a class declares."""
    return {p.arg_name: " ".join((p.description or "").split()) for p in parse_from_object(owner).params}


def _describe(defaults: Any, description: str | None, shows_all: bool) -> str:
    """Write the text of the help above the options."""
    text = (description or "").replace("``", "").strip()
    in_configs = config.select_options(defaults, "config")
    if not shows_all:
        return text + ("\n\n--help-all lists all options." if config.select_options(defaults, "advanced") else "")
    if in_configs:
        text += f"\n\nSet by a --config file only: {', '.join(in_configs)}."
    if hasattr(defaults, "resume"):
        changeable = config.mutable_on_resume(defaults) - {"out", "resume"}  # which name the run
        text += f"\n\nMay change on --resume: {', '.join(sorted(changeable))}."
    return "\n".join(textwrap.fill(line, 110) if len(line) > 130 else line for line in text.splitlines())


def _is_appended(kind: Any) -> bool:
    return get_origin(kind) is Annotated and tyro.conf.UseAppendAction in kind.__metadata__


def _report_end(program: str, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print one line for what needs no traceback: an interruption, a run that cannot continue, bad input, a full disk."""
    from retrieval_index.durable import find_write_failure  # here: importing its package takes time

    if _is_for_user(error):
        _fail(program, str(error))
    if issubclass(kind, KeyboardInterrupt):
        print(f"{program}: stopped", file=sys.stderr)
    elif issubclass(kind, TrainingStopped) or find_write_failure(error):
        print(f"{program}: {_join_lines(str(error))}", file=sys.stderr)
    elif _is_out_of_memory(error):
        advice = _SMALLER.get(program.rpartition(".")[2], _SMALLER[""])
        print(f"{program}: out of memory ({str(error).strip().partition(chr(10))[0][:120]}): {advice}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


_SMALLER = {  # how to use less memory, by command
    "": "try a lower --max-tokens-per-micro-batch, --gradient-checkpointing, --dtype bfloat16 or --lora-rank 32",
    "evaluate": "try a lower --num-envs, --max-new-tokens or --samples, or --dtype bfloat16",
}


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether the CPU or the GPU is out of memory. On a CPU, PyTorch raises a RuntimeError, recognised by its text."""
    told = isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))
    return isinstance(error, MemoryError) or told


def _is_for_user(error: BaseException) -> bool:
    """Whether an error was written for the user. Errors of the system have an errno, and those of Python's import a name."""
    if isinstance(error, OSError):
        return error.errno is None
    return isinstance(error, UserError) or (isinstance(error, ImportError) and error.name is None)


def _join_lines(text: str) -> str:
    """Join a message into one line, with semicolons between the items of a list."""
    first, *rest = (line.strip().removeprefix("- ") for line in text.strip().splitlines() or [""])
    return " ".join([first, "; ".join(filter(None, rest))]).strip()


def _fail(program: str, message: str) -> NoReturn:
    print(f"{program}: {_join_lines(message)}", file=sys.stderr)
    raise SystemExit(2)
