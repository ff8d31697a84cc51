"""Measure speed on one GPU with random weights in Qwen2.5's shapes, each figure beside its limit from the same run.

    python -m benchmarks.training.gpu --out OUT                       # all parts, at most 8 minutes; writes OUT/gpu.json
    python -m benchmarks.training.gpu --out OUT --parts limits decode_3b
    python -m benchmarks.training.gpu --shapes tiny                   # on a CPU: shows that every part runs

The file is written after each part. If a part takes too long, fails or runs out of memory, the file gets its error, and the
next part runs.

The limits are the speeds of a large copy on the device and of a large bfloat16 matrix product. A decoding step has to read the
weights of layers and head once, and the keys and values of all rows. For each token and layer weight, a prefill takes 2
operations and an update 6 (4 for frozen weights); attention takes more. Recomputing activations adds one forward pass of the
layers. ``generate`` and TRL (if installed) do the same work in the same run. A model with random weights writes nothing
useful, so each of its turns is read as a search for some words in the real environment.
"""

import gc
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import torch
import tyro
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from agent_envs.generators.miniwiki import vocabulary
from benchmarks.training import trl_side
from trainers import grpo
from trainers.engines.engine import SamplingParams
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models import llama_parts, lora
from trainers.models.hidden_states import recompute_activations, round_frozen
from trainers.models.loading import set_matmul_precision
from trainers.models.policy import Policy
from trainers.models.prefix_trees import group_by_prefix
from trainers.rollouts.collector import collect_batch
from trainers.tiny.model import make_tokenizer
from trainers.trajectory import Step, Trajectory

SHAPES = {  # of Qwen2.5: width, feed-forward width, layers, heads, key-value heads, whether embedding and head are tied
    "tiny": (128, 128, 3, 4, 2, True),
    "0.5b": (896, 4864, 24, 14, 2, True),
    "1.5b": (1536, 8960, 28, 12, 2, True),
    "3b": (2048, 11008, 36, 16, 2, True),
    "7b": (3584, 18944, 28, 28, 4, False),
}
TURNS, GROUP = 4, 8
ENV, ENV_KWARGS = "AgentR1/MiniWiki-Easy-v0", json.dumps({"max_turns": TURNS})
TOTAL_SECONDS = 480  # of all parts
START_SECONDS = 60  # longest time of a process before its first part begins
IS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if IS_GPU else ("cpu", torch.float32)
Result = dict[str, object]


def make_model(shape: str) -> Qwen2ForCausalLM:
    width, inner, layers, heads, shared, tied = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(make_tokenizer(vocabulary())) if shape == "tiny" else 151_936, hidden_size=width,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=shared,
        tie_word_embeddings=tied, max_position_embeddings=32768,
    )  # fmt: skip
    with torch.device(DEVICE):
        return Qwen2ForCausalLM(config)


@cache
def make_policy(shape: str, lora_rank: int = 0) -> Policy:
    """Make a policy whose turns all have the full length and are read as searches for words that their tokens select."""
    model, tokenizer = make_model(shape), make_tokenizer(vocabulary())
    words = [word for word in vocabulary() if word.isalpha()]
    if lora_rank:
        lora.add_lora(model, lora_rank, 2 * lora_rank)
    if IS_GPU:
        round_frozen(model)
    model = model.to(DEVICE)
    set_matmul_precision(model, str(DTYPE).removeprefix("torch."))
    policy = Policy(model, tokenizer, DTYPE)
    plain = tokenizer.decode

    def decode(token_ids, **how) -> str:
        if how != {"skip_special_tokens": False}:  # `ChatTokens.decode` decodes a turn with this option
            return plain(token_ids, **how)
        return f"<search>{' '.join(words[i % len(words)] for i in token_ids[:3])}</search>"

    tokenizer.decode = decode
    policy.end_ids = set()
    return policy


@cache
def make_optimizer(shape: str, lora_rank: int = 0) -> torch.optim.Optimizer:
    policy = make_policy(shape, lora_rank)
    return grpo.make_optimizer(policy, [{"params": lora.trainable_parameters(policy.model), "lr": 1e-9}])


def count_weights(model: Qwen2ForCausalLM) -> tuple[int, int]:
    """Count the weights of the layers and of the head, without adapters."""
    layers = sum(p.numel() for name, p in model.base_model.layers.named_parameters() if "lora_" not in name)
    return layers, model.get_output_embeddings().weight.numel()


def now() -> float:
    if IS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def time_it(job: Callable[[], object]) -> float:
    begin = now()
    job()
    return now() - begin


def peak_gib() -> float:
    """Return the peak memory of the GPU since the part began, in GiB; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30 if IS_GPU else 0.0


def measure_limits() -> Result:
    """Measure a copy in bytes (read and written) and a matrix product in operations per second: the best of ten."""
    size, num_bytes = (8192, 2**32) if IS_GPU else (512, 2**24)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=DTYPE) for _ in range(2))
    source, target = (torch.ones(num_bytes, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    copies = min(time_it(lambda: target.copy_(source)) for _ in range(10))
    products = min(time_it(lambda: torch.mm(a, b)) for _ in range(10))
    return {
        "device": torch.cuda.get_device_name() if IS_GPU else "cpu", "torch": torch.__version__,
        "copy_bytes_per_second": 2 * num_bytes / copies, "product_flops_per_second": 2 * size**3 / products,
    }  # fmt: skip


def measure_decoding(shape: str, lora_rank: int, rows: int, context: int, new: int) -> Result:
    """Measure prefill (best of three) and the third decoding, when steps are compiled and captured; no prefix is shared."""
    policy = make_policy(shape, lora_rank)
    config, rng = policy.model.config, np.random.default_rng(0)
    prompts = {key: rng.integers(len(policy.tokenizer), size=context).tolist() for key in range(rows)}
    engine, prefills = TransformersEngine(policy, ()), []

    def prefill() -> None:
        engine.submit(prompts, SamplingParams(max_new_tokens=new))

    def decode() -> None:
        while engine.wait():
            pass

    for _ in range(3):
        engine.reset()
        prefills.append(time_it(prefill))
    for _ in range(2):
        decode()
        prefill()  # the same prompts start again from their prefill
    step, prefill_s = time_it(decode) / new, min(prefills)
    layers, head = count_weights(policy.model)
    head_size = config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * rows * (context + new / 2)
    read = policy.model.get_output_embeddings().weight.element_size() * head + DTYPE.itemsize * (layers + cached)
    operations = rows * context * 2 * (layers + config.num_hidden_layers * config.hidden_size * context)
    return {
        "step_ms": 1e3 * step, "tokens_per_second": rows / step, "bytes_per_step": read, "bytes_per_second": read / step,
        "prefill_s": prefill_s, "prefill_flops_per_second": operations / prefill_s,
        "cuda_graphs": getattr(engine.runner.graphs, "count", 0),
        "compiled": engine.runner._parts != llama_parts.Parts(), "flash_attention": engine.runner._reads_places,
        "tokens_per_second_with_prefill": rows * new / (new * step + prefill_s), "gib": peak_gib(),
    }  # fmt: skip


def make_episodes(vocab_size: int, count: int, turn: int, seed: int) -> list[Trajectory]:
    """Make episodes of four turns. A group shares a prompt of 300 tokens; observations have 170. If turns have at most 8
    tokens, these are 20 and 6."""
    rng, episodes = np.random.default_rng(seed), []
    prompt_length, observation = (300, 170) if turn > 8 else (20, 6)
    for number in range(count):
        if number % GROUP == 0:
            prompt = rng.integers(vocab_size, size=prompt_length).tolist()
        steps, ids = [], prompt
        for _ in range(TURNS):
            tokens = rng.integers(vocab_size, size=turn).tolist()
            steps.append(Step(prompt=ids, tokens=tokens, logprobs=[-math.log(vocab_size)] * turn))
            ids = ids + tokens + rng.integers(vocab_size, size=observation).tolist()
        steps[-1].reward = float(rng.normal())
        episodes.append(Trajectory(steps=steps, group=number // GROUP))
    return episodes


def measure_update(shape: str, lora_rank: int, count: int, turn: int) -> Result:
    """Measure `grpo.update` with recomputed activations: the first call, and the best of two more."""
    policy, optimizer = make_policy(shape, lora_rank), make_optimizer(shape, lora_rank)
    recompute_activations(policy.model)
    args, config, seconds = grpo.Args(group_size=GROUP), policy.model.config, []
    for number in range(3):
        episodes, rng = make_episodes(config.vocab_size, count, turn, number), np.random.default_rng(0)
        job = partial(grpo.update, args, policy, optimizer, None, grpo.compute_advantages, episodes, rng)
        seconds.append(time_it(job))
    layers, head = count_weights(policy.model)
    sequences = [sequence.ids for episode in episodes for sequence in episode.rows]
    run = sum(map(len, sequences))
    if cost := policy.token_cost:
        run = sum(size for _, size in group_by_prefix(sequences, args.max_tokens_per_micro_batch, cost))
    attention = 2 * config.num_hidden_layers * config.hidden_size * len(sequences[0]) * run  # of one forward pass
    needed = (4 if lora_rank else 6) * (layers * run + head * count * TURNS * turn) + 3 * attention
    best = min(seconds[1:])
    return {
        "first_s": seconds[0], "update_s": best, "tokens_run": run, "tokens_of_episode": len(sequences[0]),
        "flops_per_second": needed / best, "recomputed_flops_per_second": (needed + 2 * layers * run + attention) / best,
        "tree_attention": policy.tree_attention, "gib": peak_gib(),
    }  # fmt: skip


def measure_steps(shape: str, count: int, turn: int, rounds: int, learns: bool = True) -> Result:
    """Measure whole steps: rollout in the environment and update. If not ``learns``, only the rollout runs, to see if it fits."""
    imports = time.time() - psutil.Process().create_time()
    policy, optimizer = make_policy(shape), make_optimizer(shape)
    args = grpo.Args(questions_per_update=count // GROUP, group_size=GROUP, max_new_tokens=turn)
    envs, engine = make_envs(ENV, ENV_KWARGS, "train", count), TransformersEngine(policy, ())
    rollouts, updates = [], []
    for number in range(rounds):
        begin = now()
        batch = collect_batch(args, envs, policy, engine, number)
        rollouts.append(now() - begin)
        for episode in batch.trajectories:
            episode.steps[-1].reward += float(batch.rng.normal())
        job = partial(
            grpo.update, args, policy, optimizer, None, grpo.compute_advantages, batch.trajectories, batch.rng
        )
        updates.append(time_it(job) if learns else 0.0)
    step = statistics.median(a + b for a, b in zip(rollouts[-2:], updates[-2:], strict=True))
    length = statistics.mean(len(e.steps[-1].prompt) + len(e.steps[-1].tokens) for e in batch.trajectories)
    return {
        "episodes": count, "rollout_s": rollouts, "update_s": updates, "episodes_per_second": count / step,
        "tokens_of_episode": length, "gib": peak_gib(), "process_began_before_s": imports,
        "seconds_from_start": time.time() - psutil.Process().create_time(),
    }  # fmt: skip


def measure_trl(shape: str, count: int, turn: int, rounds: int) -> Result:
    """Measure TRL's `GRPOTrainer` on the work of `measure_steps`: `generate` in ``rollout_func``, all weights in one dtype."""
    policy, times, rng = make_policy(shape), [], np.random.default_rng(0)
    policy.model.to(policy.dtype)
    policy.model.generation_config = GenerationConfig(eos_token_id=[policy.eos_id])
    policy.tokenizer.eos_token = policy.tokenizer.pad_token  # random weights sample it as rarely as any other token
    work = trl_side.Work(
        env=ENV, env_kwargs=ENV_KWARGS, seeds=rng.integers(2**31, size=rounds * count // GROUP).tolist(), episodes=count,
        group_size=GROUP, max_new_tokens=turn, at_once=math.gcd(8, count), lr=1e-9,
    )  # fmt: skip
    said = trl_side.train(
        policy, work, lambda: times.append(now()), lambda completions, **_: rng.normal(size=len(completions)).tolist()
    )
    steps = [after - before for before, after in pairwise(times)]
    return said | {"step_s": steps, "episodes_per_second": count / statistics.median(steps[-2:]), "gib": peak_gib()}


def measure_generate(shape: str, rows: int, context: int, new: int, cache_kind: str | None) -> Result:
    """Measure `transformers.generate` on the work of `measure_decoding`, with prefill; the second call counts.

    ``cache_kind``: "static", which is compiled, or None for a cache that grows.
    """
    model, ids = make_model(shape).to(DTYPE).eval(), torch.randint(1000, (rows, context), device=DEVICE)
    how = {"do_sample": True, "top_k": 0, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
    how |= {"attention_mask": torch.ones_like(ids), "cache_implementation": cache_kind}
    with torch.no_grad():
        seconds = [time_it(lambda: model.generate(ids, **how)) for _ in range(2)]
    return {"seconds": seconds, "tokens_per_second_with_prefill": rows * new / seconds[-1], "gib": peak_gib()}


@dataclass(frozen=True)
class Part:
    """A measurement. Parts with the same ``process`` run one after another in one process and share its model.

    ``full`` and ``tiny`` are the arguments of ``function`` for the two values of ``--shapes``. It may take ``factor`` times
    ``part_seconds``.
    """

    process: str
    function: Callable[..., Result]
    full: Sequence[object] = ()
    tiny: Sequence[object] = ()
    factor: float = 1.0


PARTS = {
    "limits": Part("limits", measure_limits),
    "decode_3b": Part("3b", measure_decoding, ("3b", 0, 64, 1000, 64), ("tiny", 0, 4, 40, 8)),
    "update_3b": Part("3b", measure_update, ("3b", 0, 64, 64), ("tiny", 0, 8, 4), 1.5),
    "rollout_512_3b": Part("3b", measure_steps, ("3b", 512, 64, 1, False), ("tiny", 16, 4, 1, False), 1.5),
    "decode_7b_lora": Part("7b", measure_decoding, ("7b", 32, 32, 1000, 64), ("tiny", 2, 4, 40, 8)),
    "update_7b_lora": Part("7b", measure_update, ("7b", 32, 32, 64), ("tiny", 2, 8, 4), 1.5),
    "decode_0.5b": Part("0.5b", measure_decoding, ("0.5b", 0, 256, 300, 128), ("tiny", 0, 8, 20, 8)),
    "generate_0.5b_dynamic": Part("0.5b", measure_generate, ("0.5b", 256, 300, 128, None), ("tiny", 8, 20, 8, None)),
    "step_1.5b": Part("1.5b", measure_steps, ("1.5b", 64, 64, 3), ("tiny", 8, 4, 2), 1.5),
    "trl_1.5b": Part("TRL", measure_trl, ("1.5b", 64, 64, 3), ("tiny", 8, 4, 2), 2),
    "first_start": Part("start 1", measure_steps, ("0.5b", 64, 64, 1), ("tiny", 8, 4, 1)),  # without loading weights
    "second_start": Part("start 2", measure_steps, ("0.5b", 64, 64, 1), ("tiny", 8, 4, 1)),
    "generate_0.5b_static": Part("x", measure_generate, ("0.5b", 256, 300, 128, "static"), ("tiny", 8, 20, 8, None), 2),
}


@dataclass(kw_only=True)
class Args:
    """Measure the trainer on one GPU, each figure beside its limit."""

    shapes: Literal["qwen2.5", "tiny"] = "qwen2.5"
    """Shapes of the models; "tiny" shows on a CPU that all parts run."""
    out: Path = Path("runs/gpu")
    """Folder of gpu.json."""
    parts: tuple[str, ...] = tuple(PARTS)
    """Parts to measure; they run in the order of the default."""
    part_seconds: float = 45
    """Longest time of a part, in seconds; some may take up to twice as long."""

    def __post_init__(self):
        if unknown := [name for name in self.parts if name not in PARTS]:
            raise ValueError(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
        if self.shapes != "tiny" and not IS_GPU:
            raise ValueError("there is no GPU: --shapes tiny shows on a CPU that all parts run")


def run_parts(names: list[str], is_tiny: bool, connection) -> None:
    """Measure these parts, and send each result."""
    for name in names:
        part = PARTS[name]
        try:
            found = part.function(*(part.tiny if is_tiny else part.full))
        except Exception as error:  # such as out of memory: the next part may still run
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        connection.send(found)  # sent first: after a device fault, the next lines end this process
        gc.collect()
        if IS_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def measure(args: Args, cached: str, save: Callable[[str, Result], None]) -> None:
    """Run all parts in processes, and call ``save`` with each result as soon as it arrives. ``cached``: folder for kernels."""
    end, context = time.monotonic() + TOTAL_SECONDS, multiprocessing.get_context("spawn")
    is_tiny = args.shapes == "tiny"  # then one process runs all parts except the starts

    def process_of(name: str) -> str:
        return "tiny" if is_tiny and "start" not in name else PARTS[name].process

    names = [name for name in PARTS if name in args.parts]
    while names:
        group = list(takewhile(lambda name: process_of(name) == process_of(names[0]), names))
        kept = f"{cached}/{'start' if 'start' in names[0] else 'all'}"  # compiled kernels; the first start finds none
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{kept}/inductor", "TRITON_CACHE_DIR": f"{kept}/triton"}
        ours, theirs = context.Pipe()
        process = context.Process(target=run_parts, args=(group, is_tiny, theirs))
        process.start()
        theirs.close()
        seconds, is_alive = float(START_SECONDS), True
        while is_alive and names and names[0] in group:
            begin = time.monotonic()
            seconds = max(0.0, min(seconds + PARTS[names[0]].factor * args.part_seconds, end - begin))
            try:
                is_alive = ours.poll(seconds)
                found = ours.recv() if is_alive else {"error": f"stopped after {seconds:.0f} s"}
            except EOFError:
                is_alive, found = False, {"error": "its process ended"}
            is_alive = is_alive and "error" not in found  # a fault may have spoiled the process, or kept its memory
            save(names.pop(0), found | {"part_s": time.monotonic() - begin})
            seconds = 0.0
        process.kill()  # the remaining parts of a group get a new process
        process.join()


def compare_with_goals(parts: dict[str, Result]) -> list[Result]:
    """List each goal with the value reached; None if a part failed."""

    def get(name: str, key: str) -> float | None:
        return parts.get(name, {}).get(key)  # type: ignore[return-value]

    def ratio(value: float | None, *others: float | None) -> float | None:
        known = [other for other in others if other]
        return value / max(known) if value and known else None

    copy, product = get("limits", "copy_bytes_per_second"), get("limits", "product_flops_per_second")
    samplers = ("decode_0.5b", "generate_0.5b_dynamic", "generate_0.5b_static")
    ours, *theirs = (get(name, "tokens_per_second_with_prefill") for name in samplers)
    step, trl = (get(name, "episodes_per_second") for name in ("step_1.5b", "trl_1.5b"))
    return [{"what": what, "reached": reached, "goal": goal} for what, reached, goal in (
        ("decode 3B, share of the copy", ratio(get("decode_3b", "bytes_per_second"), copy), 0.5),
        ("decode 7B with LoRA 32, share of the copy", ratio(get("decode_7b_lora", "bytes_per_second"), copy), 0.5),
        ("decode 0.5B, times generate", ratio(ours, *theirs), 3.0),
        ("prefill 3B, share of the product", ratio(get("decode_3b", "prefill_flops_per_second"), product), 0.5),
        ("update 3B, share of the product", ratio(get("update_3b", "flops_per_second"), product), None),
        ("… with recomputation", ratio(get("update_3b", "recomputed_flops_per_second"), product), 0.5),
        ("update 7B with LoRA, share of the product", ratio(get("update_7b_lora", "flops_per_second"), product), None),
        ("… with recomputation", ratio(get("update_7b_lora", "recomputed_flops_per_second"), product), 0.5),
        ("step 1.5B, times TRL", ratio(step, trl), 3.0),
        ("second start to the first update, s (at most)", get("second_start", "seconds_from_start"), 10.0),
        ("512 episodes at 3B fit", float(get("rollout_512_3b", "episodes") is not None), 1.0),
    )]  # fmt: skip


def main(args: Args) -> dict:
    args.out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Result] = {}
    begin = time.monotonic()

    def save(name: str, found: Result) -> None:
        parts[name] = found
        result = {"device": parts.get("limits", {}).get("device"), "shapes": args.shapes, "parts": parts}
        result |= {"goals": compare_with_goals(parts), "seconds": time.monotonic() - begin}
        whole = args.out / "gpu.json.tmp"
        whole.write_text(json.dumps(result, indent=1))
        whole.replace(args.out / "gpu.json")
        print(f"{time.monotonic() - begin:5.0f} s  {name}: {json.dumps(found)}", flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cached:
        measure(args, cached, save)
    for goal in compare_with_goals(parts):
        print(f"{goal['what']:50} {goal['reached']!s:>8.8}  {goal['goal']}")
    return parts


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
