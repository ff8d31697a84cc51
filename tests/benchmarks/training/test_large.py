"""`benchmarks.training.large` with the smallest model on a CPU."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.training import large
from benchmarks.training.large import measured
from benchmarks.training.large_setup import SHAPES, VOCABULARY, Args

SMALL = dict(
    shapes=("tiny",), dtype="float32", turns=2, episodes=4, group_size=2, max_new_tokens=4, decode_batches=(3,), updates=1,
    device="cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "billions", "in_layers"), [("0.5b", 0.494, 0.358), ("1.5b", 1.544, 1.311), ("3b", 3.086, 2.775),
    ("7b", 7.616, 6.526), ("14b", 14.770, 13.213)],
)  # fmt: skip
def test_shapes_are_those_of_qwen(shape, billions, in_layers):
    """Numbers of weights, with and without the embedding and the head, as the checkpoints have them."""
    width, inner, layers, heads, shared, tied = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=VOCABULARY if shape not in ("7b", "14b") else 152_064, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=shared, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    assert model.num_parameters() / 1e9 == pytest.approx(billions, abs=1e-3)
    assert large.weights_of(model)["layers"] / 1e9 == pytest.approx(in_layers, abs=3e-3)


@pytest.mark.parametrize("rank", [0, 2])
def test_it_measures(rank):
    found = measured(Args(**SMALL), "tiny", rank)
    done = found["updates"]
    assert done["policy_tokens"] == 4 * 2 * 4  # turns are as long as they may be, and every one is followed by a search
    assert done["tokens_of_episode"] > 100  # which brings articles
    assert 0 < done["tokens_run"] <= done["padded_to"]
    assert done["tokens_run"] <= 4 * done["tokens_of_episode"]
    assert 0 < done["of_the_limit"] < 1
    assert found["decoding"][3]["tokens_per_second"] > 0
    assert found["decoding"][3]["cuda_graphs"] == 0
    size, (layers, shared, head) = 4, (SHAPES["tiny"][2], SHAPES["tiny"][4], 128 // 4)
    kept = 3 * 2 * layers * shared * head * (2 * 4 + 4 / 2)  # of three conversations, half way through the turn
    assert found["decoding"][3]["bytes_per_step"] == size * (found["weights"] + kept)
    assert "out_of_memory" not in found


def test_what_does_not_fit_is_said(monkeypatch):
    def full(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB.")

    monkeypatch.setattr(large, "decoding", full)
    found = measured(Args(**SMALL), "tiny", 0)
    assert found["out_of_memory"] == "CUDA out of memory"
    assert found["updates"]["episodes_per_second"] > 0
    assert large.table_of({"shape": "tiny", "lora_rank": 0} | found).row_count == 5


def test_groups_are_whole():
    with pytest.raises(ValueError, match="multiple of group_size"):
        Args(**SMALL | {"episodes": 5})
