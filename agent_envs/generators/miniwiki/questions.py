"""Questions over a MiniWiki world, with gold passages, facts, decomposition and evidence.

The types are those of the benchmarks: ``single`` (one hop), ``bridge`` (HotpotQA: a relative clause describes the middle
entity), ``compositional`` (2WikiMultihopQA, MuSiQue: "the r2 of the r1 of X"), ``inference`` (2WikiMultihopQA: a relation
that no article states), ``comparison`` and ``yes_no``. A ``chain`` asks for one or two relations, and its answer
takes 1 to 3 articles of a "varied" world.
"""

import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_envs.data.question import Question
from agent_envs.generators.instances import check_choice
from agent_envs.generators.miniwiki import schema
from agent_envs.generators.miniwiki.world import World, value_aliases

_TRIES = 200  # a small world may lack some chains and pairs altogether
TYPES = ("single", "bridge", "compositional", "inference", "comparison", "yes_no", "chain")


@dataclass(frozen=True, slots=True)
class Hop:
    """One reading step: a relation of entity number ``subject``. ``reference`` is the entity that the article refers to
    instead of the object (-1: none); ``told_by`` the relation and subject of another article that states the fact."""

    relation: schema.Relation
    subject: int
    reference: int = -1
    told_by: tuple[schema.Relation, int] | None = None


def make_question(world: World, type: str, rng: random.Random, hops: int = 2) -> Question:
    """Draw a random question of ``type``. ``hops`` is the number of relations for bridge and compositional (2 to 4) and the
    number of articles for chain (1 to 3).

    Raises:
        ValueError: for an unknown type, other hops, or a world that is too small or of a difficulty without such questions.
    """
    check_choice("type", type, TYPES)
    if type == "chain" and not 1 <= hops <= 3:
        raise ValueError(f"hops must be 1, 2 or 3, got {hops}")
    if type in ("bridge", "compositional") and not 2 <= hops <= 4:
        raise ValueError(f"hops must be 2, 3 or 4, got {hops}")
    if type == "chain" and world.difficulty != "varied":
        raise ValueError(f'chain questions need a world with difficulty "varied", got {world.difficulty!r}')
    # The other types rely on a fixed number of articles.
    if type not in ("chain", "comparison", "yes_no") and world.difficulty == "varied":
        raise ValueError(f'a world with difficulty "varied" has chain, comparison and yes_no questions, no {type}')
    draw = _two_entities if type in ("comparison", "yes_no") else _read_chain if type == "chain" else _one_chain
    question = next(filter(None, (draw(world, type, rng, hops) for _ in range(_TRIES))), None)
    if question is None:
        raise ValueError(f"found no {type} question in this world of {len(world)} entities: make it larger")
    return question


def _one_chain(world: World, type: str, rng: random.Random, hops: int) -> Question | None:
    if type == "inference":
        phrase, inner, outer = rng.choice(schema.INFERENCES)
        path = _chain(world, rng, [schema.RELATION["person", inner], schema.RELATION["person", outer]])
        text = path and f"Who is the {phrase} of {_name(world, path[0])}?"
    else:
        path = _chain(world, rng, _random_relations(rng, 1 if type == "single" else hops))
        text = path and _chain_text(world, path, type, rng)
    return _chain_question(world, type, text, path, chained=True) if path else None


def _read_chain(world: World, type: str, rng: random.Random, hops: int) -> Question | None:
    """Draw one or two relations, equally likely for each number of articles, so that the form does not reveal that number."""
    asks_for = rng.randint(1, 2)
    for _ in range(_TRIES):
        relations = _random_relations(rng, asks_for)
        subject = rng.randrange(len(world.names[relations[0].subject]))
        path = read_path(world, subject, relations)
        if path and len(path) == hops:
            break
    else:
        return None
    requested = [Hop(relations[0], subject), *(Hop(relation, -1) for relation in relations[1:])]
    text = _chain_text(world, requested, rng.choice(("bridge", "compositional")), rng)
    return _chain_question(world, type, text, path, chained=False)


def _chain_question(world: World, type: str, text: Any, path: list[Hop], chained: bool) -> Question:
    """A question whose answer is the object of the last hop."""
    relation, subject = path[-1].relation, path[-1].subject
    aliases = value_aliases(relation.target, world.value(relation, subject))
    return _question(world, type, text, world.text(relation, subject), aliases, path, chained)


def read_path(world: World, subject: int, relations: list[schema.Relation]) -> list[Hop] | None:
    """The reading steps from entity number ``subject`` along ``relations``; None if a fact is unknown or an article would be
    read twice."""
    path: list[Hop] = []
    while relations:
        relation, *relations = relations
        while (reference := world.reference(relation, subject)) >= 0:
            path.append(Hop(relation, subject, reference))
            subject = reference
        value = world.value(relation, subject)
        if value < 0:
            return None
        if relations and world.aside(relation, subject) is relations[0]:
            told_by, (relation, *relations) = (relation, subject), relations
            path.append(Hop(relation, value, told_by=told_by))
            value = world.value(relation, value)
        else:
            path.append(Hop(relation, subject))
        subject = value
    return path if len({_title(world, hop) for hop in path}) == len(path) else None


def _title(world: World, hop: Hop) -> str:
    """The title of the article that states the fact of this step."""
    relation, subject = hop.told_by or (hop.relation, hop.subject)
    return world.names[relation.subject][subject]


def _random_relations(rng: random.Random, hops: int) -> list[schema.Relation]:
    """Draw a chain of relations: the object of each is the subject of the next; no relation comes twice in a row."""
    while True:
        relations = [rng.choice(schema.BY_KIND[rng.choice(tuple(schema.KINDS))])]
        while len(relations) < hops and relations[-1].target in schema.KINDS:
            relations.append(rng.choice([r for r in schema.BY_KIND[relations[-1].target] if r is not relations[-1]]))
        if len(relations) == hops:
            return relations


def _chain(world: World, rng: random.Random, relations: list[schema.Relation]) -> list[Hop] | None:
    """Draw a path along ``relations`` of which all facts are known and no entity comes twice; None if none is found."""
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
    if world.difficulty != "varied":
        drawn = rng.choice(schema.COMPARISONS)  # also for yes_no, to keep the questions of each seed
        kind, name, *asks = schema.SAME[0] if type == "yes_no" else drawn
    elif type == "yes_no":
        kind, name, *asks = rng.choice(schema.SAME)
    else:
        kind, name, text = rng.choice(schema.IN_TIME)
        asks = [text.replace("{when}", when) for when in ("earlier", "later")]
    relation, values = schema.RELATION[kind, name], world.facts[kind, name]
    if world.difficulty == "varied" and relation.target == "date":
        values = values // (12 * 28)  # compare years: two days in the same year count as equal
    equal = rng.random() < 0.5 and type == "yes_no"
    for _ in range(_TRIES):
        a, b = rng.sample(range(len(values)), 2)
        if equal and world.difficulty == "varied":  # a random pair is rarely equal: most answers would be "no"
            b = int(rng.choice(np.flatnonzero(values == values[a])))
        if a == b or min(values[a], values[b]) < 0 or (values[a] == values[b]) != equal:
            continue
        path = [hop for subject in (a, b) for hop in read_path(world, subject, [relation]) or ()]
        if len({_title(world, hop) for hop in path}) == len(path) and 2 <= len(path) <= 3:
            break
    else:
        return None
    fill = {"a": world.names[kind][a], "b": world.names[kind][b]}
    if type == "yes_no":
        text, answer = asks[0], "yes" if equal else "no"
    else:
        earlier = rng.random() < 0.5
        text, answer = asks[not earlier], fill["a" if (values[a] < values[b]) == earlier else "b"]
    return _question(world, type, text.format(**fill), answer, (), path, chained=False)


def _question(world, type, text, answer, aliases, path: list[Hop], chained: bool) -> Question:
    titles = [_title(world, hop) for hop in path]
    objects = [_found(world, hop) for hop in path]
    facts, steps = [], []
    for number, (hop, title, found) in enumerate(zip(path, titles, objects, strict=True)):
        relation, subject = hop.told_by or (hop.relation, hop.subject)
        stated = f"{relation.name} {hop.relation.name}" if hop.told_by else relation.name
        facts.append((title, world.article(relation.subject, subject).states[stated]))
        named = f"#{number}" if chained and number else _name(world, hop)  # MuSiQue's way to name an earlier answer
        step: dict[str, Any] = {"question": f"{hop.relation.noun} of {named}?", "answer": found, "title": title}
        if hop.reference >= 0:
            step["reference"] = True  # the answer is not the object, but the entity with the same one
        elif hop.told_by:  # the article names the subject of this step first
            step["told_with"] = {"question": f"{relation.noun} of {title}?", "answer": _name(world, hop)}
        elif rival := world.rival(hop.relation, hop.subject):
            step["rival"] = rival  # a wrong name beside the answer
        steps.append(step)
    return Question(
        id=f"miniwiki-{world.split}-{world.seed}-{path[0].relation.subject}-{path[0].subject}-{zlib.crc32(text.encode()):08x}",
        question=text,
        answer=answer,
        aliases=aliases,
        type=type,
        supporting_titles=tuple(titles),
        supporting_facts=tuple(facts),
        decomposition=tuple(steps),
    )


def _found(world: World, hop: Hop) -> str:
    """What the article states: the object, or the entity with the same one."""
    if hop.reference >= 0:
        return world.names[hop.relation.subject][hop.reference]
    return world.text(hop.relation, hop.subject)
