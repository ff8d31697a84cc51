"""Scripted searchers: baselines to compare with, and demonstrators to imitate.

A script is a generator: it yields the text of a turn and is sent the observation that came back.
"""

import random
import re
from collections.abc import Callable, Generator

import numpy as np

from agent_envs.data.question import Question
from agent_envs.vector import ToolVectorEnv

Script = Generator[str, str, None]

# What may answer a question with these words in it; names for all others.
_CANDIDATES = {
    "when": r"(?:\d{1,2} )?(?:[A-Z][a-z]+ )?(?:\d{1,2}, )?\b[12]\d{3}\b",
    "how many": r"\b(?!(?:1[5-9]|20)\d\d\b)\d[\d,.]*\b(?! [A-Z])",  # neither years nor days of a month
    "": r"[A-Z][\w'’.-]*(?: (?:(?:of|the|and|de|von) )*[A-Z][\w'’.-]*)*",
}
_COMMON = set(
    "a an and are at by did do does for from had has have he her his how in is it its of on or she that the their they "
    "this to was were what when where which who whom whose with".split()
)


def search(query: str) -> str:
    return f"<search>{query}</search>"


def answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def think(text: str) -> str:
    return f"<think>{text}</think>"


def oracle(question: Question, rng: random.Random) -> Script:
    """Searches for each gold title and gives the gold answer: the ceiling that the index and the turn budget set."""
    for title in question.supporting_titles:
        yield search(title)
    yield answer(question.answer)


def hasty(question: Question, rng: random.Random, patience: float = 0.3) -> Script:
    """Knows how to search, read and think aloud, but not when to stop.

    After each article it names the fact that it looked up. Then, with probability ``patience``, it follows that fact
    with a search; else it answers right away, mostly too early. Imitating it teaches the tools and not the task: its
    own exact match on questions of n hops is ``patience ** (n - 1)``.
    """
    hops = _hops(question)
    last = 0
    while last + 1 < len(hops) and rng.random() < patience:
        last += 1
    thought = ""
    for title, fact, _ in hops[: last + 1]:
        yield thought + search(title)
        thought = think(fact)
    yield thought + answer(hops[last][2])


def _hops(question: Question) -> list[tuple[str, str, str]]:
    """The reading steps to the answer, each one (title, fact to look up there, what the article says).

    Where a benchmark does not say them, each gold article stands for what the one before it had to say.
    """
    steps = question.decomposition or ()
    if steps and all("title" in step for step in steps):
        titles, found = [step["title"] for step in steps], [step["answer"] for step in steps]
        facts = [re.sub(r"#(\d+)", lambda m: found[int(m[1]) - 1], step["question"]).rstrip("?") for step in steps]
    else:
        facts = titles = list(question.supporting_titles) or [question.question]
        found = [*titles[1:], ""]
    found[-1] = question.answer  # a comparison asks for more than the last article says
    return list(zip(titles, facts, found, strict=True))


def heuristic(question: Question, rng: random.Random) -> Script:
    """A scripted searcher that never looks at the gold: search the question, take the name from the sentence that is
    most like it, search that name, and answer from the sentence most like the question in what came back."""
    asked = question.question
    found = yield search(asked)
    bridge = _clue(found, asked, asked, "")
    if bridge:
        found = yield search(bridge)
    if re.match(r"(is|are|was|were|do|does|did|has|have|can)\b", asked.lower()):
        yield answer("yes")
        return
    kind = next((kind for kind in ("when", "how many") if kind in asked.lower()), "")
    yield answer(_clue(found, asked, f"{asked} {bridge}", kind) or bridge or "unknown")


def _clue(observation: str, question: str, known: str, kind: str) -> str:
    """The first name (or date, or number) that is not in ``known``, from the sentence that shares most with the
    question. Sentences of the same article share its title."""
    wanted, known = _stems(question), known.lower()
    best, clue = -1.0, ""
    for line in observation.removeprefix("<information>").removesuffix("</information>").splitlines():
        title, _, text = re.sub(r"^\[\d+\] ", "", line).partition(": ")
        for sentence in re.split(r"(?<=[.!?]) ", text):
            names = [name.rstrip(".,") for name in re.findall(_CANDIDATES[kind], re.sub(r"^The ", "", sentence))]
            names = [name for name in names if _stems(name) and name.lower() not in known and name != title]
            score = len(_stems(sentence) & wanted) + 0.5 * len(_stems(title) & wanted)
            if names and score > best:
                best, clue = score, names[0]
    return clue


def _stems(text: str) -> set[str]:
    """Beginnings of the words: "directed" and "director" count as one."""
    return {word[:5] for word in re.findall(r"\w+", text.lower()) if word not in _COMMON}


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
