"""Programs that act as agents: Python functions in threads, commands as processes.

def solve(task, client): ...    # client: openai.OpenAI of this episode; an async function gets AsyncOpenAI
node agent.js                   # OPENAI_BASE_URL and OPENAI_API_KEY; the task as JSON on stdin, its result on stdout
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from trainers.agents.task_file import find_function
from trainers.runtime import signals
from trainers.runtime.errors import UserError

if TYPE_CHECKING:
    import ssl

    from trainers.agents.client import Find
    from trainers.agents.tasks import Episode, Task

AT_ONCE = 64  # commands that run at once
MOST_OUTPUT = 2**20  # bytes of a command's result
LINGER = 2.0  # seconds for the children of an ended command to write their output
_FUNCTION = re.compile(r"[\w.]+:\w+")


class ProgramFailed(Exception):
    """A command ended without a result, as the message explains."""


class Function:
    """A user's function, "module:function"; the module may be in the working folder. The module's ``reward`` scores what the
    function returns, if the task has no other score.

    Attributes:
        find: returns the episode of a key, to which clients hand calls without HTTP; None if all calls go over HTTP.
    """

    def __init__(self, name: str):
        self._function = find_function(name)
        module = sys.modules[name.partition(":")[0]]
        try:
            code = inspect.unwrap(self._function.func if isinstance(self._function, partial) else self._function)
            code = code if inspect.isroutine(code) or inspect.isclass(code) else type(code).__call__
            parameters = inspect.signature(self._function).parameters.values()
            files = getattr(module, "__file__", None), inspect.getsourcefile(code)
        except (TypeError, ValueError) as error:
            raise UserError(f"{name} is no function of a Python file: {error}") from error
        self._takes_client = len([p for p in parameters if p.default is p.empty]) > 1
        rewards = (getattr(place, "reward", None) for place in (module, sys.modules[code.__module__]))
        self.reward = next(filter(callable, rewards), None)  # not a module of that name
        self.files = [file for file in dict.fromkeys(files) if file]
        self._is_async = inspect.iscoroutinefunction(code)
        self.find: Find | None = None

    def run(self, task: Task) -> Any:
        """Run the function on a task; return its result."""
        result = self._function(task, self._make_client(task)) if self._takes_client else self._function(task)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    def _make_client(self, task: Task) -> Any:
        import openai

        from trainers.agents.client import connect

        kind: Any = openai.AsyncOpenAI if self._is_async else openai.OpenAI
        http: Any = openai.DefaultAsyncHttpxClient if self._is_async else openai.DefaultHttpxClient
        options = {"base_url": task.base_url, "api_key": task.api_key, "max_retries": 0, "timeout": None}
        client = kind(**options, http_client=http(timeout=None, verify=_read_certificates()))
        if self.find:
            connect(client, self.find)
        return client

    def cancel(self, task: Task) -> None:
        """Do nothing, since a thread cannot be ended; its next call is refused."""


class Command:
    """A program in any language. When it ends, all processes of its group are ended."""

    reward: Callable[..., Any] | None = None

    def __init__(self, words: str):
        self._words = shlex.split(words)
        if not self._words or shutil.which(self._words[0]) is None:
            raise UserError(f"agent must be module:function or a command, and there is no command {words!r}")
        self._running: dict[str, subprocess.Popen] = {}
        self.files = self._words

    def run(self, task: Task) -> Any:
        """Run the command; return its printed object with a ``reward``, the ``answer`` of another object, or else the text."""
        environment = os.environ | {"OPENAI_BASE_URL": task.base_url, "OPENAI_API_KEY": task.api_key}
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
        ) as process:  # fmt: skip
            assert process.stdin and process.stdout
            self._running[task.api_key] = process
            signals.groups.add(process.pid)
            try:
                with suppress(BrokenPipeError), process.stdin as stdin:
                    stdin.write(json.dumps(task.described()).encode())
                output = _read_output(process, process.stdout.fileno())
                if len(output) > MOST_OUTPUT:
                    raise ProgramFailed(f"the command printed more than {MOST_OUTPUT:,} bytes")
                status = process.wait()
            finally:
                self.cancel(task)
                del self._running[task.api_key]
                signals.groups.discard(process.pid)
            if status:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - 5000))
                told = errors.read().decode("utf-8", "replace").strip()
                last = told.rpartition("\n")[2]
                raise ProgramFailed(f"the command ended with status {status}{': ' * bool(last)}{last}\n{told}")
        return _read_result(output.decode("utf-8", "replace").strip())

    def cancel(self, task: Task) -> None:
        """End the processes of a task."""
        if process := self._running.get(task.api_key):
            _kill(process)


Program = Function | Command


def run_program(program: Program, task: Task, episode: Episode) -> None:
    """Run a program to the end of its episode, whatever it raises."""
    try:
        episode.finish(program.run(task), program.reward)
    except ProgramFailed as error:
        episode.fail(str(error))
    except BaseException as error:  # a program may raise anything, even SystemExit
        episode.fail(_trace(error))


def load_program(agent: str) -> Program:
    """Load the program that ``--agent`` names. Raises UserError if there is none."""
    return Function(agent) if _FUNCTION.fullmatch(agent) else Command(agent)


def fingerprint(agent: str) -> str:
    """Compute a digest of a function's files, or of those that a command names. What these import is not included."""
    files = [Path(name) for name in load_program(agent).files]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


def _read_output(process: subprocess.Popen[bytes], file: int) -> bytes:
    """Read what a process prints, until its output is closed, or ``LINGER`` seconds after its end: its children may keep
    the output open, even in another group. Stops beyond `MOST_OUTPUT` bytes."""
    output, end = b"", math.inf
    with selectors.DefaultSelector() as printed:
        printed.register(file, selectors.EVENT_READ)
        while len(output) <= MOST_OUTPUT and time.monotonic() < end:
            if printed.select(timeout=0.05):
                part = os.read(file, 2**16)
                if not part:
                    break
                output += part
            if process.poll() is not None:
                end = min(end, time.monotonic() + LINGER)
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _trace(error: BaseException) -> str:
    """Describe a program's error in one line, followed by its traceback without the frames of this file."""
    innermost = error
    while isinstance(innermost, BaseExceptionGroup):
        innermost = innermost.exceptions[0]
    try:
        line = f"{type(innermost).__name__}: {str(innermost).strip().partition(chr(10))[0]}"
    except Exception:  # raised by its __str__
        line = type(innermost).__name__
    told = traceback.TracebackException.from_exception(error)
    frames = [
        (frame.filename, frame.lineno or 0, frame.name, None) for frame in told.stack if frame.filename != __file__
    ]
    told.stack = traceback.StackSummary.from_list(frames)
    return f"{line}\n{''.join(told.format())}"


@lru_cache(1)
def _read_certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # shared by all clients: making one takes 20 ms


def _read_result(output: str) -> Any:
    with suppress(ValueError, RecursionError):
        value = json.loads(output)
        if isinstance(value, dict) and {"answer", "reward"} & value.keys():
            return value["answer"] if "reward" not in value else value
    return output or None
