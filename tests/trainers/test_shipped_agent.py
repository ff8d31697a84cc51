"""The trained agent in examples/smollm2-hotpotqa, and what such runs start from, fit the model that they name."""

import json
from pathlib import Path
from statistics import mean

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from trainers.checkpoints import checkpoint
from trainers.runtime import integrity

ROOT = Path(__file__).parents[2]
AGENT, START = ROOT / "examples" / "smollm2-hotpotqa", ROOT / "examples" / "smollm2-hotpotqa-sft"
PAGE = ROOT / "docs" / "results" / "real_questions.md"
both = pytest.mark.parametrize("folder", [AGENT, START], ids=["agent", "start"])


@pytest.mark.parametrize(("folder", "max_chars", "max_new_tokens"), [(AGENT, 500, 48), (START, 1000, 96)])
def test_it_is_whole_small_and_names_no_folder(folder, max_chars, max_new_tokens):
    integrity.verify(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    kept = checkpoint.read_extra(folder)
    assert json.loads(kept["env_kwargs"]) == {"k": 2, "max_chars": max_chars, "max_turns": 5}
    assert (kept["dtype"], kept["max_new_tokens"]) == ("bfloat16", max_new_tokens)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and "base_model: " in card
    for part in ("## Evaluation", "## Command", "## Use", "MuSiQue", "--base-model"):
        assert part in card


@both
def test_its_weights_fit_the_model_that_it_names(folder):
    peft = pytest.importorskip("peft")
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 64}  # the embeddings have no adapter
    shape = LlamaConfig(**sizes, **heads)
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)
    adapted = peft.get_peft_model(model, peft.PeftConfig.from_pretrained(folder))
    shapes = {name: tuple(p.shape) for name, p in peft.get_peft_model_state_dict(adapted).items()}
    weights = load_file(folder / "adapter_model.safetensors")
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == shapes
    assert len(weights) == 2 * 7 * 30  # A and B of each linear layer
    assert all(torch.isfinite(weight).all() and weight.abs().max() > 0 for weight in weights.values())


@pytest.mark.parametrize("title", [f"{name}, two passes" for name in ("SFT", "Rejection sampling", "GRPO")])
def test_its_table_is_made_of_the_scores_of_each_question(title):
    kept = json.loads((ROOT / "docs" / "results" / "real_questions.json").read_text())
    own = {record["seed"]: record for record in kept["agents"][title]}[0]
    em = {column: list(map(int, scores["em"])) for column, scores in own["columns"].items()}
    f1 = {column: scores["f1"] for column, scores in own["columns"].items()}
    cells = [f"{mean(em[column]):.3f} ({mean(f1[column]):.3f})" for column in ("HotpotQA", "MuSiQue")]
    assert " | ".join(cells) in (AGENT / "README.md").read_text()


@pytest.mark.parametrize(
    ("title", "pages"),
    [("SFT", [PAGE, START]), ("Naive RAG (SFT)", [PAGE, START]), ("Earlier GRPO", [PAGE, AGENT]),
     ("Naive RAG (Earlier GRPO)", [AGENT]), ("Best constant", [PAGE]), ("Rule", [PAGE]),
     ("More SFT", [PAGE]), ("Rejection sampling", [PAGE]), ("GRPO", [PAGE])],
)  # fmt: skip
def test_tables_of_the_balanced_set_are_made_of_the_scores_of_each_question(title, pages):
    kept = json.loads((ROOT / "docs" / "results" / "real-questions-balanced.json").read_text())
    em = {column: list(map(int, kept["agents"][title][column]["em"])) for column in ("HotpotQA", "2Wiki")}
    flagged = [pair for column in em for pair in zip(em[column], kept["questions"][column]["yes_or_no"], strict=True)]
    parts = [[score for score, flag in flagged if flag == kind] for kind in "10"]
    cells = " | ".join(f"{mean(scores):.3f}" for scores in (*em.values(), *parts))
    for page in pages:
        assert cells in (page if page.suffix else page / "README.md").read_text()


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("PPO", "PPO has {}"),
        ("RLOO", "RLOO {}"),
        ("REINFORCE++", "REINFORCE++ {}"),
        ("GRPO without loss mask", "no loss mask {}."),
    ],
)
def test_sentences_about_other_algorithms_are_made_of_the_scores_of_each_question(title, sentence):
    kept = json.loads((ROOT / "docs" / "results" / "real-questions-balanced.json").read_text())["agents"][title]
    cells = ", ".join(f"{mean(map(int, kept[column]['em'])):.3f}" for column in ("HotpotQA", "2Wiki"))
    assert sentence.format(cells) in " ".join(PAGE.read_text().split())


def test_the_difference_over_seeds_is_made_of_the_scores_of_each_question():
    kept = json.loads((ROOT / "docs" / "results" / "real-questions-balanced.json").read_text())["agents"]
    of_seeds = [
        [
            int(score)
            for seed in ("", ", seed 1", ", seed 2")
            for column in ("HotpotQA", "2Wiki")
            for score in kept[name + seed][column]["em"]
        ]
        for name in ("GRPO", "SFT")
    ]
    difference = f"{mean(of_seeds[0]) - mean(of_seeds[1]):.3f}".replace("-", "−")
    assert f"GRPO, three seeds: {difference}," in PAGE.read_text()


@pytest.mark.parametrize(
    ("title", "sentences"),
    [("SFT", {PAGE: "SFT has {}", START: "it has {}"}),
     ("Naive RAG (SFT)", {START: "Naive RAG with it: {}"}),
     ("Earlier GRPO", {PAGE: "earlier GRPO {}"})],
)  # fmt: skip
def test_sentences_about_musique_are_made_of_the_scores_of_each_question(title, sentences):
    kept = json.loads((ROOT / "docs" / "results" / "real-questions-balanced.json").read_text())
    em = mean(map(int, kept["agents"][title]["MuSiQue"]["em"]))
    for page, sentence in sentences.items():
        text = (page if page.suffix else page / "README.md").read_text()
        assert sentence.format(f"{em:.3f}") in " ".join(text.split())
