import hashlib
import re

import gymnasium
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_envs.formats import SearchTags
from agent_envs.tools import SearchTool
from trainers.checkpoints import checkpoint
from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.loading import load_policy
from trainers.runtime import integrity
from trainers.tiny import cold_start
from trainers.tiny import model as tiny
from trainers.tiny.cold_start import SHIPPED


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.make_tokenizer(["the town of Red Sea has 55,300 inhabitants.", "[1] [2] : . , ?"])


@given(st.text(max_size=30))
@settings(max_examples=40)
def test_no_text_is_lost(tokenizer, text):
    """White space at the ends is not kept, and a tag takes the white space before it."""
    text = re.sub(r"[▁\s]+", " ", text).strip()
    assume(not re.search(r"<\|\w+\|>", text))
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True).strip() == text


def test_known_words_and_tags_are_one_token_each(tokenizer):
    ids = tokenizer.encode("<think>town of Red Sea</think><search>Red Sea</search>")
    assert [tokenizer.decode([i]).strip() for i in ids] == [
        "<think>", "town", "of", "Red", "Sea", "</think>", "<search>", "Red", "Sea", "</search>",
    ]  # fmt: skip


def test_turns_survive_the_way_to_the_environment(tokenizer):
    format = SearchTags((SearchTool(None),))
    turn = format.parse(tokenizer.decode(tokenizer.encode("<think>a, b</think><search>Zoë's 東京, Red Sea</search>")))
    assert turn.calls[0].arguments == {"query": "Zoë's 東京, Red Sea"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_attention_starts_out_as_an_induction_circuit(seed):
    """In a string that comes twice, a first head looks one token back, and a second-layer head finds what followed the
    same token before, far more often than chance (1 in 60): that is what `_init_for_copying` promises."""
    torch.manual_seed(seed)
    model = tiny.make_model(500)
    model.set_attn_implementation("eager")
    string = torch.randperm(500)[:40]
    attentions = model(torch.cat([string, string])[None], output_attentions=True).attentions
    looks_at = attentions[0][0, 0].argmax(-1)
    assert (looks_at[1:] == torch.arange(79)).float().mean() > 0.9
    copied_from = attentions[1][0, 0].argmax(-1)[40:]
    assert (copied_from == torch.arange(40) + 1).float().mean() > 0.15


@pytest.mark.parametrize("place", ["shipped", "saved"])
def test_other_libraries_load_a_checkpoint_as_it_was_saved(tmp_path, place):
    """By the Auto classes, as the examples of other trainers do: the same ids, logits and greedy turns."""
    policy, folder = load_policy(SHIPPED, "cpu"), SHIPPED
    if place == "saved":
        folder = checkpoint.save(
            tmp_path / "saved", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=0, extra={}
        )
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert policy.end_ids == {tokenizer.eos_token_id}  # here closing tags are text
    env = gymnasium.make("AgentR1/MiniWiki-v0", split="validation", entities=200, questions=50)
    assert len(env.unwrapped.questions) == 50
    prompts = []
    for question in env.unwrapped.questions:
        messages = [{"role": "system", "content": "never shown"}, {"role": "user", "content": question.question}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        prompts.append(policy.prompt_ids("never shown", question.question))
        assert prompt.input_ids.tolist() == [prompts[-1]]
    ours = generate(TransformersEngine(policy, env.unwrapped.stop), dict(enumerate(prompts[-5:])), 64, 0.0)
    for ids, completion in zip(prompts[-5:], ours.values(), strict=True):
        turn = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=64)
        assert turn[0, len(ids) :].tolist() == completion.tokens
        assert torch.equal(model(turn).logits, policy.model(turn).logits)
    assert re.fullmatch(r"<search>[^<]+</search>", tokenizer.decode(turn[0, len(ids) :]))


def test_the_shipped_policy_is_what_its_card_says():
    """Whoever changes lessons, model or optimizer makes it anew: the score in its card is that of these weights."""
    integrity.verify(SHIPPED)
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    weights = hashlib.sha256((SHIPPED / "model.safetensors").read_bytes()).hexdigest()
    assert f"Version {cold_start.VERSION}" in card and weights in card
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4.2e6
