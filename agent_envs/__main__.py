"""The environments from the command line: ``python -m agent_envs list|describe|play|check|baselines|serve|new|view|replay``."""

import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent_envs.registration import full_id
from retrieval_index.command_line import check_port, fail, run
from retrieval_index.printable import printable

_ID_HELP = 'Registered id, or its middle part: "MiniWiki". module:Mine/Name-v0 imports your module first.'
Id = Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=_ID_HELP, metavar="ID")]
_KWARGS_HELP = "Arguments of the environment as JSON, for example '{\"max_turns\": 3}'."
EnvKwargs = Annotated[str, tyro.conf.arg(help=_KWARGS_HELP)]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]


def list_environments() -> None:
    """Print the registered environments, one a line."""
    import inspect

    import gymnasium

    import agent_envs
    from agent_envs.registration import SEARCHES

    for id in agent_envs.IDS:
        module, _, name = str(gymnasium.spec(id).entry_point).partition(":")
        documented = (inspect.getdoc(getattr(importlib.import_module(module), name)) or "").split("\n")[0]
        about = SEARCHES.get(id.removeprefix("AgentR1/").removesuffix("-v0"), documented)
        print(f"{id:32} {about}")


def describe(id: Id, /, env_kwargs: EnvKwargs = "{}", script: str = "", seed: int = 0) -> None:
    """Print an environment as Markdown: its observations, actions and rewards, and an episode of a scripted agent.

    Args:
        script: name of the scripted agent. Default: the oracle, or the last script of a task without an oracle.
        seed: seed of the episode.
    """
    from agent_envs.utils.describe import page

    id, options = full_id(id), _parse_kwargs(env_kwargs)
    with _exit_on_user_error(id):
        text = page(id, options, script, seed)
    print(printable(text))


def play(id: Id, /, env_kwargs: EnvKwargs = "{}", script: str = "", seed: int | None = None) -> None:
    """Act as the agent: read the observation, type a turn, see its reward. An empty line prints example turns.

    python -m trainers.play shows an episode of a model.

    Args:
        script: scripted agent of the task that acts instead of you.
        seed: seed of the episode; random by default.
    """
    id, options = full_id(id), _parse_kwargs(env_kwargs)
    with _exit_on_user_error(id):
        from agent_envs.integrations.hosting import make
        from agent_envs.utils.scripts import find_script

        env = make(id, **options)
        _play(env, seed, find_script(env, script) if script else None)  # an unreachable judge gives one line, too


def check(id: Id, /, env_kwargs: EnvKwargs = "{}", steps: int = 200) -> None:
    """Check an environment against the contract of this suite (agent_envs.utils.checker).

    Args:
        steps: number of turns for fuzzing, and for each comparison.
    """
    from agent_envs.integrations.hosting import make_registered
    from agent_envs.utils.checker import CheckFailed, check_agent_env

    id, options = full_id(id), _parse_kwargs(env_kwargs)
    with _exit_on_user_error(id):
        env = make_registered(id, **options)
        assert env.spec is not None
        try:
            check_agent_env(env, steps)
        except CheckFailed as fault:
            raise SystemExit(f"{env.spec.id} breaks a promise: {fault}") from fault
    print(f"{env.spec.id} keeps its promises.")


def baselines(
    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = (), /, env_kwargs: EnvKwargs = "{}", episodes: int = 200,
    seed: int = 0, out: Path | None = None,
) -> None:  # fmt: skip
    """Print the scores of random, scripted and oracle agents on tasks, in one table.

    Args:
        ids: registered ids, or their middle parts. Default: all that can be made on this machine.
        episodes: episodes per agent, from the training split unless --env-kwargs sets '{"split": "validation"}'.
        seed: seed of the first episode.
        out: JSON file to write the rows to.
    """
    if episodes < 0:
        raise SystemExit(f"--episodes must be at least 0 (all of them), got {episodes}")
    if out and (out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK)):
        raise SystemExit(f"cannot write {out}: give a file in a folder that may be written to")
    from rich.progress import track

    import agent_envs
    from agent_envs.utils.baselines import run_baselines, table

    options, rows = _parse_kwargs(env_kwargs), list[dict[str, Any]]()
    for id in map(full_id, ids or agent_envs.IDS):
        try:
            with _exit_on_user_error(id):
                rows += run_baselines(id, episodes, seed, options, partial(track, description=id, transient=True))
        except SystemExit as reason:
            if ids:
                raise
            print(f"left out: {reason}")
    if not rows:
        raise SystemExit("none of the environments has scripted agents that could play it here")
    print(table(rows), "", sep="\n")
    for id, source in dict.fromkeys((row["id"], row["source"]) for row in rows):
        print(printable(f"{id.removeprefix('AgentR1/')}: {source}"))
    if out:
        out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def serve(
    id: Id, /, env_kwargs: EnvKwargs = "{}", host: str = "127.0.0.1", port: int = 8000, sessions: int = 128
) -> None:
    """Serve an environment to trainers on other machines, with OpenEnv's server (pip install -e '.[openenv]').

    Each client runs its own episodes: make GenericEnvClient(base_url="http://HOST:PORT"), then call
    reset(seed=3, split="train") and step({"text": "<search>a town</search>"}).

    Args:
        host: address to listen on; 0.0.0.0 admits other machines. There is no password.
        port: TCP port; 0 for any free one.
        sessions: maximum number of clients at the same time.
    """
    id, options = full_id(id), _parse_kwargs(env_kwargs)
    with _exit_on_user_error(id):
        if sessions < 1:
            raise ValueError(f"sessions must be at least 1, got {sessions}")
        check_port(port, host)
        from agent_envs.integrations.openenv import make_app

        app = make_app(id, sessions, **options)
    import uvicorn

    uvicorn.run(app, host=host, port=port)


def new(name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")], /) -> None:
    """Write the skeleton of a task: a folder with a small task to change, its tests and a training run.

    Args:
        name: name of the folder and its module, such as my_task.
    """
    from agent_envs.utils import skeleton

    with _exit_on_user_error():
        folder = skeleton.write(name, Path())
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    commands = (folder / "README.md").read_text(encoding="utf-8").split("```")[1].strip()
    print(f"{folder}: {files}\n\ncd {folder}\n{commands}")


def view(
    path: Folder, /, episode: str = "",
    filter: Literal["all", "right", "wrong", "invalid", "truncated", "failed"] = "all", grep: str = "",
    unfold: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:  # fmt: skip
    """Print the episodes of a run or of an evaluation as a list, or one of them as a conversation.

    Args:
        path: folder of a run, or its episodes.jsonl.
        episode: episode to print: its number in the file, or its key.
        filter: outcome of the episodes to print: right (full score), wrong, invalid (a malformed turn), truncated (out of turns)
            or failed (a tool failure).
        grep: text that the episodes must contain; case is ignored.
        unfold: print long results in full.
    """
    from agent_envs.utils import view

    with _exit_on_user_error():
        view.view(path, episode, filter, grep, unfold)


def replay(path: Folder, /, env_kwargs: EnvKwargs = "{}") -> None:
    """Replay the turns of recorded episodes in their environment, without a model, and print what changes.

    With the arguments of the run nothing may change, which checks determinism. Other arguments show the rewards that they would
    have given.

    Args:
        path: folder of a run, or its episodes.jsonl.
    """
    from agent_envs.utils.replay import report

    options = _parse_kwargs(env_kwargs)
    with _exit_on_user_error():
        report(path, options, lambda line: print(printable(line)))


@contextmanager
def _exit_on_user_error(id: str = "") -> Iterator[None]:
    """Exit with one line that names ``id``, without a traceback, at an error that the user can fix."""
    import gymnasium

    try:
        yield
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except (gymnasium.error.Error, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())
        raise SystemExit(message if id in message else f"{id}: {message}") from error


def _parse_kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise SystemExit(f"--env-kwargs is not valid JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise SystemExit(f"--env-kwargs must be a JSON object, such as '{{\"max_turns\": 3}}', got {text}")
    return kwargs


def _play(env, seed: int | None, script: Callable | None) -> None:
    from agent_envs.utils.scripts import read_reply

    observation, info = env.reset(seed=seed)
    print(printable(f"{info['instructions']}\n\n{observation}\n"))
    total, done = 0.0, False
    agent, reply = script(env, random.Random(f"script:{seed}")) if script else None, None
    while not done:
        try:
            action = env.format.write(agent.send(reply)) if agent else input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if agent:
            print(printable(f"> {action}"))
        elif not action.strip():
            print("A turn looks like one of these (Ctrl-D ends the game):", *env.action_space.phrases, sep="\n  ")
            continue
        observation, reward, terminated, truncated, info = env.step(action if agent else action.replace("\\n", "\n"))
        reply = read_reply(env, observation)
        total, done = total + reward, terminated or truncated
        terms = ", ".join(f"{name} {value:+.3g}" for name, value in info["reward_terms"].items() if value)
        print(f"{printable(observation)}\n[reward {reward:+.3g}{': ' + terms if terms else ''}]\n")
    shown = {name: value for name, value in info.items() if name not in ("reward_terms", "context")}
    print(f"{'Truncated' if truncated else 'Finished'} with {total:.3g}. {printable(str(shown))}")


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_environments, "describe": describe, "play": play, "check": check, "baselines": baselines, "serve": serve,
    "new": new, "view": view, "replay": replay,
}  # fmt: skip


def main() -> None:
    """Run the command that the command line gives; also the entry point of ``agent-envs``."""
    if os.getcwd() not in sys.path:  # as with `python -m`: my_module:Mine/Task-v0 is found in this folder
        sys.path.insert(0, os.getcwd())
    program = "python -m agent_envs"
    try:
        run(COMMANDS, program, sys.argv[1:])
    except KeyboardInterrupt:
        print(f"{program}: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except SystemExit as end:
        if isinstance(end.code, str):
            fail(f"{program} {sys.argv[1]}", end.code)
        raise


if __name__ == "__main__":
    main()
