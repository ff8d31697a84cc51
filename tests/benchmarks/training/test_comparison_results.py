"""What a comparison found is kept without the scores of single questions, and its table is made from that again."""

import json

import pytest

from benchmarks.training import comparison_results
from experiments import recipe_file, report
from trainers.episodes.report.intervals import mean_and_half

KEPT = comparison_results.FOLDER
PAGE = KEPT.parent / "comparisons.md"

COLUMN = {
    "score": 0.123456789,
    "measure": "em",
    "source": "here",
    "turns": 2.0,
    "questions": {"id": ["a"], "em": [1.0]},
}


@pytest.fixture
def results():
    """Of two seeds of two runs of a shipped recipe."""
    recipe = recipe_file.read("algorithms")
    agents = {"PPO": [0, 1], "GRPO": [0, 1]}
    curve = [[0, 0.0, 0.1], [64, 9.0, 0.3]]
    column = COLUMN | {"file": "/home/me/runs/evaluations/1-hop.jsonl"}
    training = {"seconds": 9.0, "episodes": 64, "symptoms": [], "folder": "/home/me/runs"}
    return {
        "recipe": json.loads(json.dumps(recipe, default=vars)), "missing": [], "left_out": {}, "levels": {},
        "rows": {agent: [{name: column for name in recipe.tasks} for _ in seeds] for agent, seeds in agents.items()},
        "seeds": agents, "training": {agent: [training] * 2 for agent in agents},
        "curves": {agent: [curve] * 2 for agent in agents}, "process": {"PPO": [{"train/calls": [[64, 2.0]]}] * 2},
    }  # fmt: skip


def test_the_table_is_made_from_what_is_kept(results, tmp_path):
    run, kept, written = (tmp_path / name for name in ("run", "kept", "written"))
    run.mkdir()
    kept.mkdir()
    (run / "results.json").write_text(json.dumps(results))
    comparison_results.main(comparison_results.Args(add=run, folder=kept))
    text = (kept / "algorithms.json").read_text()
    assert "questions" not in json.loads(text)["rows"]["PPO"][0]["1 hop"] and "/home/me" not in text
    assert "0.12346" in text
    comparison_results.main(comparison_results.Args(write="algorithms", folder=kept, out=written))
    assert (written / "table.md").read_text() == report.table(results)
    assert (written / "curves.png").exists() and (written / "scores.png").exists()


def test_other_seeds_stay_beside_those_that_are_added(results, tmp_path):
    def of(seeds, score, missing=()):
        """The results of PPO and GRPO with these seeds."""
        made = json.loads(json.dumps(results)) | {"missing": list(missing)}
        made["recipe"]["seeds"] = seeds
        for agent in made["seeds"]:
            made["seeds"][agent] = seeds
            made["levels"][agent] = [score] * len(seeds)
            for part in ("rows", "training", "curves"):
                made[part][agent] = json.loads(json.dumps([made[part][agent][0]] * len(seeds)))
            for row in made["rows"][agent]:
                row["1 hop"]["score"] = score
        return comparison_results.trim(made)

    merged = comparison_results.merge(
        of([0, 2], 0.1), of([1, 2], 0.3, ["PPO, seed 0", "GRPO, seed 2 (stopped after 3 updates)", "RLOO, seed 0"])
    )
    assert merged["seeds"] == {"PPO": [0, 1, 2], "GRPO": [0, 1, 2]} and merged["missing"] == ["RLOO, seed 0"]
    assert [row["1 hop"]["score"] for row in merged["rows"]["PPO"]] == [0.1, 0.3, 0.3]
    assert all(len(merged[part]["GRPO"]) == 3 for part in ("training", "curves"))
    assert merged["levels"]["PPO"] == [0.1, 0.3, 0.3]
    assert "| PPO |" in report.table(merged)
    other = of([3], 0.1)
    other["levels"] = {}  # one that has none keeps nobody else's
    assert not comparison_results.merge(of([0], 0.1), other)["levels"]
    other["recipe"]["questions"] += 1
    with pytest.raises(ValueError, match="of another recipe, in questions: move it away first"):
        comparison_results.merge(of([0], 0.1), other)
    other = of([3], 0.1)
    other["recipe"]["env"] = "AgentR1/Bandit-v0"
    with pytest.raises(ValueError, match="of another recipe, in env: move it away first"):
        comparison_results.merge(of([0], 0.1), other)


def _cell(values, sign=""):
    mean, half = mean_and_half(values)
    return f"{mean:{sign}.3f} ± {half:.3f}".replace("0.", ".").replace("-", "−")


def test_the_page_has_what_is_kept_where_right_answers_are_rare():
    kept, page = json.loads((KEPT / "rewards.json").read_text()), PAGE.read_text(encoding="utf-8")
    means = {a: [sum(c["score"] for c in row.values()) / len(row) for row in rows] for a, rows in kept["rows"].items()}
    for agent, own in means.items():
        seeds = " | ".join(f"{value:.3f}".removeprefix("0") for value in own)
        assert f"| {agent} | {seeds} | {_cell(own)} |" in page
    for agent in ("Outcome", "GiGPO, outcome"):
        difference = [a - b for a, b in zip(means[agent], means["Rejection sampling"], strict=True)]
        assert f"**{_cell(difference, '+')}**" in page


@pytest.mark.parametrize("file", ["rollout-shaping", "rollout-shaping-baselines"])
def test_the_page_has_what_is_kept_of_the_shape_of_rollouts(file):
    kept, page = json.loads((KEPT / f"{file}.json").read_text()), PAGE.read_text(encoding="utf-8")
    (sampled,) = json.loads((KEPT / f"{file}-sampled.json").read_text()).values()
    recipe, reference = recipe_file.read("rollout-shaping"), "boards-64"
    column = dict.fromkeys(sampled, "As in training") | {
        "actions-5": "5 actions, 2 turns", "actions-2": "2 actions, 5 turns", "actions-1": "1 action, 10 turns",
    }  # fmt: skip
    greedy = {run: [row[column[run]]["score"] for row in kept["rows"][recipe.title_of(run)]] for run in sampled}
    for run in sampled:
        cells = []
        for how in (sampled, greedy):
            less = [a - b for a, b in zip(how[run], how[reference], strict=True)]
            cells += [_cell(how[run]), "" if run == reference else _cell(less, "+")]
        assert " | ".join(cells).replace("|  |", "| |") in page.replace("**", ""), (run, cells)


def test_the_page_has_what_is_kept_of_the_echo_trap():
    kept, page = json.loads((KEPT / "echo-trap.json").read_text()), PAGE.read_text(encoding="utf-8")
    for agent, rows in kept["rows"].items():
        own = [sum(c["score"] for c in row.values()) / len(row) for row in rows]
        seeds = " | ".join(f"{value:.3f}".removeprefix("0") for value in own)
        assert f"| {agent} | {seeds} | {_cell(own)} |" in page
    for agent, curves in kept["curves"].items():
        for seed, curve, training in zip(kept["seeds"][agent], curves, kept["training"][agent], strict=True):
            points = " | ".join(f"{score:.2f}".removeprefix("0") for _, _, score in curve)
            first = [f"{symptom['name']}, update {symptom['update']}" for symptom in training["symptoms"][:1]]
            assert f"| {agent}, seed {seed} | {points} | {(first or ['nothing'])[0]} |" in page


def test_one_thing_at_a_time(tmp_path):
    with pytest.raises(ValueError, match="either --add"):
        comparison_results.main(comparison_results.Args())
