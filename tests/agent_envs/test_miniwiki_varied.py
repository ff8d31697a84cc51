"""The worlds and questions in which the articles decide how far to go."""

import collections
import itertools
import random
import re
import zlib
from functools import cache

import pytest

from agent_envs.generators.miniwiki import World, make_question
from agent_envs.generators.miniwiki.schema import RELATIONS
from agent_envs.tasks.qa_data import load


@pytest.fixture(scope="module", params=["train", "heldout"])
def world(request):
    return World(600, seed=5, split=request.param, difficulty="varied")


def facts_of(world):
    for relation in RELATIONS:
        for subject in range(len(world.names[relation.subject])):
            if world.value(relation, subject) >= 0:
                yield relation, subject


def test_every_article_says_what_the_world_holds_true(world):
    told = collections.Counter()
    for relation, subject in facts_of(world):
        article = world.article(relation.subject, subject)
        sentence = article.sentences[article.states[relation.name]]
        reference, rival, aside = (tell(relation, subject) for tell in (world.reference, world.rival, world.aside))
        told.update(reference=reference >= 0, rival=bool(rival), aside=aside is not None, all=1)
        if reference >= 0:
            assert world.names[relation.subject][reference] in sentence and not rival and aside is None
            assert world.value(relation, reference) == world.value(relation, subject)
        else:
            assert world.text(relation, subject) in sentence
        if rival:  # the right one stands first, before ", not", or last, after ", but"
            right, wrong = map(re.escape, (world.text(relation, subject), rival))
            assert re.search(f"{right}, not {wrong}|{wrong}, but .*{right}", sentence)
        if aside:
            about = world.value(relation, subject)
            sentence = article.sentences[article.states[f"{relation.name} {aside.name}"]]
            assert world.names[relation.target][about] in sentence and world.text(aside, about) in sentence
    assert all(0.1 < told[way] / told["all"] < 0.3 for way in ("reference", "rival", "aside")), told


def test_the_relation_stands_beside_the_object_and_references_lead_somewhere(world):
    """ "X's director is Y", not "The director of X is Y": no name comes between the two."""
    for relation, subject in facts_of(world):
        article = world.article(relation.subject, subject)
        sentence = article.sentences[article.states[relation.name]]
        whose = rf"(the \w+|{re.escape(article.title)})"
        assert not re.match(rf"The [\w ]+ (of|behind) {whose} (is|are|takes) ", sentence), sentence
        seen = [subject]
        while (following := world.reference(relation, seen[-1])) >= 0:
            assert following not in seen  # never in a circle
            seen.append(following)


@cache
def read_articles(world):
    return {name: world.article(kind, i) for kind, names in world.names.items() for i, name in enumerate(names)}


def follow(world, question):
    """The answer, by reading the named articles alone: the sentence of each step, in order."""
    for (title, number), step in zip(question.supporting_facts, question.decomposition, strict=True):
        assert step["title"] == title and step["answer"] in read_articles(world)[title].sentences[number]
        yield title, step


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_chain_takes_as_many_articles_as_asked_for_and_each_one_names_the_next(world, hops):
    rng = random.Random(hops)
    for _ in range(60):
        question = make_question(world, "chain", rng, hops)
        steps = list(follow(world, question))
        assert len(steps) == hops == len(set(question.supporting_titles))
        assert question.supporting_titles[0] in question.question
        for (_, step), (title, _) in itertools.pairwise(steps):
            assert step["answer"] == title
        assert steps[-1][1]["answer"] == question.answer


def test_the_form_of_a_question_does_not_give_the_number_of_articles_away(world):
    """Two relations are as likely to be asked for with one article as with three."""
    nested = re.compile(
        r" of the \w+( \w+)* of | (town|river) (where|on which|into which) | (person|company) (who|that) | whose child "
    )
    rng = random.Random(0)
    asked = {hops: [make_question(world, "chain", rng, hops).question for _ in range(400)] for hops in (1, 2, 3)}
    share = {hops: sum(bool(nested.search(text)) for text in texts) for hops, texts in asked.items()}
    assert max(share.values()) - min(share.values()) < 90, share  # of 400: 3.2 standard errors


def test_some_articles_hold_the_answer_already_and_some_have_two_names_for_what_is_sought(world):
    rng = random.Random(1)
    ones = [make_question(world, "chain", rng, 1) for _ in range(200)]
    early = [q for q in ones if q.decomposition[0]["title"] not in q.decomposition[0]["question"]]
    assert len(early) > 60  # the fact of somebody else, told along
    for question in early:
        ((_, step),) = follow(world, question)
        assert step["told_with"]["answer"] in step["question"] and step["title"] in step["told_with"]["question"]
    several = [make_question(world, "chain", rng, 2) for _ in range(200)]
    assert sum("rival" in step for q in several for step in q.decomposition) > 40


@pytest.mark.parametrize("type", ["comparison", "yes_no"])
def test_comparisons_are_right_and_take_two_or_three_articles(world, type):
    rng, answers, lengths = random.Random(4), collections.Counter(), collections.Counter()
    for _ in range(60):
        question = make_question(world, type, rng)
        found = [step["answer"] for _, step in follow(world, question)]
        values = [value for value in found if value not in question.supporting_titles]
        lengths[len(found)] += 1
        if type == "yes_no":
            assert len(values) == 2 and question.answer == ("yes" if values[0] == values[1] else "no")
            answers[question.answer] += 1
        else:
            a, b = (int(value[-4:]) for value in values)
            want_later = " later, " in question.question
            first, second = re.search(r", (.+) or (.+)\?$", question.question).groups()
            answers["first" if question.answer == first else "second"] += 1
            assert a != b and question.answer == (second if (b > a) == want_later else first)
    assert min(answers.values()) > 18 and set(lengths) == {2, 3}


def test_varied_worlds_have_questions_of_their_own():
    with pytest.raises(ValueError, match='difficulty "varied"'):
        make_question(World(200), "chain", random.Random(0), 2)
    with pytest.raises(ValueError, match="hops must be 1, 2 or 3, got 4"):
        make_question(World(200, difficulty="varied"), "chain", random.Random(0), 4)
    with pytest.raises(ValueError, match="has chain, comparison and yes_no questions, no bridge"):
        make_question(World(200, difficulty="varied"), "bridge", random.Random(0))


def test_other_worlds_are_what_they_were():
    """A seed gives the same world and questions as ever: published results can be repeated."""
    bridges = load("miniwiki", entities=300, questions=3).questions
    assert [(q.question, q.answer) for q in bridges] == [
        ("How many inhabitants does the town where The Sunken Orchard is set have?", "84,200"),
        ("What is the population of the birthplace of Nimus Romari?", "64,300"),
        ("On which river does the town where Laez Shipping is based lie?", "White Siawa"),
    ]
    types = ("comparison", "yes_no", "inference", "single")
    others = load("miniwiki", entities=300, questions=40, types=types, difficulty="hard").questions
    kept = [(q.id, q.question, q.golds, q.supporting_facts, q.decomposition) for q in others]
    assert zlib.crc32(repr(kept).encode()) == 699327760
