"""A comparison whose runs start from supervised fine-tuning, with the baselines that have as many seconds."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tyro

from experiments import check, columns, compare, comparison, compute_matched, recipe_file
from experiments.columns import Column, fingerprint
from experiments.recipe import ALGORITHMS, EnvConfig
from trainers import export, grpo, sft
from trainers.checkpoints.settings import SettingsDiffer
from trainers.evaluation import evaluator
from trainers.runtime.progress import read_metrics

RECIPE = """
title = "A small one"
seeds = [0, 1]
questions = 5
baselines = ["constant", "rule", "naive-rag", "zero-shot", "sft", "rejection-sampling"]
reference = ["rejection-sampling"]
naive_rag_of = ["sft", "grpo"]
pooled = ["As in training", "Another world"]
budget = "grpo"
[own_seeds]
grpo = [0]
rejection-sampling = [0]
[env_kwargs]
entities = 100
questions = 20
max_turns = 2
holdout = 4
k = 2
rewards = { format = 1.0, progress = 0.0 }
[sft]
script = "oracle"
only_solved = false
demonstrations = 4
updates = 2
lora_rank = 2
lr = 1e-2
save_every = 1
[arguments]
model = "MODEL"
updates = 2
questions_per_update = 2
group_size = 2
lora_rank = 2
max_new_tokens = 6
eval_every = 1
eval_questions = 2
save_every = 1
[tasks."As in training"]
env_kwargs = { holdout = 0 }
[tasks."Another world"]
env_kwargs = { holdout = 0, world_seed = 101 }
[runs.grpo]
title = "GRPO"
algorithm = "grpo"
"""
MORE_SFT = RECIPE.replace("rejection-sampling", "more-sft")


@pytest.fixture
def ask(model_folder, tmp_path):
    """``ask(*words)``: the arguments of the command for the small recipe and a random model."""
    (tmp_path / "small.toml").write_text(RECIPE)
    common = ("--recipe", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--model", str(model_folder))
    return lambda *words: tyro.cli(compare.Args, args=(*common, *words))


def never(*_, **__):
    raise AssertionError("this was run before")


def test_parts_make_the_whole(ask, tmp_path, monkeypatch, quarter_seconds):
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match=r"no result of this recipe yet; missing: .*GRPO"):
        compare.main(ask("--report"))
    first = compare.main(ask("--runs", "grpo", "constant", "rule", "--seeds", "0"))
    assert list(first["rows"]) == ["Best constant answer", "Rule-based", "GRPO", "Naive RAG (GRPO)"]
    (row,) = first["rows"]["Naive RAG (GRPO)"]
    assert json.loads((out / "grpo-0" / "result-naive-rag-grpo.json").read_text())["rows"] == row
    assert {own["calls"] for own in row.values()} == {1.0}
    assert {"SFT, seed 1", "Rejection sampling, seed 0"} <= set(first["missing"])
    assert not (out / "sft-1").exists()
    assert "- not there yet: SFT, seed 1\n" in (out / "table.md").read_text()

    results = compare.main(ask())
    assert results["missing"] == []
    titles = ["Best constant answer", "Rule-based", "Naive RAG", "Base Tool Call (zero-shot)", "SFT"]
    assert list(results["rows"]) == [
        *titles, "Rejection sampling", "GRPO", "Naive RAG (SFT)", "Naive RAG (GRPO)"
    ]  # fmt: skip
    assert results["seeds"] == {
        **{title: [None] for title in titles[:4]}, "SFT": [0, 1], "Rejection sampling": [0], "GRPO": [0],
        "Naive RAG (SFT)": [0, 1], "Naive RAG (GRPO)": [0],
    }  # fmt: skip
    # Everything starts from the fine-tuned adapter, and trains it further.
    settings = json.loads((out / "grpo-0" / "summary.json").read_text())["settings"]
    assert settings["model"] == json.loads((out / "sft-0" / "summary.json").read_text())["checkpoint"]
    assert settings["lora_rank"] == 0
    # The baseline had the seconds of GRPO, and policies of its own.
    spent = [results["training"][name][0]["seconds"] for name in ("Rejection sampling", "GRPO")]
    assert spent[0] >= 0.9 * spent[1]
    rounds = [json.loads((out / "rejection-sampling-0" / f"round-{i}" / "summary.json").read_text()) for i in (0, 1)]
    assert rounds[1]["settings"]["model"] == rounds[0]["checkpoint"]
    assert set(rounds[0]["settings"]["episodes"]) <= set(rounds[1]["settings"]["episodes"])
    # Scores question by question, so that agents can be paired; held out are training questions that nobody learned from.
    row = results["rows"]["GRPO"][0]["Another world"]
    assert row["questions"]["id"] == results["rows"]["Rule-based"][0]["Another world"]["questions"]["id"]
    assert len(row["questions"]["em"]) == len(row["questions"]["f1"]) == 5
    assert "episode" in json.loads(Path(row["file"]).read_text().splitlines()[1])
    assert "only each 4th question" in json.loads((out / "grpo-0" / "summary.json").read_text())["source"]
    assert json.loads((out / "results.json").read_text()) == results
    text = (out / "table.md").read_text()
    pooled = "As in training + Another world"
    header = f"As in training | Another world | {pooled} | of these yes/no | others | Δ to Rejection sampling | Seeds |"
    assert f"| EM | {header}" in text
    assert (out / "curves.png").exists()

    with monkeypatch.context() as patched:  # nothing is run twice
        patched.setattr(comparison, "ALGORITHMS", {name: (never, preset) for name, (_, preset) in ALGORITHMS.items()})
        patched.setattr(sft, "main", never)
        patched.setattr(compute_matched, "sample", never)
        patched.setattr(evaluator, "run_policy", never)
        assert compare.main(ask()) == results
        monkeypatch.chdir(tmp_path)  # another spelling of the folder is the same folder
        assert compare.main(replace(ask(), out=Path("out")))["missing"] == []
    with pytest.raises(ValueError, match=r"sft-0 holds a run with other settings \(.*dtype='float32', not 'bfloat16'"):
        compare.main(ask("--arguments", '{"dtype": "bfloat16"}'))


def test_a_start_from_elsewhere(ask, tmp_path, monkeypatch, model_folder, quarter_seconds):
    """What fine-tuning left, exported, is started from in another folder, and later calls know."""
    (tmp_path / "small.toml").write_text(MORE_SFT)
    compare.main(ask("--runs", "sft", "--seeds", "0"))
    start, model, elsewhere = tmp_path / "start", str(model_folder), tmp_path / "elsewhere"
    summary = json.loads((tmp_path / "out" / "sft-0" / "summary.json").read_text())
    export.main(export.Args(checkpoint=Path(summary["checkpoint"]), out=start, base_model="some/model"))
    again = ("--out", str(elsewhere), "--runs", "sft", "more-sft", "grpo", "--seeds", "0")
    with monkeypatch.context() as patched:
        patched.setattr(compute_matched, "fine_tune", never)  # but for more-sft, which comes after a run
        with pytest.raises(AssertionError, match="was run before"):
            compare.main(ask(*again, "--start", str(start)))
    settings = json.loads((elsewhere / "grpo-0" / "summary.json").read_text())["settings"]
    assert (settings["model"], settings["base_model"], settings["lora_rank"]) == (str(start), model, 0)
    results = compare.main(ask(*again))
    assert list(results["rows"]) == ["SFT", "More SFT", "GRPO", "Naive RAG (SFT)", "Naive RAG (GRPO)"]
    assert results["training"]["SFT"] == [{}]  # one for each seed, so that those of others keep their places
    taught = json.loads((elsewhere / "more-sft-0" / "summary.json").read_text())["settings"]
    assert (taught["script"], taught["episodes"], taught["model"]) == (["oracle"], [], str(start))
    assert "SFT, seed 1" in results["missing"]
    with pytest.raises(ValueError, match=r"sft-0 is there already: leave out --start, or give another --out"):
        compare.main(ask("--runs", "grpo", "--seeds", "0", "--start", str(start)))
    with pytest.raises(ValueError, match="start applies to one seed: name it"):
        ask("--start", str(start)).check_inputs()
    with pytest.raises(ValueError, match="start makes no difference where nothing is run"):
        ask("--start", str(start), "--seeds", "0", "--report").check_inputs()


def test_a_baseline_with_seconds_of_its_own_waits_for_no_run(ask, tmp_path, quarter_seconds):
    (tmp_path / "small.toml").write_text(
        MORE_SFT.replace('budget = "grpo"\n', "").replace("[arguments]", "[arguments]\nmax_seconds = 1")
    )
    results = compare.main(ask("--runs", "more-sft", "--seeds", "0"))
    assert not (tmp_path / "out" / "grpo-0").exists() and "GRPO, seed 0" in results["missing"]
    assert 0.9 < results["training"]["More SFT"][0]["seconds"] < 10


def test_what_was_killed_goes_on(ask, tmp_path, monkeypatch):
    out, words = tmp_path / "out", ("--runs", "grpo", "--seeds", "0")
    whole = compare.main(ask(*words, "--out", str(tmp_path / "other")))["rows"]["GRPO"]

    def die_in(module, name, call):
        real, calls = getattr(module, name), []

        def dying(*given, **options):
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt
            return real(*given, **options)

        monkeypatch.setattr(module, name, dying)
        with pytest.raises(KeyboardInterrupt):
            compare.main(ask(*words))
        monkeypatch.setattr(module, name, real)

    die_in(sft, "update", 2)
    assert [folder.name for folder in (out / "sft-0").glob("checkpoint-*")] == ["checkpoint-1"]
    die_in(grpo, "update", 2)
    with pytest.raises(FileNotFoundError, match=r"GRPO, seed 0 \(stopped after 1 updates\)"):
        compare.main(ask("--report"))
    assert not (out / "grpo-0" / "evaluations").exists()
    monkeypatch.setattr(columns, "episodes_at_once", lambda: 3)
    die_in(columns, "_summarize", 1)  # the first column is there, and no row of it
    die_in(evaluator, "run_policy", 2)  # the second column is half there
    played, play = [], evaluator.run_policy
    monkeypatch.setattr(evaluator, "run_policy", lambda *args: played.append(args[3]) or play(*args))
    resumed = compare.main(ask(*words))["rows"]["GRPO"]
    assert played == [[3, 4]]
    assert [lines["step"] for lines in read_metrics(out / "grpo-0" / "metrics.jsonl")] == [0, 1, 2]
    assert [row["questions"] for row in resumed[0].values()] == [row["questions"] for row in whole[0].values()]


def test_rejection_sampling_is_resumed_between_batches(ask, tmp_path, monkeypatch, quarter_seconds):
    args = compare.read_recipe(ask()).sft_arguments(0, max_new_tokens=4)
    clock = itertools.count()  # a batch takes a second
    monkeypatch.setattr(compute_matched, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    real, calls = compute_matched.sample, []

    def sample(seconds):
        return compute_matched.rejection_sampling(args, tmp_path / "r", seconds=seconds, attempts=8, questions=2)

    def killed(*given, **options):
        calls.append(given[3])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given, **options)

    monkeypatch.setattr(compute_matched, "sample", killed)
    with pytest.raises(KeyboardInterrupt):
        sample(1e6)
    done = read_metrics(tmp_path / "r" / "sampled-0" / "batches.jsonl")
    assert [(record["sampled"], record["seconds"]) for record in done] == [(16, 1.0), (16, 1.0)]
    summary = sample(8.0)  # in each of two rounds, two seconds of sampling and as many of learning
    assert (summary["sampled"], summary["seconds"]) == (64, 8.0)
    assert calls[0] != calls[1] and not set(calls[0]) & set(calls[1])  # no question twice before each came once
    monkeypatch.setattr(compute_matched, "sample", never)  # what has been learned from gets no more episodes
    assert sample(8.0) == summary
    with pytest.raises(SettingsDiffer, match=r"max_seconds=2\.0, not 38\.0"):
        sample(80.0)


def test_nothing_right_leaves_the_start(ask, tmp_path, monkeypatch):
    args = compare.read_recipe(ask()).sft_arguments(0, max_new_tokens=2, only_solved=True)
    shape = {"seconds": 0.2, "attempts": 32, "questions": 2}
    monkeypatch.setattr(sft, "main", never)
    summary = compute_matched.rejection_sampling(args, tmp_path / "r", **shape)
    assert (summary["checkpoint"], summary["kept"]) == (args.model, 0)
    assert summary["sampled"] >= 64
    monkeypatch.setattr(compute_matched, "sample", never)  # it is there, also for a report
    assert (tmp_path / "r" / "round-1" / "summary.json").exists()
    assert compute_matched.rejection_sampling(args, tmp_path / "r", **shape) == summary


def test_a_model_is_its_weights_wherever_it_lies(tmp_path):
    one, other, copied = tmp_path / "one.gguf", tmp_path / "other.gguf", tmp_path / "folder"
    one.write_bytes(bytes(3_000_000) + b"1")
    other.write_bytes(bytes(3_000_000) + b"2")
    assert fingerprint(str(one)) != fingerprint(str(other))
    copied.mkdir()
    (copied / "any.gguf").write_bytes(one.read_bytes())
    (copied / "README.md").write_text("of no weight")
    assert fingerprint(str(copied)) == fingerprint(str(one))
    assert fingerprint("some/model") == "some/model"


def test_a_script_needs_no_policy(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "load_policy", never)
    monkeypatch.setattr(comparison, "start_policy", never)
    results = compare.main(ask("--runs", "constant", "rule"))
    yes = results["rows"]["Best constant answer"][0]["As in training"]
    assert (yes["turns"], yes["calls"], yes["em"]) == (1.0, 0.0, 0.0)
    assert results["curves"] == {} and not (tmp_path / "out" / "curves.png").exists()


def test_what_was_rolled_out_on_data_that_changed_does_not_count(tmp_path):
    passages = [{"id": str(i), "title": f"Town {i}", "text": f"Town {i} has {i} gates."} for i in range(4)]
    rows = [{"id": str(i), "question": f"How many gates has Town {i}?", "answer": str(i)} for i in range(4)]

    def write(name, lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def digest():
        content = {"title": "T", "env": "AgentR1/QA-v0", "env_kwargs": {"data": str(tmp_path)}}
        content["runs"] = {"g": {"algorithm": "grpo"}}
        return check.check(recipe_file.make("T", content))[0]["As in training"].data

    asked = [rows[0] | {"id": "t", "question": "Has Town 0 a gate?"}]
    for name, lines in (("passages", passages), ("validation", rows), ("train", asked)):
        write(f"{name}.jsonl", lines)
    digests = [digest(), digest()]
    write("validation.jsonl", [row | {"answer": "none of them"} for row in rows])
    digests.append(digest())
    write("passages.jsonl", [*passages, {"id": "9", "title": "Town 9", "text": "It is new."}])
    digests.append(digest())
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_kept_episodes_of_another_agent_or_column_do_not_count(ask, tmp_path):
    column = Column(task=compare.read_recipe(ask()).tasks["As in training"], questions=3, data="one")
    play = lambda number: lambda: lambda envs, numbers: [{"em": number, "f1": number, "turns": 1} for _ in numbers]  # noqa: E731

    def score(identity, player, column=column, max_new_tokens=4):
        return columns.evaluate("A", {"C": column}, max_new_tokens, tmp_path, identity, player)["C"]["score"]

    assert score("one", play(1.0)) == score("one", play(0.0)) == 1.0
    assert score("two", play(0.0)) == score("two", None) == 0.0
    others = [replace(column, data="two"), replace(column, questions=2), replace(column, task=EnvConfig(env="E"))]
    for wanted in (("three",), ("one", column, 5), *(("one", other) for other in others)):
        with pytest.raises(columns.NotThere, match="A: C, 0 episodes of it"):
            score(wanted[0], None, *wanted[1:])
