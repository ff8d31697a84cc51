"""Sampling of many tokens from short prompts, by our engine, by `transformers` and by vLLM: for `benchmarks.training.trl_cpu`."""

import os
from pathlib import Path

import torch
from transformers import GenerationConfig

from benchmarks.training.race import Pace
from benchmarks.training.trl_args import Args
from trainers.engines.engine import generate as generate_turns
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.loading import load_policy
from trainers.models.lora import has_lora
from trainers.models.policy import Policy


def engine(args: Args, start: Path, prompts: list[list[int]], pace: Pace) -> dict:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    policy = load_policy(start, "cpu", args.dtype)
    policy.end_ids = set()  # nothing ends a turn but its length: all make as many tokens
    ours = TransformersEngine(policy, ())
    return _decode(
        lambda: [c.tokens for c in generate_turns(ours, dict(enumerate(prompts)), args.decode_tokens, 1.0).values()],
        args, pace, ours.reset,
    )  # fmt: skip


def generate(args: Args, start: Path, prompts: list[list[int]], pace: Pace) -> dict:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    policy = load_policy(start, "cpu", args.dtype)
    merge_lora(policy)
    policy.model.to(policy.dtype)
    width = max(map(len, prompts))
    ids = torch.tensor([[policy.pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    policy.model.generation_config = GenerationConfig(
        max_new_tokens=args.decode_tokens, do_sample=True, temperature=1.0, top_k=0, pad_token_id=policy.pad_id
    )

    def once() -> list[list[int]]:
        with torch.no_grad():
            return policy.model.generate(ids, attention_mask=mask)[:, width:].tolist()

    return _decode(once, args, pace)


def merge_lora(policy: Policy) -> None:
    """Add an adapter to the weights that it is beside, as one does before sampling, and as our engine does."""
    for module in policy.model.modules() if has_lora(policy.model) else ():
        if hasattr(module, "lora_A"):
            module.merge()  # type: ignore[operator]


def vllm(args: Args, start: Path, prompts: list[list[int]], pace: Pace) -> dict:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    torch.set_num_threads(args.threads)
    length = max(map(len, prompts)) + args.decode_tokens
    model = LLM(
        model=str(start), skip_tokenizer_init=True, dtype=args.dtype, max_model_len=length, max_num_seqs=len(prompts),
        seed=args.seed, disable_log_stats=True,
    )  # fmt: skip
    sampling = SamplingParams(temperature=1.0, max_tokens=args.decode_tokens, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return _decode(
        lambda: [list(one.outputs[0].token_ids) for one in model.generate(asked, sampling, use_tqdm=False)], args, pace
    )


def _decode(once, args: Args, pace: Pace, between=lambda: None) -> dict:
    made = 0
    pace()
    for _ in range(args.rounds):
        between()
        lengths = set(map(len, once()))
        if lengths != {args.decode_tokens}:
            raise RuntimeError(f"every prompt gets {args.decode_tokens} new tokens, these got {sorted(lengths)}")
        made += args.episodes * args.decode_tokens
        pace()
    return {"policy_tokens": made}
