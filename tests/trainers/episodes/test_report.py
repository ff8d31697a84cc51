"""Tables and learning curves."""

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from trainers.episodes.report import figures
from trainers.episodes.report import tables as report


@pytest.fixture
def runs(tmp_path):
    """Two runs of different length, with a null and a line of training only, as they occur."""
    files = {}
    for seed, last in ((1, 12), (2, 10)):
        files[f"seed {seed}"] = tmp_path / f"{seed}.jsonl"
        lines = [{"step": step, "seconds": 10.0 * step, "train/em": step / 20} for step in range(last + 1)]
        lines += [{"step": step, "seconds": 10.0 * step, "eval/em": step / 15} for step in range(0, last + 1, 2)]
        lines.append({"step": last, "seconds": 10.0 * last, "eval/em": None})
        files[f"seed {seed}"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


@pytest.fixture
def drawn(monkeypatch, save_picture):
    """The axes of the figures that are drawn."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, out: (kept.extend(figure.axes), save_picture(figure, out))[1])
    return kept


def test_the_curve_is_a_picture_with_a_share_on_its_y_axis(runs, drawn, tmp_path):
    out = figures.draw_learning_curve(runs, tmp_path / "new" / "curve.png", {"Naive RAG": 0.1}, title="T", subtitle="S")
    assert out.read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn
    assert axes.get_ylim() == (0, 1)
    assert axes.get_xlim() == (0, 100)  # where both are
    assert axes.get_xlabel() == "Training time (seconds)"
    texts = [text.get_text() for text in axes.texts]
    assert "Naive RAG  0.10" in texts
    assert "held out, mean of 2  0.73" in texts  # the mean of the last scores, 12/15 and 10/15
    with pytest.raises(ValueError, match=r"'episodes' and 'eval/em'.*seed 1, seed 2"):
        figures.draw_learning_curve(runs, tmp_path / "c.png", {}, x="episodes")


@pytest.mark.parametrize(
    ("baselines", "limits"),
    [
        ({"a": 0.99, "b": 0.985, "c": 0.98, "d": 0.01, "e": 0.0, "f $x_1$": 0.0}, (0, 1)),
        ({"a": -1.5, "b": 4.0, "c": 3.9, "d": 3.95, "e": 0.0, "f": 0.01}, (-1.5, 4)),  # returns
    ],
)
def test_baseline_labels_do_not_overlap_and_stay_inside(runs, drawn, tmp_path, baselines, limits):
    figures.draw_learning_curve({"one": runs["seed 1"]}, tmp_path / "c.png", baselines, x="step")
    (axes,) = drawn
    assert axes.get_ylim() == limits
    renderer = axes.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]
    assert len(boxes) == 8
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert all(box.y0 >= 0 and box.y1 <= axes.figure.bbox.y1 and box.x1 <= axes.figure.bbox.x1 for box in boxes)


def test_the_label_of_a_curve_has_its_last_score_not_its_best(drawn, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {step}, "eval/em": {em}}}\n' for step, em in enumerate((0.2, 0.6, 0.3))))
    figures.draw_learning_curve({"only": path}, tmp_path / "c.png", {}, x="step")
    assert [text.get_text() for text in drawn[0].texts] == ["held out  0.30"]


ROWS = [
    {"name": "Naive | RAG [1]", "em": 0.1234, "em_interval": (0.1, 0.15), "f1": 0.2, "support_recall": None},
    {
        "name": "trained", "em": 0.8, "em_interval": [0.77, 0.83], "f1": 0.85, "support_recall": 1.0, "turns": 3, "calls": 2,
    },
]  # fmt: skip
EVERYTHING = {
    "name": "Qwen/Qwen2.5-7B-Instruct", "em": 0.5, "em_interval": (0.4, 0.6), "samples": 8, "pass_at_k": 0.75,
    "pass_at_k_interval": (0.7, 0.8), "difference": -0.125, "difference_interval": (-0.25, 0.05), "f1": 0.625,
    "support_recall": 0.875, "turns": 2, "calls": 3, "failed": 0.25, "prompt_tokens": 1234567, "completion_tokens": 89,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "head", "lines"),
    [
        (
            ROWS,
            "Agent | EM | 95% CI | F1 | Support recall | Turns | Calls",
            [
                r"Naive \| RAG [1] | 0.123 | 0.100–0.150 | 0.200 | – | – | –",
                "trained | 0.800 | 0.770–0.830 | 0.850 | 1.000 | 3.00 | 2.00",
            ],
        ),
        (  # kinds of questions come last
            [
                {"name": "one", "em": 0.5, "calls": 1.5, "kinds": {"1 hop": 0.75, "yes or no": 0.25}},
                {"name": "older", "em": 0.25, "calls": 1.0},
            ],
            "Agent | EM | Calls | 1 hop | Yes/no",
            ["one | 0.500 | 1.50 | 0.750 | 0.250", "older | 0.250 | 1.00 | – | –"],
        ),
        (
            [EVERYTHING],
            "Agent | EM avg@8 | 95% CI | pass@8 | 95% CI | Difference | 95% CI | F1 | Support recall"
            " | Turns | Calls | Failed | Tokens in | Tokens out",
            [
                "Qwen/Qwen2.5-7B-Instruct | 0.500 | 0.400–0.600 | 0.750 | 0.700–0.800 | -0.125 | -0.250 to +0.050 | 0.625 | "
                "0.875 | 2.00 | 3.00 | 0.250 | 1,234,567 | 89"
            ],
        ),
    ],
)
def test_the_table_is_markdown_with_dashes_for_what_is_missing(rows, head, lines):
    written = report.table(rows).splitlines()
    assert [written[0], *written[2:]] == [f"| {line} |" for line in (head, *lines)]
    assert len(re.findall(r"\|", written[1])) == head.count("|") + 2


def test_checkpoints_are_named_by_the_end_of_their_path():
    names = ["/a/b/run/best", "Naive RAG (/a/b/run/best)", "/a/models/mine", "Qwen/Qwen2.5", "/x/one/c", "/y/one/c"]
    short = ["run/best", "Naive RAG (run/best)", "mine", "Qwen/Qwen2.5", "/x/one/c", "/y/one/c"]
    assert report.shorten(names) == short


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_wide_table_goes_on_below_and_loses_nothing(width):
    screen = io.StringIO()
    report.print_table([EVERYTHING, {"name": "other [1]", "em": 0.1}], Console(file=screen, width=width))
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and "other [1]" in screen.getvalue()
    cells = "0.400–0.600", "0.750", "-0.125", "-0.250 to +0.050", "0.625"
    cells += "1,234,567", "pass@8", "Tokens out"
    assert [screen.getvalue().count(cell) for cell in cells] == [1] * len(cells)
    heads = [line for line in lines if "Agent" in line]
    assert (len(heads) == 1) == (width == 200)
    assert any("-0.125" in line and "-0.250 to +0.050" in line for line in lines)


def test_the_summary_is_strict_json_and_replaces_the_old_one(tmp_path):
    report.write_summary(tmp_path / "run", {"em": 0.1})
    path = report.write_summary(tmp_path / "run", {"em": np.float32(0.5), "loss": math.nan, "env": "x"})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"em": 0.5, "loss": None, "env": "x"}
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]
