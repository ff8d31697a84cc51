"""Questions over a MiniWiki world, with gold passages, facts, decomposition and evidence.

The types are those of the benchmarks: ``single`` (one hop), ``bridge`` (HotpotQA: the middle entity is described by a
relative clause), ``compositional`` (2WikiMultihopQA, MuSiQue: "the r2 of the r1 of X", 2 to 4 hops), ``inference``
(2WikiMultihopQA: a relation that no article states), ``comparison`` and ``yes_no``.
"""

import random
import zlib
from dataclasses import dataclass

from agent_envs.data.question import Question
from agent_envs.miniwiki.schema import BY_KIND, COMPARISONS, INFERENCES, KINDS, RELATION, Relation
from agent_envs.miniwiki.world import World, value_aliases

_TRIES = 200  # a small world may lack some chains and pairs altogether
TYPES = ("single", "bridge", "compositional", "inference", "comparison", "yes_no")


@dataclass(frozen=True, slots=True)
class Hop:
    """One reading step: the relation of entity number ``subject``."""

    relation: Relation
    subject: int


def make_question(world: World, type: str, rng: random.Random, hops: int = 2) -> Question:
    """A random question of ``type``; ``hops`` is the length of the chain for bridge and compositional ones.

    Raises:
        ValueError: for an unknown type, hops outside 2..4, or a world too small to hold such a question.
    """
    if type not in TYPES:
        raise ValueError(f"type must be one of {TYPES}, got {type!r}")
    if not 2 <= hops <= 4:
        raise ValueError(f"hops must be 2, 3 or 4, got {hops}")
    draw = _two_entities if type in ("comparison", "yes_no") else _one_chain
    question = next(filter(None, (draw(world, type, rng, hops) for _ in range(_TRIES))), None)
    if question is None:
        raise ValueError(f"found no {type} question in this world of {len(world)} entities: make it larger")
    return question


def _one_chain(world: World, type: str, rng: random.Random, hops: int) -> Question | None:
    if type == "inference":
        phrase, inner, outer = rng.choice(INFERENCES)
        path = _chain(world, rng, [RELATION["person", inner], RELATION["person", outer]])
        text = path and f"Who is the {phrase} of {_name(world, path[0])}?"
    else:
        path = _chain(world, rng, _random_relations(rng, 1 if type == "single" else hops))
        text = path and _chain_text(world, path, type, rng)
    if not path:
        return None
    last = path[-1]
    answer = world.text(last.relation, last.subject)
    aliases = value_aliases(last.relation.target, world.value(last.relation, last.subject))
    return _question(world, type, text, answer, aliases, path, chained=True)


def _random_relations(rng: random.Random, hops: int) -> list[Relation]:
    """A chain whose links fit: each object is the next one's subject; no relation twice in a row."""
    while True:
        relations = [rng.choice(BY_KIND[rng.choice(tuple(KINDS))])]
        while len(relations) < hops and relations[-1].target in KINDS:
            relations.append(rng.choice([r for r in BY_KIND[relations[-1].target] if r is not relations[-1]]))
        if len(relations) == hops:
            return relations


def _chain(world: World, rng: random.Random, relations: list[Relation]) -> list[Hop] | None:
    """Start somewhere where every fact along ``relations`` is known and no entity comes twice; None if not found."""
    start = world.names[relations[0].subject]
    for _ in range(_TRIES):
        path, entity = [], rng.randrange(len(start))
        for relation in relations:
            path.append(Hop(relation, entity))
            entity = world.value(relation, entity)
            if entity < 0:
                break
        visited = {(hop.relation.subject, hop.subject) for hop in path} | {(relations[-1].target, entity)}
        if entity >= 0 and len(visited) == len(path) + 1:
            return path
    return None


def _name(world: World, hop: Hop) -> str:
    return world.names[hop.relation.subject][hop.subject]


def _chain_text(world: World, path: list[Hop], type: str, rng: random.Random) -> str:
    phrase = _name(world, path[0])
    for hop in path[:-1]:
        noun_phrase = f"the {hop.relation.noun} of {phrase}"
        phrase = hop.relation.that.format(x=phrase) if type == "bridge" else noun_phrase
    last = path[-1].relation
    if type == "compositional" or rng.random() < 0.3:
        return f"{'Who' if last.target == 'person' else 'What'} is the {last.noun} of {phrase}?"
    return rng.choice(last.asks).format(x=phrase)


def _two_entities(world: World, type: str, rng: random.Random, hops: int) -> Question | None:
    kind, name, smaller, larger = rng.choice(COMPARISONS)
    if type == "yes_no":
        kind, name = "town", "country"
    relation, values = RELATION[kind, name], world.facts[kind, name]
    want_equal = rng.random() < 0.5
    for _ in range(_TRIES):
        a, b = rng.sample(range(len(values)), 2)
        if min(values[a], values[b]) >= 0 and (values[a] == values[b]) == (type == "yes_no" and want_equal):
            break
    else:
        return None
    path = [Hop(relation, a), Hop(relation, b)]
    fill = {"a": world.names[kind][a], "b": world.names[kind][b]}
    if type == "yes_no":
        text, answer = "Are {a} and {b} in the same country?", "yes" if want_equal else "no"
    else:
        earlier = rng.random() < 0.5
        text, answer = (smaller, larger)[not earlier], fill["a" if (values[a] < values[b]) == earlier else "b"]
    return _question(world, type, text.format(**fill), answer, (), path, chained=False)


def _question(world, type, text, answer, aliases, path: list[Hop], chained: bool) -> Question:
    titles = [_name(world, hop) for hop in path]
    objects = [world.text(hop.relation, hop.subject) for hop in path]
    articles = [world.article(hop.relation.subject, hop.subject) for hop in path]
    steps = []
    for number, (hop, title, found) in enumerate(zip(path, titles, objects, strict=True)):
        subject = f"#{number}" if chained and number else title  # MuSiQue's way to name an earlier answer
        steps.append({"question": f"{hop.relation.noun} of {subject}?", "answer": found, "title": title})
    return Question(
        id=f"miniwiki-{world.split}-{world.seed}-{path[0].relation.subject}-{path[0].subject}-{zlib.crc32(text.encode()):08x}",
        question=text,
        answer=answer,
        aliases=aliases,
        type=type,
        supporting_titles=tuple(titles),
        supporting_facts=tuple((t, a.states[h.relation.name]) for t, a, h in zip(titles, articles, path, strict=True)),
        decomposition=tuple(steps),
        evidences=tuple((t, h.relation.name, o) for t, h, o in zip(titles, path, objects, strict=True)),
    )
