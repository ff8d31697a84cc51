"""MiniWiki's worlds: they share nothing, state every fact, repeat from their seed and stream."""

import pytest

from agent_envs import scoring
from agent_envs.generators.miniwiki import World, vocabulary
from agent_envs.generators.miniwiki.names import _POOLS, syllable_words
from agent_envs.generators.miniwiki.schema import RELATIONS
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


@pytest.mark.parametrize("difficulty", ["easy", "normal", "hard"])  # varied: test_miniwiki_varied.py
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
            assert world.text(relation, i) in sentence and sentence in texts[title]
            assert sentence[0].isupper() and sentence.endswith(".") and "{" not in sentence


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
    assert golds == ("97,100", "97100") and scoring.answer_scores("97 100", golds).em == 0.0
    assert value_aliases("year", 1950) == value_aliases("person", 3) == value_aliases("count", 871) == ()


def test_names_come_from_the_vocabulary():
    known = set(vocabulary())
    for split in ("train", "heldout"):
        assert {word for title in titles(World(3000, 1, split)) for word in title.split()} <= known
    for pool, count in _POOLS.items():
        assert syllable_words(pool, 10 * count)[:count] == syllable_words(pool, count)
