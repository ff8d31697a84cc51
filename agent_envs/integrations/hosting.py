"""Use other text environments as environments of this suite.

    >>> env = agent_envs.host(GuessTheNumber, instructions="Guess a number from 1 to 10.")
    >>> observation, info = env.reset(seed=0)

`make` does this for a registered id: ``python -m trainers.grpo --env my_module:Mine/Plain-v0`` needs nothing else.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, _find_spec, load_env_creator
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from agent_envs.formats import Format
from agent_envs.registration import full_id, nearest_names
from agent_envs.rewards import Metric, Reward
from agent_envs.spaces import LONGEST
from agent_envs.tool_env import COMMON, HELD_OUT, OWN_ENTRIES, ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.vector import vector_entry_point

MAX_TURNS = 50  # for environments without a limit of their own
_OURS = {"reward", "score"} | OWN_ENTRIES  # names in an info that mean something else in this suite


class UnknownEnvironment(gymnasium.error.UnregisteredEnv, ValueError):
    """No environment is registered under an id; the message names similar ids."""


class HostedEnv(ToolEnv):
    """A text environment with the interface of a `ToolEnv`: the agent's text is the action.

    A ValueError from its ``step`` counts as the agent's mistake; any other error truncates the episode as a tool failure.
    ``score`` is the sum of the rewards, or the latest ``success`` in the environment's infos.

    Args:
        env_fn: makes the environment. Its observations must be strings; it need not be a `gymnasium.Env`.
        instructions: the system prompt; by default ``info["instructions"]`` at reset.
        format: "plain" passes the text on without a thought at its start; in any other format the agent calls the tool ``act``.
        split: ``"train"``, or ``"validation"``, which shifts all seeds by 2**31, for environments without splits of their own.
        max_turns: turns after which the episode is truncated. Default: the environment's ``max_episode_steps``, else 50.
        common: other arguments of `ToolEnv`.
    """

    REWARD = Reward(env=(1.0, Metric("reward")))
    PRIMARY_METRIC: ClassVar[str] = "score"

    def __init__(
        self,
        env_fn: Callable[[], Any],
        instructions: str = "",
        *,
        format: str | type[Format] = "plain",
        split: str = "train",
        max_turns: int | None = None,
        **common: Any,
    ):
        self.hosted = env_fn()
        _check_actions(self.hosted)
        limit = getattr(getattr(self.hosted, "spec", None), "max_episode_steps", None) or MAX_TURNS
        turns = limit if max_turns is None else max_turns
        tools = (FunctionTool(self.act, max_output=LONGEST),)  # observations are shown whole
        common = {"split": split, "max_calls": 1, **common}
        super().__init__(tools, instructions=instructions, answers=False, format=format, max_turns=turns, **common)
        self._given = instructions
        self._ended, self._success = (False, False), cast(float | None, None)

    def act(self, action: str) -> ToolResult:
        """take an action."""
        if any(self._ended):
            return ToolResult("The episode has ended.", ok=False)
        try:
            stepped = self.hosted.step(action)
        except (ArithmeticError, MemoryError, RecursionError) as error:  # from a tool these are the agent's mistakes
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if not (isinstance(stepped, tuple) and len(stepped) == 5 and isinstance(stepped[4], dict)):
            told = "(observation, reward, terminated, truncated, info)"  # not a ValueError, the agent's mistake
            raise TypeError(f"step must return {told}, got {stepped!r:.60}")
        observation, reward, terminated, truncated, info = stepped
        if isinstance(reward, str):
            raise TypeError(f"a reward must be a number, got {reward!r}")
        self._ended = bool(terminated), bool(truncated)
        self._observed = _text(observation, TypeError)
        return ToolResult(self._observed, data=(float(reward), info))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        seed = int(self.np_random.integers(HELD_OUT)) if self._seed is None else self._seed
        given = self.hosted.reset(seed=seed + self._seed_offset, **({"options": options} if options else {}))
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
            raise ValueError(
                f"reset must return (observation, info), got {given!r:.60}: return the text and a dictionary"
            )
        observation, info = given
        self._ended, self._return, self._success = (False, False), 0.0, None
        message = info["instructions"] if isinstance(info.get("instructions"), str) else ""
        self.instructions = self._given or message
        self._observed = _text(observation)
        return self._observed, {"source": "generated", **_plain_values(info)}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        acted = [result for result in results if result.ok]
        reward, info = sum(result.data[0] for result in acted), acted[-1].data[1] if acted else {}
        self._return += reward
        if isinstance(success := info.get("success"), bool | int | float | np.bool_ | np.number):
            self._success = float(success)
        score = self._return if self._success is None else self._success
        broke = any(result.fault for result in results)
        terminated, truncated = self._ended
        return TurnOutcome({"reward": reward, "score": score}, _plain_values(info), terminated, truncated or broke)

    def anchor(self) -> Hashable:
        """Label the state by the latest observation, as in GiGPO's paper."""
        return self._observed

    def close(self) -> None:
        if hasattr(self.hosted, "close"):
            self.hosted.close()


def host(env_fn: Callable[[], Any], instructions: str = "", **options: Any) -> HostedEnv:
    """Wrap a text environment; for the arguments see `HostedEnv`.

    To train in it by name, register a function that returns it:

        gymnasium.register("Mine/Guess-v0", entry_point=lambda **kw: agent_envs.host(Guess, "Guess a number.", **kw))
    """
    return HostedEnv(env_fn, instructions, **options)


def make(id: str, **kwargs: Any) -> ToolEnv:
    """Make the environment of a registered id; wrap it in `HostedEnv` if it is not of this suite.

    Args:
        id: "Name-v0", or "module:Name-v0" to import the module first. For this suite, "MiniWiki" is enough.
        kwargs: arguments of the environment. If it is wrapped, `HostedEnv` takes those of its own arguments that the
            environment's constructor does not name, such as ``instructions`` and ``max_turns``.

    Raises:
        ValueError: it is not a text environment, or has no such argument; also as `find_spec`.
    """
    spec = find_spec(id)
    accepted = _parameters(spec)  # None if it takes any, as most environments of this suite do
    named = _named_parameters(spec)
    mine = {} if named is None else {n: v for n, v in kwargs.items() if n in _HOST and n not in named}
    own = {n: v for n, v in kwargs.items() if n not in mine}
    check_arguments(id, spec, own)
    env = make_registered(spec, disable_env_checker=True, **own)
    if isinstance(env.unwrapped, ToolEnv):
        layers, layer = [], env  # wrappers that change it, so not Gymnasium's own checks
        while isinstance(layer, gymnasium.Wrapper):
            layers += [type(layer).__name__] * (not isinstance(layer, OrderEnforcing | PassiveEnvChecker))
            layer = layer.env
        if layers:
            warnings.warn(f"{id}: its wrapper {', '.join(layers)} is left out here", stacklevel=2)
        if "split" in mine:
            env.unwrapped.hold_out(mine.pop("split"))
        if mine:
            raise ValueError(f"{id} has no argument {next(iter(mine))!r}; it has: {', '.join(sorted(accepted or ()))}")
        return env.unwrapped
    knows_splits = accepted is not None and "split" in accepted
    return HostedEnv(lambda: env, **mine | {"split": "train" if knows_splits else kwargs.get("split", "train")})


def check_arguments(id: str, spec: EnvSpec, names: Iterable[str]) -> None:
    """Raise a ValueError if the constructor of ``spec`` has no argument of one of these names."""
    accepted = _parameters(spec)
    if accepted is not None and (unknown := sorted(set(names) - accepted)):
        raise ValueError(f"{id} has no argument {unknown[0]!r}; it has: {', '.join(sorted(accepted))}")


def make_registered(id_or_spec: str | EnvSpec, **kwargs: Any) -> gymnasium.Env:
    """Call `gymnasium.make` with a spec, or an id as `find_spec` takes it. Raises as `find_spec` and `explaining` do."""
    spec = find_spec(id_or_spec) if isinstance(id_or_spec, str) else id_or_spec
    with explaining(spec):
        return gymnasium.make(spec, **kwargs)


def find_spec(id: str) -> EnvSpec:
    """Find the spec of an id, given in full or as `registration.full_id` takes it; "module:Name-v0" imports the module first,
    also from the working folder. Raises UnknownEnvironment, or ValueError if there is no such module."""
    module = id.rpartition(":")[0]
    if module and os.getcwd() not in sys.path:  # for installed commands, and scripts in other folders
        sys.path.append(os.getcwd())
    try:
        return _find_spec(full_id(id))  # the first step of gymnasium.make
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise  # the module exists, but imports one that does not
        where = "a module is looked for in this folder and among what is installed"
        raise ValueError(f"there is no module {missing!r} to import for the environment {id!r}: {where}") from error
    except gymnasium.error.Error as error:
        if module and (Path(module) / f"{module}.py").is_file():  # as `agent_envs new` writes it
            raise UnknownEnvironment(f"there is no environment {id!r} in this folder: cd {module} first") from error
        near = nearest_names(id.rpartition(":")[2])
        meant = f"did you mean {' or '.join(near)}?" if near else "did you register it?"
        raise UnknownEnvironment(
            f"there is no environment {id!r}: {meant} python -m agent_envs list shows those of this suite, "
            'and "my_module:Mine/Task-v0" imports a module of yours first'
        ) from error


@contextmanager
def explaining(spec: EnvSpec) -> Iterator[None]:
    """Turn errors from making an environment of this suite into one line: TypeErrors and ValueErrors of arguments,
    ImportErrors, OSErrors of data. Errors of other environments pass unchanged."""
    try:
        yield
    except Exception as error:
        is_ours = str(spec.entry_point).startswith("agent_envs.")
        is_written_for_users = isinstance(error, OSError) and error.errno is None
        if not is_ours or is_written_for_users or isinstance(error, UnknownEnvironment):
            raise
        message = str(error).partition(" was raised from the environment creator")[0]
        if type(error) is ValueError:
            raise ValueError(message) from error
        message = f"no {message}" if isinstance(error, KeyError) else message
        hint = ": is an argument of a wrong type?" * (isinstance(error, TypeError) and "argument" not in message)
        kind = next((kind for kind in (TypeError, ImportError) if isinstance(error, kind)), ValueError)
        raise kind(f"{spec.id} cannot be made: {message}{hint}") from error


def has_vector(spec: EnvSpec) -> bool:
    """Whether `gymnasium.make_vec` can make a vector of these environments; a `ToolEnv` without a vector gets ours."""
    if spec.vector_entry_point is None:
        made = _entry_point(spec)
        if isinstance(made, type) and issubclass(made, ToolEnv):
            spec.vector_entry_point = vector_entry_point(made)
    return spec.vector_entry_point is not None


_HOST = (set(inspect.signature(HostedEnv.__init__).parameters) | COMMON) - {"self", "env_fn", "common"}


def _parameters(spec: EnvSpec) -> set[str] | None:
    """The names of the arguments of an entry point; None if it takes any."""
    parameters = inspect.signature(_entry_point(spec)).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return None if anything else set(parameters)


def _named_parameters(spec: EnvSpec) -> set[str] | None:
    """The names of an entry point's own arguments; None if it may pass others on to a `ToolEnv`."""
    made = _entry_point(spec)
    if isinstance(made, type) and not issubclass(made, ToolEnv):  # what its **kwargs may be is unknown
        parameters = inspect.signature(made).parameters.values()
        return {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    return _parameters(spec)


def _entry_point(spec: EnvSpec) -> Callable[..., Any]:
    assert spec.entry_point is not None
    return load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point


def _check_actions(env: Any) -> None:
    space = getattr(env, "action_space", None)
    if space is not None and not isinstance(space, gymnasium.spaces.Text):
        name = type(getattr(env, "unwrapped", env)).__name__
        raise ValueError(
            f"{name} takes {space}, not text: wrap it so that step() takes a string, such as in "
            "gymnasium.wrappers.TransformAction"
        )


def _text(observation: Any, error: type[Exception] = ValueError) -> str:
    if not isinstance(observation, str):
        raise error(
            f"an observation must be text, got {type(observation).__name__}: wrap the environment in "
            "gymnasium.wrappers.TransformObservation"
        )
    return observation


def _plain_values(info: dict[str, Any]) -> dict[str, Any]:
    """The numbers and strings of an info; other values may not survive pickling or a vector of environments."""
    info = {name: value.item() if isinstance(value, np.generic) else value for name, value in info.items()}
    plain = {name: value for name, value in info.items() if isinstance(value, str | bool | int | float)}
    return {name: value for name, value in plain.items() if name not in _OURS}
