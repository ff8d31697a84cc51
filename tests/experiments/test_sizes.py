import sys
from dataclasses import replace

import pytest

from experiments import recipe_file, sizes
from experiments.dry_run import memory, passes


@pytest.fixture(scope="module")
def paper():
    return recipe_file.read("agent-r1")


@pytest.mark.parametrize(("size", "billions"), [("0.5 B", 0.494), ("1.5 B", 1.544), ("3 B", 3.086), ("7 B", 7.616)])
def test_the_shapes_have_as_many_weights_as_the_models(size, billions):
    assert sizes.qwen(size).weights == pytest.approx(billions * 1e9, rel=1e-3)


def test_what_fits_is_what_is_left(paper):
    model, args = sizes.qwen("1.5 B"), paper.run_arguments("grpo", 0)
    need = memory(model, args, args.max_tokens_per_micro_batch)
    whole = need.states + need.update
    gpu = sizes.GPU(name="", memory=whole / sizes.USABLE * 1.001, flops=1e12, bandwidth=1e12)
    left = gpu.memory * sizes.USABLE - (need.states - need.gradients) - need.rounded
    assert sizes.conversations(model, args, gpu, 1000) == left // (1000 * need.cache) > 0
    smaller = replace(gpu, memory=whole / sizes.USABLE * 0.999)
    assert sizes.conversations(model, args, smaller, 1000) == 0
    assert sizes.hours(model, args, smaller, 1000, 100) == float("inf")


def test_hours_by_hand(paper):
    """128,000 episodes; 128 passes' worth of tokens at 30 % of the FLOP/s, 320 conversations a step at 20 % of the bandwidth."""
    model, args = sizes.qwen("0.5 B"), paper.run_arguments("grpo", 0)
    gpu = sizes.GPU(name="", memory=1e12, flops=1e15, bandwidth=1e12)
    assert passes(args) == 2 + 4 + 2 + 2  # forward, backward, the layers once more, the reference
    whole = (2 + 10) * model.weights * 128_000 * 1000 / 3e14
    read = 2 * model.linear + 4 * 151_936 * 896 + 320 * 1000 * 2 * 2 * 24 * 2 * 64
    decoding = 400 * 100 * read / 2e11  # 400 updates of 100 steps
    assert sizes.hours(model, args, gpu, 1000, 100) == pytest.approx((whole + decoding) / 3600)


def test_the_table_has_a_row_for_each_model_and_way(paper, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sizes", "--tokens", "2200"])
    sizes.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert [row[:2] for row in rows[1:]] == [[s, way] for s in sizes.QWEN for way in ("all weights", "LoRA 32")]
    assert {len(row) for row in rows} == {10}
    (row,) = [row for row in rows if row[:2] == ["3 B", "all weights"]]
    assert row[2:6] == ["12.3", "12.3", "24.7", "6.8"]
    assert row[8] == "–" and " h, " in row[9]
    assert "128,000 in all, of 2,200 tokens" in lines[-1]


def test_a_run_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sizes", "--run", "nothing"])
    with pytest.raises(SystemExit):
        sizes.main()
    assert "nothing" in capsys.readouterr().err
