"""Small random models of every family, and batches for them."""

import warnings

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainers.models.hidden_states import round_experts, round_frozen
from trainers.models.lora import add_lora
from trainers.models.policy import Policy
from trainers.trajectory import BatchRow, collate_rows

LLAMA3 = dict(
    rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8,
)  # fmt: skip
WINDOW = 12
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "head_dim": None,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}

# Layers run by ourselves, by the library over our cache, over its own or over none; and what is not as in Llama.
FAMILIES = {
    "llama": ("ours", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}),
    "seed_oss": ("ours", {"tie_word_embeddings": True, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "mistral": ("ours", {"sliding_window": WINDOW}),
    "qwen2": ("ours", {}),
    "qwen3": ("ours", {}),
    "mixtral": ("layers", {**EXPERTS, "sliding_window": WINDOW}),
    "qwen2-windows": ("layers", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3_moe": ("layers", EXPERTS),
    "gpt2": ("layers", {}),
    "gpt_neox": ("layers", {}),
    "opt": ("layers", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "falcon": ("layers", {"head_dim": None}),
    "gemma": ("layers", {}),
    "gemma2": ("layers", {**MIXED, "final_logit_softcapping": 2.0}),
    "gemma3_text": ("layers", MIXED),
    "phi3": ("layers", {"sliding_window": WINDOW}),
    "cohere": ("layers", {"logit_scale": 0.3}),
    "cohere2": ("layers", {**MIXED, "logit_scale": 0.3}),
    "granite": ("layers", {"logits_scaling": 3.0}),
    "olmo2": ("layers", {}),
    "olmo3": ("layers", MIXED),
    "glm4": ("layers", {}),
    "gpt_oss": ("layers", {**EXPERTS, **MIXED}),
    "nanochat": ("layers", {"final_logit_softcapping": 2.0}),
    "smollm3": ("layers", {"no_rope_layers": [1, 0]}),
    "deepseek_v3": ("layers", {**EXPERTS, **LATENT}),
    "gpt_neo": ("library", {"attention_types": [[["global", "local"], 1]], "window_size": 256}),  # wider than any probe
    "mpt": ("layers", {"n_heads": 4, "n_layers": 2, "d_model": 32, "max_seq_len": 4096}),
    "bloom": ("library", {"n_head": 4, "n_layer": 2}),
    "falcon-alibi": ("library", {"head_dim": None, "alibi": True}),
    "llama4_text": (
        "library",
        {
            **EXPERTS,
            "num_local_experts": 2,
            "attention_chunk_size": WINDOW,
            "intermediate_size_mlp": 64,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
        },
    ),
    "qwen3_next": ("library", {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 16}),
    "qwen3_5_text": ("library", DELTA),
    "granitemoehybrid": (
        "library",
        {
            **EXPERTS,
            **MAMBA2,
            "layer_types": ["mamba", "attention"],
            "shared_intermediate_size": 32,
            "logits_scaling": 3.0,
        },
    ),
    "lfm2": ("library", {"layer_types": ["conv", "full_attention"]}),
    "jamba": (
        "library",
        {
            **EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_state": 4,
            "mamba_dt_rank": 2,
            "use_mamba_kernels": False,
        },
    ),
    "mamba": ("library", {"state_size": 4, "time_step_rank": 2}),
    "mamba2": ("library", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16}),
    "rwkv": ("library", {"attention_hidden_size": 32}),
    "xlstm": ("nothing", {"embedding_dim": 32, "num_blocks": 2, "num_heads": 2, "chunk_size": 16, "mode": "inference"}),
}
# Of those over our cache, the ones whose sequences run by themselves in an update: others run as prefix trees.
ROWS = {"mistral", "mixtral", "qwen2-windows", "gemma2", "gemma3_text", "phi3", "cohere2", "olmo3", "gpt_oss", "mpt"}


def build(tokenizers, family: str, lora: bool = False, dtype: torch.dtype = torch.float32, width: int = 32) -> Policy:
    """A policy of a family with two layers, all of whose weights matter, norms and biases too."""
    tokenizer = tokenizers["bytes"]
    common = {
        "vocab_size": len(tokenizer), "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width // 4, "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    options = {name: value for name, value in {**common, **FAMILIES[family][1]}.items() if value is not None}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family.split("-")[0], **options))
    if lora:
        with warnings.catch_warnings(action="ignore"):
            add_lora(model, 2, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * (0.15 if width == 32 else 0.03)
    if dtype == torch.bfloat16:
        round_frozen(model)
        round_experts(model)
    return Policy(model, tokenizer, dtype)


def batch_of(rows: list[list[int]], pad_id: int = 0):
    """The second token and every third one after it are the policy's."""
    return collate_rows(
        [
            BatchRow(ids=r, mask=[i % 3 == 1 for i in range(len(r))], logprobs=[0.0] * len(r), rewards=[0.0] * len(r))
            for r in rows
        ],
        list(range(len(rows))),
        pad_id,
    )


def plain_logprobs(policy: Policy, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """The log-probability of each token but the first, by the model as the library has it."""
    logp = (policy.model(torch.tensor([ids]), use_cache=False).logits[0].float() / temperature).log_softmax(-1)
    return logp[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
