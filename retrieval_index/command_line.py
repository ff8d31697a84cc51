"""Common parts of the command lines: subcommands, one-line errors, and a check of the port."""

import contextlib
import functools
import io
import itertools
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import tyro

_show_warning = warnings.showwarning
_MORE = "Got errors", "Argument helptext", "For full helptext"  # parts of tyro's errors
_told: set[str] = set()  # warnings already printed


@contextlib.contextmanager
def end_at_a_closed_pipe() -> Iterator[None]:
    """End quietly when the reader of the output closes the pipe, as in ``| head``."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # Python flushes once more at exit: discard that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def shorten_warnings() -> None:
    """Print each user warning only once, as one line, without its place in the code."""
    warnings.showwarning = _show_once


def _show_once(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    if category is not UserWarning:
        _show_warning(message, category, *place, **options)
    elif str(message) not in _told:
        _told.add(str(message))
        print(f"Warning: {message}", file=sys.stderr, flush=True)


@end_at_a_closed_pipe()
def run(commands: Mapping[str, Callable[..., Any]], program: str, words: Sequence[str], description: str = "") -> Any:
    """Run the command that the first word names. Wrong arguments end the process, see `fail`."""
    shorten_warnings()
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        tyro.extras.subcommand_cli_from_dict(
            dict(commands), prog=program, description=description or None, args=["--help"]
        )
    if name not in commands:
        fail(program, f"there is no command {name!r}; there are {', '.join(commands)}")
    command = commands[name]

    @functools.wraps(command)
    def fill_in(*arguments: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(command, *arguments, **options)

    with in_one_line(f"{program} {name}"):
        filled_in = tyro.cli(fill_in, prog=f"{program} {name}", args=list(words[1:]))
    return filled_in()


@contextlib.contextmanager
def in_one_line(program: str) -> Iterator[None]:
    """Print tyro's error in one line, instead of in a box."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        lines = [line.strip("│╭╮╰╯─|+ ") for line in output.getvalue().splitlines()[1:]]
        lines = [line if line.strip("-") else "" for line in lines]  # a horizontal rule in ASCII
        parts = [" ".join(part) for empty, part in itertools.groupby(lines, key=lambda line: not line) if not empty]
        mistakes = [part.rstrip(".") for part in parts if not part.startswith(_MORE)]
        fail(program, f"{'; '.join(mistakes)}. --help explains the options")


def fail(program: str, message: str) -> NoReturn:
    """End the process with status 2, after one line on standard error with the reason."""
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(2)


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise a ValueError if a server cannot listen at a port. Call it before a model is loaded for the server."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port must be 0 (any that is free) to 65535, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ValueError(f"cannot listen at {host}:{port} ({error.strerror}): give another --port") from error
