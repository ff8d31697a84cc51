"""TRL's `GRPOTrainer` at the work of `benchmarks.training.trl_cpu`, in the two ways that it has for episodes of several turns.

``environment_factory`` plays each episode in an object whose methods are tools, and reads their calls out of what the
model writes: see `benchmarks.training.trl_environment`. ``rollout_func`` leaves the loop to the user. In both the model sees the
tokens that it sees in our own trainer.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback

from agent_envs.vector import ToolVectorEnv
from benchmarks.training.race import Pace
from benchmarks.training.trl_args import Args
from benchmarks.training.trl_environment import CALLS, TEMPLATE, Environment
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs.setup import make_envs


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
    policy, tally = _policy(start), Tally(args.group_size)
    policy.tokenizer.chat_template, policy.tokenizer.response_template = TEMPLATE, CALLS
    policy.tokenizer.eos_token = "</search>"  # behind the last of these in a turn TRL puts the result of its call

    def reward(completions, environments, **rest) -> list[float]:
        said = [[message for message in messages if message["role"] == "assistant"] for messages in completions]
        for turns, environment in zip(said, environments, strict=True):
            environment._finish(turns[-1])
        earned = [environment.earned for environment in environments]
        tally.add(earned, sum(map(len, said)))
        return earned

    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in args.question_seeds()]
    how = {"reward_funcs": reward, "environment_factory": partial(Environment, args.env)}
    return train(args, policy, rows, pace, tally, **how)


def rollout_func(args: Args, start: Path, pace: Pace) -> dict:
    policy, tally = _policy(start), Tally(args.group_size)
    envs = make_envs(args.env, "{}", "train", args.episodes)
    rows = [{"prompt": [{"role": "user", "content": str(seed)}]} for seed in args.question_seeds()]
    how = {"reward_funcs": lambda earned, **rest: earned, "rollout_func": player(policy, envs, tally)}
    return train(args, policy, rows, pace, tally, **how)


def player(policy: Policy, envs: ToolVectorEnv, tally: Tally) -> Callable:
    """A ``rollout_func`` over our batched environments; a prompt is the seed of a question."""

    def play(prompts, trainer) -> dict:
        observations, infos = envs.reset(seed=[int(prompt[-1]["content"]) for prompt in prompts])
        first = [policy.prompt_ids(*both) for both in zip(infos["instructions"], observations, strict=True)]
        completions, masks, earned, turns = [[] for _ in first], [[] for _ in first], [0.0] * len(first), 0
        playing = list(range(len(first)))
        while playing:
            turns += len(playing)
            said = dict(
                zip(playing, _generate(trainer, [first[i] + completions[i] for i in playing], policy), strict=True)
            )
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


def _policy(start: Path) -> Policy:
    """The start, whose turns end at the tags as our engine's do."""
    policy = load_policy(start, "cpu")
    tags = policy.tokenizer.convert_tokens_to_ids(["</search>", "</answer>"])
    policy.model.generation_config.eos_token_id = sorted({*policy.end_ids, *tags})
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
    args: Args, policy: Policy, rows: list[dict], pace: Callable[[], None], tally: Tally, at_once: int = 0, **how
) -> dict:
    """All of TRL's training steps, ``at_once`` episodes (all, if 0) in each pass of an update."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    turns = gymnasium.make(args.env).unwrapped.max_turns
    paced = _Paced(pace)
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
        trainer.train()
    return {
        "episodes": tally.episodes,
        "turns": tally.turns / tally.episodes,
        "policy_tokens": paced.logs["completions/mean_length"],
        "return": paced.logs["reward"],
        "zero_std_groups": tally.zero_std_groups * args.group_size / tally.episodes,
    }
