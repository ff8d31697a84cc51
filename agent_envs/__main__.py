"""The environments from the command line: ``python -m agent_envs list|describe|play|check|baselines|serve|new|view``."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent_envs.registration import full_id
from retrieval_index.printable import printable

Id = Annotated[str, tyro.conf.Positional]
_KWARGS_HELP = "Arguments of the environment as JSON, for example '{\"max_turns\": 3}'."
Kwargs = Annotated[str, tyro.conf.arg(help=_KWARGS_HELP)]


@dataclass
class List:
    """The registered environments, one a line."""


@dataclass
class Describe:
    """What an agent sees, may do and earns, and an episode played by a script, as Markdown."""

    id: Id
    """Registered id, or its middle part: "MiniWiki" for AgentR1/MiniWiki-v0."""
    kwargs: Kwargs = "{}"
    script: str = "oracle"
    """Who plays the episode: oracle, scripted or random, where the task has one."""
    seed: int = 0
    """Which episode."""


@dataclass
class Play:
    """Be the agent: read the observation, type a turn, see what it earns. An empty line shows how turns look."""

    id: Id
    """Registered id, or its middle part."""
    kwargs: Kwargs = "{}"
    seed: int | None = None
    """Which episode; a random one by default."""
    agent: str = ""
    """Watch this model play instead: a checkpoint, a folder, a GGUF file or a hub id. For more options, python -m
    trainers.play."""
    base_model: str = ""
    """Where the base of an adapter among --agent is, if not where the adapter says."""


@dataclass
class Check:
    """Check that an environment keeps the promises of this suite (agent_envs.utils.checker)."""

    id: Id
    """Registered id; module:AgentR1/Name-v0 imports a module of your own first."""
    kwargs: Kwargs = "{}"
    steps: int = 200
    """Turns of fuzzing, and of each comparison."""


@dataclass
class Baselines:
    """Random, scripted and all-knowing agents on tasks, in one table."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Registered ids, or their middle parts; by default all of them that can be made here."""
    kwargs: Kwargs = "{}"
    episodes: int = 200
    """How many each agent plays; of the training split, unless --kwargs says '{"split": "validation"}'."""
    seed: int = 0
    """Of the first episode."""
    out: Path | None = None
    """A JSON file for the rows."""


@dataclass
class Serve:
    """Serve an environment to trainers elsewhere; each client plays episodes of its own."""

    id: Id
    """Registered id, or its middle part; module:Mine/Name-v0 imports a module of your own first."""
    openenv: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """By OpenEnv's server (pip install 'agent-r1-envs[openenv]'): GenericEnvClient(base_url="http://HOST:PORT"), then
    reset(seed=3, split="train") and step({"text": "<search>a town</search>"})."""
    kwargs: Kwargs = "{}"
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in. There is no password."""
    port: int = 8000
    sessions: int = 128
    """So many clients may play at once."""


@dataclass
class New:
    """Begin a task of your own: a folder with a small one that is tested and trains, to write over."""

    name: Annotated[str, tyro.conf.Positional]
    """Of the folder and its module, such as my_task."""


@dataclass
class View:
    """Print what agents did: the episodes of a run or of an evaluation as a list, or one of them as a conversation."""

    path: Annotated[Path, tyro.conf.Positional]
    """The folder of a run, or its episodes.jsonl."""
    episode: str = ""
    """Print this one: its number in the file, or its key."""
    filter: Literal["all", "right", "wrong", "invalid", "truncated", "failed"] = "all"
    """Only episodes with this outcome: right has the full score, invalid a turn that could not be read, truncated ran out of
    turns, failed had a broken tool."""
    grep: str = ""
    """Only episodes that hold this text anywhere, in either case."""
    unfold: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show long results whole."""


def main() -> None:
    """Run the command that the command line gives; also the entry point of ``agent-envs``."""
    command = tyro.cli(List | Describe | Play | Check | Baselines | Serve | New | View, prog="python -m agent_envs")
    if os.getcwd() not in sys.path:  # as with `python -m`: my_module:Mine/Task-v0 finds a module beside the user
        sys.path.insert(0, os.getcwd())
    if isinstance(command, New):
        _new(command.name)
        return
    if isinstance(command, View):
        _view(command)
        return
    import agent_envs

    if isinstance(command, List):
        _list(agent_envs.IDS)
        return
    kwargs = _parse_kwargs(command.kwargs)
    if isinstance(command, Baselines):
        _baselines(command, kwargs)
        return
    from agent_envs.integrations.hosting import make, make_registered

    id = full_id(command.id)
    if isinstance(command, Play) and command.agent:
        _watch(id, command)
        return
    if isinstance(command, Serve):
        _serve(id, command, kwargs)
        return
    if isinstance(command, Describe):
        from agent_envs.utils.describe import page

        with _exit_on_user_error(id):
            text = page(id, kwargs, command.script, command.seed)
        print(printable(text))
        return
    with _exit_on_user_error(id):
        if isinstance(command, Play):
            _play(make(id, **kwargs), command.seed)  # a judge that does not answer is said in a line, too
            return
        env = make_registered(id, **kwargs)
    _check(env, command.steps)


@contextmanager
def _exit_on_user_error(id: str) -> Iterator[None]:
    """Errors that the user can fix are reported in one line, without a traceback."""
    import gymnasium

    try:
        yield
    except (gymnasium.error.Error, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise SystemExit(said if id in said else f"{id}: {said}") from error


def _parse_kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise SystemExit(f"--kwargs is not valid JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise SystemExit(f"--kwargs must be a JSON object, got {text}")
    return kwargs


def _new(name: str) -> None:
    from agent_envs.utils import skeleton

    try:
        folder = skeleton.write(name, Path())
    except (ValueError, OSError) as error:
        raise SystemExit(f"new: {error}") from error
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    commands = (folder / "README.md").read_text(encoding="utf-8").split("```")[1].strip()
    print(f"{folder}: {files}\n\ncd {folder}\n{commands}")


def _view(command: View) -> None:
    from agent_envs.utils import view

    try:
        view.view(command.path, command.episode, command.filter, command.grep, command.unfold)
        sys.stdout.flush()
    except BrokenPipeError:  # of `| head`; what Python flushes at its end goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        raise SystemExit(f"view: {error}") from error


def _list(ids: tuple[str, ...]) -> None:
    import importlib
    import inspect

    import gymnasium

    for id in ids:
        module, _, name = str(gymnasium.spec(id).entry_point).partition(":")
        about = (inspect.getdoc(getattr(importlib.import_module(module), name)) or "").split("\n")[0]
        print(f"{id:32} {about}")


def _check(env, steps: int) -> None:
    from agent_envs.utils.checker import CheckFailed, check_agent_env

    with _exit_on_user_error(env.spec.id):
        try:
            check_agent_env(env, steps)
        except CheckFailed as fault:
            raise SystemExit(f"{env.spec.id} breaks a promise: {fault}") from fault
    print(f"{env.spec.id} keeps its promises.")


def _play(env, seed: int | None) -> None:
    observation, info = env.reset(seed=seed)
    print(printable(f"{info['instructions']}\n\n{observation}\n"))
    total, done = 0.0, False
    while not done:
        try:
            action = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not action.strip():
            print("A turn looks like one of these (Ctrl-D ends the game):", *env.action_space.phrases, sep="\n  ")
            continue
        observation, reward, terminated, truncated, info = env.step(action.replace("\\n", "\n"))
        total, done = total + reward, terminated or truncated
        terms = ", ".join(f"{name} {value:+.3g}" for name, value in info["reward_terms"].items() if value)
        print(f"{printable(observation)}\n[reward {reward:+.3g}{': ' + terms if terms else ''}]\n")
    shown = {name: value for name, value in info.items() if name not in ("reward_terms", "context")}
    print(f"{'Truncated' if truncated else 'Finished'} with {total:.3g}. {printable(str(shown))}")


def _watch(id: str, command: Play) -> None:
    import importlib

    with _exit_on_user_error(id):
        try:
            importlib.import_module("trainers.inputs").check_model(command.agent, command.base_model)
            player = importlib.import_module("trainers.play")  # by name: this package stands without that one
        except ModuleNotFoundError as error:
            raise SystemExit(f"--agent needs what the trainers need: {error}") from error
        shown = {"agent": command.agent, "base_model": command.base_model, "seed": command.seed}
        player.main(player.Args(env=id, env_kwargs=command.kwargs, **shown))


def _serve(id: str, command: Serve, kwargs: dict[str, Any]) -> None:
    if not command.openenv:
        raise SystemExit(f"{id}: say how to serve it: --openenv")
    if not 0 <= command.port < 2**16:
        raise SystemExit(f"port must be 0 (any that is free) to 65535, got {command.port}")
    with _exit_on_user_error(id):
        from agent_envs.integrations.openenv import make_app

        app = make_app(id, command.sessions, **kwargs)
    import uvicorn

    uvicorn.run(app, host=command.host, port=command.port)


def _baselines(command: Baselines, kwargs: dict[str, Any]) -> None:
    if command.episodes < 0:
        raise SystemExit(f"--episodes must be at least 0 (all of them), got {command.episodes}")
    if command.out and not command.out.parent.is_dir():
        raise SystemExit(f"cannot write {command.out}: there is no folder {command.out.parent}")
    if command.out and (command.out.is_dir() or not os.access(command.out.parent, os.W_OK)):
        raise SystemExit(f"cannot write {command.out}: give a file in a folder that may be written to")
    import importlib

    from rich.progress import track

    import agent_envs

    measure = importlib.import_module("agent_envs.utils.baselines")
    rows: list[dict[str, Any]] = []
    for id in map(full_id, command.ids or agent_envs.IDS):
        try:
            with _exit_on_user_error(id):
                rows += measure.run_baselines(
                    id, command.episodes, command.seed, kwargs, lambda work, id=id: track(work, id, transient=True)
                )
        except SystemExit as reason:
            if command.ids:
                raise
            print(f"left out: {reason}")
    if not rows:
        raise SystemExit("none of the environments has scripted agents that could play it here")
    print(measure.table(rows), "", sep="\n")
    for id, source in dict.fromkeys((row["id"], row["source"]) for row in rows):
        print(printable(f"{id.removeprefix('AgentR1/')}: {source}"))
    if command.out:
        command.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
