"""Two processes against one: the same batch gives the same losses, gradients and weights; and a run of two is a run."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from two_processes import CASES, FINE_TUNING, RUN, learn, make_episodes

from tests.trainers.conftest import shrink_cold_start
from trainers import grpo, ppo, sft
from trainers.episodes.records import read_episodes
from trainers.evaluation import evaluator
from trainers.factory import check_world_size
from trainers.imitation.demonstrations import FILE
from trainers.models import micro_batches
from trainers.models.loading import load_policy
from trainers.runtime import distributed, integrity
from trainers.runtime.progress import read_metrics
from trainers.trajectory import collate


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The folder that two processes left, and what each of them found."""
    folder = tmp_path_factory.mktemp("two")
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ours |= {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}  # or it looks the host's name up
    command = [sys.executable, Path(__file__).with_name("two_processes.py"), folder]
    done = subprocess.run(command, env=os.environ | ours, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, [torch.load(folder / f"{rank}.pt") for rank in range(2)], done.stdout


@pytest.mark.parametrize("name", [*CASES, "few", "one"])
def test_two_processes_learn_what_one_does(name, of_two, tmp_path):
    folder, both, _ = of_two
    found = [each[name] for each in both]
    few = {"few": ("grpo", 3), "one": ("ppo-unmasked", 1)}  # episodes; a process may have none
    algorithm, count = few.get(name, (name, 18))
    expected = learn(algorithm, tmp_path / "checkpoint", count)
    assert any(g.abs().max() > 1e-4 for g in expected["gradients"])
    for got, wanted in zip(found[0]["gradients"], expected["gradients"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    for each in found:
        for got, wanted in zip(each["metrics"], expected["metrics"], strict=True):
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        loss = "train/loss" if name == "sft" else "policy/loss"
        assert each["metrics"][0][loss] == pytest.approx(expected["metrics"][0][loss], abs=1e-6)
        for got, wanted in zip(each["weights"], expected["weights"], strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    for a, b in zip(found[0]["weights"], found[1]["weights"], strict=True):
        assert torch.equal(a, b)  # or the processes would play different policies
    if name == "ppo":  # and its checkpoint is one process's: whole
        got, wanted = (
            torch.load(where / integrity.STATE_FILE, weights_only=True)
            for where in (folder / name, tmp_path / "checkpoint")
        )
        for part in ("optimizers", "modules"):
            torch.testing.assert_close(got[part], wanted[part], rtol=0, atol=1e-6)


def test_a_run_of_two_processes_is_one_run_that_one_process_goes_on_with(of_two, monkeypatch, capsys):
    folder, _, said = of_two
    run = folder / "run"
    assert said.count("A sample episode") == 1  # the second process says nothing
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    lines = read_metrics(run / "metrics.jsonl")
    assert [(line["step"], line["episodes"]) for line in lines] == [(0, 0), (1, 4), (2, 8)]
    assert all(line["tokens/decode"] == line["tokens/action"] > 0 for line in lines[1:])  # of both processes
    assert all(line["tokens/processed_update"] >= line["tokens/action"] for line in lines[1:])
    rows = json.loads((run / "summary.json").read_text())["rows"]
    records = list(read_episodes(run / "episodes.jsonl"))
    played = {row["name"]: [r["instance"] for r in records if r["table"] and r["agent"] == row["name"]] for row in rows}
    assert all(numbers == list(range(5)) for numbers in played.values())
    assert [r["step"] for r in records if r["phase"] == "training"] == [1] * 4 + [2] * 4
    assert len({r["key"] for r in records}) == len(records)
    assert {row["episodes"] for row in rows} == {5}  # each question once, whoever played it
    before = load_policy(run / "checkpoint-2", "cpu").model.state_dict()
    shrink_cold_start(monkeypatch, folder / "cache")
    summary = ppo.main(replace(RUN, resume=run, updates=3))
    assert summary["episodes"] == 12
    after = load_policy(run / "checkpoint-3", "cpu").model.state_dict()
    assert 0 < max((before[name] - after[name]).abs().max() for name in before) < 0.1


def test_fine_tuning_by_two_processes_is_one_run_that_one_process_goes_on_with(of_two, tmp_path, monkeypatch):
    """Scripts play the same in both; what is sampled is each process's own."""
    run = of_two[0] / "sft-run"
    told = [json.loads(line)["question"] for line in (run / FILE).read_text().splitlines()]
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-2"]
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert len(told) == 9 + 9 * 2 and {told.count(question) for question in told} == {3}  # whoever played them
    shrink_cold_start(monkeypatch, of_two[0] / "cache")
    alone = sft.main(replace(FINE_TUNING, script=(), sample=0, episodes=(str(run),), out=tmp_path / "alone"))
    of_alone = read_metrics(tmp_path / "alone" / "metrics.jsonl")
    for got, wanted in zip(lines, of_alone, strict=True):
        assert set(got) == set(wanted)
        for name in {"eval/loss", "train/loss", "policy/grad_norm", "tokens/action"} & set(wanted):
            assert got[name] == pytest.approx(wanted[name], rel=1e-3), name
    assert alone["heldout_loss"] < alone["heldout_loss_before"]
    (run / "summary.json").unlink()  # as if it had been stopped after its second update
    summary = sft.main(replace(FINE_TUNING, resume=run, out=None))
    assert summary["updates"] == 4 and summary["heldout_loss"] == pytest.approx(alone["heldout_loss"], rel=1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_row_is_passed_once_by_one_process(ranks, monkeypatch):
    batch = collate(make_episodes(), 0)
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    monkeypatch.setattr(distributed, "all_gather", lambda counts: [*counts, 5])  # one process has five parts
    rows, tokens = [], []
    for rank in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts = micro_batches.split_rows_of_rank(batch, 100)
        assert ranks == 1 or len(parts) >= 5
        own = [int(row) for rows_of_part, counts in parts if counts for row in rows_of_part]
        tokens.append(sum(int(batch.lengths[row]) for row in own))
        rows += own
    assert sorted(rows) == list(range(len(batch.ids)))
    assert max(tokens) - min(tokens) <= int(batch.lengths.max())


def test_processes_play_whole_groups(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    with pytest.raises(ValueError, match="multiple of the number of processes, 3"):
        check_world_size(replace(RUN, questions_per_update=4))
    check_world_size(replace(RUN, questions_per_update=6))
    for wrong, said in (
        (replace(RUN, questions_per_update=6, share_layers=True), "share_layers"),
        (grpo.Args(questions_per_update=6, one_step_off_policy=True), "one_step_off_policy is for one process"),
    ):
        with pytest.raises(ValueError, match=said):
            check_world_size(wrong)


def test_a_process_that_goes_through_something_alone_waits_for_nobody(monkeypatch):
    """Else an outage in the cold start would hang all of them: the others wait for the first one."""
    monkeypatch.setattr(distributed.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed.distributed, "barrier", lambda: None)
    with pytest.raises(KeyError), distributed.first_before_others():
        assert distributed.world_size() == 1 and distributed.shard([1, 2]) == [1, 2] and distributed.rank() == 1
        assert distributed.broadcast("mine") == "mine" and distributed.all_gather([3]) == [3]
        raise KeyError
    assert distributed.world_size() == 2 and distributed.shard([1, 2]) == [2]


def test_a_script_is_played_by_the_first_process(monkeypatch):
    """Each by itself, they could differ in whether a tool broke."""
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    turn = {"tool_faults": 0, "em": 1.0, "instance": {}, "recorded": {"invalid": False}}
    monkeypatch.setattr(distributed, "broadcast", lambda played: [[turn]])
    monkeypatch.setattr(evaluator, "roll_out_many", lambda *_: pytest.fail("by the second one too"))
    envs = SimpleNamespace(envs=[SimpleNamespace(PRIMARY_METRIC="em")])
    assert evaluator.run_script(envs, [3], None) == [turn | {"invalid_turns": 0, "recorded_turns": 1}]
    turn |= {"tool_faults": 2}
    del turn["em"]  # the script was ended before it had a score
    assert evaluator.run_script(envs, [3], None) == [
        turn | {"em": 0.0, "kind": "", "invalid_turns": 0, "recorded_turns": 1}
    ]
