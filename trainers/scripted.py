"""Scripted searchers: baselines to compare with, and demonstrators to imitate.

A script is a generator: it yields the text of a turn and is sent the observation that came back.
"""

import random
from collections.abc import Callable, Generator

import numpy as np

from agent_envs.data.question import Question
from agent_envs.vector import ToolVectorEnv

Script = Generator[str, str, None]


def search(query: str) -> str:
    return f"<search>{query}</search>"


def answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def oracle(question: Question, rng: random.Random) -> Script:
    """Searches for each gold title and gives the gold answer: the ceiling that the index and the turn budget set."""
    for title in question.supporting_titles:
        yield search(title)
    yield answer(question.answer)


def hasty(question: Question, rng: random.Random, patience: float = 0.3) -> Script:
    """Knows how to search and read, but not what to look for or when to stop.

    After each article it goes on with probability ``patience``; else it answers right away with what the article led
    to, which is the right answer only after the last hop. Imitating it teaches the tools and not the task.
    """
    for step in question.decomposition:
        yield search(step["title"])
        if rng.random() > patience:
            break
    yield answer(step["answer"])


def play(envs: ToolVectorEnv, questions: list[int], script: Callable[..., Script], seed: int = 0) -> list[list[dict]]:
    """Let ``script`` play the numbered questions.

    Returns:
        For each question its turns: dicts with observation (what the agent read), action, reward and the info.
    """
    episodes: list[list[dict]] = []
    for start in range(0, len(questions), envs.num_envs):
        episodes += _play_batch(envs, questions[start : start + envs.num_envs], script, seed + start)
    return episodes


def _play_batch(
    envs: ToolVectorEnv, questions: list[int], script: Callable[..., Script], seed: int
) -> list[list[dict]]:
    count, total = len(questions), envs.num_envs
    options = {"question": questions + [0] * (total - count), "reset_mask": np.arange(total) < count}
    observations, _ = envs.reset(options=options)
    pool = envs.envs[0].questions
    scripts = [script(pool[q], random.Random(f"{seed}:{i}")) for i, q in enumerate(questions)]
    actions = [next(s) for s in scripts] + [""] * (total - count)
    episodes: list[list[dict]] = [[] for _ in questions]
    running = set(range(count))
    while running:
        before = observations
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for i in sorted(running):
            info = {k: v[i] for k, v in infos.items() if k[0] != "_" and not isinstance(v, dict)}
            episodes[i].append({"observation": before[i], "action": actions[i], "reward": float(rewards[i]), **info})
            if terminated[i] or truncated[i]:
                running.remove(i)
            else:
                actions[i] = scripts[i].send(observations[i])
    return episodes
