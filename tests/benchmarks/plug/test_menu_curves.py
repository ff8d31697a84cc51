import json

import pytest

from benchmarks.plug import menu_curves
from benchmarks.plug.menu_curves import GAMES, Args


def learn(args, game, seed):
    return [[0, 0.2], [args.steps, 0.6 + 0.1 * seed]]


def test_what_it_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(menu_curves, "learn", learn)
    args = Args(games=("frozenlake",), seeds=(0, 1, 2), steps=1000, episodes=2, out=tmp_path)
    results = menu_curves.main(args)["frozenlake"]
    assert [curve[-1][1] for curve in results["curves"]] == pytest.approx([0.6, 0.7, 0.8])
    assert "| 0.200 ± 0.000 | 0.700 ± 0.248 | 1,000 |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["results"]["frozenlake"] == results
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    # What is there is not made again; other settings are.
    monkeypatch.setattr(menu_curves, "learn", lambda args, game, seed: [[0, 0.0], [args.steps, 1.0]])
    assert menu_curves.main(args)["frozenlake"] == results
    args.steps = 2000
    assert menu_curves.main(args)["frozenlake"]["curves"] == [[[0, 0.0], [2000, 1.0]]] * 3


def test_success_is_of_held_out_episodes(monkeypatch):
    made = []
    make = menu_curves.gymnasium.make
    monkeypatch.setattr(menu_curves.gymnasium, "make", lambda id, **kwargs: made.append(kwargs) or make(id, **kwargs))
    assert 0.0 < menu_curves.random_success(GAMES["sokoban"], 20) < 1.0
    assert [kwargs["split"] for kwargs in made] == ["validation"]


def test_an_unknown_game_is_refused():
    with pytest.raises(ValueError, match=r"unknown games \['chess'\]"):
        Args(games=("chess",))


@pytest.mark.plug
def test_a_run_of_stable_baselines3():
    pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3", exc_type=ImportError)
    args = Args(steps=2048, points=2, episodes=5)
    curve = menu_curves.learn(args, GAMES["frozenlake"], 0)
    assert [choices for choices, _ in curve] == [0, 1024, 2048]
