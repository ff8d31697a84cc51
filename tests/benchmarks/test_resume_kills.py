import pytest
import torch

from benchmarks import resume_kills
from benchmarks.resume_kills import is_same


def test_one_bit_is_a_difference():
    one = {"w": torch.tensor([1.0, -0.0]), "states": [{"step": 3}], "metrics": ({"loss": 0.25},)}
    assert is_same(one, {**one, "w": one["w"].clone()})
    for other in (
        {**one, "w": torch.nextafter(one["w"], torch.tensor(9.0))},
        {**one, "w": one["w"].double()},
        {**one, "states": [{"step": 4}]},
        {**one, "metrics": ()},
        {name: one[name] for name in ("w", "states")},
    ):
        assert not is_same(one, other)


@pytest.mark.slow
def test_a_run_that_differs_is_counted_and_kept(tmp_path, monkeypatch):
    """Runs of one kind that are not killed; what they are compared with is then changed."""
    monkeypatch.setattr(resume_kills, "KINDS", {kind: resume_kills.KINDS[kind] for kind in ("SFT, MiniWiki",)})
    attack = resume_kills.Attack(resume_kills.Args(kills=0, out=tmp_path / "kept"), tmp_path)
    attack.prepare()
    attack.run(0)
    state, metrics = attack.ends["SFT, MiniWiki"]
    attack.ends["SFT, MiniWiki"] = (state, metrics[:-1])
    attack.run(1)
    assert attack.counts["SFT, MiniWiki"] == {"runs": 2, "bit-equal": 1, "different": 1}
    assert (tmp_path / "kept" / "1" / "run" / "summary.json").exists()
