"""Lessons of the tiny policy's cold start: demonstrations as token sequences with an action mask.

From general to specific: `repetition` (copying), `browsing` (finding facts in search results), `pairs` and `comparing`
(comparing facts), `guided_episodes` (episodes without their decisions) and `scripted_episodes` (whole episodes). Only the tokens
in the mask are taught.
"""

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from agent_envs.generators.miniwiki import World, make_question
from agent_envs.generators.miniwiki.schema import BY_KIND, IN_TIME, KINDS, RELATION, SAME, Relation
from agent_envs.tasks.qa import QAEnv
from agent_envs.tasks.qa_scripts import compare_next, note_fact, verdict
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import SearchTool
from agent_envs.utils.scripts import Script, ScriptMaker, roll_out_many
from agent_envs.vector import ToolVectorEnv
from trainers.config import Demonstrator
from trainers.imitation.demonstrations import episode_rows, share_failed
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.trajectory import BatchRow

Parts = list[tuple[list[int], bool]]  # ids, and whether they are taught


def _row(parts: Parts) -> BatchRow:
    ids = [i for part, _ in parts for i in part]
    mask = [taught for part, taught in parts for _ in part]
    return BatchRow(ids=ids, mask=mask, logprobs=[0.0] * len(ids), rewards=[0.0] * len(ids))


def repetition(count: int, words: list[int], rng: random.Random) -> list[BatchRow]:
    """Make rows of a random string of words and its repetition, which is taught. This trains induction heads."""
    strings = [rng.choices(words, k=rng.randint(5, 30)) for _ in range(count)]
    return [_row([(string, False), (string, True)]) for string in strings]


def browsing(count: int, world: World, tool: SearchTool, policy: Policy, rng: random.Random) -> list[BatchRow]:
    """Make rows of the results of three searches, each followed by questions about the article that was searched for. The
    thought that names the fact, and the copy of the article's text, are taught."""

    def draw_entity() -> tuple[str, int]:
        kind = rng.choice(tuple(KINDS))
        return kind, rng.randrange(len(world.names[kind]))

    drawn = [[draw_entity() for _ in range(3)] for _ in range(count)]
    results = tool.execute_batch([{"query": world.names[kind][i]} for entities in drawn for kind, i in entities])
    texts = iter(result.text for result in results)
    rows = []
    for entities in drawn:
        parts: Parts = []
        for kind, index in entities:
            text = next(texts)
            parts.append((policy.encode(f"<information>{text}</information>"), False))
            known = [relation for relation in BY_KIND[kind] if world.value(relation, index) >= 0]
            told = [relation for relation in known if world.text(relation, index) in text]  # articles may be cut
            for relation in rng.sample(told, min(4, len(told))):
                parts += _ask_fact(world, relation, index, policy, rng)
        rows.append(_row(parts))
    return rows


def _ask_fact(world: World, relation: Relation, index: int, policy: Policy, rng: random.Random) -> Parts:
    """Ask for one fact: the question, the thought that names the fact (taught), and the article's text on it (taught)."""
    title = world.names[relation.subject][index]
    wordings = [*relation.asks, f"What is the {relation.noun} of {{x}}?", relation.that or relation.asks[0]]
    question = policy.observation_ids(rng.choice(wordings).format(x=title), [])
    thought = policy.encode(f"<think>{relation.noun} of {title}</think>")
    name = rng.choice(("search", "answer"))
    tag, *copied = policy.encode(f"<{name}>{world.text(relation, index)}</{name}>")
    return [(question, False), (thought, True), ([tag], False), (copied, True)]  # the tag is a coin flip: not taught


def pairs(count: int, world: World, policy: Policy, rng: random.Random) -> list[BatchRow]:
    """Make rows of many pairs of years, names or nouns, each with the result of comparing the two, which is taught."""
    values = {key: [v for v in world.facts[key] if v >= 0] for key in sorted({c[:2] for c in (*IN_TIME, *SAME)})}
    names, nouns = {relation[:2] for relation in SAME}, [relation.noun for relation in RELATION.values()]
    rows = []
    for _ in range(count):
        parts: Parts = []
        for _ in range(rng.randint(10, 50)):
            key = rng.choice([*values, None])
            if key:
                first, second = (world.object_text(RELATION[key], value) for value in rng.choices(values[key], k=2))
            else:
                first, second = rng.choices(nouns, k=2)
            if (not key or key in names) and rng.random() < 0.5:
                second = first
            # How the two compare, and if a question asks for the earlier or later one, whether it is so.
            compared = verdict(first, second, rng.choice(("", "earlier", "later")))
            for number, part in enumerate(re.split(r"(?<=:)( [a-z ]+?)(?= /|$)", compared)):
                parts.append((policy.encode(part), number % 2 == 1))
        rows.append(_row(parts))
    return rows


def comparing(count: int, world: World, policy: Policy, rng: random.Random) -> list[BatchRow]:
    """Make rows of questions that compare two things, with the turns of an agent that reads about one and then the other, but
    without the articles. Its searches, its answer, what the question asks for, and how the two compare are taught."""
    rows = []
    for _ in range(count):
        question = make_question(world, rng.choice(("comparison", "yes_no")), rng)
        parts: Parts = [(policy.prompt_ids("", question.question), False)]
        decomposition = question.decomposition or ()
        steps = [step for step in decomposition if "reference" not in step]
        found = [step["answer"] for step in steps]
        titles = [b["title"] for a, b in zip([{}, *decomposition], decomposition, strict=False) if "reference" not in a]
        for number, (step, title) in enumerate(zip(steps, titles, strict=True)):
            tag, *name = policy.encode(f"<search>{title}</search>")
            parts += [([tag], False), (name, True), (policy.observation_ids("", [tag, *name]), False)]
            known = f"<think>{note_fact(step, step['answer'])}"
            compared = (
                verdict(found[0], found[1], question.question) if number else compare_next(question.question, titles[1])
            )
            thought, before = policy.encode(f"{known}{compared}</think>"), len(policy.encode(known))
            parts += [(thought[:before], False), (thought[before:], True)]
        tag, *answer = policy.encode(f"<answer>{question.answer}</answer>")
        parts += [([tag], False), (answer, True)]
        rows.append(_row(parts))
    return rows


def noisy_expert(env: ToolEnv, rng: random.Random, skill: float = Demonstrator.skill) -> Script:
    """Act as the task's scripted agent in a share ``skill`` of the episodes, and as its random agent in the others.

    This demonstrates the moves and their results, but leaves the policy to learn which moves are good.
    """
    yield from env.SCRIPTS["scripted" if rng.random() < skill else "random"](env, rng)


def run_unbroken(
    envs: ToolVectorEnv, numbers: list[int], script: ScriptMaker, seed: int = 0, outage_minutes: float = retry.MINUTES
) -> list[list[dict[str, Any]]]:
    """Return the turns of a script on numbered instances, rolled out again while a tool fails in any episode
    (`trainers.runtime.retry.retry_on_tool_failure`): later runs without an outage reuse the cold start."""
    run = partial(roll_out_many, envs, numbers, script, seed)
    return retry.retry_on_tool_failure(run, share_failed, outage_minutes, most=0.0)


def scripted_episodes(
    envs: ToolVectorEnv, policy: Policy, numbers: list[int], script: ScriptMaker, seed: int,
    outage_minutes: float = retry.MINUTES,
) -> list[BatchRow]:  # fmt: skip
    """Make rows of whole episodes of a script on numbered instances; the tokens of its turns are taught."""
    episodes = run_unbroken(envs, numbers, script, seed, outage_minutes)
    return [row for turns in episodes for row in episode_rows(turns, policy, envs.envs[0].stop)]


def guided_episodes(
    envs: ToolVectorEnv, policy: Policy, numbers: list[int], script: ScriptMaker, seed: int = 0,
    outage_minutes: float = retry.MINUTES,
) -> list[BatchRow]:  # fmt: skip
    """Make rows of whole episodes of a script that makes no mistakes, without its decisions.

    The tag (search or answer) is not taught, nor is the turn after an article with two candidate names for the fact.
    """
    tags = {int(policy.tokenizer.convert_tokens_to_ids(tag)) for tag in ("<search>", "<answer>")}  # type: ignore[arg-type]
    rows = []
    for number, turns in zip(numbers, run_unbroken(envs, numbers, script, seed, outage_minutes), strict=True):
        steps = cast(QAEnv, envs.envs[0]).questions[number].decomposition or ()
        for row in episode_rows(turns, policy, envs.envs[0].stop):  # several if the context is rewritten
            rows.append(replace(row, mask=_hide_decisions(row, steps, tags)))
    return rows


def _hide_decisions(row: BatchRow, steps: Iterable[Mapping], tags: set[int]) -> list[bool]:
    """Return the action mask of an episode without the tokens of decisions: tags, and turns of steps with a rival."""
    rivals = [False, *("rival" in step for step in steps)]
    tokens = zip(row.ids, row.mask, row.turns, strict=True)
    return [taught and token not in tags and not rivals[turn] for token, taught, turn in tokens]
