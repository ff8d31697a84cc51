"""What all sides of `benchmarks.training.trl_cpu` begin from: a policy that plays three turns or a given model, and prompts."""

import random
from functools import partial

import torch

from agent_envs.tasks import qa_scripts
from benchmarks.training.trl_args import Args
from trainers.factory import make_envs
from trainers.imitation import scripted
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime.progress import Progress
from trainers.tiny import curriculum

# Gradient steps: of the cold start, whose demonstrations mostly answer too early, and of some that never do.
COLD_START, MORE_STEPS = 400, 50


def start_policy(args: Args) -> Policy:
    """The given model, or the tiny policy after its cold start."""
    if not args.is_real:
        return _tiny_policy(args)
    torch.manual_seed(args.seed)  # draws the first matrices of a new adapter
    return load_policy(args.model, "cpu", args.dtype, args.lora_rank, args.lora_alpha)


def _tiny_policy(args: Args) -> Policy:
    """The tiny policy after a short cold start, which is cached, and some more imitation of episodes of three turns."""
    envs = make_envs(args.env, args.env_kwargs, "train", 64)
    with Progress(COLD_START + MORE_STEPS, description="cold start") as progress:
        policy, _ = curriculum.cold_start(
            envs, args.seed, COLD_START, lambda step, _, loss: progress.update(step, loss=loss)
        )
        rng, patient = random.Random(args.seed), partial(qa_scripts.early_stopping, continue_probability=1.0)

        def play():
            questions = rng.choices(range(len(envs.envs[0].questions)), k=curriculum.POOL)
            return scripted.scripted_episodes(envs, policy, questions, patient, rng.getrandbits(32))

        tokens = curriculum.choose_lessons(envs).tokens_per_step
        batches = (("episodes", batch) for batch in curriculum.batch_by_length(play, rng, tokens))
        curriculum.fit(
            policy, batches, lambda step: step / MORE_STEPS,
            lambda step, _, loss: progress.update(COLD_START + step, loss=loss),
        )  # fmt: skip
    return policy


def first_prompts(args: Args, policy: Policy) -> list[list[int]]:
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    seeds = args.question_seeds()[: args.episodes // args.group_size]
    observations, infos = envs.reset(seed=[seed for seed in seeds for _ in range(args.group_size)])
    return [policy.prompt_ids(*both) for both in zip(infos["instructions"], observations, strict=True)]
