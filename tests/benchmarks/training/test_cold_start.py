import json

import pytest

from benchmarks.training import cold_start


@pytest.mark.slow
def test_a_short_one_is_watched(monkeypatch, capsys):
    monkeypatch.setattr(cold_start, "HELD_OUT", 4)
    result = cold_start.main(cold_start.Args(steps=3, every=2))
    assert [point["step"] for point in result["curve"]] == [2, 3]
    kinds = {"pairs", "comparing", "guided", "episodes"}
    assert all(point[kind] > 0 for point in result["curve"] for kind in kinds)
    assert 0 < result["of_the_products"] < 1
    assert 0 < result["seconds_of_demonstrations"] < result["seconds"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result


def test_no_step_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        cold_start.Args(steps=0)
