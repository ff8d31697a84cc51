"""Models in GGUF files: converted once, refused by name, and a base that adapters find."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trainers.checkpoints import checkpoint
from trainers.models import gguf
from trainers.models.loading import load_policy

ggml = pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def write_gguf(path, policy, architecture="llama", template=True, without=None, more=lambda writer: None):
    """The policy's model, a Llama, with its matrices in eight bits. ``without``: the name of a weight that is left out.
    ``more``: adds to the file."""
    config, tokenizer = policy.model.config, policy.tokenizer
    writer = ggml.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    control = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([ggml.TokenType.CONTROL if t in control else ggml.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|im_start|>"))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if template:
        writer.add_chat_template(tokenizer.chat_template)
    more(writer)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
    names |= {f"{n}_proj": f"attn_{n}" for n in "qkv"} | {f"{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}
    for name, weight in policy.model.state_dict().items():
        parts = name.split(".")
        where = f"blk.{parts[2]}." if "layers" in parts else ""
        values = weight.numpy()
        if name == without:
            continue
        if weight.ndim == 2:
            kind = ggml.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{where}{names[parts[-2]]}.weight", ggml.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{where}{names[parts[-2]]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def policy(make_policy):
    return make_policy("bpe", family="llama")


@pytest.fixture
def file(policy, tmp_path):
    return write_gguf(tmp_path / "model.gguf", policy)


def logits(model):
    with torch.no_grad():
        return model(torch.arange(5, 25)[None]).logits


def test_it_is_what_transformers_reads(file, policy, cache):
    loaded = load_policy(file, "cpu")
    direct = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    assert torch.equal(logits(loaded.model), logits(direct))
    assert loaded.prompt_ids("Do it.", "the search") == policy.prompt_ids("Do it.", "the search")
    assert loaded.end_ids == policy.end_ids
    named = ("bos_token", "eos_token", "pad_token")
    assert [getattr(loaded.tokenizer, n) for n in named] == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    # Eight bits are not exact, but near.
    of_embedding = loaded.model.get_input_embeddings().weight - policy.model.get_input_embeddings().weight
    assert 0 < of_embedding.abs().max() < 0.01


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192


@pytest.mark.parametrize("scaling", [YARN, {**YARN, "rope_type": "linear"}, LLAMA3])
def test_angles_are_scaled_as_in_the_original(scaling, policy, tmp_path):
    config = policy.model.config
    config.rope_parameters["rope_theta"] = 500_000.0
    plain = rotary_angles(config)
    config.rope_parameters |= scaling
    expected = rotary_angles(config)

    def add(writer):
        if scaling is LLAMA3:  # which llama.cpp writes as a tensor
            writer.add_tensor("rope_freqs.weight", (plain / expected).numpy())
        else:
            scale_angles(writer, **scaling)

    path = write_gguf(tmp_path / "model.gguf", policy, more=add)
    found = load_policy(path, "cpu").model.model.rotary_emb
    assert torch.allclose(found.inv_freq, expected) and not torch.allclose(expected, plain)
    assert found.attention_scaling == pytest.approx(1.1386 if scaling is YARN else 1.0, abs=1e-4)


def rotary_angles(config):
    return LlamaRotaryEmbedding(config).inv_freq


def scale_angles(writer, rope_type="yarn", factor=4.0, original_max_position_embeddings=64):
    writer.add_rope_scaling_type(ggml.RopeScalingType(rope_type))
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(original_max_position_embeddings)


def add_tensor(name):
    return lambda writer: writer.add_tensor(name, np.full(4, 2.0, np.float32))


REFUSED = {
    "scales rotary angles, which is not read": [
        add_tensor("rope_freqs.weight"),  # of no known scaling
        add_tensor("rope_factors_long.weight"),
        lambda writer: (scale_angles(writer), writer.add_rope_scaling_yarn_beta_fast(16.0)),
    ],
    "holds weights that LlamaForCausalLM lacks": [add_tensor("blk.0.attn_output.bias")],
    "splits text in the way 'deepseek-llm'": [lambda writer: writer.add_tokenizer_pre("deepseek-llm")],
}


@pytest.mark.parametrize(("said", "more"), [(said, more) for said in REFUSED for more in REFUSED[said]])
def test_what_the_library_would_leave_out_is_refused(said, more, policy, tmp_path):
    with pytest.raises(ValueError, match=f"{said}.* take the original model"):
        load_policy(write_gguf(tmp_path / "model.gguf", policy, more=more), "cpu")


def test_a_file_that_lacks_weights_is_refused(policy, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", policy, without="model.layers.0.self_attn.q_proj.weight")
    with pytest.raises(ValueError, match=r"lacks 1 weights of LlamaForCausalLM, such as .*q_proj"):
        load_policy(path, "cpu")


def test_words_and_ends_are_those_of_the_original(policy, tmp_path):
    end = policy.tokenizer.convert_tokens_to_ids("<|im_start|>")
    more = lambda writer: (writer.add_tokenizer_pre("smollm"), writer.add_eot_token_id(end))  # noqa: E731
    loaded = load_policy(write_gguf(tmp_path / "model.gguf", policy, more=more), "cpu")
    split = loaded.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("\n\n12")
    assert [word for word, _ in split] == ["ĊĊ", "1", "2"]
    assert sorted(loaded.model.generation_config.eos_token_id) == sorted({end, policy.tokenizer.eos_token_id})


def test_a_control_token_that_would_be_read_as_text_is_refused(policy, tmp_path, monkeypatch):
    """transformers spells letters outside of ASCII anew."""
    write = ggml.GGUFWriter.add_token_list
    renamed = lambda self, tokens: write(self, [t.replace("<|endoftext|>", "<｜end▁of▁text｜>") for t in tokens])  # noqa: E731
    monkeypatch.setattr(ggml.GGUFWriter, "add_token_list", renamed)
    with pytest.raises(ValueError, match="has the control token '<｜end▁of▁text｜>', which is not read"):
        load_policy(write_gguf(tmp_path / "model.gguf", policy), "cpu")


def test_it_is_converted_once_and_again_when_the_file_changes(file, cache, capsys):
    first = gguf.convert(file)
    assert "model.gguf (llama) is converted once" in capsys.readouterr().err
    assert "quantization_config" not in json.loads((first / "config.json").read_text())
    made = (first / "config.json").stat().st_mtime_ns
    assert gguf.convert(file) == first
    assert (first / "config.json").stat().st_mtime_ns == made
    file.write_bytes(file.read_bytes() + bytes(32))
    assert gguf.convert(file) != first
    assert len(list(cache.iterdir())) == 2


def test_what_cannot_be_read_is_refused_in_one_line(policy, tmp_path, monkeypatch):
    write_gguf(tmp_path / "other.gguf", policy, architecture="rwkv6")
    write_gguf(tmp_path / "plain.gguf", policy, template=False)
    (tmp_path / "part.gguf").write_bytes((tmp_path / "plain.gguf").read_bytes()[:-100])
    for name, said in [
        ("part.gguf", "or an incomplete one"),
        ("other.gguf", "GGUF is read of llama, qwen2, qwen3, gemma3, not of 'rwkv6'"),
        ("plain.gguf", "plain.gguf has no chat template: .* or --chat-template FILE"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            load_policy(tmp_path / name, "cpu")
        assert "\n" not in str(error.value)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ImportError, match=r"\[gguf\]"):
        load_policy(tmp_path / "plain.gguf", "cpu")


def test_a_file_without_a_chat_template_is_refused_before_it_is_read_or_given_one(policy, tmp_path, monkeypatch, cache):
    path, template = write_gguf(tmp_path / "plain.gguf", policy, template=False), tmp_path / "chat.jinja"
    with monkeypatch.context() as patched:
        patched.setattr(gguf, "_write_folder", None)
        with pytest.raises(ValueError, match="no chat template"):
            load_policy(path, "cpu")
    template.write_text(policy.tokenizer.chat_template)
    assert load_policy(path, "cpu", chat_template=template).prompt_ids("", "x") == policy.prompt_ids("", "x")
    with pytest.raises(ValueError, match="chat template"):  # converted by now, and as bare as before
        load_policy(path, "cpu")


def test_an_adapter_names_the_file_and_can_be_given_another(file, tmp_path):
    policy = load_policy(file, "cpu", lora_rank=2)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    expected = logits(policy.model)
    adapter = checkpoint.save(
        tmp_path / "adapter", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={}
    )
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(file)
    assert torch.equal(logits(load_policy(adapter, "cpu").model), expected)
    moved = shutil.move(file, tmp_path / "moved.gguf")
    with pytest.raises(ValueError, match=r"is an adapter of .*model\.gguf, which is not here: .* base model") as error:
        load_policy(adapter, "cpu")
    assert "\n" not in str(error.value)
    again = load_policy(adapter, "cpu", base_model=moved)
    assert torch.equal(logits(again.model), expected)
    assert again.model.peft_config["default"].base_model_name_or_path == str(moved)  # and so it is saved
    with pytest.raises(ValueError, match="is not a LoRA adapter"):
        load_policy(moved, "cpu", base_model=moved)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    (adapter / "SHA256SUMS").unlink()  # of the file as it was
    assert torch.equal(logits(load_policy(adapter, "cpu", base_model=moved).model), expected)
    with pytest.raises(ValueError, match="does not name its base model"):
        load_policy(adapter, "cpu")
