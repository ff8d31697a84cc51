"""The trained agent in examples/smollm2-hotpotqa, and what such runs start from, fit the model that they name."""

import json
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from trainers.checkpoints import checkpoint
from trainers.episodes.report.intervals import bootstrap
from trainers.runtime import integrity

ROOT = Path(__file__).parents[2]
AGENT, START = ROOT / "examples" / "smollm2-hotpotqa", ROOT / "examples" / "smollm2-hotpotqa-sft"
PAGE = ROOT / "docs" / "results" / "real_questions.md"
both = pytest.mark.parametrize("folder", [AGENT, START], ids=["agent", "start"])


@both
def test_it_is_whole_small_and_names_no_folder(folder):
    integrity.verify(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    kept = checkpoint.read_extra(folder)
    tasks = {"AgentR1/HotpotQA-v0": 1, "AgentR1/2WikiMultihopQA-v0": 1}
    assert json.loads(kept["env_kwargs"]) == {"tasks": tasks, "k": 2, "max_chars": 1000, "max_turns": 5}
    assert (kept["dtype"], kept["max_new_tokens"]) == ("bfloat16", 96)
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


KEPT = json.loads((ROOT / "docs" / "results" / "real-questions-balanced.json").read_text())
SEEDS = "", ", seed 1", ", seed 2"  # in the names of agents; seed 0 has no name of its own


def em_of(agent: str, column: str) -> list[int]:
    return list(map(int, KEPT["agents"][agent][column]["em"]))


def make_cells(agents: list[str], which: str = "") -> list[str]:
    """HotpotQA, 2Wiki, and of both the yes/no questions and the others: means over questions and agents."""
    columns = [f"{name}{which}" for name in ("HotpotQA", "2Wiki")]
    scores = [np.array([em_of(agent, column) for agent in agents]) for column in columns]
    flags = [np.array(list(map(int, KEPT["questions"][column]["yes_or_no"]))) for column in columns]
    joined, is_yes_or_no = np.concatenate(scores, 1), np.concatenate(flags) == 1
    parts = *(column.mean() for column in scores), joined[:, is_yes_or_no].mean(), joined[:, ~is_yes_or_no].mean()
    return [f"{part:.3f}" for part in parts]


def text_of(page: Path) -> str:
    return " ".join((page if page.suffix else page / "README.md").read_text().split())


@pytest.mark.parametrize("agent", ["Best constant", "Rule"])
def test_rows_of_scripts_are_made_of_the_scores_of_each_question(agent):
    assert " | ".join(make_cells([agent])) in text_of(PAGE)


@pytest.mark.parametrize(
    ("agent", "page"),
    [("SFT", START), ("SFT", AGENT), ("More SFT", AGENT), ("Best constant", AGENT), ("Best constant", START)],
)
def test_tables_of_cards_are_made_of_the_scores_of_each_question(agent, page):
    musique = f"{mean(em_of(agent, 'MuSiQue')):.3f}"
    assert " | ".join([*make_cells([agent], ", all"), musique]) in text_of(page)


@pytest.mark.parametrize(("agent", "page"), [("Naive RAG (SFT)", START), ("Naive RAG (More SFT)", AGENT)])
def test_that_cards_tell_what_one_search_gives(agent, page):
    assert "Naive RAG with it: {}/{}.".format(*make_cells([agent])[:2]) in text_of(page)


def test_what_it_gains_is_made_of_the_scores_of_each_question():
    ours, theirs = (
        np.array([em_of(agent, "HotpotQA, all") + em_of(agent, "2Wiki, all")]) for agent in ("More SFT", "SFT")
    )
    gain = "{:.3f} (95%: {:.3f} to {:.3f})".format(*bootstrap(ours - theirs))
    assert f"Against its start it gains {gain} on HotpotQA and 2Wiki." in text_of(AGENT)


def test_the_agent_is_the_best_on_questions_that_none_learned_from():
    agents = [agent + seed for agent in ("SFT", "More SFT", "Rejection sampling", "GRPO") for seed in SEEDS]
    columns = "HotpotQA kept aside", "2Wiki kept aside"
    scores = {agent: mean(em_of(agent, columns[0]) + em_of(agent, columns[1])) for agent in agents}
    best, second = sorted(scores, key=scores.get, reverse=True)[:2]
    assert best == "More SFT"
    told = f"its EM of {scores[best]:.3f} is the highest of twelve agents, before {scores[second]:.3f}"
    assert told in text_of(AGENT)
    assert f"kept-aside training questions ({scores[best]:.3f})" in text_of(PAGE)


@pytest.mark.parametrize("agent", ["SFT", "More SFT", "Rejection sampling", "GRPO", "Naive RAG (SFT)"])
def test_the_table_over_seeds_is_made_of_the_scores_of_each_question(agent):
    agents, cells = [agent + seed for seed in SEEDS], []
    if agent != "SFT":
        scores = [
            [em_of(one + seed, "HotpotQA") + em_of(one + seed, "2Wiki") for seed in SEEDS] for one in (agent, "SFT")
        ]
        cells = ["{:.3f} ({:.3f}, {:.3f})".format(*bootstrap(np.subtract(*scores))).replace("-", "−")]
    assert " | ".join([*make_cells(agents), *cells]) in text_of(PAGE)


def test_that_several_searches_beat_one_is_made_of_the_scores_of_each_question():
    several, one = ([em_of(agent + seed, "2Wiki") for seed in SEEDS] for agent in ("SFT", "Naive RAG (SFT)"))
    gain = "{:.3f} ({:.3f} to {:.3f})".format(*bootstrap(np.subtract(several, one)))
    assert f"Several searches beat one on 2Wiki: {gain}" in text_of(PAGE)


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("PPO", "PPO has {}"),
        ("RLOO", "RLOO {}"),
        ("REINFORCE++", "REINFORCE++ {}"),
        ("GRPO without loss mask", "no loss mask {}."),
    ],
)
def test_sentences_about_other_algorithms_are_made_of_the_scores_of_each_question(agent, sentence):
    assert sentence.format("/".join(make_cells([agent])[:2])) in text_of(PAGE)


def test_sentences_about_all_validation_questions_are_made_of_the_scores_of_each_question():
    told = "{}/{}, MuSiQue {:.3f}"
    ours, theirs = (
        told.format(*make_cells([agent], ", all")[:2], mean(em_of(agent, "MuSiQue"))) for agent in ("More SFT", "SFT")
    )
    assert f"On all validation questions it has {ours}; SFT {theirs}." in text_of(PAGE)
