"""TRL's `GRPOTrainer` on the work of our trainer: with our adapter's ``rollout_func``, our trainer's loss and settings.

A group whose episodes all have the same return has no gradient: our trainer leaves it out of its passes, TRL does not. A LoRA
adapter is already in the model that TRL's trainer gets, so no ``peft_config`` is needed.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch

from agent_envs.integrations.episode import Episode
from agent_envs.integrations.trl import episode_return, rollout_func
from trainers.models.policy import Policy


@dataclass(kw_only=True)
class Work:
    """Training steps of ``episodes`` episodes: one group for each of ``seeds``. A micro-batch has ``at_once`` episodes."""

    env: str
    env_kwargs: str
    seeds: list[int]
    episodes: int
    group_size: int
    max_new_tokens: int
    at_once: int
    lr: float

    @property
    def rounds(self) -> int:
        return len(self.seeds) * self.group_size // self.episodes


def train(policy: Policy, work: Work, pace: Callable[[], object], reward: Callable = episode_return) -> dict:
    """Run all training steps.

    Args:
        pace: called before the first step and after each one.
        reward: one of TRL's ``reward_funcs``.

    Returns:
        Means over the episodes (tokens, return, turns, groups without a gradient), to compare the work of both sides.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Paced(TrainerCallback):
        """Calls ``pace``: a step lasts from the end of one to the end of the next."""

        logs: dict = {}  # noqa: RUF012

        def on_train_begin(self, args, state, control, **rest):
            pace()

        def on_step_end(self, args, state, control, **rest):
            pace()

        def on_log(self, args, state, control, logs=None, **rest):
            self.logs |= logs

    kwargs = {**json.loads(work.env_kwargs), "split": "train"}
    asked, paced = Episode(work.env, **kwargs), Paced()
    rows = [[{**message, "seed": seed, "split": "train"} for message in asked.start(seed)] for seed in work.seeds]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=policy.device.type == "cpu", bf16=policy.dtype == torch.bfloat16,
            gradient_checkpointing=False, disable_dropout=True, num_generations=work.group_size, shuffle_dataset=False,
            per_device_train_batch_size=work.at_once, generation_batch_size=work.episodes,
            gradient_accumulation_steps=work.episodes // work.at_once, max_steps=work.rounds, temperature=1.0,
            generation_kwargs={"max_new_tokens": work.max_new_tokens}, max_completion_length=2048,  # of all turns
            beta=0.0, loss_type="dapo", epsilon=0.2, epsilon_high=0.28, scale_rewards="none",
            learning_rate=work.lr, lr_scheduler_type="constant", optim="adamw_torch", adam_beta1=0.9, adam_beta2=0.95,
            weight_decay=0.0, max_grad_norm=1.0, dataloader_pin_memory=False,
            logging_steps=work.rounds, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            policy.model, args=config, train_dataset=Dataset.from_dict({"prompt": rows}), reward_funcs=reward,
            processing_class=policy.tokenizer, callbacks=[paced],
            rollout_func=rollout_func(work.env, policy.tokenizer, **kwargs),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    names = {"policy_tokens": "completions/mean_length", "return": "reward", "turns": "env/turns"}
    names |= {"zero_std_groups": "frac_reward_zero_std"}
    return {ours: paced.logs[theirs] for ours, theirs in names.items() if theirs in paced.logs}
