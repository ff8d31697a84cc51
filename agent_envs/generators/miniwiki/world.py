"""A fictional world: its entities, the facts about them, and the articles that state these facts.

Facts are integer arrays (entity index or encoded value). Articles are written on demand, each from its own seed.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import retrieval_index
from agent_envs.generators.instances import check_choice, check_integers
from agent_envs.generators.miniwiki import names, schema
from retrieval_index import Passage, Searcher

# mean number of misleading sentences in an article
DIFFICULTIES = {"easy": 0.0, "normal": 0.5, "hard": 2.0, "varied": 0.5}
_REFERENCES, _ASIDES, _RIVALS = 0.25, 0.3, 0.4  # shares of the facts of a "varied" world that are told that way
_BOUND = ("spouse", "father")  # relations that depend on others: never told by reference
_MISSING = {"spouse": 0.3, "father": 0.3, "employer": 0.4}  # share of people for whom the relation is unknown


@dataclass(frozen=True, slots=True)
class Article:
    """One article: its sentences, and the index of the sentence that states each relation, or a relation of its object
    (``"<relation> <relation of the object>"``)."""

    title: str
    sentences: tuple[str, ...]
    states: dict[str, int]


class World:
    """``entities`` fictional entities and the facts between them, a pure function of the arguments.

    Args:
        entities: number of entities, each with an article; at least 50.
        seed: different seeds give unrelated worlds.
        split: ``"train"`` or ``"heldout"``; worlds of different splits share no entity name.
        difficulty: ``"easy"`` (one wording for each fact), ``"normal"`` (varied wording, a misleading sentence in every
            other article), ``"hard"`` (also inverted wording such as "X directed Y", two misleading sentences an article),
            or ``"varied"``: as "normal", with some facts told by reference ("X has the same director as W"), with one
            about their object ("X was directed by Y. Y was born in Z"), or beside a wrong name ("… by Y, not Q").
    """

    def __init__(self, entities: int = 1000, seed: int = 0, split: str = "train", difficulty: str = "normal"):
        check_integers(50, entities=entities)
        check_choice("split", split, names.SPLITS)
        check_choice("difficulty", difficulty, tuple(DIFFICULTIES))
        self.seed, self.split, self.difficulty = seed, split, difficulty
        rng = random.Random(f"world:{seed}:{split}")
        taken: set[str] = set()
        sizes = {kind: int(entities * share) for kind, share in schema.KINDS.items()}
        sizes["person"] += entities - sum(sizes.values())
        self.names = {kind: list(names.unique_names(kind, n, split, rng, taken)) for kind, n in sizes.items()}
        self._draw_facts(np.random.default_rng(rng.getrandbits(64)), sizes)
        self._wordings = {key: _wordings(r.says, difficulty) for key, r in schema.RELATION.items()}
        self._lookalike = {kind: _next_in_order(self.names[kind]) for kind in schema.KINDS}
        if difficulty == "varied":
            self._draw_telling(np.random.default_rng(rng.getrandbits(64)))
        self._articles: dict[tuple[str, int], Article] = {}

    def _draw_facts(self, rng: np.random.Generator, sizes: dict[str, int]) -> None:
        self.facts: dict[tuple[str, str], np.ndarray] = {}
        for (kind, name), relation in schema.RELATION.items():
            n = sizes[kind]
            if relation.target in sizes:
                values = rng.integers(sizes[relation.target], size=n)
                if relation.target == kind:
                    values = np.where(values == np.arange(n), (values + 1) % n, values)  # no entity is its own object
            elif relation.target == "date":
                values = (rng.integers(1850, 1990, n) * 12 + rng.integers(0, 12, n)) * 28 + rng.integers(0, 28, n)
            elif relation.target == "year":
                values = rng.integers(1880, 2020, n)
            elif relation.target == "count":
                values = rng.integers(101, 1000, n) * (100 if kind == "town" else 1)
            else:
                values = rng.integers(len(schema.COUNTRIES), size=n)
            if self.difficulty == "varied" and name == "length":
                values -= values % 10  # few numbers, so that the token of each is frequent enough to be learned
            values[rng.random(n) < _MISSING.get(name, 0.0)] = -1
            self.facts[kind, name] = values
        self._marry(rng, sizes["person"])

    def _marry(self, rng: np.random.Generator, people: int) -> None:
        """Make marriages mutual, and choose fathers who are born 20 to 60 years before their child."""
        pairs = rng.permutation(people)[: people // 20 * 14].reshape(-1, 2)
        spouse = self.facts["person", "spouse"]
        spouse[:] = -1
        spouse[pairs[:, 0]], spouse[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
        born = self.facts["person", "born"] // (12 * 28)
        order = np.argsort(born, kind="stable")
        low, high = np.searchsorted(born[order], born - 60), np.searchsorted(born[order], born - 20)
        father = order[np.minimum(low + (rng.random(people) * (high - low)).astype(np.int64), people - 1)]
        unknown = (self.facts["person", "father"] < 0) | (high <= low) | (father == spouse)
        self.facts["person", "father"] = np.where(unknown, -1, father)

    def _draw_telling(self, rng: np.random.Generator) -> None:
        """Draw for each fact a reference to another entity, an aside about its object, and a wrong name; -1 for none."""
        self._references = {key: self._draw_references(relation, rng) for key, relation in schema.RELATION.items()}
        self._asides, self._rivals = {}, {}
        for key, relation in schema.RELATION.items():
            if relation.target in schema.KINDS:
                told = (self._references[key] < 0) & (self.facts[key] >= 0)
                self._asides[key] = np.where(told, self._draw_asides(relation, rng), -1)
                alone = told & (self._asides[key] < 0)  # an aside would reveal which of the two names is right
                self._rivals[key] = np.where(alone, self._draw_rivals(relation, rng), -1)

    def _draw_references(self, relation: schema.Relation, rng: np.random.Generator) -> np.ndarray:
        """Draw references. A fact that is told by reference takes the value of the entity that it refers to."""
        values = self.facts[relation.subject, relation.name]
        references = np.full(len(values), -1)
        if relation.name in _BOUND:
            return references
        order = rng.permutation(len(values))  # a reference leads to an earlier one, never in a circle
        for place in map(int, np.flatnonzero(rng.random(len(values)) < _REFERENCES)):
            subject, known = order[place], order[int(rng.integers(max(place, 1)))]
            itself = relation.target == relation.subject and values[known] == subject
            if place and values[known] >= 0 and not itself:
                references[subject], values[subject] = known, values[known]
        return references

    def _draw_asides(self, relation: schema.Relation, rng: np.random.Generator) -> np.ndarray:
        values, further = self.facts[relation.subject, relation.name], schema.BY_KIND[relation.target]
        asides = np.where(rng.random(len(values)) < _ASIDES, rng.integers(len(further), size=len(values)), -1)
        for number, other in enumerate(further):
            asides[(asides == number) & (self.facts[relation.target, other.name][values] < 0)] = -1
        return asides

    def _draw_rivals(self, relation: schema.Relation, rng: np.random.Generator) -> np.ndarray:
        values, names = self.facts[relation.subject, relation.name], self.names[relation.target]
        rivals = np.where(rng.random(len(values)) < _RIVALS, rng.integers(len(names), size=len(values)), -1)
        return np.where(rivals == values, -1, rivals)

    def reference(self, relation: schema.Relation, subject: int) -> int:
        """The entity that the article of ``subject`` refers to instead of the object; -1 where it names the object."""
        return int(self._references[relation.subject, relation.name][subject]) if self.difficulty == "varied" else -1

    def aside(self, relation: schema.Relation, subject: int) -> schema.Relation | None:
        """The relation of the object that the article of ``subject`` states with ``relation``; None if there is none."""
        if self.difficulty != "varied" or relation.target not in schema.KINDS:
            return None
        number = int(self._asides[relation.subject, relation.name][subject])
        return schema.BY_KIND[relation.target][number] if number >= 0 else None

    def rival(self, relation: schema.Relation, subject: int) -> str:
        """The wrong name beside the object in the article of ``subject``; "" for none."""
        if self.difficulty != "varied" or relation.target not in schema.KINDS:
            return ""
        number = int(self._rivals[relation.subject, relation.name][subject])
        return self.names[relation.target][number] if number >= 0 else ""

    def __len__(self) -> int:
        return sum(map(len, self.names.values()))

    def value(self, relation: schema.Relation, subject: int) -> int:
        """The object of ``relation`` for entity number ``subject``: an entity number or encoded value, -1 if unknown."""
        return int(self.facts[relation.subject, relation.name][subject])

    def text(self, relation: schema.Relation, subject: int) -> str:
        """The object of ``relation`` for entity number ``subject``, as articles and answers write it."""
        return self.object_text(relation, self.value(relation, subject))

    def object_text(self, relation: schema.Relation, value: int) -> str:
        """An object of ``relation``, an entity number or encoded value, as articles and answers write it."""
        return (
            self.names[relation.target][value]
            if relation.target in schema.KINDS
            else value_text(relation.target, value)
        )

    def article(self, kind: str, index: int) -> Article:
        """The article of entity number ``index`` of a kind, cached because many questions use the same one."""
        if (kind, index) not in self._articles:
            self._articles[kind, index] = self._write_article(kind, index)
        return self._articles[kind, index]

    def _write_article(self, kind: str, index: int) -> Article:
        rng = random.Random(f"article:{self.seed}:{self.split}:{kind}:{index}")
        title = self.names[kind][index]
        label = rng.choice(schema.OCCUPATIONS) if kind == "person" else kind
        genre = f"{rng.choice(schema.GENRES[kind])} " if kind in schema.GENRES else ""
        article_word = "an" if (genre or label)[0] in "aeiou" else "a"
        sentences, states = [f"{title} is {article_word} {genre}{label}."], {}
        relations = [r for r in schema.BY_KIND[kind] if self.facts[kind, r.name][index] >= 0]
        rng.shuffle(relations)
        for relation in relations:
            says = rng.choice(self._wordings[kind, relation.name])
            subject = title if rng.random() < 0.3 else f"the {label}"
            sentence = says.format(s=subject, o=self.text(relation, index))
            if self.difficulty == "varied":
                sentence = self._vary(sentence, subject, relation, index, rng)
            states[relation.name] = len(sentences)
            sentences.append(sentence[0].upper() + sentence[1:])
            if aside := self.aside(relation, index):
                states[f"{relation.name} {aside.name}"] = len(sentences)
                sentences.append(self._tell_aside(relation, aside, index, rng))
        other_index = index
        for _ in range(_draw_count(rng, DIFFICULTIES[self.difficulty])):
            other_index = self._lookalike[kind][other_index]
            other = self.names[kind][other_index]
            wording = rng.choice(("{s} is not {o}.", "{s} is often confused with {o}.", "See also {o}."))
            sentences.append(wording.format(s=title, o=other))
        return Article(title, tuple(sentences), states)

    def _vary(self, sentence: str, subject: str, relation: schema.Relation, index: int, rng: random.Random) -> str:
        """The sentence of a fact, one that refers to another entity with the same object, or one with a wrong second name."""
        reference, rival = self.reference(relation, index), self.rival(relation, index)
        if reference >= 0:
            wording = rng.choice(("{s} has the same {noun} as {w}.", "{s} shares the {noun} of {w}."))
            return wording.format(s=subject, noun=relation.noun, w=self.names[relation.subject][reference])
        if not rival:
            return sentence
        if rng.random() < 0.5:
            return f"{sentence[:-1]}, not {rival}."
        return f"It was thought to be {rival}, but {sentence}"

    def _tell_aside(self, relation: schema.Relation, aside: schema.Relation, index: int, rng: random.Random) -> str:
        about = self.value(relation, index)
        wording = rng.choice(self._wordings[aside.subject, aside.name])
        sentence = wording.format(s=self.names[aside.subject][about], o=self.text(aside, about))
        return sentence[0].upper() + sentence[1:]

    def passages(self) -> Iterator[Passage]:
        """Every article as a passage, one at a time, in a fixed order."""
        for kind, titles in self.names.items():
            for index, title in enumerate(titles):
                yield Passage(f"{kind}-{index}", title, " ".join(self._write_article(kind, index).sentences))

    def build_index(self) -> Searcher:
        """Build BM25 over the articles. Title and text have equal weight, except in a "varied" world."""
        if self.difficulty == "varied":
            return retrieval_index.build(self.passages())
        return retrieval_index.build(self.passages(), title_weight=1, exact_title=False)


def value_text(target: str, value: int) -> str:
    """A year, date, count or country as text."""
    if target == "date":
        months, day = divmod(value, 28)
        return f"{day + 1} {schema.MONTHS[months % 12]} {months // 12}"
    return schema.COUNTRIES[value] if target == "word" else f"{value:,}" if target == "count" else str(value)


def value_aliases(target: str, value: int) -> tuple[str, ...]:
    """Other ways to write a value that count as right, as the benchmarks' alias lists do."""
    if target == "date":
        months, day = divmod(value, 28)
        return (f"{schema.MONTHS[months % 12]} {day + 1}, {months // 12}",)
    return (str(value),) if target == "count" and value >= 1000 else ()


def _wordings(says: tuple[str, ...], difficulty: str) -> tuple[str, ...]:
    """Choose wordings by difficulty. Easy: the first. Normal: those that name the relation before the object. Hard: all.
    Varied: those of normal, with the relation beside the object ("X's director is Y"), where a tiny policy finds it."""
    if difficulty == "easy":
        return says[:1]
    if difficulty == "varied":
        says = tuple(re.sub(r"^The (.+) (?:of|behind) \{s\}", r"{s}'s \1", wording) for wording in says)
    return says if difficulty == "hard" else tuple(s for s in says if not s.startswith("{o}"))


def _draw_count(rng: random.Random, mean: float) -> int:
    return int(mean) + (rng.random() < mean % 1)


def _next_in_order(titles: list[str]) -> np.ndarray:
    """For each title, the index of the next one in the order of last words; most often the two share that word."""
    order = np.array(sorted(range(len(titles)), key=lambda i: (titles[i].split()[-1], titles[i])))
    following = np.empty(len(titles), dtype=np.int64)
    following[order] = np.roll(order, -1)
    return following
