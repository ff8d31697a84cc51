"""Tables and pictures of a comparison."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments import columns, report
from experiments.curves import Point, draw, draw_scores, mean_curve, point_reaching, read_curve
from experiments.report import table
from trainers.episodes.report import figures


def invented(**changes):
    def row(score, **also):
        return {
            "score": score, "measure": "em", "f1": score + 0.1, "turns": 3.0, "calls": 2.0, "source": "somewhere", **also
        }  # fmt: skip

    columns = ["Bridge", "Another world", "Other questions"]
    ours = [dict.fromkeys(columns, row(0.2 + 0.1 * seed, substring_em=0.5)) for seed in range(3)]
    ours = [{**rows, columns[2]: row(0.0, substring_em=0.2)} for rows in ours]
    grpo = [dict.fromkeys(columns, row(0.1 + 0.05 * seed)) for seed in range(3)]
    worlds = {"Bridge": {}, "Another world": {"world_seed": 101}, "Other questions": {"types": ["inference"]}}
    recipe = {
        "title": "An experiment", "question": "What?", "env": "E", "env_kwargs": {}, "seeds": [0, 1, 2], "note": "## Note\n",
        "tasks": {name: {"env": "E", "env_kwargs": kwargs} for name, kwargs in worlds.items()},
        "runs": {"g": {"title": "GRPO"}, "d": {"title": "Dense"}}, "reference": ["g"], "reach": "g",
        "pooled": [],
    }  # fmt: skip
    trained = {"seconds": 100.0, "episodes": 60, "symptoms": []}
    return {
        "recipe": recipe | changes,
        "left_out": {"imitation": "no cold start"},
        "missing": ["More SFT, seed 2"],
        "rows": {"Naive RAG": [dict.fromkeys(columns, row(0.1))] * 3, "GRPO": grpo, "Dense": ours},
        "seeds": {name: [0, 1, 2] for name in ("Naive RAG", "GRPO", "Dense")},
        "training": {"GRPO": [trained] * 3, "Dense": [trained] * 3},
        "curves": {
            "GRPO": [[Point(0, 0.0, 0.1), Point(30, 50.0, 0.3), Point(60, 100.0, 0.25)]] * 3,
            "Dense": [[Point(0, 0.0, 0.1), Point(30, 40.0 + seed, 0.24 + 0.02 * seed)] for seed in range(3)],
        },
    }  # fmt: skip


def test_the_table_by_hand():
    text = table(invented())
    assert text.startswith("# An experiment\n\nWhat?\n\nE, 3 seeds. Mean over seeds ± half")
    assert "| EM | Bridge | Another world | Other questions | Avg | Δ to GRPO |" in text
    # .2, .3, .4 on two columns and 0 on the third: the mean of the averages is .2, their deviation two thirds of .1.
    # Less GRPO's .1, .15, .2, seed by seed: .0333, .05, .0667, whose deviation is .0167.
    assert "| Dense | 0.300 ± 0.248 | 0.300 ± 0.248 | 0.000 ± 0.000 | 0.200 ± 0.166 | +0.050 ± 0.041 |" in text
    assert "0.150 ± 0.124 | – |" in text
    assert "| Dense | 0.300 ± 0.166 | 0.400 ± 0.000 | 3.00 ± 0.00 | 2.00 ± 0.00 | 100 ± 0 | 30 (41 s) |" in text
    assert "| GRPO | 0.250 ± 0.124 | – | 3.00 ± 0.00 | 2.00 ± 0.00 | 100 ± 0 | 30 (50 s) |" in text
    assert "| Naive RAG | 0.200 ± 0.000 | – | 3.00 ± 0.00 | 2.00 ± 0.00 | – | – |" in text
    assert "Episodes to reach GRPO's end (0.250)" in text
    assert "- Bridge: somewhere; as in training\n" in text
    assert '- Another world: somewhere; "world_seed": 101\n' in text
    assert "- left out: Longer cold start; no cold start\n" in text
    assert "First symptom" not in text
    assert text.endswith("|\n\n## Note\n")
    assert "Δ" not in table(invented(reference=[]))


def test_symptoms_are_shown():
    results = invented()
    found = [{"update": 14, "name": "entropy collapsed"}, {"update": 20, "name": "no success"}]
    results["training"]["Dense"] = [{"seconds": 1.0, "episodes": 60, "symptoms": s} for s in ([], found, found[1:])]
    said = "entropy collapsed (update 14, seed 1); no success (update 20, seed 2) |"
    assert said in table(results) and table(results).count(" none |") == 1


def test_a_level_is_reached_by_the_mean_and_never_between_two_evaluations():
    runs = [[Point(0, 0.0, 0.0), Point(8, 1.0, 0.2), Point(16, 2.0, 0.6)], [Point(0, 0.0, 0.0), Point(8, 3.0, 0.4)]]
    mean = mean_curve(runs)
    assert mean.episodes.tolist() == [0, 8]
    assert mean.score == pytest.approx([0.0, 0.3])
    assert mean.scores.tolist() == [[0.0, 0.2], [0.0, 0.4]]
    assert point_reaching(runs, 0.3) == (8, 2.0)
    assert point_reaching(runs, 0.2) == (8, 2.0)
    assert point_reaching(runs, 0.31) is None
    refilled = [[Point(0, 0.0, 0.0), Point(12, 1.0, 0.5)], [Point(0, 0.0, 0.0), Point(8, 1.0, 0.3)]]  # batches differ
    assert mean_curve(refilled).episodes.tolist() == [0, 10]


def test_any_score_can_be_pooled():
    episodes = [{"id": i, "success": float(i % 2), "turns": 3} for i in range(4)]
    row = {"A": columns._summarize("PPO", {"measure": "success", "source": "games"}, episodes)}
    recipe = {"tasks": {"A": {}}, "pooled": ["A"], "reference": [], "runs": {}}
    lines = report.pooled_table({"recipe": recipe, "rows": {"PPO": [row]}, "seeds": {"PPO": [0]}})
    assert "| PPO | 0.500 | 0.500 [" in lines[2]


def test_intervals_are_over_questions_where_columns_are_pooled():
    """A column without scores of its questions has no dot."""
    scored = lambda *em: {"measure": "em", "questions": {"id": [*range(len(em))], "em": [*em]}}  # noqa: E731
    row = {"x": scored(*[0.0, 1.0] * 50), "y": scored(*[1.0] * 100), "z": {"measure": "em", "questions": {"id": [0]}}}
    recipe = {"tasks": {"x": {}, "y": {}, "z": {}}, "pooled": ["x", "y"]}
    found = report.mean_scores({"recipe": recipe, "rows": {"A": [row]}, "seeds": {"A": [0]}})["A"]
    assert list(found) == ["x", "y", "x + y"]
    assert found["x"] == (0.5, pytest.approx(1.96 * 0.05, abs=0.01)) and found["y"] == pytest.approx((1.0, 0.0))
    assert found["x + y"][0] == 0.75 and 0 < found["x + y"][1] < found["x"][1]


def test_the_pooled_table_by_hand():

    def row(*em):
        questions = {"id": ["x", "y"], "em": em, "f1": [0.5, 0.5], "kind": ["bridge", "yes or no"]}
        return {"score": sum(em) / len(em), "f1": 0.5, "measure": "em", "questions": questions}

    results = {
        "recipe": {
            "tasks": {"H": {}, "W": {}, "M": {}}, "pooled": ["H", "W"], "reference": ["sft"], "runs": {"g": {"title": "GRPO"}},
        },
        "rows": {
            "Rule-based": [{"H": row(0, 1), "W": row(0, 1), "M": row(1, 0)}],
            "SFT": [{"H": row(0, 0), "W": row(0, 0), "M": row(1, 0)}, {"H": row(1, 1), "W": row(1, 1), "M": row(1, 0)}],
            "GRPO": [{"H": row(1, 1), "W": row(1, 1), "M": row(0, 0)}],
        },
        "seeds": {"Rule-based": [None], "SFT": [0, 1], "GRPO": [1]},
    }  # fmt: skip
    lines = report.pooled_table(results)
    assert lines[0] == "| EM | H | W | M | H + W | of these yes/no | others | Δ to SFT | Seeds |"
    # Two of four right; a resample of four questions has none right with probability 1/16, above 2.5 %.
    rule = "| Rule-based | 0.500 | 0.500 | 0.500 | 0.500 [0.000, 1.000] | 1.000 | 0.000 |"
    assert lines[2].startswith(rule) and lines[2].endswith("| – |")
    assert lines[3] == "| SFT | 0.500 | 0.500 | 0.500 | 0.500 [0.000, 1.000] | 0.500 | 0.500 | – | 2 |"
    assert (
        lines[4]
        == "| GRPO | 1.000 | 1.000 | 0.000 | 1.000 [1.000, 1.000] | 1.000 | 1.000 | +0.000 [+0.000, +0.000] | 1 |"
    )  # of seed 1


@pytest.fixture
def drawn(monkeypatch, save_picture):
    """The figures that are drawn."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, out: (kept.append(figure), save_picture(figure, out))[1])
    return kept


NAMES = ["PPO", "PPO without advantage mask", "PPO without both masks", "PPO, λ .95, without advantage mask", "GRPO"]


def test_each_agent_has_a_panel_with_the_others_in_grey(tmp_path, drawn):
    runs = [[Point(0, 0.0, 0.1), Point(8, 1.0, 0.2)], [Point(0, 0.0, 0.1), Point(8, 3.0, 0.4)]]
    ends_low = [[Point(0, 0.0, 0.5), Point(8, 9.0, 0.0)]]
    draw(dict.fromkeys(NAMES, runs) | {"PPO": ends_low}, tmp_path / "c.png", "EM", "An experiment")
    (figure,) = drawn
    *panels, key = figure.axes
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in panels] == NAMES and not key.axison
    for axes in panels:
        colors = [line.get_color() for line in axes.get_lines()]
        assert colors.count(figures.FAINT) == 4 and colors.count(figures.BLUE) == 1
    assert [len(axes.collections) for axes in panels] == [0, 1, 1, 1, 1]  # the band: PPO has one seed
    low, other, *_ = (axes.texts[0] for axes in panels)
    assert (low.get_text(), low.get_va(), other.get_text(), other.get_va()) == ("0.00", "bottom", "0.30", "top")
    assert {text.get_text() for text in figure.texts} == {
        "An experiment", "EM on held-out instances; mean and 95% CI of 1 to 2 seeds"
    }  # fmt: skip
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes._left_title.get_window_extent(renderer) for axes in panels]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_scores_are_drawn_with_their_intervals(tmp_path, drawn):
    scores = {"A": {"x": (0.5, 0.2), "y": (0.1, None)}, "B": {"x": (0.7, 0.1)}}
    draw_scores(scores, tmp_path / "s.png", "An experiment", "EM")
    left, right = drawn[0].axes
    drawn_x = [x for line in left.get_lines() for x in line.get_xdata()]
    assert drawn_x == pytest.approx([0.3, 0.7, 0.5, 0.6, 0.8, 0.7])
    assert [text.get_text() for text in left.texts] == ["0.50", "0.70"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["A", "B"]
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("x", "y")


def test_the_curve_of_a_run_and_the_seconds_of_all_its_updates():
    lines = [
        {"episodes": 0, "eval/em": 0.1}, {"episodes": 8, "time/rollout": 1.0, "time/update": 0.5, "eval/em": 0.3},
        {"episodes": 16, "time/rollout": 2.0, "time/update": 0.5},
    ]  # fmt: skip
    assert read_curve(lines, "em") == ([(0, 0.0, 0.1), (8, 1.5, 0.3)], 4.0)
