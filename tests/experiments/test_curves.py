"""The pictures of a comparison: what stands in them can be read."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments import curves
from trainers.episodes.report import figures

NAMES = ["PPO", "PPO without advantage mask", "PPO without both masks", "PPO, λ .95, without advantage mask", "GRPO"]


def test_titles_of_panels_do_not_run_into_each_other(tmp_path, monkeypatch):
    drawn, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, out: (drawn.append(figure), save(figure, out))[1])
    runs = {name: [[curves.Point(0, 0.0, 0.2), curves.Point(64, 9.0, 0.01)]] * 2 for name in NAMES}
    curves.draw(runs, {}, tmp_path / "curves.png", "EM", "T")
    (figure,) = drawn
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes._left_title.get_window_extent(renderer) for axes in figure.axes]
    boxes = [box for box in boxes if box.width > 1]
    assert len(boxes) == len(NAMES)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_end_of_a_curve_at_the_bottom_is_named_above_it(tmp_path, monkeypatch):
    drawn, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, out: (drawn.append(figure), save(figure, out))[1])
    runs = {name: [[curves.Point(0, 0.0, 0.5), curves.Point(64, 9.0, 0.0 if name == "PPO" else 0.5)]] for name in NAMES}
    curves.draw(runs, {}, tmp_path / "curves.png", "EM", "T")
    low, other, *_ = (axes.texts[0] for axes in drawn[0].axes)
    assert (low.get_va(), other.get_va()) == ("bottom", "top")
