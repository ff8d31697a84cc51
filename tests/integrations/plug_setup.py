"""What the tests of the adapters play with: small worlds, tokenizers and models."""

import json

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout
from trainers.tiny import model as tiny

MINIWIKI = "AgentR1/MiniWiki-Easy-v0"
LAKE = "AgentR1/FrozenLake-v0"
SMALL = {"entities": 100, "questions": 20, "max_turns": 3}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_byte_tokenizer(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """Each byte is a token, and the control tokens of ChatML."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=chat_template
    )


def make_model(tokenizer) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8192, initializer_range=0.15,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def make_policy(kind: str) -> Policy:
    """A random policy over bytes, or the tiny one over words."""
    torch.manual_seed(0)
    if kind == "bytes":
        tokenizer = make_byte_tokenizer()
        return Policy(make_model(tokenizer), tokenizer)
    tokenizer = tiny.make_tokenizer(["Who taught Alma Reed? The town where the author was born is"])
    return Policy(tiny.make_model(len(tokenizer), hidden_size=32, layers=2, intermediate_size=32), tokenizer)


def ours(policy, id, kwargs, seeds, group_size):
    """The episodes that our own trainer plays."""
    envs = make_envs(id, json.dumps(kwargs), "train", len(seeds) * group_size)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    return rollout(envs, policy, engine, seeds=seeds, group_size=group_size, max_new_tokens=12)
