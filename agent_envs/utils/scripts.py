"""Scripted agents: baselines to compare with, and demonstrators for SFT.

A script is a generator that yields turns and receives the texts of observations, without a format's syntax. Its arguments
are the environment, after its reset, and a random generator. Only an oracle reads more than ``first_observation``.
``env.format.write`` writes a turn as text.
"""

import json
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn
from agent_envs.vector import ToolVectorEnv, info_of

Info = dict[str, Any]
Script = Generator[Turn, str, None]
ScriptMaker = Callable[[Any, random.Random], Script]  # the first argument is the environment, of the script's task


def find_script(env: ToolEnv, name: str) -> ScriptMaker:
    """Return the script ``name`` of a task. Raises ValueError if the task has none of that name."""
    if name not in env.SCRIPTS:
        known = f"one of {sorted(env.SCRIPTS)}" if env.SCRIPTS else "left out, for the task has no scripts"
        raise ValueError(f"script must be {known}, got {name!r}")
    return env.SCRIPTS[name]


def roll_out(env: ToolEnv, script: ScriptMaker, seed: int, options: Info | None = None) -> list[Info]:
    """Roll out one episode, from ``reset(seed=seed)`` on; a tool failure ends it.

    Returns:
        Its turns: dicts with ``observation`` (what the agent read), ``action``, ``reward``, ``terminated``,
        ``truncated``, ``next_observation`` and the other entries of the info.
    """
    observation, _ = env.reset(seed=seed, options=options)
    agent, reply = script(env, random.Random(f"script:{seed}")), None
    episode: list[dict[str, Any]] = []
    while True:
        action = env.format.write(_next(agent, reply, len(episode)))
        following, reward, terminated, truncated, info = env.step(action)
        happened = {"observation": observation, "action": action, "reward": reward, "terminated": terminated}
        episode.append({**info, **happened, "truncated": truncated, "next_observation": following})
        if terminated or truncated or info["tool_faults"]:
            return episode
        observation, reply = following, read_reply(env, following)


def read_reply(env: ToolEnv, observation: str) -> str:
    """Return the text of an observation after the first one, without the syntax of the format."""
    return "\n".join(str(message["content"]) for message in env.format.messages(observation))


def _next(agent: Script, reply: Any, turns: int) -> Turn:
    try:
        return agent.send(reply)  # None starts the generator
    except StopIteration:
        name = getattr(agent, "__name__", "the script")
        raise ValueError(f"{name} stopped after {turns} turns, and the episode goes on") from None


class EpisodeRecorder:
    """Records what an episode file needs and no observation holds; make it after each reset of ``env``.
    ``instance`` has the ``question`` (the first observation) and the entries of `ToolEnv.describe_instance`."""

    def __init__(self, env: ToolEnv, info: dict[str, Any]):
        id = next((info[name] for name in ("question_id", "instance", "board") if name in info), None)
        type = info.get("type", info.get("kind", info.get("kinds")))
        types = map(str, type if isinstance(type, list | tuple) else [type])
        kind = {"type": ", ".join(types)} if type else {}
        if "task" in info:
            kind["task"] = str(info["task"])
        self.instance: dict[str, Any] = {
            "question": env.first_observation, "id": None if id is None else str(id), "golds": [], "kind": kind,
            "supporting": [], "format": env.format.name,
        }  # fmt: skip
        described = env.describe_instance()
        self.instance |= described | {"kind": kind | described.get("kind", {})}
        self._env, self._found = env, env.found_evidence()

    def record_turn(self) -> dict[str, Any]:
        """Record the last step: its ``calls`` with results, ``found`` (supporting names first shown), ``invalid`` and ``cut``."""
        env, before = self._env, self._found
        turn, results, self._found = env.history.turns[-1], env.results, env.found_evidence()
        texts = env.feedback if len(env.feedback) == len(turn.calls) else [result.text for result in results]
        calls = [
            {
                "tool": c.name,
                "arguments": json.dumps(c.arguments, default=str),
                "result": text,
                "ok": r.ok,
                "fault": r.fault,
            }
            for c, r, text in zip(turn.calls, results, texts, strict=True)
        ]
        new = [now and not earlier for now, earlier in zip(self._found, before, strict=True)]
        found = [name for name, is_new in zip(self.instance["supporting"], new, strict=False) if is_new]
        return {"calls": calls, "found": found, "invalid": turn.is_mistake, "cut": turn.cut}


def begin(
    envs: ToolVectorEnv, numbers: Sequence[int], attempts: Sequence[int] = (), as_seeds: bool = False
) -> tuple[tuple[str, ...], Info]:
    """Start numbered instances in the first environments of a vector: by ``reset(seed=n)``, and if the task has ``questions``,
    with the option ``question``. ``as_seeds``: without it.
    ``attempts``: number of each rollout among those of its instance, from 0; it seeds random outcomes after the start."""
    count, total = len(numbers), envs.num_envs
    padded = [*numbers, *[0] * (total - count)]
    options: dict[str, Any] = {"reset_mask": np.arange(total) < count}
    if any(attempts) and envs.envs[0].TAKES_NOISE_SEED:
        options["noise_seed"] = [*attempts, *[0] * (total - count)]
    if envs.envs[0].questions is not None and not as_seeds:
        options["question"] = padded
    return envs.reset(seed=padded, options=options)


def sample_instances(env: ToolEnv, count: int) -> list[int]:
    """Return the numbers of ``count`` instances to evaluate on, in ascending order.

    A count of 0 means all, or 500 if instances are made from seeds. Questions of a file, which may be ordered by kind, are drawn
    at random with a fixed seed; a smaller sample is a subset of a larger one.
    """
    if env.questions is None:
        return list(range(count or 500))
    order = list(range(len(env.questions)))
    if not is_drawn(env):
        random.Random(0).shuffle(order)
    return sorted(order[: count or None])


def is_drawn(env: ToolEnv) -> bool:
    """Whether the questions of a task are in random order already; for a mixture, those of all its tasks."""
    tasks = env.members.values()
    return all(
        getattr(task, "drawn", getattr(getattr(task, "task", None), "drawn", task.questions is None)) for task in tasks
    )


def roll_out_many(envs: ToolVectorEnv, questions: list[int], script: ScriptMaker, seed: int = 0) -> list[list[Info]]:
    """Roll out ``script`` on numbered instances (see `begin`), one per environment at once. A tool failure ends an episode.

    Returns:
        For each instance its turns: dicts with ``observation``, ``instructions`` (the system prompt), ``action``,
        ``reward``, ``next_observation``, ``recorded`` (by an `EpisodeRecorder`), ``chat`` (the messages of the observation and
        of the action), ``tools`` (`Format.schemas`) and the entries of the info; the first turn also has the recorder's
        ``instance``.
    """
    episodes: list[list[dict[str, Any]]] = []
    for start in range(0, len(questions), envs.num_envs):
        episodes += _roll_out_batch(envs, questions[start : start + envs.num_envs], script, seed + start)
    return episodes


def _roll_out_batch(envs: ToolVectorEnv, questions: list[int], script: ScriptMaker, seed: int) -> list[list[Info]]:
    count, total = len(questions), envs.num_envs
    observations, first = begin(envs, questions)
    write = [env.format.write for env in envs.envs]
    recorders = [EpisodeRecorder(envs.envs[i], info_of(first, i)) for i in range(count)]
    scripts = [script(envs.envs[i], random.Random(f"{seed}:{i}")) for i in range(count)]
    actions = [write[i](_next(agent, None, 0)) for i, agent in enumerate(scripts)] + [""] * (total - count)
    episodes: list[list[dict[str, Any]]] = [[] for _ in questions]
    running = set(range(count))
    while running:
        before = observations
        acting = [action if i in running else None for i, action in enumerate(actions)]
        observations, rewards, terminated, truncated, infos = envs.step(acting)
        for i in sorted(running):
            seen: Info = {"observation": before[i], "instructions": first["instructions"][i], "action": actions[i]}
            format = envs.envs[i].format
            read = format.messages(before[i]) if episodes[i] else [{"role": "user", "content": before[i]}]
            seen |= {"tools": format.schemas(), "chat": [*read, format.message(actions[i])]}
            came = {"reward": float(rewards[i]), "next_observation": observations[i]}
            came["recorded"] = recorders[i].record_turn()
            came["terminated"] = bool(terminated[i])
            begun = {} if episodes[i] else {"instance": recorders[i].instance}
            info = info_of(infos, i)
            episodes[i].append({**info, **seen, **came, **begun})
            if terminated[i] or truncated[i] or info["tool_faults"]:  # no script has to cope with a broken tool
                running.remove(i)
            else:
                actions[i] = write[i](_next(scripts[i], read_reply(envs.envs[i], observations[i]), len(episodes[i])))
    return episodes
