import json
import os
import random
import re
import subprocess
import sys

import pytest
import torch

from agent_envs.generators.miniwiki import World
from agent_envs.generators.miniwiki.schema import RELATIONS
from agent_envs.tasks.qa_scripts import oracle
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import SearchTool
from trainers.config import Demonstrator
from trainers.factory import make_envs
from trainers.imitation import scripted
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.tiny import curriculum
from trainers.tiny import model as tiny

SMALL = '{"entities": 200, "questions": 40}'


@pytest.fixture(scope="module")
def envs():
    return make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 8)


@pytest.fixture(scope="module")
def policy(envs):
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer(curriculum.list_texts(World(300, 0), envs))
    return Policy(tiny.make_model(len(tokenizer)), tokenizer)


def pieces(policy, sequence) -> list[tuple[bool, str]]:
    """The sequence as stretches of taught and untaught text."""
    found: list[tuple[bool, list[int]]] = []
    for token, taught in zip(sequence.ids, sequence.mask, strict=True):
        if not found or found[-1][0] != taught:
            found.append((taught, []))
        found[-1][1].append(token)
    return [(taught, policy.decode(ids)) for taught, ids in found]


def test_repetition_teaches_the_second_copy(policy):
    for sequence in scripted.repetition(20, list(range(300, 400)), random.Random(0)):
        half = len(sequence.ids) // 2
        assert sequence.ids[:half] == sequence.ids[half:]
        assert sequence.mask == [False] * half + [True] * half


@pytest.mark.parametrize(("max_chars", "least"), [(1200, 6), (150, 2)])
def test_browsing_teaches_facts_that_can_be_read_in_the_context(policy, max_chars, least):
    world = World(200, 1)
    tool = SearchTool(world.build_index(), 2, max_chars)
    taught_facts = 0
    for sequence in scripted.browsing(20, world, tool, policy, random.Random(0)):
        parts = pieces(policy, sequence)
        read = ""
        for taught, text in parts:
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


def test_demonstrations_teach_exactly_the_turns(policy, envs):
    sequences = scripted.scripted_episodes(envs, policy, [3, 9], oracle, seed=0)
    for number, sequence in zip([3, 9], sequences, strict=True):
        question = envs.envs[0].questions[number]
        expected = [f"<search>{title}</search>" for title in question.supporting_titles]
        expected.append(f"<answer>{question.answer}</answer>")
        said = [text for taught, text in pieces(policy, sequence) if taught]
        assert [re.sub(r"> ", ">", text).strip() for text in said] == expected


@pytest.mark.parametrize("continue_probability", [0.0, 1.0])
def test_whom_the_cold_start_imitates(policy, envs, continue_probability, monkeypatch):
    monkeypatch.setattr(curriculum, "POOL", 16)
    for sequence in curriculum.episodes(policy, envs, random.Random(0), Demonstrator(continue_probability)):
        said = "".join(text for taught, text in pieces(policy, sequence) if taught)
        assert said.count("<search>") == (1 if continue_probability == 0 else 2)


def test_the_cold_start_learns_is_kept_and_depends_on_its_arguments(envs, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    monkeypatch.setattr(curriculum, "POOL", 64)
    seen = []
    first, seconds = curriculum.cold_start(envs, 0, 24, lambda step, kind, loss: seen.append((step, kind, loss)))
    assert [step for step, _, _ in seen] == list(range(1, 25))
    assert {kind for _, kind, _ in seen} == {"repetition", "browsing", "episodes"}
    losses = [loss for _, kind, loss in seen if kind != "repetition"]
    assert losses[-1] < 0.7 * losses[0]
    drawn = torch.rand(3)
    again, seconds_again = curriculum.cold_start(envs, 0, 24, lambda *_: pytest.fail("it should come from the cache"))
    assert seconds_again == seconds > 0
    assert torch.equal(torch.rand(3), drawn)  # what follows does not depend on the cache either
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    assert not again.model.training
    other, _ = curriculum.cold_start(envs, 1, 2, lambda *_: None)
    assert not torch.equal(other.model.lm_head.weight, first.model.lm_head.weight)
    assert len(list((tmp_path / "tiny").iterdir())) == 2


def test_what_does_not_change_the_cold_start_finds_the_same_one():
    """Groups of another size, other rewards: a comparison starts from one policy."""

    def folder(count=8, seed=0, demonstrator=Demonstrator(), **own):  # noqa: B008
        kwargs = json.dumps({**json.loads(SMALL), **own})
        envs = make_envs("AgentR1/MiniWiki-Easy-v0", kwargs, "train", count)
        return curriculum._cache_folder(envs, seed, 24, demonstrator)

    assert folder() == folder(16) == folder(rewards="search_r1") == folder(rewards={"progress": 0.0})
    assert (
        len(
            {
                folder(),
                folder(seed=1),
                folder(k=1),
                folder(types=["bridge"]),
                folder(max_turns=4),
                folder(demonstrator=Demonstrator(continue_probability=0.2)),
                folder(demonstrator=Demonstrator(skill=0.2)),
            }
        )
        == 7
    )


def test_a_cold_start_on_other_data_is_another_one(tmp_path):
    def write(name, lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def folder():
        envs = make_envs("AgentR1/HotpotQA-v0", json.dumps({"data": str(tmp_path)}), "train", 4)
        return curriculum._cache_folder(envs, 0, 4)

    passages = [{"id": str(i), "title": f"Town {i}", "text": f"It has {i} gates."} for i in range(30)]
    rows = [
        {"id": str(i), "question": f"Gates of Town {i}?", "answer": str(i), "supporting_titles": [f"Town {i}"]}
        for i in range(30)
    ]
    write("passages.jsonl", passages), write("hotpotqa.train.jsonl", rows)
    found = [folder(), folder()]
    write("hotpotqa.train.jsonl", [*rows[:-1], rows[-1] | {"answer": "thirty"}])
    found.append(folder())
    write("passages.jsonl", [*passages[:-1], passages[-1] | {"text": "It has thirty gates."}])
    found.append(folder())
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_mixture_of_questions_has_a_cold_start(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    monkeypatch.setattr(curriculum, "POOL", 16)
    world = {"entities": 60, "questions": 20}
    tasks = {id: {"kwargs": world} for id in ("AgentR1/MiniWiki-Easy-v0", "AgentR1/MiniWiki-v0")}
    envs = make_envs("AgentR1/Mixture-v0", json.dumps({"tasks": tasks}), "train", 4)
    policy, _ = curriculum.cold_start(envs, 0, 2, lambda *_: None)
    question = envs.envs[0].questions[0].question
    assert policy.decode(policy.encode(question)).strip() == question  # its words are in the vocabulary


def test_a_real_benchmark_is_learned_from_its_own_questions(tmp_path, monkeypatch):
    """In the form of HotpotQA: no decomposition, text that no MiniWiki article holds."""
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 16)
    passages = [
        {"id": str(i), "title": f"Żółw {i}", "text": f"Żółw {i} wurde 19{i} in Łódź gebaut."} for i in range(10, 30)
    ]
    rows = [
        {"id": str(i), "question": f"When was Żółw {i} built?", "answer": f"19{i}", "supporting_titles": [f"Żółw {i}"]}
        for i in range(10, 30)
    ]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(p) + "\n" for p in passages))
    for split in ("train", "validation"):
        (tmp_path / f"hotpotqa.{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    envs = make_envs("AgentR1/HotpotQA-v0", json.dumps({"data": str(tmp_path)}), "train", 4)
    made, _ = curriculum.cold_start(envs, 0, 4, lambda *_: None)
    assert len(made.encode("Żółw Łódź gebaut")) == 3  # words of the corpus are in the vocabulary


BATCHES = """
import hashlib, torch
from agent_envs.generators.miniwiki import World
from trainers.tiny import curriculum
from trainers.tiny import model as tiny
from trainers.models.policy import Policy
from trainers.factory import make_envs
torch.manual_seed(0)
envs = make_envs("AgentR1/MiniWiki-Easy-v0", '{"entities": 150, "questions": 40}', "train", 8)
tokenizer = tiny.make_tokenizer(f"{p.title} {p.text}" for p in World(200, 0).passages())
policy = Policy(tiny.make_model(len(tokenizer)), tokenizer)
curriculum.POOL = 16
batches = curriculum.make_batches(policy, envs, seed=0, steps=10)
print(hashlib.sha256(repr([next(batches) for _ in range(10)]).encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_demonstrations_in_every_process(monkeypatch, capsys):
    """Here, and where hashes of strings are others."""
    other = subprocess.run(
        [sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": str(1 + hash("a") % 1000), "OMP_NUM_THREADS": "1"},
    ).stdout  # fmt: skip
    monkeypatch.setattr(curriculum, "POOL", curriculum.POOL)  # it is set below
    exec(BATCHES, {})
    assert capsys.readouterr().out == other and len(other) > 60


@pytest.mark.parametrize("count", [1, 3])
def test_a_cold_start_needs_no_more_questions_than_there_are(count):
    few = make_envs("AgentR1/MiniWiki-Easy-v0", f'{{"entities": 60, "questions": {count}}}', "train", 8)
    assert curriculum._cache_folder(few, 0, 1) != curriculum._cache_folder(few, 1, 1)


def test_an_outage_in_the_cold_start_is_waited_for_and_not_imitated(policy, envs, monkeypatch):
    """Were it a single episode's: what is learned here is kept for runs without an outage."""
    resolve, pauses = ToolEnv.resolve, []
    undisturbed = scripted.scripted_episodes(envs, policy, [3, 9, 11], oracle, seed=0)

    def break_one(self, *given):
        observation, *rest, info = resolve(self, *given)
        broken = not pauses and self.question == self.questions[9]
        return ("search failed" if broken else observation), *rest, info | {"tool_faults": int(broken)}

    monkeypatch.setattr(ToolEnv, "resolve", break_one)
    monkeypatch.setattr(retry, "_pause", pauses.append)
    assert scripted.scripted_episodes(envs, policy, [3, 9, 11], oracle, seed=0) == undisturbed
    assert pauses == [1.0]
    pauses.clear()
    with pytest.raises(retry.ToolsFailed, match="broke in 33% of the episodes"):
        scripted.scripted_episodes(envs, policy, [3, 9, 11], oracle, seed=0, outage_minutes=0.0)


def test_a_damaged_cold_start_is_made_anew(envs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    first, _ = curriculum.cold_start(envs, 0, 1, lambda *_: None)
    (weights,) = tmp_path.rglob("model.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    again, _ = curriculum.cold_start(envs, 0, 1, lambda *_: None)
    assert "its checksum differs: the cold start is made anew" in capsys.readouterr().err
    assert all(torch.equal(w, again.model.state_dict()[name]) for name, w in first.model.state_dict().items())
    curriculum.cold_start(envs, 0, 1, lambda *_: pytest.fail("it is whole again"))
