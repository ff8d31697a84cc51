"""What the tests of the adapters play with: small worlds, tokenizers and models."""

import json

from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainers.conftest import build_policy, byte_tokenizer
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout
from trainers.tiny.cold_start import SHIPPED

MINIWIKI = "AgentR1/MiniWiki-Easy-v0"
LAKE = "AgentR1/FrozenLake-v0"
SMALL = {"entities": 100, "questions": 20, "max_turns": 3}


def make_byte_tokenizer(chat_template: str | None = None):
    tokenizer = byte_tokenizer(0, pad="<|endoftext|>")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    return tokenizer


def make_model(tokenizer):
    return build_policy({"bytes": tokenizer}, "bytes", 0, max_position_embeddings=8192).model


def make_policy(kind: str) -> Policy:
    """A random policy over bytes, or a checkpoint of the tiny one over words, as other libraries load it."""
    if kind == "bytes":
        tokenizer = make_byte_tokenizer()
        return Policy(make_model(tokenizer), tokenizer)
    return Policy(AutoModelForCausalLM.from_pretrained(SHIPPED), AutoTokenizer.from_pretrained(SHIPPED))


def ours(policy, id, kwargs, seeds, group_size):
    """The episodes that our own trainer plays."""
    envs = make_envs(id, json.dumps(kwargs), "train", len(seeds) * group_size)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    return rollout(envs, policy, engine, seeds=seeds, group_size=group_size, max_new_tokens=12)
