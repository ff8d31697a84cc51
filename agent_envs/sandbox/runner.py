"""Run untrusted code."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agent_envs.sandbox.probe import choose_backend
from agent_envs.sandbox.process import Completed, SandboxError, execute
from retrieval_index.verified_array import usable_cores

MAX_CODE = 1 << 20  # characters


def run(
    code: str,
    *,
    stdin: str = "",
    timeout: float = 5.0,
    memory_mb: int = 256,
    max_output: int = 20_000,
    backend: str = "auto",
) -> Completed:
    """Run a Python program in its own process, without the caller's files and network.

    The call ends half a second after ``timeout`` at the latest.

    Args:
        code: the source. It runs as ``main.py`` in an empty folder, with the standard library only.
        stdin: text of standard input.
        timeout: seconds of wall-clock time, including the start of the interpreter.
        memory_mb: MiB of address space.
        max_output: bytes kept of stdout and of stderr, each.
        backend: "auto" or "namespaces", or "unsafe": limits without isolation, never chosen by "auto".

    Raises:
        ValueError: for an argument out of range.
        SandboxError: the backend does not work here, or it failed; never because of what the code does.
    """
    _check(code, stdin, timeout, memory_mb, max_output)
    backend = choose_backend(backend)
    return execute(backend, code, stdin=stdin, timeout=timeout, memory_mb=memory_mb, max_output=max_output)


def run_batch(
    codes: Sequence[str], *, stdin: str | Sequence[str] = "", backend: str = "auto", **limits
) -> list[Completed | SandboxError | OSError]:
    """Run many programs, one per core at a time.

    ``stdin`` is one string for all programs, or a sequence with one for each. For the rest see `run`. Where the backend failed,
    the result is the error.
    """
    if isinstance(codes, str):
        raise ValueError("codes must be a sequence of programs, got one string; use run for a single one")
    inputs = [stdin] * len(codes) if isinstance(stdin, str) else list(stdin)
    if len(inputs) != len(codes):
        raise ValueError(f"one stdin for each of the {len(codes)} programs, got {len(inputs)}")
    backend = choose_backend(backend)

    def attempt(code: str, text: str) -> Completed | SandboxError | OSError:
        try:
            return run(code, stdin=text, backend=backend, **limits)
        except (SandboxError, OSError) as error:  # too many processes, perhaps
            return error

    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(attempt, codes, inputs))


def _check(code: str, stdin: str, timeout: float, memory_mb: int, max_output: int) -> None:
    for name, value in (("code", code), ("stdin", stdin)):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a str, got {type(value).__name__}")
    if len(code) > MAX_CODE:
        raise ValueError(f"code must be at most {MAX_CODE} characters long, got {len(code)}")
    if not (math.isfinite(timeout) and 0 < timeout <= 3600):
        raise ValueError(f"timeout must be between 0 and 3600 seconds, got {timeout}")
    if type(memory_mb) is not int or not 64 <= memory_mb <= 1 << 20:
        raise ValueError(
            f"memory_mb must be an integer from 64 to 1048576: Python itself needs about 30; got {memory_mb}"
        )
    if not 0 <= max_output <= 1 << 30:
        raise ValueError(f"max_output must be between 0 and 2**30 bytes, got {max_output}")
