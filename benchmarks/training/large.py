"""What one device does with models of Qwen2.5's shapes: decoding, whole updates, memory; and TRL on the same work.

    python -m benchmarks.training.large                                              # a GPU: 0.5B, 1.5B, 3B, all weights
    python -m benchmarks.training.large --shapes 3b 7b 14b --lora-ranks 0 32         # what fits
    python -m benchmarks.training.large --against-trl --shapes 0.5b                  # pip install 'trl==1.16.*'
    python -m benchmarks.training.large --shapes tiny --max-new-tokens 16            # a look at it on a CPU

Weights are random, and so is what the model says; so each of its turns stands for a search for a few words, drawn by its
tokens, in the real environment over its real index. Turns are as long as they may be, rewards are drawn by chance, and
attempts share their question and nothing more: no group is without a gradient, and sharing helps as little as it can.

Decoding is beside its limit: each step reads the weights of the layers once, 2 bytes each in bfloat16, those of the head, 4
bytes each, and the keys and values of all conversations; the limit is what a large copy reaches here now. Updates are beside
theirs: 6 operations a weight for each token that is run, 6 for the head's where the policy said something, and attention's;
the limit is a large matrix product in the same precision. Every model is a process of its own. Ends with one line of JSON.
"""

import json
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from transformers import Qwen2ForCausalLM

from benchmarks.training.large_setup import Args, Searcher, environments, now, peak_memory, reset_peak, searcher
from benchmarks.training.large_trl import trl_updates
from trainers import grpo
from trainers.engines import model_runner
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.hidden_states import ForwardTokenMeter
from trainers.models.lora import trainable_parameters
from trainers.models.prefix_trees import group_by_prefix
from trainers.profile import measure_limits
from trainers.rollouts.collector import play_batch
from trainers.trajectory import to_sequences


def weights_of(model: Qwen2ForCausalLM) -> dict[str, int]:
    """How many are in the layers, and how many in the head."""
    head = model.get_output_embeddings().weight
    inside = sum(p.numel() for name, p in model.base_model.layers.named_parameters() if "lora_" not in name)
    return {"layers": inside, "head": head.numel()}


def decoding(args: Args, policy: Searcher, count: int, limit: dict[str, float]) -> dict[str, float]:
    """Steps of ``count`` conversations that begin with as many different prompts, of as many tokens as an episode."""
    config, rng = policy.model.config, np.random.default_rng(args.seed)
    length = args.turns * args.max_new_tokens
    prompts = {key: rng.integers(len(policy.tokenizer), size=length).tolist() for key in range(count)}
    engine, seconds = TransformersEngine(policy, ()), []
    model_runner.KEPT_FRACTION = 1.0  # nothing learns beside it: what graphs read may stay
    for _ in range(3):  # on a GPU a size's second step is captured, which is over by the third time
        engine.reset()
        engine.submit(prompts, args.max_new_tokens, 1.0)
        begin = now(args)
        while engine.wait():
            pass
        seconds.append((now(args) - begin) / args.max_new_tokens)
    size = 2 if args.dtype == "bfloat16" else 4
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    weights = weights_of(policy.model)
    moved = 4 * weights["head"] + size * (weights["layers"] + count * token * (length + args.max_new_tokens / 2))
    return {
        "tokens_per_second": count / seconds[-1],
        "bytes_per_step": moved,
        "of_the_limit": moved / seconds[-1] / limit["bytes"],
        "cuda_graphs": engine.num_cuda_graphs,
    }


def updates(args: Args, policy: Searcher, limit: dict[str, float]) -> dict[str, float]:
    """Rollouts and the gradient steps after them."""
    settings = grpo.Args(
        questions_per_update=args.episodes // args.group_size, group_size=args.group_size, lr=1e-9,
        max_new_tokens=args.max_new_tokens, max_tokens_per_micro_batch=args.max_tokens_per_micro_batch,
    )  # fmt: skip
    envs, engine = environments(args), TransformersEngine(policy, ())
    optimizer = grpo.make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": settings.lr}])
    learn = partial(grpo.update, settings, policy, optimizer, None, grpo.compute_advantages)
    config, weights, lines = policy.model.config, weights_of(policy.model), []
    meter = ForwardTokenMeter(policy.model.base_model)
    trained = any(p.requires_grad for p in policy.model.get_output_embeddings().parameters())
    for number in range(1 + args.updates):
        reset_peak(args)
        begin = now(args)
        batch = play_batch(settings, envs, policy, engine, number)
        middle, peak = now(args), peak_memory(args)
        for episode in batch.episodes:
            episode.steps[-1].reward += float(batch.rng.normal())
        meter.start()
        reset_peak(args)
        learn(batch.episodes, batch.rng)
        end = now(args)
        said = sum(len(step.tokens) for episode in batch.episodes for step in episode.steps)
        longest = statistics.mean(len(e.steps[-1].prompt) + len(e.steps[-1].tokens) for e in batch.episodes)
        sequences = [sequence.ids for episode in batch.episodes for sequence in to_sequences(episode.steps)]
        run = sum(size for _, size in group_by_prefix(sequences, args.max_tokens_per_micro_batch))
        # An adapter needs no gradient of the weights that it is beside: 4 operations, not 6.
        operations = (6 if trained else 4) * (weights["layers"] * run + weights["head"] * said)
        operations += 6 * config.num_hidden_layers * config.hidden_size * longest * run
        line = {"rollout_s": middle - begin, "update_s": end - middle, "policy_tokens": said}
        line |= {"tokens_of_episode": longest, "tokens_run": run, "padded_to": meter.stop()}
        line |= {"rollout_gib": peak, "update_gib": peak_memory(args)}
        lines.append(line | {"of_the_limit": operations / (end - middle) / limit["flops"]})
    found = {name: statistics.median(line[name] for line in lines[1:]) for name in lines[0]}
    found |= {"trees": policy.tree_attention, "cuda_graphs": engine.num_cuda_graphs}
    return found | {"episodes_per_second": args.episodes / (found["rollout_s"] + found["update_s"])}


def measured(args: Args, shape: str, lora_rank: int) -> dict:
    """All of one model, or what it did before the memory was full."""
    found: dict = {}
    try:
        policy = searcher(args, shape, lora_rank)
        limit = measure_limits(args.device, policy.dtype)
        found |= {"weights": sum(weights_of(policy.model).values()), "limits": limit}
        found["updates"] = updates(args, policy, limit)
        found["decoding"] = {count: decoding(args, policy, count, limit) for count in args.decode_batches}
    except torch.cuda.OutOfMemoryError as error:
        found["out_of_memory"] = str(error).split(".")[0]
    return found


def alone(function, *args):
    """What a function returns, in a process that ends with it and gives its memory back."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def main(args: Args) -> dict:
    console, results = Console(), []
    for shape in args.shapes:
        for rank in args.lora_ranks:
            found = alone(measured, args, shape, rank)
            if args.against_trl and not rank:
                found["trl"] = alone(trl_updates, args, shape)
                ours, theirs = found.get("updates"), found["trl"]
                both = ours and "episodes_per_second" in theirs
                found["ratio_trl"] = ours["episodes_per_second"] / theirs["episodes_per_second"] if both else None
            results.append({"shape": shape, "lora_rank": rank} | found)
            console.print(table_of(results[-1]))
    name = torch.cuda.get_device_name() if args.device != "cpu" else "cpu"
    result = {"device": name, "torch": torch.__version__, "settings": asdict(args), "models": results}
    print(json.dumps(result))
    return result


def table_of(found: dict) -> Table:
    what = f"LoRA of rank {found['lora_rank']}" if found["lora_rank"] else "all weights"
    table = Table("", "", title=f"{found['shape']}, {what}")
    if done := found.get("updates"):
        table.add_row("rollout + update, s", f"{done['rollout_s']:.2f} + {done['update_s']:.2f}")
        table.add_row("episodes / s", f"{done['episodes_per_second']:.2f}")
        table.add_row("update, of the matrix product's limit", f"{done['of_the_limit']:.0%}")
        table.add_row("peak, GiB: rollout, update", f"{done['rollout_gib']:.1f}, {done['update_gib']:.1f}")
    for count, step in found.get("decoding", {}).items():
        speed = f"{step['tokens_per_second']:,.0f} tokens / s, {step['of_the_limit']:.0%} of the copy's limit"
        table.add_row(f"decoding of {count}", speed)
    if speed := found.get("trl", {}).get("episodes_per_second"):
        ratio = f", ours is {found['ratio_trl']:.2f} times as fast" if found["ratio_trl"] else ""
        table.add_row("TRL, episodes / s", f"{speed:.2f}{ratio}")
    elif "trl" in found:
        table.add_row("TRL", "out of memory")
    if "out_of_memory" in found:
        table.add_row("out of memory", found["out_of_memory"])
    return table


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
