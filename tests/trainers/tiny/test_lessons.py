"""What the cold start teaches: the skills, token by token, and not the decisions."""

import random
import re

import pytest
import torch

from agent_envs.games.bandit import FAMILIES
from agent_envs.generators.miniwiki import World
from agent_envs.generators.miniwiki.schema import RELATIONS
from agent_envs.tasks.qa_scripts import careless, oracle
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import SearchTool
from agent_envs.types import Turn
from agent_envs.utils.scripts import roll_out_many
from trainers.config import Demonstrator
from trainers.evaluation.evaluator import summarize
from trainers.factory import make_envs
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.tiny import curriculum, lessons
from trainers.tiny import model as tiny
from trainers.tiny.cold_start import list_texts
from trainers.tiny.curriculum import Teacher

VARIED = '{"entities": 600, "questions": 400}'


@pytest.fixture(scope="module")
def easy():
    return make_envs("AgentR1/MiniWiki-Easy-v0", '{"entities": 200, "questions": 40}', "train", 8)


@pytest.fixture(scope="module")
def envs():
    return make_envs("AgentR1/MiniWiki-v0", VARIED, "train", 50)


@pytest.fixture(scope="module")
def bandit():
    return make_envs("AgentR1/Bandit-v0", "{}", "train", 8)


@pytest.fixture(scope="module")
def policy(envs):
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer(list_texts(World(300, 0, difficulty="varied"), envs))
    return Policy(tiny.make_model(len(tokenizer), numbers=tiny.number_tokens(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def gambler(bandit):
    tokenizer = tiny.make_tokenizer(list_texts(None, bandit))
    return Policy(tiny.make_model(len(tokenizer)), tokenizer)


def pieces(policy, sequence) -> list[tuple[bool, str]]:
    """The sequence as stretches of taught and untaught text."""
    found: list[tuple[bool, list[int]]] = []
    for token, taught in zip(sequence.ids, sequence.mask, strict=True):
        if not found or found[-1][0] != taught:
            found.append((taught, []))
        found[-1][1].append(token)
    return [(taught, policy.decode(ids)) for taught, ids in found]


def taught_text(policy, sequence) -> str:
    return policy.decode([i for i, taught in zip(sequence.ids, sequence.mask, strict=True) if taught])


def test_repetition_teaches_the_second_copy():
    for sequence in lessons.repetition(20, list(range(300, 400)), random.Random(0)):
        half = len(sequence.ids) // 2
        assert sequence.ids[:half] == sequence.ids[half:] and sequence.mask == [False] * half + [True] * half


@pytest.mark.parametrize(("max_chars", "least"), [(1200, 6), (150, 2)])
def test_browsing_teaches_facts_that_can_be_read_in_the_context(policy, max_chars, least):
    world = World(200, 1)
    tool = SearchTool(world.build_index(), 2, max_chars)
    taught_facts = 0
    for sequence in lessons.browsing(20, world, tool, policy, random.Random(0)):
        read = ""
        for taught, text in pieces(policy, sequence):
            if taught and "<think>" in text:
                thought = re.fullmatch(r"\s*<think>\s*(.+)</think>", text)[1]
                noun = next(r.noun for r in RELATIONS if thought.startswith(f"{r.noun} of "))
                assert thought.removeprefix(f"{noun} of ") in read
            elif taught:
                value = re.sub(r"</\w+>", "", text).strip()
                assert value in re.sub(r"\s+", " ", read)
                taught_facts += 1
            else:
                read += text
    assert taught_facts > 20 * least


COMPARED = re.compile(
    r"; (\S[^;<]*?) / ([^:<]+): (later|earlier|same|not the same)(?: / (later|earlier): (same|not the same))?"
)


def is_true(first, second, found, asked, as_asked):
    """Whether this is how two texts compare, and whether the answer to the second question is right."""
    if found.endswith("same"):
        return (found == "same") == (first == second) and asked is None
    right = asked is None or (as_asked == "same") == (asked == found)
    return (int(second) > int(first)) == (found == "later") and right


def test_comparing_teaches_how_two_compare_and_the_answer(policy):
    world, seen = World(600, 3, difficulty="varied"), set()
    for sequence in lessons.comparing(80, world, policy, random.Random(0)):
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


# -- episodes ----------------------------------------------------------------------------------------------------------


def roll_out(envs, numbers, *probabilities):
    return roll_out_many(envs, numbers, lambda env, rng: careless(env, rng, *probabilities))


def test_the_careless_demonstrator_stops_early_and_confuses_names(envs):
    questions, numbers = envs.envs[0].questions, list(range(400))
    scores = {p: summarize("", [turns[-1] for turns in roll_out(envs, numbers, p)]) for p in (0.0, 0.3, 1.0)}
    assert scores[1.0]["em"] < 0.95  # half of the wrong names are taken
    assert scores[0.3]["em"] < 0.4 and scores[0.3]["kinds"]["1 hop"] > 0.85 > 0.2 > scores[0.3]["kinds"]["3 hops"]
    assert scores[0.0]["kinds"]["2 hops"] == scores[0.0]["kinds"]["comparison"] == 0 and scores[0.0]["calls"] == 1
    rivals = [n for n, q in enumerate(questions) if q.type == "chain" and "rival" in q.decomposition[0]]
    first = [questions[n].decomposition[0]["rival"] for n in rivals]
    taken = [name in turns[1]["action"] for name, turns in zip(first, roll_out(envs, rivals, 0.0), strict=True)]
    assert len(taken) > 20 and 0.2 < sum(taken) / len(taken) < 0.8


def test_without_a_mistake_it_is_right_and_its_thoughts_say_what_is_left(envs):
    """After a reference nothing; of two that are compared the other one; else whether the fact is the one that was asked for."""
    seen = set()
    for number, turns in enumerate(roll_out(envs, list(range(120)), 1.0, 0.0)):
        question = envs.envs[0].questions[number]
        assert turns[-1]["em"] == 1
        wanted = question.decomposition[-1]["question"].rpartition(" of ")[0]
        for turn in turns[1:]:
            thought, last = re.search("<think>(.*)</think>", turn["action"])[1], "<answer>" in turn["action"]
            if question.type == "chain":
                assert (thought.endswith("'s") and not last) or thought.endswith(f"/ {wanted}: same") == last
                seen.add((question.type, last))
            elif not last and not thought.endswith("'s"):
                time, following = re.search("(; earlier|; later|); then (.+)", thought).groups()
                assert time[2:] == (re.findall("earlier|later", question.question) or [""])[0]
                assert following in question.question and f"<search>{following}<" in turn["action"]
                seen.add((question.type, last))
    assert len(seen) == 4


def guide(envs, policy, numbers):
    return lessons.guided_episodes(envs, policy, numbers, lambda env, rng: careless(env, rng, 1.0, 0.0), seed=1)


def test_guided_episodes_teach_no_decision(envs, policy):
    questions, tested = envs.envs[0].questions, 0
    for number, sequence in enumerate(guide(envs, policy, list(range(60)))):
        taught = [text for is_taught, text in pieces(policy, sequence) if is_taught]
        assert not any(re.search("<(search|answer)>", text) for text in taught)  # how they end is taught
        for step in questions[number].decomposition:
            thoughts = [text for text in taught if text.startswith(f"<think> {step['title']},")]
            if "rival" in step:
                tested += 1
                assert not thoughts  # which of two names is meant
            elif step["title"] in step["question"]:
                assert thoughts
    assert tested > 10
    rewriting = make_envs("AgentR1/MiniWiki-v0", VARIED[:-1] + ', "context": "window:1"}', "train", 50)
    whole, parts = (guide(each, policy, list(range(4))) for each in (envs, rewriting))
    assert len(parts) > len(whole) == 4
    assert "".join(taught_text(policy, s) for s in whole) == "".join(taught_text(policy, s) for s in parts)


@pytest.mark.parametrize("continue_probability", [0.0, 1.0])
def test_whom_the_cold_start_imitates_where_there_is_a_corpus(policy, easy, continue_probability, monkeypatch):
    monkeypatch.setattr(curriculum, "POOL", 16)
    for sequence in Teacher(policy, easy, random.Random(0), Demonstrator(continue_probability)).episodes():
        assert taught_text(policy, sequence).count("<search>") == 1 + int(continue_probability)


@pytest.mark.parametrize(("skill", "least", "most"), [(0.0, 0, 0), (0.25, 10, 40), (1.0, 100, 100)])
def test_whom_the_cold_start_imitates_in_a_game(gambler, bandit, monkeypatch, skill, least, most):
    def name_itself(name):
        def script(env, rng):
            yield Turn(answer=name)

        return script

    scripts = {name: name_itself(name) for name in ("scripted", "random")}
    monkeypatch.setattr(type(bandit.envs[0]), "SCRIPTS", scripts)
    monkeypatch.setattr(curriculum, "POOL", 100)
    episodes = Teacher(gambler, bandit, random.Random(0), Demonstrator(skill=skill)).episodes()
    assert least <= sum("scripted" in taught_text(gambler, sequence) for sequence in episodes) <= most


def test_episodes_of_a_game_teach_turns_in_words_of_one_token_each(gambler, bandit, monkeypatch):
    """A policy that had to spell the held-out words could not name an arm, let alone choose one."""
    monkeypatch.setattr(curriculum, "POOL", 12)
    words = {split: {word for family in families for word in family} for split, families in FAMILIES.items()}
    assert all(len(gambler.encode(f"are {word} and")) == 3 for own in words.values() for word in own)
    for sequence in Teacher(gambler, bandit, random.Random(0)).episodes():
        turn = taught_text(gambler, sequence)
        assert turn.strip().removeprefix("<answer>").removesuffix("</answer>").strip() in words["train"]
        assert turn.count("<answer>") == 1


def test_an_outage_is_waited_for_and_not_imitated(policy, easy, monkeypatch):
    """Were it a single episode's: what is learned here is kept for runs without an outage."""
    resolve, pauses = ToolEnv.resolve, []
    undisturbed = lessons.scripted_episodes(easy, policy, [3, 9, 11], oracle, seed=0)

    def break_one(self, *given):
        observation, *rest, info = resolve(self, *given)
        broken = not pauses and self.question == self.questions[9]
        return ("search failed" if broken else observation), *rest, info | {"tool_faults": int(broken)}

    monkeypatch.setattr(ToolEnv, "resolve", break_one)
    monkeypatch.setattr(retry, "_pause", pauses.append)
    assert lessons.scripted_episodes(easy, policy, [3, 9, 11], oracle, seed=0) == undisturbed
    assert pauses == [1.0]
    pauses.clear()
    with pytest.raises(retry.ToolsFailed, match="failed in 33% of the episodes"):
        lessons.scripted_episodes(easy, policy, [3, 9, 11], oracle, seed=0, outage_minutes=0.0)
