"""What the tiny policy is taught before reinforcement learning starts: lessons as token sequences with an action mask.

From the general to the particular: `repetition` (copying), `reading` (finding a fact in an article) and
`demonstrations` (whole episodes of a scripted searcher). Only the masked tokens are imitated.
"""

import random

from agent_envs.miniwiki import World
from agent_envs.miniwiki.schema import BY_KIND, KINDS
from agent_envs.vector import ToolVectorEnv
from trainers.policy import Policy
from trainers.scripted import answer, play, search, think
from trainers.trajectory import Sequence, Step, to_sequences


def _sequence(parts: list[tuple[list[int], bool]]) -> Sequence:
    ids = [i for part, _ in parts for i in part]
    mask = [taught for part, taught in parts for _ in part]
    return Sequence(ids=ids, mask=mask, logprobs=[0.0] * len(ids), rewards=[0.0] * len(ids))


def repetition(count: int, words: list[int], rng: random.Random, longest: int = 30) -> list[Sequence]:
    """A random string of words, then the same string again: the second copy is taught. Brings induction heads."""
    strings = [rng.choices(words, k=rng.randint(5, longest)) for _ in range(count)]
    return [_sequence([(string, False), (string, True)]) for string in strings]


def reading(count: int, world: World, policy: Policy, rng: random.Random, articles: int = 1) -> list[Sequence]:
    """A few articles, then questions about their facts: name the fact in a thought, then copy its object."""
    pages: dict[tuple[str, int], str] = {}
    lessons = []
    for _ in range(count):
        kind = rng.choice(tuple(KINDS))
        first = rng.randrange(len(world.names[kind]))
        about = [(kind, first), (kind, world.lookalike(kind, first))][:articles]
        rng.shuffle(about)
        facts = [(r, i) for k, i in about for r in BY_KIND[k] if world.facts[k, r.name][i] >= 0]
        facts = rng.sample(facts * 2, min(2 * len(facts), 12))
        for key in about:
            if key not in pages:
                pages[key] = f"{world.names[key[0]][key[1]]}: {' '.join(world.article(*key).sentences)}"
        text = "\n".join(f"[{n}] {pages[key]}" for n, key in enumerate(about, 1))
        parts = [(policy.encode("<information>" + text + "</information>"), False)]
        for relation, index in facts:
            wordings = [*relation.asks, f"What is the {relation.noun} of {{x}}?", relation.that or relation.asks[0]]
            title = world.names[relation.subject][index]
            parts.append((policy.observation_ids(rng.choice(wordings).format(x=title), []), False))
            parts.append((policy.encode(think(f"{relation.noun} of {title}")), True))
            tag, *copied = policy.encode(rng.choice((search, answer))(world.text(relation, index)))
            parts += [([tag], False), (copied, True)]  # which tag is a coin flip: nothing to learn from
        lessons.append(_sequence(parts))
    return lessons


def demonstrations(envs: ToolVectorEnv, policy: Policy, questions: list[int], script, seed: int) -> list[Sequence]:
    """Episodes that ``script`` plays in the environment; its turns are taught."""
    instructions = envs.envs[0].format.instructions()
    return [s for turns in play(envs, questions, script, seed) for s in _episode(turns, policy, instructions)]


def _episode(turns: list[dict], policy: Policy, instructions: str) -> list[Sequence]:
    steps: list[Step] = []
    context = policy.prompt_ids(instructions, turns[0]["observation"])
    for turn in turns:
        if steps:
            context = context + steps[-1].tokens + policy.observation_ids(turn["observation"], steps[-1].tokens)
        tokens = policy.encode(turn["action"])
        steps.append(Step(prompt=context, tokens=tokens, logprobs=[0.0] * len(tokens)))
    return to_sequences(steps)
