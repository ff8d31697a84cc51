"""Runs: when they end, and what is watched and counted on the way."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agent_envs.types import ToolCall, Turn
from trainers import grpo, ppo
from trainers.checkpoints.settings import SettingsDiffer, check_settings
from trainers.lifecycle.collapse_monitor import mutual_information
from trainers.lifecycle.run import Run
from trainers.models.loading import load_policy
from trainers.rollouts.statistics import episode_metrics, rollout_statistics
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics
from trainers.trajectory import Step, Trajectory


def episode(group, turns, failed=False):
    steps = [Step(prompt=[1], tokens=t, logprobs=[0.0] * len(t), reward=r) for t, r in turns]
    return Trajectory(steps=steps, group=group, failed=failed)


EPISODES = [
    episode(0, [([1, 2], 1.0)]), episode(0, [([3] * 8, 3.0)]), episode(0, [([4], 99.0)], failed=True),
    episode(1, [([5], 1.0), ([6], 1.0)]), episode(1, [([7], 2.0)]),
]  # fmt: skip


@pytest.fixture
def run(short_run):
    """``run(module, **changes)``: the summary of a short run."""
    return lambda module, **changes: module.main(short_run(module, **changes))


def test_episodes_played_for_a_refill_are_counted(run, tmp_path):
    """Without rewards no group is worth an update: two more batches are played each time."""
    options = {"filter": "mixed", "dynamic_sampling": 2, "group_size": 2, "questions_per_update": 3}
    summary = run(grpo, env="AgentR1/MiniWiki-Easy-v0", out=tmp_path / "run", **options)
    assert summary["episodes"] == 2 * 3 * 6
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["episodes"] for line in lines] == [0, 18, 36]
    assert lines[-1]["filter/batches"] == 3


def test_time_can_say_when_a_run_ends(run, tmp_path):
    """After the update in which it is over; the rest is as at any end. More time may be given later."""
    out = tmp_path / "run"
    summary = run(grpo, out=out, max_seconds=0.001)
    assert summary["episodes"] == 6
    assert (out / "checkpoint-1").is_dir() and (out / "summary.json").is_file()
    assert run(grpo, resume=out, max_seconds=0.001)["episodes"] == 6
    assert run(grpo, resume=out, max_seconds=1e6)["episodes"] == 12
    saved = json.loads((out / "summary.json").read_text())
    asked = {"updates": 2, "max_seconds": 1e6, "eval_every": 2, "eval_questions": 4}
    given = replace(grpo.Args(), **{k: v for k, v in saved["settings"].items() if k in asked} | asked)
    with pytest.raises(SettingsDiffer, match=r"max_seconds=1000000\.0, not 5\.0"):
        check_settings(out, saved, replace(given, max_seconds=5.0))


def test_the_learning_rate_falls_over_what_ends_first(run, tmp_path, monkeypatch):
    """Of updates and seconds, to the middle of each update, where it takes as long as those before it."""
    finish = Run._finish

    def take_ten_seconds(self, step, spent):
        stopped = finish(self, step, spent)
        self.seconds = 10.0 * (step.number + 1)
        return stopped

    monkeypatch.setattr(Run, "_finish", take_ten_seconds)
    options = {"schedule": "linear", "lr": 1e-3, "updates": 10, "max_seconds": 40.0}
    run(grpo, out=tmp_path / "run", **options)
    rates = [line["policy/lr"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")[1:]]
    assert rates == pytest.approx([0.95e-3, 0.625e-3, 0.375e-3, 0.125e-3])
    with pytest.raises(SettingsDiffer, match="max_seconds"):
        run(grpo, resume=tmp_path / "run", **options | {"max_seconds": 80.0})


@pytest.fixture(scope="module")
def finished(short_run, tmp_path_factory):
    """The folder of a run of two updates."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    grpo.main(short_run(grpo, out=folder))
    return folder


def test_a_finished_run_that_goes_on_and_is_killed_is_not_finished(run, finished, tmp_path, monkeypatch):
    out = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr(grpo, "update", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(grpo, resume=out, updates=4)
    assert not (out / "summary.json").exists() and (out / "checkpoint-2").is_dir()


@pytest.mark.parametrize("module", [grpo, ppo])
def test_nothing_to_learn_from(run, model_folder, tmp_path, module, capsys):
    """A random policy only says what cannot be read: no group's returns differ, the filter leaves none, and five such
    updates in a row are the monitor's reason to stop, where it may. The report is written all the same."""
    env, options = "AgentR1/MiniWiki-Easy-v0", {"filter": "mixed", "group_size": 2, "eval_every": 10, "updates": 6}
    options, out = options | {"env": env, "stop_on_collapse": True}, tmp_path / "stopped"
    summary = run(module, out=out, **options)
    assert summary["stopped_on_collapse"] and summary["episodes"] == 5 * 4
    told = [("turns are cut", 1, False), ("no signal left", 5, True)]
    assert [(s["name"], s["update"], s["stop"]) for s in summary["symptoms"]] == told
    assert json.loads((out / "summary.json").read_text())["symptoms"] == summary["symptoms"]
    assert capsys.readouterr().err.count("Warning: no signal left at update 5") == 1
    start = load_policy(model_folder, "cpu").model.state_dict()
    trained = load_policy(integrity.latest(out), "cpu").model.state_dict()
    assert all(torch.equal(value, start[key]) for key, value in trained.items())
    last = read_metrics(out / "metrics.jsonl")[-1]
    assert last["filter/kept"] == 0 and last["tokens/per_second"] > 0 and "policy/grad_norm" not in last
    # Resumed, it goes on: what was said before is known, and not said again.
    summary = run(module, resume=out, **options)
    assert summary["episodes"] == 6 * 4
    assert [(s["name"], s["update"], s["stop"]) for s in summary["symptoms"]] == told
    assert "Warning" not in capsys.readouterr().err


def test_what_the_monitor_is_fed_with():
    call = Turn(calls=(ToolCall("search", {"query": "x"}),))
    said = [[call], [Turn(answer="x")], [Turn(error="?")], [call, call], [Turn(error="?")]]
    envs = SimpleNamespace(envs=[SimpleNamespace(tools=["search"], history=SimpleNamespace(turns=t)) for t in said])
    assert rollout_statistics(envs, EPISODES) == pytest.approx({
        "monitor/reward_deviation": 2**0.5 / 2,  # of 1 and 3; the other group's returns are equal
        "monitor/response_length": 14 / 6,
        "monitor/repetition": 0.8 / 6,  # five 4-grams, one of them new
        "monitor/search_rate": 3 / 6, "monitor/valid_turns": 4 / 6,
    })  # fmt: skip
    for env in envs.envs:
        env.tools = []
    assert "monitor/search_rate" not in rollout_statistics(envs, EPISODES)
    single = [replace(episode, group=i) for i, episode in enumerate(EPISODES)]
    assert "monitor/reward_deviation" not in rollout_statistics(envs, single)  # or it would be 0, which looks collapsed


def test_what_the_first_turns_tell_about_their_prompts(make_policy):
    """l_ij by hand, one pass for each pair; one episode of each prompt; a failed one tells nothing."""
    policy = make_policy("bytes")
    prompts = [policy.encode(text) for text in ("ab", "ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st")]
    turns = [policy.encode(text) for text in ("xyz", "a", "cd", "e", "ggg", "h", "i", "jk", "l", "m", "n")]
    pairs = list(zip(prompts, turns, strict=True))
    steps = [Step(prompt=p, tokens=t, logprobs=[0.0] * len(t)) for p, t in pairs]
    episodes = [Trajectory(steps=[step], group=g) for g, step in enumerate(steps)]
    episodes.insert(0, Trajectory(steps=[Step(prompt=[9], tokens=[9], logprobs=[0.0])], failed=True))
    pairs = [pairs[0], *pairs[2:9]]  # the first eight prompts
    table = torch.zeros(8, 8)
    for i, j in np.ndindex(8, 8):
        prompt, turn = pairs[j][0], pairs[i][1]
        logp = policy.model(torch.tensor([prompt + turn])).logits[0].detach().log_softmax(-1)
        table[i, j] = torch.stack([logp[len(prompt) + k - 1, token] for k, token in enumerate(turn)]).mean()
    expected = (table.diagonal() - table.logsumexp(1) + math.log(8)).mean()
    assert mutual_information(policy, episodes, grpo.Args()) == pytest.approx(expected.item(), abs=1e-5)
    # One prompt has nothing to be told from; of three groups two have one prompt.
    assert mutual_information(policy, episodes[1:2] * 4, grpo.Args()) is None
    assert mutual_information(policy, episodes[1:4], grpo.Args()) is None


def test_failed_episodes_are_counted_and_are_no_part_of_what_is_measured():
    """Three equal returns beside a failed episode hold no signal; terms of the reward add up to the return."""
    terms = {"answer": 0.75, "format": 0.25}
    episodes = [replace(episode(0, [([2], 1.0)]), info={"em": 1.0, "f1": 1.0}, reward_terms=terms) for _ in range(3)]
    failed = replace(
        episode(0, [([2], math.nan)], failed=True), info={"em": 0.0, "f1": 0.0}, reward_terms={"answer": -1.0}
    )
    metrics = episode_metrics([*episodes, failed], "em")
    assert (
        metrics["train/zero_std_groups"] == metrics["train/return"] == metrics["train/em"] == metrics["train/f1"] == 1.0
    )
    assert metrics["train/group_std"] == 0.0 and metrics["train/failed"] == 0.25
    assert (metrics["reward/answer"], metrics["reward/format"]) == (0.75, 0.25)


def test_groups_that_differ_in_shaping_alone_are_counted():
    pairs = [(0, 0.10, 0.0), (0, 0.11, 0.0), (1, 0.10, 0.0), (1, 1.10, 1.0), (2, 0.5, 0.0), (2, 0.5, 0.0)]
    episodes = [replace(episode(g, [([2], r)]), info={"em": score}, score=score) for g, r, score in pairs]
    assert episode_metrics(episodes, "em")["train/shaping_only_groups"] == pytest.approx(1 / 3)
