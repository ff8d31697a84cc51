"""The trainer's commands under one name: ``agent-r1-train grpo …`` is ``python -m trainers.grpo …``."""

import ast
import os
import runpy
import sys
from pathlib import Path

COMMANDS = "grpo ppo rloo reinforce gigpo starpo sft play evaluate serve export export_episodes report".split()


def main() -> None:
    """Run the command that the first argument names; nothing heavy is imported before it is known.

    Raises:
        SystemExit: status 2, with a one-line message, if there is no such command.
    """
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help"):
        print(usage())
        return
    if command not in COMMANDS:
        print(f"agent-r1-train: unknown command {command!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        raise SystemExit(2)
    if os.getcwd() not in sys.path:  # as with `python -m`: --env my_module:Mine/Task-v0 is found in the current folder
        sys.path.insert(0, os.getcwd())
    sys.argv = [f"agent-r1-train {command}", *arguments]
    runpy.run_module(f"trainers.{command}", run_name="__main__", alter_sys=True)


def usage() -> str:
    """List the commands, each with the first line of its docstring, which is read without importing the file."""
    lines = ["usage: agent-r1-train COMMAND [OPTIONS]", ""]
    for command in COMMANDS:
        source = Path(__file__).with_name(f"{command}.py").read_text(encoding="utf-8")
        lines.append(f"  {command:<16}{(ast.get_docstring(ast.parse(source)) or '').partition(chr(10))[0]}")
    lines += ["", "agent-r1-train COMMAND --help explains the options; python -m trainers.COMMAND does the same."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
