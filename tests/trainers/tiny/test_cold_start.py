"""The cold start: what it makes of its arguments, and what it keeps."""

import hashlib
import json
import random
from dataclasses import asdict

import pytest
import torch

from agent_envs.games import sokoban
from agent_envs.tool_env import ToolEnv
from trainers import grpo, ppo
from trainers.config import Demonstrator, read_config
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.tiny import cold_start, curriculum
from trainers.tiny.cold_start import run_cold_start, start_policy
from trainers.tiny.curriculum import Teacher

SMALL = '{"entities": 200, "questions": 40}'
LESSONS = {  # of seed 0: `cold_start.VERSION` has to rise with any change here
    "AgentR1/MiniWiki-Easy-v0": "b96f809ec38951fa",
    "AgentR1/MiniWiki-v0": "61bddeb7b1d233d9",
    "AgentR1/Bandit-v0": "73f8c6ecd04ac7a3",
}


pytestmark = pytest.mark.usefixtures("small_cold_start")


@pytest.fixture(scope="module")
def envs():
    return make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "train", 8)


def fail_if_taught(*_):
    pytest.fail("it should come from the cache")


def test_the_cold_start_learns_and_is_kept(envs, tmp_path):
    seen = []
    first, seconds = run_cold_start(envs, 0, 14, lambda *given: seen.append(given))
    assert [step for step, _, _ in seen] == list(range(1, 15))
    assert {lesson for _, lesson, _ in seen} == {"repetition", "browsing", "episodes"}
    losses = [loss for _, lesson, loss in seen if lesson != "repetition"]
    assert losses[-1] < 0.9 * losses[0]
    drawn = torch.rand(3)
    again, seconds_again = run_cold_start(envs, 0, 14, fail_if_taught)
    assert seconds_again == seconds > 0
    assert torch.equal(torch.rand(3), drawn)  # what follows does not depend on the cache either
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    assert not again.model.training
    ends = again.model.generation_config.eos_token_id
    assert [again.tokenizer.decode([i]) for i in ends] == ["<|end|>", "</search>", "</answer>"]
    other, _ = run_cold_start(envs, 1, 2, lambda *_: None)
    assert not torch.equal(other.model.lm_head.weight, first.model.lm_head.weight)
    (weights, _) = sorted(tmp_path.rglob("model.safetensors"), key=lambda path: path.stat().st_mtime)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    made_anew, _ = run_cold_start(envs, 0, 14, lambda *_: None)
    assert torch.equal(made_anew.model.lm_head.weight, first.model.lm_head.weight)
    run_cold_start(envs, 0, 14, fail_if_taught)  # it is whole again


def find_folder(env="AgentR1/MiniWiki-Easy-v0", count=8, seed=0, steps=24, demonstrator=Demonstrator(), **own):  # noqa: B008
    kwargs = {**(json.loads(SMALL) if "MiniWiki" in env else {}), **own}
    return cold_start._find_cache_folder(make_envs(env, json.dumps(kwargs), "train", count), seed, steps, demonstrator)


def test_the_arguments_that_decide_about_a_cold_start_find_it():
    """Groups of another size and other rewards find the same: a comparison starts from one policy."""
    assert find_folder() == find_folder(count=16) == find_folder(rewards="search_r1")
    others = [
        find_folder(), find_folder(seed=1), find_folder(steps=25), find_folder(k=1), find_folder(types=["bridge"]),
        find_folder(max_turns=4), find_folder("AgentR1/MiniWiki-v0"), find_folder("AgentR1/Bandit-v0"),
        find_folder(demonstrator=Demonstrator(continue_probability=0.2)),
        find_folder(demonstrator=Demonstrator(skill=0.2)),
        find_folder(demonstrator=Demonstrator(env_kwargs='{"k": 2}')),
    ]  # fmt: skip
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    ("options", "starts_shipped"),
    [
        ({"seed": 7, "env_kwargs": {"rewards": "search_r1"}}, True),
        ({"env_kwargs": {"k": 1}}, False),
        ({"env": "MiniWiki-Easy"}, False),
        (read_config("from-scratch", grpo.Args(), "grpo"), False),
        ({"cold_start_continue_probability": 0.2}, False),
    ],
)
def test_in_miniwiki_the_shipped_policy_is_the_start(options, starts_shipped, monkeypatch):
    monkeypatch.setattr(cold_start, "run_cold_start", lambda *_: ("made", 1.0))
    args = grpo.Args(**options)
    policy, seconds = cold_start._make_start(args, make_envs(args.env, args.env_kwargs, "train", 2))
    assert (policy == "made", seconds == 0.0) == (not starts_shipped, starts_shipped)
    if starts_shipped:
        assert torch.equal(policy.model.lm_head.weight, load_policy(cold_start.SHIPPED).model.lm_head.weight)


def test_a_cold_start_on_changed_data_is_another_one(tmp_path):
    def write(name, lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    names = [f"Żółw {i}" for i in range(30)]
    passages = [{"id": name, "title": name, "text": f"{name} hat 7 Tore."} for name in names]
    rows = [{"id": name, "question": f"{name}?", "answer": "7", "supporting_titles": [name]} for name in names]
    write("passages.jsonl", passages), write("hotpotqa.train.jsonl", rows)
    found = [find_folder("AgentR1/HotpotQA-v0", data=str(tmp_path)) for _ in range(2)]
    envs = make_envs("AgentR1/HotpotQA-v0", json.dumps({"data": str(tmp_path)}), "train", 4)
    made, _ = run_cold_start(envs, 0, 2, lambda *_: None)
    assert len(made.encode("Żółw hat Tore")) == 3  # words of the corpus are in the vocabulary
    write("hotpotqa.train.jsonl", [*rows[:-1], rows[-1] | {"answer": "thirty"}])
    found.append(find_folder("AgentR1/HotpotQA-v0", data=str(tmp_path)))
    write("passages.jsonl", [*passages[:-1], passages[-1] | {"text": "It has thirty gates."}])
    found.append(find_folder("AgentR1/HotpotQA-v0", data=str(tmp_path)))
    assert found[0] == found[1] and len(set(found)) == 3


def test_of_a_task_from_outside_nothing_is_kept(envs, monkeypatch):
    """Its code may change, and its id says nothing of that."""
    monkeypatch.setattr(type(envs.envs[0]), "__module__", "my_task")
    assert find_folder() is None
    drawn = []
    for _ in range(2):
        run_cold_start(envs, 0, 1, lambda step, lesson, loss: drawn.append(loss))
    assert len(drawn) == 2 and drawn[0] == drawn[1]


def test_a_mixture_of_questions_has_a_cold_start():
    world = {"entities": 60, "questions": 20}
    tasks = {id: {"kwargs": world} for id in ("AgentR1/MiniWiki-Easy-v0", "AgentR1/MiniWiki-v0")}
    envs = make_envs("AgentR1/Mixture-v0", json.dumps({"tasks": tasks}), "train", 4)
    policy, _ = run_cold_start(envs, 0, 2, lambda *_: None)
    question = envs.envs[0].questions[0].question
    assert policy.decode(policy.encode(question)).strip() == question  # its words are in the vocabulary


def test_a_cold_start_needs_no_more_questions_than_there_are():
    few = make_envs("AgentR1/MiniWiki-Easy-v0", '{"entities": 60, "questions": 1}', "train", 8)
    run_cold_start(few, 0, 1, lambda *_: None)
    with pytest.raises(ValueError, match="cold_start_steps must be at least 1, got 0"):
        ppo.Args(cold_start_steps=0).check()


@pytest.mark.parametrize("env", LESSONS)
def test_the_lessons_of_a_seed_are_fixed(env):
    """In every process and on every machine. Where they have to change, raise `cold_start.VERSION`."""
    envs = make_envs(env, SMALL if "MiniWiki" in env else "{}", "train", 8)
    policy = cold_start.make_policy(envs, 0)
    batches = list(curriculum.make_batches(Teacher(policy, envs, random.Random("lessons:0")), 10))
    taught = repr([(lesson, [(s.ids, s.mask) for s in batch]) for lesson, batch in batches])
    assert hashlib.sha256(taught.encode()).hexdigest()[:16] == LESSONS[env]


# -- whom it imitates --------------------------------------------------------------------------------------------------


def test_a_demonstrator_may_be_given_easier_instances(monkeypatch):
    """Those of ``env_kwargs``; what else the task was made with stays, and the policy learns on the task itself."""
    envs, stages = make_envs("AgentR1/Sokoban-v0", '{"size": 7, "moves": [3, 9]}', "train", 4), []
    policy = cold_start.make_policy(envs, 0)
    monkeypatch.setattr(curriculum, "POOL", 4)
    scripted_episodes = curriculum.lessons.scripted_episodes

    def watch(stage, *args):
        boards = [sokoban.read(stage.envs[0].reset(seed=seed)[0]) for seed in range(12)]
        stages.append(({len(sokoban.solve(board)) for board in boards}, {board.size for board in boards}))
        assert isinstance(stage.envs[0], ToolEnv) and {env.split for env in stage.envs} == {"train"}
        return scripted_episodes(stage, *args)

    monkeypatch.setattr(curriculum.lessons, "scripted_episodes", watch)
    easy = ppo.Args(env="Sokoban", cold_start_skill=1.0, cold_start_env_kwargs='{"moves": [1, 2]}').demonstrator()
    shown = Teacher(policy, envs, random.Random(0), easy).episodes()
    usual = Teacher(policy, envs, random.Random(0), Demonstrator(skill=1.0)).episodes()
    assert stages[0] == ({1, 2}, {7}) and stages[1][0] <= set(range(3, 10)) and len(stages[1][0]) > 2
    taught = [sum(sum(sequence.mask) for sequence in sequences) for sequences in (shown, usual)]
    assert taught[0] < taught[1]  # fewer moves
    assert envs.envs[0].moves == (3, 9)


@pytest.mark.parametrize(
    ("env", "demonstrator", "message"),
    [
        ("Bandit", Demonstrator(0.5), "cold_start_continue_probability has no effect here.*noisy_expert"),
        ("MiniWiki-Easy", Demonstrator(skill=0.5), "cold_start_skill has no effect here.*early_stopping"),
        ("MiniWiki-Easy", Demonstrator(env_kwargs='{"k": 2}'), "cold_start_env_kwargs has no effect.*early_stopping"),
        ("Bandit", Demonstrator(env_kwargs='{"split": "validation"}'), "split.*cannot be among"),
        ("Bandit", Demonstrator(env_kwargs='{"pay"'), "cold_start_env_kwargs is not valid JSON"),
        ("Bandit", Demonstrator(env_kwargs='{"moves": [2, 4]}'), "Bandit-v0 cannot be made: .*moves"),
    ],
)
def test_how_well_somebody_else_acts_is_no_argument(env, demonstrator, message):
    envs = make_envs(f"AgentR1/{env}-v0", SMALL if env != "Bandit" else "{}", "train", 1)
    with pytest.raises((ValueError, TypeError), match=message):
        args = {f"cold_start_{name}": value for name, value in asdict(demonstrator).items()}
        start_policy(ppo.Args(**args), envs)
