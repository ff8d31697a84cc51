"""The cold start for MiniWiki's varied worlds: the skills are taught, the decisions are not."""

import random
import re

import pytest
import torch

from agent_envs.generators.miniwiki import World
from agent_envs.tasks.qa_scripts import careless
from agent_envs.utils.scripts import roll_out_many
from tests.trainers.tiny.test_curriculum import pieces
from trainers import grpo
from trainers.evaluation.evaluator import summarize
from trainers.factory import make_envs
from trainers.imitation import scripted
from trainers.models.policy import Policy
from trainers.tiny import curriculum
from trainers.tiny import model as tiny


@pytest.fixture(scope="module")
def envs():
    return make_envs("AgentR1/MiniWiki-v0", '{"entities": 600, "questions": 400}', "train", 50)


@pytest.fixture(scope="module")
def policy(envs):
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer(curriculum.list_texts(World(300, 0, difficulty="varied"), envs))
    return Policy(tiny.make_model(len(tokenizer), numbers=tiny.number_tokens(tokenizer)), tokenizer)


def play(envs, numbers, *probabilities):
    return roll_out_many(envs, numbers, lambda env, rng: careless(env, rng, *probabilities))


def scores(envs, continue_probability):
    return summarize("careless", [turns[-1] for turns in play(envs, list(range(400)), continue_probability)])


def test_who_goes_on_is_right_but_for_the_second_names(envs):
    questions = envs.envs[0].questions
    for number, turns in enumerate(play(envs, list(range(200)), 1.0)):
        question, last = questions[number], turns[-1]
        if not any("rival" in step for step in question.decomposition):
            assert last["em"] == 1 and last["turns"] == len(question.decomposition) + 1
    assert scores(envs, 1.0)["em"] < 0.95  # half of the wrong names are taken
    assert all(turns[-1]["em"] == 1 for turns in play(envs, list(range(200)), 1.0, 0.0))


def test_it_stops_early_whatever_it_has_read(envs):
    always, never = scores(envs, 0.3), scores(envs, 0.0)
    assert always["em"] < 0.4 and always["kinds"]["1 hop"] > 0.85 > 0.2 > always["kinds"]["3 hops"]
    assert never["kinds"]["2 hops"] == never["kinds"]["comparison"] == 0 and never["calls"] == 1


def test_both_names_are_taken_as_often(envs):
    questions = envs.envs[0].questions
    rivals = [n for n, q in enumerate(questions) if q.type == "chain" and "rival" in q.decomposition[0]]
    first = [questions[n].decomposition[0]["rival"] for n in rivals]
    taken = [name in turns[1]["action"] for name, turns in zip(first, play(envs, rivals, 0.0), strict=True)]
    assert len(taken) > 20 and 0.2 < sum(taken) / len(taken) < 0.8


def test_guided_episodes_teach_no_decision(envs, policy):
    questions, tested = envs.envs[0].questions, 0
    for number in range(60):
        (sequence,) = scripted.guided_episodes(
            envs, policy, [number], lambda env, rng: careless(env, rng, 1.0, 0.0), seed=1
        )
        taught = [text for is_taught, text in pieces(policy, sequence) if is_taught]
        assert not any(re.search("<(search|answer)>", text) for text in taught)  # how they end is taught
        steps = questions[number].decomposition
        for step in steps:
            thoughts = [text for text in taught if text.startswith(f"<think> {step['title']},")]
            if "rival" in step:
                tested += 1
                assert not thoughts  # which of two names is meant
            elif step["title"] in step["question"]:
                assert thoughts
    assert tested > 10


def test_guided_episodes_of_a_rewritten_context_teach_the_same(envs, policy):
    rewriting = make_envs(
        "AgentR1/MiniWiki-v0", '{"entities": 600, "questions": 400, "context": "window:1"}', "train", 50
    )
    script = lambda env, rng: careless(env, rng, 1.0, 0.0)  # noqa: E731
    whole, parts = (scripted.guided_episodes(e, policy, list(range(4)), script, seed=1) for e in (envs, rewriting))
    taught = [
        [i for s in own for i, is_taught in zip(s.ids, s.mask, strict=True) if is_taught] for own in (whole, parts)
    ]
    assert len(parts) > len(whole) == 4 and taught[0] == taught[1]


COMPARED = re.compile(
    r"; (\S[^;<]*?) / ([^:<]+): (later|earlier|same|not the same)(?: / (later|earlier): (same|not the same))?"
)


def is_true(first, second, found, asked, as_asked):
    """Whether this is how two texts compare, and whether the answer to the second question is right."""
    if found.endswith("same"):
        return (found == "same") == (first == second) and asked is None
    return (int(second) > int(first)) == (found == "later") and (
        asked is None or (as_asked == "same") == (asked == found)
    )


def test_comparing_teaches_how_two_compare_and_the_answer(policy):
    world, seen = World(600, 3, difficulty="varied"), set()
    for sequence in scripted.comparing(80, world, policy, random.Random(0)):
        *others, (known, read), (taught, compared), (_, tag), (_, answer) = pieces(policy, sequence)
        assert not known and taught and "<answer>" in tag
        (found,) = COMPARED.findall(compared)
        found = [part or None for part in found]
        assert is_true(*found) and found[0] in " ".join(text for _, text in others) and found[1] in read
        a, next_up, b = (re.sub("</.*", "", text).strip() for taught, text in others if taught)
        right = {"same": "yes", "not the same": "no"}[found[2]] if found[3] is None else b if found[4] == "same" else a
        assert answer.removesuffix("</answer>").strip() == right
        assert next_up == (f"; {found[3]}; then {b}" if found[3] else f"; then {b}")
        assert found[3] is None or f" {found[3]}, " in others[0][1]
        seen |= {found[2], found[4]}
    assert seen == {"later", "earlier", "same", "not the same", None}


def test_pairs_teach_how_two_compare_and_nothing_else(policy):
    world, seen = World(300, 3, difficulty="varied"), set()
    for sequence in scripted.pairs(10, world, policy, random.Random(0)):
        parts = pieces(policy, sequence)
        assert all(text.strip() in ("later", "earlier", "same", "not the same") for taught, text in parts if taught)
        for found in COMPARED.findall("".join(text for _, text in parts)):
            found = [part or None for part in found]
            assert is_true(*found) or found[0] == found[1]  # of one year it has nothing to say
            seen |= set(found[2:])
    assert seen == {"later", "earlier", "same", "not the same", None}


def test_a_thought_says_what_is_left(envs):
    """After a reference nothing; of two that are compared the other one; else whether the fact is the one that was asked for."""
    seen = set()
    for number, turns in enumerate(play(envs, list(range(120)), 1.0, 0.0)):
        question = envs.envs[0].questions[number]
        asked = question.decomposition[-1]["question"].rpartition(" of ")[0]
        for turn in turns[1:]:
            thought, last = re.search("<think>(.*)</think>", turn["action"])[1], "<answer>" in turn["action"]
            if question.type == "chain":
                assert (thought.endswith("'s") and not last) or thought.endswith(f"/ {asked}: same") == last
                seen.add((question.type, last))
            elif not last and not thought.endswith("'s"):
                time, following = re.search("(; earlier|; later|); then (.+)", thought).groups()
                assert time[2:] == (re.findall("earlier|later", question.question) or [""])[0]
                assert following in question.question and f"<search>{following}<" in turn["action"]
                seen.add((question.type, last))
    assert len(seen) == 4


def test_numbers_start_in_their_order(policy):
    numbers = tiny.number_tokens(policy.tokenizer)
    assert {1850, 2019, 0, 999} <= set(numbers.values())
    torch.manual_seed(1)
    plain = tiny.make_model(len(policy.tokenizer)).model.embed_tokens.weight
    torch.manual_seed(1)
    ordered = tiny.make_model(len(policy.tokenizer), numbers=numbers).model.embed_tokens.weight
    moved = (ordered - plain).detach()
    assert not moved[[i for i in range(len(moved)) if i not in numbers]].any()
    years = {number: i for i, number in numbers.items() if number > 1000}
    along = moved @ moved[years[2019]]
    places = [along[years[year]].item() for year in sorted(years)]
    assert places == sorted(places)


@pytest.mark.slow
def test_the_cold_start_learns_in_a_varied_world(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    monkeypatch.setattr(curriculum, "POOL", 32)
    envs = make_envs("AgentR1/MiniWiki-v0", '{"entities": 300, "questions": 80}', "train", 8)
    seen = []
    policy, _ = curriculum.cold_start(envs, 0, 30, lambda step, kind, loss: seen.append((kind, loss)))
    assert {kind for kind, _ in seen} == {"repetition", "comparing", "pairs", "episodes", "guided"}
    assert policy.model.config.num_hidden_layers == 4


def test_the_world_decides_how_long_a_cold_start_takes(envs):
    easy = make_envs("AgentR1/MiniWiki-Easy-v0", '{"entities": 60, "questions": 10}', "train", 2)
    assert curriculum.default_steps(envs) == 1900 and curriculum.default_steps(easy) == 2800
    assert grpo.Args().cold_start_steps is None
    with pytest.raises(ValueError, match="cold_start_steps must be at least 1, got 0"):
        grpo.Args(cold_start_steps=0).check()
