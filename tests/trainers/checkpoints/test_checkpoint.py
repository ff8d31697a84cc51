import os
import pickle
import random
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from trainers import sft
from trainers.checkpoints import checkpoint, run_dir
from trainers.checkpoints.settings import check_resumed
from trainers.evaluation.evaluator import load_agent
from trainers.runtime import integrity
from trainers.runtime.integrity import write_checksums
from trainers.tiny.model import make_model, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(["the river town of the comet"])


def make(tokenizer, seed=0):
    """A model of two layers with Muon on a matrix and AdamW on the rest."""
    torch.manual_seed(seed)
    model = make_model(len(tokenizer), hidden_size=16, layers=2, heads=2)
    matrices = [p for n, p in model.named_parameters() if n.endswith("up_proj.weight")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("up_proj.weight")]
    return model, [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)]


def update(model, optimizers):
    ids = torch.randint(0, 50, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def save(folder, tokenizer, step=1, extra=None, updates=0, **options):
    model, optimizers = make(tokenizer)
    for _ in range(updates):
        update(model, optimizers)
    checkpoint.save(
        folder, model=model, tokenizer=tokenizer, optimizers=optimizers, step=step, extra=extra or {}, **options
    )
    return model, optimizers


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, tokenizer):
    model, optimizers = save(tmp_path / "c", tokenizer, step=2, extra={"seen": [1, 2], "lr": 0.1}, updates=2)
    expected_draws = random.random(), np.random.rand(), torch.rand(1)
    update(model, optimizers)

    resumed = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    template, optimizers = make(tokenizer, seed=5)
    template.load_state_dict(resumed.state_dict())
    assert checkpoint.load_state(tmp_path / "c", optimizers) == (2, {"seen": [1, 2], "lr": 0.1})
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected_draws
    update(template, optimizers)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), template.parameters(), strict=True))


def test_latest_goes_by_number_and_old_steps_are_removed(tmp_path, tokenizer):
    assert integrity.latest(tmp_path) is None
    assert integrity.latest(tmp_path / "nowhere") is None
    (tmp_path / "checkpoint-99").mkdir()  # not written by `save`, so neither counted nor removed
    (tmp_path / ".checkpoint-3.saving").mkdir()
    for step in (5, 9, 10, 11):
        save(tmp_path / f"checkpoint-{step}", tokenizer, step, keep_last=2)
    assert integrity.latest(tmp_path) == tmp_path / "checkpoint-11"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-10", "checkpoint-11", "checkpoint-9", "checkpoint-99"]


def test_every_checkpoint_of_a_run_keeps_its_longest_turn(tmp_path, make_policy):
    args, folder = sft.Args(), tmp_path / "checkpoint-3"
    run_dir.save(tmp_path, make_policy("bytes"), [], {}, 3, args, {"longest_turn": 200})
    assert load_agent(folder)[1] == 200
    check_resumed(folder, checkpoint.read_extra(folder), args)


def test_a_folder_of_something_else_is_neither_loaded_nor_overwritten(tmp_path, tokenizer):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        checkpoint.load_state(tmp_path / "nowhere", [])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileNotFoundError, match=r"is not a checkpoint"):
        checkpoint.load_state(tmp_path, [])
    with pytest.raises(FileExistsError, match="not a checkpoint"):
        save(tmp_path, tokenizer)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("fails", ["save_pretrained", "write_checksums", "_publish"])
def test_a_save_that_fails_leaves_the_previous_checkpoint(tmp_path, tokenizer, monkeypatch, fails):
    save(tmp_path / "c", tokenizer, step=1)

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(type(tokenizer) if fails == "save_pretrained" else checkpoint, fails, fail)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path / "c", tokenizer, step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert checkpoint.load_state(tmp_path / "c", make(tokenizer)[1])[0] == 1


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the folders are swapped in one call there")
def test_while_a_checkpoint_is_replaced_there_is_always_one(tmp_path):
    def save_pretrained(folder):
        (folder / "model.safetensors").write_bytes(b"weights")

    folder, small = tmp_path / "c", SimpleNamespace(save_pretrained=save_pretrained, name_or_path="")
    parts = {"model": small, "tokenizer": small, "optimizers": [], "extra": {}}
    other = threading.Thread(target=lambda: [checkpoint.save(folder, step=step, **parts) for step in range(20)])
    other.start()
    while not folder.exists() and other.is_alive():
        time.sleep(0.001)
    looks = 0
    while other.is_alive():
        assert integrity.is_checkpoint(folder)
        looks += 1
    assert looks > 10
    assert checkpoint.load_state(folder, [])[0] == 19


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.pt", "tokenizer.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damage_to_any_file_is_found_before_it_is_read(tmp_path, tokenizer, name, damage):
    save(tmp_path / "c", tokenizer)
    path = tmp_path / "c" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"flip": content, "cut": content[: len(content) // 2]}[damage])
    with pytest.raises(integrity.CheckpointDamaged, match="c"):
        checkpoint.load_state(tmp_path / "c", make(tokenizer)[1])


def test_a_file_to_load_a_model_from_that_the_checksums_lack_is_damage(tmp_path, tokenizer):
    save(tmp_path / "c", tokenizer)
    (tmp_path / "c" / "README.md").write_text("notes")
    integrity.verify(tmp_path / "c")
    (tmp_path / "c" / "adapter_config.json").write_text("{}")
    with pytest.raises(integrity.CheckpointDamaged, match=r"adapter_config\.json is not in SHA256SUMS"):
        integrity.verify(tmp_path / "c")


def test_the_state_of_a_stranger_runs_no_code(tmp_path, tokenizer):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    save(tmp_path / "c", tokenizer)
    torch.save({"step": 1, "extra": Evil()}, tmp_path / "c" / "trainer_state.pt")
    (tmp_path / "c" / "SHA256SUMS").unlink()
    write_checksums(tmp_path / "c")
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_state(tmp_path / "c", [])
    assert not (tmp_path / "owned").exists()


def test_what_could_not_be_loaded_again_is_refused_when_it_is_saved(tmp_path, tokenizer):
    model, optimizers = make(tokenizer)
    common = {"model": model, "tokenizer": tokenizer, "step": 1}
    with pytest.raises(TypeError, match="JSON serializable"):
        checkpoint.save(tmp_path / "c", optimizers=optimizers, extra={"x": object()}, **common)
    optimizers[0].param_groups[0]["schedule"] = os.path.join
    with pytest.raises(TypeError, match="join"):
        checkpoint.save(tmp_path / "c", optimizers=optimizers, extra={}, **common)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_continues_on_another_device_keeps_the_fast_optimizer_of_that(tmp_path, tokenizer):
    model, _ = make(tokenizer)
    made = [torch.optim.AdamW(model.parameters(), fused=fused) for fused in (None, True)]
    checkpoint.save(tmp_path / "c", model=model, tokenizer=tokenizer, optimizers=made[:1], step=1, extra={})
    checkpoint.load_state(tmp_path / "c", made[1:])
    assert [optimizer.param_groups[0]["fused"] for optimizer in made] == [None, True]


def test_other_optimizers_than_those_saved_are_refused(tmp_path, tokenizer):
    _, optimizers = save(tmp_path / "c", tokenizer, updates=1)
    with pytest.raises(ValueError, match="2 optimizers, got 1"):
        checkpoint.load_state(tmp_path / "c", optimizers[:1])
    with pytest.raises(ValueError, match="group"):
        checkpoint.load_state(tmp_path / "c", optimizers[::-1])
