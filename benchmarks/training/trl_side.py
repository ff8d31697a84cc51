"""TRL's `GRPOTrainer` at the work of `benchmarks.training.trl_cpu`, in the two ways that it has for episodes of several turns.

``environment_factory`` plays each episode in an object whose methods are tools, and reads their calls out of what the
model writes: see `benchmarks.training.trl_environment`, also for what cannot be the same there. ``rollout_func`` leaves the loop
to the user. In both the model sees the tokens that it sees in our own trainer.

An adapter is in the model that the trainer gets, so it needs no ``peft_config``: what has no gradient it leaves alone.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback

from agent_envs.chat_tokens import StopChecker
from agent_envs.vector import ToolVectorEnv
from benchmarks.training.race import Pace
from benchmarks.training.trl_args import Args
from benchmarks.training.trl_environment import Environment, teach_calls
from benchmarks.training.trl_turns import cut, cut_turns, end_at_tags
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.policy import Policy


@dataclass
class Tally:
    """What was played: so that a reader sees that both sides did the same work."""

    group_size: int
    episodes: int = 0
    turns: int = 0
    zero_std_groups: int = 0  # whose episodes all earned the same, so that there is nothing to learn from them

    def add(self, returns: list[float], turns: int) -> None:
        self.episodes += len(returns)
        self.turns += turns
        self.zero_std_groups += int((np.ptp(np.reshape(returns, (-1, self.group_size)), axis=1) < 1e-6).sum())


def environment_factory(args: Args, start: Path, pace: Pace) -> dict:
    policy, tally, env = (
        load(args, start),
        Tally(args.group_size),
        make_envs(args.env, args.env_kwargs, "train", 1).envs[0],
    )
    ends = end_at_tags(policy, env.stop)
    teach_calls(policy)

    def reward(completions, environments, **rest) -> list[float]:
        said = [[message for message in messages if message["role"] == "assistant"] for messages in completions]
        for turns, environment in zip(said, environments, strict=True):
            environment._finish(turns[-1])
        earned = [environment.earned for environment in environments]
        tally.add(earned, sum(map(len, said)))
        return earned

    rows = []
    for seed in args.question_seeds():  # each task of a mixture has its own instructions
        instructions = policy.inert(env.reset(seed=seed)[1]["instructions"])
        # To the last message TRL adds what `reset` returns.
        prompt = [{"role": "system", "content": instructions}, {"role": "user", "content": ""}]
        rows.append({"prompt": prompt, "seed": seed})
    make = partial(Environment, args.env, args.env_kwargs, policy.inert)
    how = {"reward_funcs": reward, "environment_factory": make}
    return train(args, policy, rows, pace, tally, args.pass_size, ends, **how)


def rollout_func(args: Args, start: Path, pace: Pace) -> dict:
    policy, tally = load(args, start), Tally(args.group_size)
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    ends = end_at_tags(policy, envs.envs[0].stop)
    rows = [{"prompt": [{"role": "user", "content": str(seed)}]} for seed in args.question_seeds()]
    how = {"reward_funcs": lambda earned, **rest: earned, "rollout_func": player(policy, envs, tally, ends)}
    return train(args, policy, rows, pace, tally, args.pass_size, **how)


def player(policy: Policy, envs: ToolVectorEnv, tally: Tally, ends: StopChecker | None = None) -> Callable:
    """A ``rollout_func`` over our batched environments; a prompt is the seed of a question."""

    def play(prompts, trainer) -> dict:
        observations, infos = envs.reset(seed=[int(prompt[-1]["content"]) for prompt in prompts])
        first = [policy.prompt_ids(*both) for both in zip(infos["instructions"], observations, strict=True)]
        completions, masks, earned, turns = [[] for _ in first], [[] for _ in first], [0.0] * len(first), 0
        playing = list(range(len(first)))
        while playing:
            turns += len(playing)
            made = _generate(trainer, [first[i] + completions[i] for i in playing], policy)
            said = {i: cut(turn, ends) for i, turn in zip(playing, made, strict=True)}
            actions = [policy.decode(said[i]) if i in said else "" for i in range(len(first))]
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            for i, turn in said.items():
                told = [] if terminated[i] or truncated[i] else policy.observation_ids(observations[i], turn)
                completions[i] += turn + told
                masks[i] += [1] * len(turn) + [0] * len(told)
                earned[i] += float(rewards[i])
            playing = [i for i in playing if not terminated[i] and not truncated[i]]
        tally.add(earned, turns)
        # The log-probabilities of sampling are only asked for with vLLM.
        return {
            "prompt_ids": first,
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": masks,
            "earned": earned,
        }

    return play


def _generate(trainer, contexts: list[list[int]], policy: Policy) -> list[list[int]]:
    """One turn of each conversation by `generate`, which is what TRL has without vLLM."""
    width = max(map(len, contexts))
    ids = torch.tensor([[policy.pad_id] * (width - len(context)) + context for context in contexts]).to(policy.device)
    mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts]).to(policy.device)
    with torch.no_grad():
        made = trainer.model.generate(ids, attention_mask=mask, generation_config=trainer.generation_config)
    ends = torch.isin(made[:, width:], torch.tensor(trainer.generation_config.eos_token_id).to(policy.device))
    length = torch.where(ends.any(1), ends.int().argmax(1) + 1, ends.shape[1]).tolist()
    return [turn[:end] for turn, end in zip(made[:, width:].tolist(), length, strict=True)]


def load(args: Args, start: Path) -> Policy:
    """The start, with all that is frozen in the precision of the layers, as TRL's users have it: to leave the head in float32
    would have autocast round it once a token."""
    policy = load_policy(start, "cpu", args.dtype)
    for parameter in policy.model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(policy.dtype)
    return policy


class _Paced(TrainerCallback):
    """A step is all that happens from the end of one to the end of the next."""

    def __init__(self, pace: Callable[[], None]):
        self.pace, self.logs = pace, {}

    def on_train_begin(self, args, state, control, **rest):
        self.pace()

    def on_step_end(self, args, state, control, **rest):
        self.pace()

    def on_log(self, args, state, control, logs=None, **rest):
        self.logs |= logs


def train(
    args: Args, policy: Policy, rows: list[dict], pace: Callable[[], None], tally: Tally, at_once: int = 0,
    ends: StopChecker | None = None, **how,
) -> dict:  # fmt: skip
    """All of TRL's training steps.

    Args:
        at_once: episodes in each pass of an update; all, if 0.
        ends: cuts the turns that TRL itself samples.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    env = make_envs(args.env, args.env_kwargs, "train", 1).envs[0]
    turns = max(task.max_turns for task in getattr(env, "tasks", {"": env}).values())
    paced, layers = _Paced(pace), _precision(policy)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=policy.device.type == "cpu", bf16=policy.dtype == torch.bfloat16,
            gradient_checkpointing=False, disable_dropout=True, num_generations=args.group_size, shuffle_dataset=False,
            per_device_train_batch_size=at_once or args.episodes, generation_batch_size=args.episodes,
            gradient_accumulation_steps=args.episodes // (at_once or args.episodes),
            max_steps=args.rounds, seed=args.seed, temperature=1.0, max_tool_calling_iterations=turns - 1,
            generation_kwargs={"max_new_tokens": args.max_new_tokens}, max_completion_length=2048,  # of all turns
            beta=0.0, loss_type="dapo", epsilon=0.2, epsilon_high=0.28, scale_rewards="none",
            learning_rate=args.lr, lr_scheduler_type="constant", optim="adamw_torch", adam_beta1=0.9, adam_beta2=0.95,
            weight_decay=0.0, max_grad_norm=1.0, dataloader_pin_memory=False,
            logging_steps=args.rounds, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            policy.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer,
            callbacks=[paced], **how,
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        if ends is not None:
            cut_turns(trainer, ends)
        trainer.train()
    return {
        "episodes": tally.episodes,
        "turns": tally.turns / tally.episodes,
        "policy_tokens": paced.logs["completions/mean_length"],
        "return": paced.logs["reward"],
        "zero_std_groups": tally.zero_std_groups * args.group_size / tally.episodes,
        "trained": sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"]),
        "layers": " and ".join(sorted(layers)),
    }


def _precision(policy: Policy) -> set[str]:
    """Gets the names of the types of what a layer puts out, when sampling and when training."""
    seen: set[str] = set()
    layer = next(module for module in policy.model.base_model.modules() if isinstance(module, torch.nn.Linear))
    layer.register_forward_hook(lambda module, given, out: seen.add(str(out.dtype).removeprefix("torch.")))
    return seen
