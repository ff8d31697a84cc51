"""TRL's `GRPOTrainer` at the work of `benchmarks.training.large`: a ``rollout_func`` that samples by `generate`."""

import math
import statistics

import numpy as np
import torch
from transformers import GenerationConfig

from benchmarks.training.large_setup import Args, environments, now, peak_memory, searcher
from benchmarks.training.trl_side import Tally, player, train

AT_ONCE = 8  # episodes in a pass of an update


class _Work:
    """What `trl_side.train` wants to know."""

    warm_up, lr, threads = 1, 1e-9, torch.get_num_threads()

    def __init__(self, args: Args):
        self.env, self.env_kwargs = args.env, args.env_kwargs
        self.episodes, self.group_size, self.seed = args.episodes, args.group_size, args.seed
        self.max_new_tokens, self.rounds = args.max_new_tokens, args.updates + self.warm_up


def trl_updates(args: Args, shape: str) -> dict:
    """Whole training steps. All weights are in the precision of the layers, as TRL's users have it: less to read than ours."""
    try:
        policy, work, tally = searcher(args, shape), _Work(args), Tally(args.group_size)
        policy.model.to(policy.dtype)
        policy.model.generation_config = GenerationConfig(eos_token_id=[policy.eos_id])
        policy.tokenizer.eos_token = policy.tokenizer.pad_token  # random weights say it as rarely as any other token
        rng = np.random.default_rng(args.seed)
        seeds = rng.integers(2**31, size=work.rounds * args.episodes // args.group_size).tolist()
        rows, times = [{"prompt": [{"role": "user", "content": str(seed)}]} for seed in seeds], []
        how = {
            "reward_funcs": lambda earned, **rest: rng.normal(size=len(earned)).tolist(),
            "rollout_func": player(policy, environments(args), tally),
        }
        at_once = math.gcd(AT_ONCE, args.episodes)
        said = train(work, policy, rows, lambda: times.append(now(args)), tally, at_once, **how)
        del said["zero_std_groups"]  # of the environment's rewards, which nobody learns from
    except torch.cuda.OutOfMemoryError as error:
        return {"out_of_memory": str(error).split(".")[0]}
    seconds = statistics.median(b - a for a, b in zip(times[work.warm_up :], times[work.warm_up + 1 :], strict=False))
    return said | {"episodes_per_second": args.episodes / seconds, "gib": peak_memory(args)}
