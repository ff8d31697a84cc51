"""The default policy: a small Llama-like model and a word-level tokenizer, both made from scratch.

The architecture is Seed-OSS: Llama's layers, with biases of queries, keys and values only. Qwen2's is the same, but
transformers' AutoTokenizer loads Qwen's own tokenizer for its model type, whatever the folder holds.

The tokenizer encodes each known word as one token and spells unknown words in characters and bytes, so no text is lost. Its
chat template leaves out the system message: instructions in prose mean nothing to a model without pretraining.
"""

import collections
from collections.abc import Iterable, Mapping

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, SeedOssConfig, SeedOssForCausalLM

TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>")
_PAD, _END, _USER, _ASSISTANT, _TOOL = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|tool|>"
_SPECIALS = [_PAD, _END, _USER, _ASSISTANT, _TOOL]  # the first tokens of every vocabulary
_TEMPLATE = (
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROPE_THETA = 1e6


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer; its words are the 8,000 most frequent ones of ``texts``."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"▁?(\p{L}+|\p{N}{1,4}|.)"), "isolated"),
        ]
    )
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    spelling = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁"] + [chr(c) for c in range(33, 127)]
    words = [word for word, _ in counts.most_common(8000)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*_SPECIALS, *TAGS, *spelling, *words]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in _SPECIALS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False, lstrip=True) for t in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(
    vocab_size: int, hidden_size: int = 128, layers: int = 3, heads: int = 4, intermediate_size: int = 128,
    numbers: Mapping[int, int] | None = None,
) -> SeedOssForCausalLM:  # fmt: skip
    """Make a model whose attention layers are initialised to copy (see `_init_for_copying`), with the embeddings of ``numbers``
    (`number_tokens`) in numerical order along one direction."""
    config = SeedOssConfig(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden_size // heads, max_position_embeddings=4096,
        tie_word_embeddings=True, attention_dropout=0.0, residual_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        pad_token_id=_SPECIALS.index(_PAD), eos_token_id=_SPECIALS.index(_END), bos_token_id=None,
    )  # fmt: skip
    model = SeedOssForCausalLM(config)
    with torch.no_grad():
        _init_for_copying(model)
        _order_numbers(model.model.embed_tokens.weight, numbers or {})
    return model


def number_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[int, int]:
    """Return the number that each numeric token denotes, by token id."""
    words = {i: token.removeprefix("▁") for token, i in tokenizer.get_vocab().items()}
    return {i: int(word) for i, word in sorted(words.items()) if word.isdecimal()}


def _order_numbers(embeddings: torch.Tensor, numbers: Mapping[int, int]) -> None:
    """Place years (1850 to 2020) and smaller numbers (0 to 1000) along one direction of ``embeddings`` [V, H]. Otherwise the
    model would have to learn pair by pair which of two numbers is larger."""
    if not numbers:
        return
    direction = torch.nn.functional.normalize(torch.randn(embeddings.shape[1]), dim=0)
    for token, number in numbers.items():
        embeddings[token] += ((number - 1935) / 50 if number > 1000 else (number - 500) / 300) * direction


def _init_for_copying(model: SeedOssForCausalLM) -> None:
    """Initialise for copying, in the spirit of mimetic initialisation (Trockman & Kolter 2023, arXiv 2305.09828).

    An induction head (Olsson et al. 2022) finds an earlier occurrence of the current token and copies the token after it.
    From random weights it takes minutes to appear; here both of its halves exist from the start, and training refines
    them. Layer 0: heads look a fixed distance back, by their biases only. Head 0 looks one token back, head 1
    two, heads 2 and 3 at a soft window of the last few tokens. Layer 1: half of the heads compare the current
    token (query) with the output of head 0 (key). From layer 1 on, values pass through unchanged, that is, they are copied.
    """
    config = model.config
    d, heads = config.hidden_size, config.num_attention_heads
    size = d // heads
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, 0.3 * d**-0.5 if "o_proj" in name else d**-0.5)
        if "down_proj" in name:
            parameter.zero_()
    theta = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    attentions = [layer.self_attn for layer in model.model.layers]
    looks_back = ((1, 10.0), (2, 10.0), (3.5, 1.5), (6, 0.6))  # (tokens back, sharpness)
    for head in range(heads):
        rows, (back, sharpness) = slice(head * size, (head + 1) * size), looks_back[head % 4]
        first = attentions[0]
        first.q_proj.weight[rows] *= 0.05
        first.k_proj.weight[rows] *= 0.05
        # A query bias rotated by -back meets the constant key bias at full strength at that distance: the score there
        # is sum_f cos(theta_f (distance - back)).
        gain = (sharpness * size**0.5 / (1 - theta.cos()).sum()) ** 0.5
        first.q_proj.bias[rows] = gain * torch.cat([torch.cos(-back * theta), torch.sin(-back * theta)])
        first.k_proj.bias[rows] = gain * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
        first.v_proj.weight[rows] = _orthonormal(d, size).T
        first.o_proj.weight[:, rows] = 0.1 * _orthonormal(d, size)
        for attention in attentions[1:]:
            copy = _orthonormal(d, size)
            attention.v_proj.weight[rows] = copy.T
            attention.o_proj.weight[:, rows] = copy
    for head in range(heads // 2):
        rows = slice(head * size, (head + 1) * size)
        attentions[1].k_proj.weight[rows] = 1.4 * attentions[0].o_proj.weight[:, :size].T
        attentions[1].q_proj.weight[rows] = 1.4 * attentions[0].v_proj.weight[:size]


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(rows, columns))[0]
