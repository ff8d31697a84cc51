"""What a comparison found is kept without the scores of single questions, and its table is made from that again."""

import json

import pytest

from benchmarks.training import comparison_results
from trainers.comparison import recipe_file, report

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


def test_one_thing_at_a_time(tmp_path):
    with pytest.raises(ValueError, match="either --add"):
        comparison_results.main(comparison_results.Args())
