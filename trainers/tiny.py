"""The default policy: a small Qwen2-architecture model and a word-level tokenizer, both made here from nothing.

The tokenizer gives each known word one token and spells unknown words in characters and bytes, so any text survives.
Its chat template leaves out the system message: prose instructions mean nothing to a model that has never read any.
"""

import collections
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>")
_PAD, _END, _USER, _ASSISTANT, _TOOL = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|tool|>"
_TEMPLATE = (
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORD = Regex(r"\d|[\p{L}\p{M}]+|[^\s\p{L}\p{M}\d]")


def make_tokenizer(texts: Iterable[str], max_words: int = 8000) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is the ``max_words`` most frequent words of ``texts``."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"▁?(\p{L}+|\p{N}{1,4}|.)"), "isolated"),
        ]
    )
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    specials = [_PAD, _END, _USER, _ASSISTANT, _TOOL, *TAGS]
    spelling = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁"] + [chr(c) for c in range(33, 127)]
    words = [word for word, _ in counts.most_common(max_words)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*specials, *spelling, *words]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials[:5]])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False, lstrip=True) for t in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(vocab_size: int, hidden_size: int = 128, layers: int = 4, heads: int = 4) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=4096, tie_word_embeddings=True,
        initializer_range=0.02,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)
