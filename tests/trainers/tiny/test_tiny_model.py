import re

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent_envs.formats import SearchTags
from agent_envs.tools import SearchTool
from trainers.models.loading import load_policy
from trainers.tiny import model as tiny


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


def test_a_saved_policy_comes_back_with_its_own_tokenizer(tokenizer, tmp_path):
    """AutoTokenizer would give a Qwen2-architecture model Qwen's own tokenizer."""
    model = tiny.make_model(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = load_policy(tmp_path, "cpu")
    text = "<think>the town</think><answer>Red 東 Sea</answer>"
    assert policy.encode(text) == tokenizer.encode(text)
    assert policy.prompt_ids("never shown", "the town") == tokenizer.encode("<|user|>the town<|end|><|assistant|>")
    ids = torch.tensor([policy.encode(text)])
    torch.testing.assert_close(policy.model(ids).logits, model.eval()(ids).logits)
