"""Start many commands, each in a fork of one process, which has imported what they share: ``start_commands.py FOLDER MODULES``.

Reads a list of lists of words from stdin, a module's name and its arguments. Prints a list of what came of each: its exit
``status``, what it ``said``, and whether torch was ``loaded``.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile

from trainers import cli, config


def run(words: list[str]) -> int:
    sys.argv = words
    try:
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
    except SystemExit as end:
        if isinstance(end.code, str):  # as Python itself does
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def start(words: list[str]) -> dict:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))  # those of pytest go elsewhere
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            signal.alarm(100)
            status = run(words)
            print("torch" in sys.modules, flush=True)
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        text, _, loaded = said.read().decode().rstrip("\n").rpartition("\n")
        return {"status": status, "said": text, "loaded": loaded == "True"}


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    sys.path[:1] = [sys.argv[1]]
    for module in sys.argv[2:]:
        importlib.import_module(module)
    cli.parse(config.TrainArgs(), "", "warm", [])  # reads the docstrings of options for all
    gc.freeze()
    print(json.dumps([start(words) for words in json.load(sys.stdin)]))
