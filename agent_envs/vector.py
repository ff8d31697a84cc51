"""Many environments in one process, whose tool calls are run as one batch."""

import inspect
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agent_envs.judge import judge_together
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import run_calls

Info = dict[str, Any]
Seeds = int | Sequence[int | None] | None
VectorStep = tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, Info]  # as of gymnasium's vectors


class ToolVectorEnv(VectorEnv):
    """``num_envs`` copies of a `ToolEnv` that share an index and batch their tool calls.

    Observations and actions are tuples of strings. ``autoreset_mode`` sets what happens to a finished environment:

    - DISABLED, the default: it ignores its action, with a warning, has reward 0 and stays terminated or truncated until
      ``reset(options={"reset_mask": mask})``. One that was never reset ignores its action without a warning.
    - NEXT_STEP: its next step ignores the action and resets it.
    - SAME_STEP: it is reset at once; ``info["final_obs"]`` and ``info["final_info"]`` hold its last observation and info.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    envs: Sequence[ToolEnv] = ()  # so that a vector that could not be made can still be closed

    def __init__(self, make: Callable[[], ToolEnv], num_envs: int, autoreset_mode: str | AutoresetMode = "DISABLED"):
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.envs = [make() for _ in range(num_envs)]
        self.num_envs = num_envs
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = [""] * num_envs
        self._begun, self._terminated, self._truncated = (np.zeros(num_envs, dtype=bool) for _ in range(3))

    def reset(self, *, seed: Seeds = None, options: Info | None = None) -> tuple[tuple[str, ...], Info]:
        """Start episodes.

        Args:
            seed: one int (environment i gets seed + i) or one per environment; equal seeds give equal questions.
            options: ``"reset_mask"``: bool [num_envs], which environments to reset. Other options have one value per environment.
        """
        seeds = self._seeds(seed)
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise ValueError(f"reset_mask must be bool [{self.num_envs}], got {mask.dtype} {list(mask.shape)}")
        for name, values in options.items():
            if not isinstance(values, Sequence | np.ndarray) or len(values) != self.num_envs:
                raise ValueError(f"option {name!r} must hold {self.num_envs} values, one per environment")
        infos: dict[int, dict[str, Any]] = {}
        for i in np.flatnonzero(mask).tolist():
            own = {name: values[i] for name, values in options.items()}
            infos[i] = self._reset_one(i, seeds[i], own)
        return tuple(self._observations), _gather_infos(infos, self.num_envs)

    def _reset_one(self, i: int, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        self._begun[i] = False  # stays False if the options are rejected
        self._observations[i], info = self.envs[i].reset(seed=seed, options=options)
        self._begun[i], self._terminated[i], self._truncated[i] = True, False, False
        return info

    def _seeds(self, seed) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, got {len(seed)}")
        for one in seed:  # before any of them is used
            if one is not None and (not hasattr(one, "__index__") or int(one) < 0):
                raise ValueError(f"seed must be an integer of at least 0, got {one!r}")
        return [None if one is None else int(one) for one in seed]

    def step(self, actions: Sequence[str | None], *, cut: Collection[int] = ()) -> VectorStep:
        """Take a turn in each environment; the action ``None`` leaves one unchanged, with reward 0 and no info.

        ``cut``: the indices of environments whose turn was cut, see `ToolEnv.step`.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        if not self._begun.any():
            raise gymnasium.error.ResetNeeded("no environment has begun an episode: call reset() first")
        pending = {i: action for i, action in enumerate(actions) if action is not None}
        over = self._terminated | self._truncated
        finished = [i for i in pending if over[i]]
        if self.autoreset_mode is AutoresetMode.DISABLED and finished:
            warnings.warn(
                f"environment {finished[0]} has ended, so its action is ignored: this vector resets nothing by itself. "
                "Give None for its action, reset(options={'reset_mask': mask}), or make it with autoreset_mode='NEXT_STEP'",
                stacklevel=2,
            )
        acting = [i for i in pending if self._begun[i] and not over[i]]
        turns = {i: self.envs[i].parse(pending[i], i in cut) for i in acting}
        results = iter(run_calls([(self.envs[i].tools, call) for i, turn in turns.items() for call in turn.calls]))
        judge_together((self.envs[i], turn) for i, turn in turns.items())
        rewards = np.zeros(self.num_envs)
        infos: dict[int, dict[str, Any]] = {}
        for i, turn in turns.items():
            outcome = self.envs[i].resolve(pending[i], turn, [next(results) for _ in turn.calls])
            self._observations[i], rewards[i], self._terminated[i], self._truncated[i], infos[i] = outcome
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            terminated[finished] = truncated[finished] = False
            infos |= {i: self._reset_one(i) for i in finished}
        elif self.autoreset_mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(terminated | truncated).tolist():
                last = {"final_obs": self._observations[i], "final_info": infos[i]}
                infos[i] = {**self._reset_one(i), **last}
        return tuple(self._observations), rewards, terminated, truncated, _gather_infos(infos, self.num_envs)

    def render(self) -> tuple[str | None, ...]:  # type: ignore[override]  # Gymnasium forgets render_mode=None
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()


def _gather_infos(infos: dict[int, dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """Gather infos as Gymnasium's vectors do: an array by name, and under "_name" which environments have it.

    Gymnasium's own function takes the type from the first environment, and fails if tasks of a mixture differ.
    """
    gathered: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos.values() for name in info):
        values = {i: info[name] for i, info in infos.items() if name in info}
        kinds = set(map(type, values.values()))
        if kinds == {dict} and all(_can_name(key) for value in values.values() for key in value):
            gathered[name] = _gather_infos(values, num_envs)
        elif kinds in ({float}, {bool}) or (kinds == {int} and all(v.bit_length() < 64 for v in values.values())):
            gathered[name] = np.zeros(num_envs, dtype=kinds.pop())
            gathered[name][list(values)] = list(values.values())
        else:
            gathered[name] = np.full(num_envs, None, dtype=object)
            for i, value in values.items():
                gathered[name][i] = value
        gathered[f"_{name}"] = np.zeros(num_envs, dtype=bool)
        gathered[f"_{name}"][list(values)] = True
    return gathered


def _can_name(key: object) -> bool:
    return isinstance(key, str) and key[:1] not in ("", "_")


def info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the info of environment ``i`` from those of a vector: the inverse of `_gather_infos`."""
    own = (name for name in infos if name[0] != "_" and infos[f"_{name}"][i])
    return {name: info_of(value, i) if isinstance(value := infos[name], dict) else value[i] for name in own}


def _autoreset_mode(value: str | AutoresetMode) -> AutoresetMode:
    names = {key: mode for mode in AutoresetMode for key in (mode, mode.name, mode.value)}
    if value not in names:
        raise ValueError(f"autoreset_mode must be one of {[mode.name for mode in AutoresetMode]}, got {value!r}")
    return names[value]


def vector_entry_point(task: type[ToolEnv]) -> Callable[..., ToolVectorEnv]:
    """Make the entry point of a task for ``gymnasium.make_vec``."""
    return partial(_make_vector, task)  # which can be pickled, as a part of the specification of environments


def _make_vector(
    task: type[ToolEnv], num_envs: int = 1, autoreset_mode: Any = "DISABLED", **kwargs: Any
) -> ToolVectorEnv:
    if kwargs.pop("vectorization_mode", None) not in (None, "vector_entry_point"):
        raise gymnasium.error.Error("these environments come with their own vectorization")
    if "max_episode_steps" in kwargs:
        raise ValueError(
            "max_episode_steps is not supported: use max_turns, so that the environment scores its last turn"
        )
    return ToolVectorEnv(lambda: make_task(task, kwargs), num_envs, autoreset_mode)


def make_task(task: Callable[..., ToolEnv], arguments: dict[str, Any]) -> ToolEnv:
    """Make a task with these arguments. If its constructor takes no ``split``, `ToolEnv.hold_out` sets it."""
    if "split" not in arguments or takes_split(task):
        return task(**arguments)
    env = task(**{name: value for name, value in arguments.items() if name != "split"})
    env.hold_out(arguments["split"])
    return env


def takes_split(task: Callable[..., Any]) -> bool:
    """Whether a constructor has an argument ``split``, or takes any keyword."""
    parameters = inspect.signature(task).parameters
    return "split" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
