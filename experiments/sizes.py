"""What larger models need, by arithmetic: memory, whether they fit on one GPU, and hours for a recipe.

    python -m experiments.sizes                        # Qwen2.5's 0.5, 1.5, 3 and 7 B, with the paper's recipe
    python -m experiments.sizes --recipe mine.toml --tokens 800 --sampled 100

Nothing is run. `experiments.dry_run.memory` has the arithmetic of the bytes, and a test compares it with what a real
update holds. Hours are those of updates and sampling alone, at the shares of a GPU's peak that are named below the table.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from transformers import AutoConfig

from experiments import recipe_file
from experiments.dry_run import PASSES, ModelShape, memory, passes, shape_of
from experiments.recipe import Recipe
from trainers.config import TrainArgs

# of Qwen2.5: width, of the feed-forward layers, layers, heads, heads of keys and values, whether embedding and head are one
QWEN = {
    "0.5 B": (896, 4864, 24, 14, 2, True),
    "1.5 B": (1536, 8960, 28, 12, 2, True),
    "3 B": (2048, 11008, 36, 16, 2, True),
    "7 B": (3584, 18944, 28, 28, 4, False),
}
BANDWIDTH = 0.2  # of the peak, as measured on an H200: a step of decoding reads the weights and all keys and values
USABLE = 0.92  # of a GPU's memory: the rest goes to the driver, to kernels and to gaps
FEWEST = 16  # conversations at once, below which a GPU idles


@dataclass(frozen=True, kw_only=True)
class GPU:
    """An accelerator, by its data sheet: bytes, dense bfloat16 FLOP/s, bytes/s."""

    name: str
    memory: float
    flops: float
    bandwidth: float


GPUS = (
    GPU(name="24 GB (RTX 4090)", memory=24e9, flops=165e12, bandwidth=1.01e12),
    GPU(name="80 GB (H100)", memory=80e9, flops=989e12, bandwidth=3.35e12),
)


def qwen(size: str) -> ModelShape:
    """The shape of a model of `QWEN`."""
    width, inner, layers, heads, shared, tied = QWEN[size]
    config = AutoConfig.for_model(
        "qwen2", hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, tie_word_embeddings=tied, vocab_size=152_064 if size == "7 B" else 151_936,
    )  # fmt: skip
    return shape_of(config)


def conversations(model: ModelShape, args: TrainArgs, gpu: GPU, tokens: int) -> int:
    """How many conversations of ``tokens`` each a GPU holds at once beside all that stays but the gradients, which are freed
    after an update, and the rounded weights that sampling reads; 0 where an update does not fit."""
    need, usable = memory(model, args, args.max_tokens_per_micro_batch), gpu.memory * USABLE
    if need.states + need.update > usable:
        return 0
    return int((usable - need.states + need.gradients - need.rounded) / (need.cache * tokens))


def hours(model: ModelShape, args: TrainArgs, gpu: GPU, tokens: int, sampled: int) -> float:
    """Of all updates of a run and the rollouts before them; infinite where they do not fit.

    Args:
        tokens: of an episode.
        sampled: how many of them are the policy's own.
    """
    episodes = args.updates * args.questions_per_update * args.group_size
    at_once = min(conversations(model, args, gpu, tokens), args.questions_per_update * args.group_size)
    if at_once < FEWEST:
        return float("inf")
    whole = (2 + passes(args)) * model.weights * episodes * tokens / (gpu.flops * PASSES)
    head = model.config.vocab_size * model.config.hidden_size
    step = 2 * model.linear + 4 * head + at_once * memory(model, args, 1).cache * tokens  # bytes that it reads
    return (whole + episodes * sampled / at_once * step / (gpu.bandwidth * BANDWIDTH)) / 3600


def table(recipe: Recipe, run: str, rank: int, tokens: int, sampled: int) -> Iterator[str]:
    """The lines of a Markdown table, and what it assumes."""
    base = recipe.run_arguments(run, 0)
    parts = ("weights", "gradients", "AdamW", "KL reference", "update", "a conversation")
    yield f"| Model | Trained | {' | '.join(f'{part}, GB' for part in parts)} | {' | '.join(gpu.name for gpu in GPUS)} |"
    yield "|---|---|" + "---:|" * (len(parts) + len(GPUS))
    for size in QWEN:
        model = qwen(size)
        for lora_rank in (0, rank):
            args = replace(base, lora_rank=lora_rank)
            need = memory(model, args, args.max_tokens_per_micro_batch)
            states = (need.weights, need.gradients, need.moments, need.reference, need.update)
            cells = [f"{part / 1e9:.1f}" for part in states] + [f"{need.cache * tokens / 1e9:.2f}"]
            cells += [_fit(model, args, gpu, tokens, sampled) for gpu in GPUS]
            yield f"| {size} | {f'LoRA {rank}' if lora_rank else 'all weights'} | {' | '.join(cells)} |"
    episodes = base.updates * base.questions_per_update * base.group_size
    yield ""
    yield (
        f"{recipe.title}, {run}: {base.updates} updates of {base.questions_per_update} x {base.group_size} episodes, "
        f"{episodes:,} in all, of {tokens:,} tokens, {sampled} of them the policy's (assumed). Update: activations and logits of "
        f"{base.max_tokens_per_micro_batch:,} tokens{', layers recomputed' * base.gradient_checkpointing}, and rounded weights; "
        "keys and values take their turn with it. In the last columns: hours, and how many conversations are played at once, "
        f"of {base.questions_per_update * base.group_size} at most; – is fewer than {FEWEST}. "
        f"{USABLE:.0%} of the memory used; {PASSES:.0%} of the peak FLOP/s in whole sequences, {BANDWIDTH:.0%} of the peak "
        "bandwidth in decoding; searches, evaluations and loading left out."
    )


def _fit(model: ModelShape, args: TrainArgs, gpu: GPU, tokens: int, sampled: int) -> str:
    took = hours(model, args, gpu, tokens, sampled)
    at_once = min(conversations(model, args, gpu, tokens), args.questions_per_update * args.group_size)
    return "–" if took == float("inf") else f"{took:,.0f} h, {at_once}"


def main() -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="agent-r1", help="a shipped recipe or a TOML file")
    parser.add_argument("--run", default="grpo", help="which of its runs")
    parser.add_argument("--lora-rank", type=int, default=32, help="of the adapters")
    parser.add_argument("--tokens", type=int, default=2200, help="of an episode")
    parser.add_argument("--sampled", type=int, default=300, help="how many of them are the policy's own")
    given = parser.parse_args()
    try:
        lines = list(table(recipe_file.read(given.recipe), given.run, given.lora_rank, given.tokens, given.sampled))
    except (KeyError, ValueError) as error:
        parser.error(str(error))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
