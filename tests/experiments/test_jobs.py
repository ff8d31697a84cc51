"""Several agents of a comparison at once."""

from dataclasses import replace

import pytest
import tyro

from experiments import compare, jobs, recipe_file

ARGS = compare.Args(recipe="real", model="m.gguf", seconds=400, jobs=2, env_kwargs='{"data": "a b"}')


class Process:
    """A process that ends at its second look, with a status that its words decide."""

    at_once, most, started = 0, 0, []

    def __init__(self, command, stdout, stderr, env, start_new_session):
        self.words, self.returncode, self.looks = command[3:], None, 0
        Process.started.append((self.words, env["OMP_NUM_THREADS"]))
        Process.at_once += 1
        Process.most = max(Process.most, Process.at_once)

    def poll(self):
        self.looks += 1
        if self.looks == 2:
            Process.at_once -= 1
            self.returncode = int("rule" in self.words)
        return self.returncode


def test_each_agent_of_each_seed_is_a_command_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    recipe = recipe_file.read("real", seconds=400)
    failed = jobs.run_jobs(recipe, ARGS, ["zero-shot"], tmp_path)
    assert failed == [f"rule ended with status 1: {tmp_path / 'jobs' / 'rule'}.log"]
    assert Process.most == 2 and {threads for _, threads in Process.started} == {"4"}
    asked = [tyro.cli(compare.Args, args=words) for words, _ in Process.started]
    assert all(args == replace(ARGS, runs=args.runs, seeds=args.seeds, jobs=1, out=tmp_path) for args in asked)
    order = [(*args.runs, *args.seeds) for args in asked]
    assert set(order[:6]) == {("constant",), ("rule",), ("naive-rag",), ("sft", 0), ("sft", 1), ("sft", 2)}
    assert len(set(order)) == len(order) == 6 + 3 * 3 + 4  # more SFT, rejection sampling, GRPO; and four of one seed


def test_only_agents_of_the_seed_get_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Process, "started", [])
    args = replace(ARGS, seeds=(1,), runs=("constant", "more-sft"))
    args.start = tmp_path  # set afterwards, since it is no checkpoint
    assert not jobs.run_jobs(recipe_file.read("real", seconds=400), args, [], tmp_path)
    starts = {
        words[words.index("--runs") + 1]: ("--start" in words, "--seeds" in words) for words, _ in Process.started
    }
    assert starts == {"constant": (False, False), "more-sft": (True, True)}


def test_no_agent_waits_for_another_ones_seconds(tmp_path):
    with pytest.raises(ValueError, match=r"must not wait for 'grpo'.*give seconds"):
        jobs.run_jobs(recipe_file.read("algorithms"), ARGS, [], tmp_path)
    recipe = recipe_file.read("algorithms", seconds=60)
    assert (recipe.budget, recipe.base(0).max_seconds) == ("", 60.0)
    assert {recipe.run_arguments(run, 0).max_seconds for run in recipe.runs} == {60.0}
