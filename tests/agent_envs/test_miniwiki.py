"""MiniWiki's worlds: they share nothing, state every fact, repeat from their seed and stream."""

import hashlib
import os
import random
import resource
import subprocess
import sys
import time

import pytest

from agent_envs import scoring
from agent_envs.generators.miniwiki import DIFFICULTIES, World, make_question, vocabulary
from agent_envs.generators.miniwiki.names import _POOLS, syllable_words
from agent_envs.generators.miniwiki.schema import COMPARISONS, KINDS, RELATION, RELATIONS
from agent_envs.generators.miniwiki.world import value_aliases, value_text


def titles(world):
    return {passage.title for passage in world.passages()}


@pytest.fixture(scope="module", params=["train", "heldout"])
def world(request):
    return World(400, seed=3, split=request.param)


def test_train_and_heldout_worlds_share_no_entity():
    sizes = ((50, 0), (300, 1), (1000, 2), (2000, 0))
    train = set().union(*(titles(World(n, seed, "train")) for n, seed in sizes))
    heldout = set().union(*(titles(World(n, seed, "heldout", "hard")) for n, seed in sizes))
    assert len(train) > 2000 and not train & heldout
    normalized = [set(map(scoring.normalize_answer, names)) for names in (train, heldout)]
    assert not normalized[0] & normalized[1]


def test_an_entity_has_one_article_and_a_title_of_its_own(world):
    passages = list(world.passages())
    assert len(passages) == len(world) == 400
    assert len({p.id for p in passages}) == len({p.title for p in passages}) == 400


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_every_known_fact_is_stated_in_the_sentence_named(difficulty):
    world = World(200, seed=1, difficulty=difficulty)
    texts = {passage.title: passage.text for passage in world.passages()}
    for relation in RELATIONS:
        for i, title in enumerate(world.names[relation.subject]):
            article = world.article(relation.subject, i)
            if world.value(relation, i) < 0:
                assert relation.name not in article.states
                continue
            sentence = article.sentences[article.states[relation.name]]
            reference = world.reference(relation, i)  # who has the same one, in a varied world
            said = world.text(relation, i) if reference < 0 else world.names[relation.subject][reference]
            assert said in sentence and sentence in texts[title]
            assert sentence[0].isupper() and sentence.endswith(".") and "{" not in sentence


def test_articles_repeat_no_sentence():
    world = World(300, difficulty="hard")
    articles = (world.article(kind, i) for kind, names in world.names.items() for i in range(len(names)))
    for article in articles:
        misleading = {sentence.split(article.title)[-1] for sentence in article.sentences}
        assert len(misleading) == len(article.sentences)


def test_marriage_is_mutual_and_fathers_are_older(world):
    spouse, father = world.facts["person", "spouse"], world.facts["person", "father"]
    born = world.facts["person", "born"] // (12 * 28)
    for person, other in enumerate(spouse):
        assert other < 0 or (spouse[other] == person and other != person)
    for person, parent in enumerate(father):
        assert parent < 0 or (20 <= born[person] - born[parent] <= 60 and parent != spouse[person])


def test_aliases_count_as_right_and_other_values_do_not():
    date = (1921 * 12 + 4) * 28 + 2
    assert value_text("date", date) == "3 May 1921" and value_aliases("date", date) == ("May 3, 1921",)
    golds = (value_text("count", 97_100), *value_aliases("count", 97_100))
    assert golds == ("97,100", "97100") and scoring.exact_match("97 100", golds) == 0.0
    assert value_aliases("year", 1950) == value_aliases("person", 3) == value_aliases("count", 871) == ()


def test_names_come_from_the_vocabulary():
    known = set(vocabulary())
    for split in ("train", "heldout"):
        assert {word for title in titles(World(3000, 1, split)) for word in title.split()} <= known
    for pool, count in _POOLS.items():
        assert syllable_words(pool, 10 * count)[:count] == syllable_words(pool, count)


def test_bad_arguments_are_refused():
    for arguments in ({"entities": 49}, {"split": "test"}, {"difficulty": "mad"}):
        with pytest.raises(ValueError, match="must be"):
            World(**arguments)
    world = World(100)
    for arguments in (("riddle",), ("bridge", 1), ("bridge", 5)):
        with pytest.raises(ValueError, match="must be"):
            make_question(world, arguments[0], random.Random(0), *arguments[1:])


def test_templates_are_complete():
    for relation in RELATIONS:
        assert all(s.count("{s}") == s.count("{o}") == 1 for s in relation.says)
        assert all(a.count("{x}") == 1 for a in relation.asks)
        assert (relation.that.count("{x}") == 1) == (relation.target in KINDS)
    assert all(RELATION[kind, name].target in ("year", "date", "count") for kind, name, _, _ in COMPARISONS)


FINGERPRINT = """
import hashlib, random
from agent_envs.generators.miniwiki import TYPES, World, make_question
rng = random.Random(1)
worlds = World(200, 7, "heldout", "hard"), World(300, 7, "heldout", "varied")
asked = [make_question(worlds[type == "chain"], type, rng, 3) for type in TYPES for _ in range(30)]
print(hashlib.sha256(repr(([list(world.passages()) for world in worlds], asked)).encode()).hexdigest())
"""


def test_a_world_is_the_same_in_another_process():
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", FINGERPRINT]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1
    assert titles(World(200, 7)) != titles(World(200, 8))


def stream(entities):
    """Make a world, read it once, keep nothing; returns articles read and a hash."""
    digest, count = hashlib.sha256(), 0
    for passage in World(entities).passages():
        digest.update(passage.text.encode())
        count += 1
    return count


def test_a_big_world_streams():
    start = time.perf_counter()
    assert stream(20_000) == 20_000
    assert time.perf_counter() - start < 15


@pytest.mark.slow
def test_a_million_passages_in_bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    assert stream(1_000_000) == 1_000_000
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{time.perf_counter() - start:.0f} s, {peak:.0f} MB more at the peak")
    assert peak < 1500
