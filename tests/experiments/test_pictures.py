"""The pictures of docs/results: each has its page, and shows every agent of its JSON."""

import pytest

from experiments import pictures


@pytest.mark.parametrize("page", [*pictures.CURVES, *pictures.SCORES, *pictures.GAMES, "agents"])
def test_a_picture_belongs_to_a_page_and_shows_every_agent(page, monkeypatch):
    drawn = {}
    monkeypatch.setattr(pictures, "draw", lambda curves, out, *_: drawn.update({out.name: curves}))
    monkeypatch.setattr(pictures, "draw_scores", lambda scores, out, *_: drawn.update({out.name: scores}))
    pictures.make(page)
    assert f"({page}.png)" in (pictures.RESULTS / f"{page}.md").read_text(encoding="utf-8")
    assert list(drawn) == [f"{page}.png"] and all(drawn[f"{page}.png"].values())
    if page in pictures.GAMES:
        assert drawn[f"{page}.png"]["PPO, greedy"]["Sokoban"] == pytest.approx((0.639, 0.075), abs=0.001)
    elif page in pictures.SCORES:
        assert len(drawn[f"{page}.png"]) == len(pictures.read(pictures.SCORES[page][0])["rows"])
