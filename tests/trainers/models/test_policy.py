import copy
import math
from types import SimpleNamespace

import pytest

from trainers.models.architecture import max_positions
from trainers.models.policy import Policy


def test_a_turn_end_is_known_where_it_is_not_the_eos_token(make_policy):
    policy = make_policy("bytes")
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.eos_token = "<|endoftext|>"  # as in a base model with a chat template
    policy.model.generation_config.eos_token_id = [65, tokenizer.eos_token_id]
    other = Policy(policy.model, tokenizer)
    turn_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert other.end_ids == {turn_end, tokenizer.eos_token_id}  # and not 65, which is a letter
    glue = other.observation_ids("seen", [])
    assert glue[0] == turn_end
    assert other.observation_ids("seen", [70, turn_end]) == glue[1:]
    assert other.observation_ids("seen", [70, tokenizer.eos_token_id]) == glue


def test_models_and_tokenizers_that_would_go_wrong_are_refused(make_policy):
    policy = make_policy("bytes")
    bare = copy.deepcopy(policy.tokenizer)
    bare.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        Policy(policy.model, bare)
    bare.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(ValueError, match="leaves out messages"):
        Policy(policy.model, bare)
    bare.chat_template = "{% for m in messages %}{{ m.role }}{{ m.content if loop.last }}{% endfor %}"
    with pytest.raises(ValueError, match="appended"):
        Policy(policy.model, bare)


def test_logits_that_are_changed_otherwise_than_by_a_scale_or_a_cap_are_refused(make_policy):
    policy = make_policy("bytes")

    class Odd(type(policy.model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits[..., 7] = -1e4
            return output

    policy.model.__class__ = Odd
    with pytest.raises(ValueError, match="Odd neither scales nor caps its logits"):
        Policy(policy.model, policy.tokenizer)


def test_the_head_of_a_model_that_rounds_by_the_number_of_rows_is_found(make_policy):
    policy = make_policy("bytes")
    last = policy.backbone.norm  # as in TF32: for other shapes other kernels run
    last.register_forward_hook(lambda _, args, hidden: hidden * (1 + 0.02 * len(hidden)))
    Policy(policy.model, policy.tokenizer)


def test_a_head_that_reads_something_else_than_the_last_hidden_states_is_refused(make_policy):
    policy = make_policy("bytes")
    policy.model.get_output_embeddings().register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    with pytest.raises(ValueError, match="reads something else than its last hidden states"):
        Policy(policy.model, policy.tokenizer)


def test_a_tokenizer_may_have_neither_eos_nor_padding(make_policy):
    policy = make_policy("bytes")
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.eos_token = tokenizer.pad_token = None
    policy = Policy(policy.model, tokenizer)
    assert policy.pad_id == 0
    assert policy.turn_end_ids == policy.encode("<|im_end|>")


def test_dropout_is_off(make_policy):
    policy = make_policy("bytes")
    assert not Policy(policy.model.train(), policy.tokenizer).model.training


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"rope": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        ({"rope": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16384),
        ({"rope": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}}, 4096),
        ({"rope": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope": {"rope_type": "dynamic", "factor": 4.0}}, 4096),
        ({"rope": {"rope_type": "longrope", "original_max_position_embeddings": 1024}}, 1024),
        ({"rope": {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 2048}}, 4096),
        ({"rope": None}, 4096),
        ({"max_seq_len": 512}, 512),  # MPT's, whose bias would run out in the middle of a rollout
        ({"n_positions": 64}, 64),
        ({}, math.inf),
    ],
)
def test_how_long_a_conversation_may_be(config, length):
    if "rope" in config:
        config = {"max_position_embeddings": 4096, "rope_parameters": config["rope"]}
    assert max_positions(SimpleNamespace(**config)) == length
