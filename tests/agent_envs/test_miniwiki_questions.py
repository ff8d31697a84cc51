"""MiniWiki's questions: each answer follows from the articles that the question names."""

import random
from functools import cache

import pytest

from agent_envs.generators.miniwiki import TYPES, World, make_question
from agent_envs.generators.miniwiki.schema import COMPARISONS
from agent_envs.tasks.qa_data import load


@pytest.fixture(scope="module", params=["train", "heldout"])
def world(request):
    return World(400, seed=3, split=request.param)


@cache
def read_articles(world):
    return {names[i]: world.article(kind, i) for kind, names in world.names.items() for i in range(len(names))}


CASES = [(kind, hops) for kind in ("bridge", "compositional") for hops in (2, 3, 4)]
CASES += [(kind, 2) for kind in TYPES if kind not in ("bridge", "compositional", "chain")]


@pytest.mark.parametrize(("type", "hops"), CASES)
def test_the_chain_leads_to_the_answer_through_the_stated_sentences(world, type, hops):
    articles, rng = read_articles(world), random.Random(0)
    for _ in range(40):
        question = make_question(world, type, rng, hops)
        chained = type not in ("comparison", "yes_no")
        expected = {"single": 1, "bridge": hops, "compositional": hops}.get(type, 2)
        assert len(question.supporting_facts) == len(question.decomposition) == expected
        assert tuple(title for title, _ in question.supporting_facts) == question.supporting_titles
        assert len(set(question.supporting_titles)) == expected
        found = [step["answer"] for step in question.decomposition]
        for (title, sentence), answer in zip(question.supporting_facts, found, strict=True):
            assert answer in articles[title].sentences[sentence]
        if chained:  # each object is the next subject, and the last one is the answer
            assert found[:-1] == list(question.supporting_titles[1:]) and found[-1] == question.answer
        assert question.supporting_titles[0] in question.question and question.question.endswith("?")
        hidden = question.supporting_titles[1:] if chained else ()
        assert not any(title in question.question for title in (*hidden, question.answer) if chained)


def test_comparisons_are_right(world):
    numbers = {world.names[kind][i]: world.facts[kind, name][i]
               for kind, name, _, _ in COMPARISONS for i in range(len(world.names[kind]))}  # fmt: skip
    larger = ("later", "younger", "more inhabitants", "longer, ")
    rng, picked = random.Random(2), []
    for _ in range(300):
        question = make_question(world, "comparison", rng)
        a, b = question.supporting_titles
        older_band = "has played for longer" in question.question
        want = max if any(word in question.question for word in larger) and not older_band else min
        assert question.answer == want((a, b), key=numbers.__getitem__) and numbers[a] != numbers[b]
        picked.append(question.answer == a)
    assert 90 < sum(picked) < 210  # the place in the question gives nothing away


def test_yes_no_questions_are_right_and_balanced(world):
    rng, answers = random.Random(2), []
    for _ in range(200):
        question = make_question(world, "yes_no", rng)
        a, b = (step["answer"] for step in question.decomposition)
        assert question.answer == ("yes" if a == b else "no") and question.aliases == ()
        answers.append(question.answer)
    assert 60 < answers.count("yes") < 140


def test_inference_states_the_relation_nowhere(world):
    assert "father" in make_question(world, "inference", random.Random(0)).question
    assert all("grandfather" not in p.text and "father-in-law" not in p.text for p in world.passages())


def test_a_world_too_small_for_a_question_says_so_instead_of_searching_for_ever():
    for seed in range(12):
        rng = random.Random(0)
        for type in TYPES:
            world = World(50, seed, difficulty="varied" if type == "chain" else "normal")
            try:
                make_question(world, type, rng, hops=3 if type == "chain" else 4)
            except ValueError as error:
                assert "make it larger" in str(error)


def test_the_questions_of_a_split_are_different_and_have_ids_of_their_own():
    asked = load("miniwiki", entities=200, questions=300).questions
    assert len({q.question for q in asked}) == len({q.id for q in asked}) == 300
    with pytest.raises(ValueError, match="make it larger"):
        load("miniwiki", entities=60, questions=20_000)
