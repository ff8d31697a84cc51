"""TRL's `GRPOTrainer` learns to search by our ``rollout_func``: its learning curve beside that of our own trainer.

    pip install 'agent-r1-envs[trl]'
    python -m benchmarks.plug.trl_curve --picture docs/plug_trl.png

Both begin with the same tiny policy after the same cold start, for each seed, and take the same number of steps with the same
settings; they draw other questions. Both are measured in one way, greedily on the same held-out questions. A run that its
folder already holds is not made again. Writes results.json and the picture.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from agent_envs.integrations.trl import dataset, episode_return, rollout_func
from trainers import grpo
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.report import figures
from trainers.evaluation.evaluator import evaluate_policy, instances
from trainers.factory import make_envs
from trainers.models.policy import Policy
from trainers.runtime.progress import METRICS_FILE, read_metrics
from trainers.tiny.cold_start import start_policy

SIDES = ("this trainer", "TRL")


@dataclass(kw_only=True)
class Args:
    """Learn MiniWiki with TRL, and with our trainer."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of each trainer for each."""
    updates: int = 10
    """Steps of each run."""
    eval_every: int = 1
    """Steps between evaluations."""
    eval_questions: int = 200
    """Held-out questions of an evaluation."""
    out: Path = Path("runs/trl-curve")
    """Folder of the runs and results."""
    picture: Path | None = None
    """Where to draw the curves; by default curves.png in that folder."""

    def of_ours(self, seed: int) -> grpo.Args:
        """The arguments of our trainer, which TRL's follow."""
        return grpo.Args(
            seed=seed, updates=self.updates, eval_every=self.eval_every, eval_questions=self.eval_questions,
            final_questions=1, out=self.out / f"ours-{seed}-{self.updates}",
        )  # fmt: skip


def learn_ours(args: grpo.Args) -> list[tuple[int, float]]:
    """The curve of one run of our trainer: (episodes so far, held-out exact match)."""
    assert args.out is not None
    if not (args.out / "summary.json").exists():
        grpo.main(args)
    episodes = args.questions_per_update * args.group_size
    lines = read_metrics(args.out / METRICS_FILE)
    return [(line["step"] * episodes, line["eval/em"]) for line in lines if line.get("eval/em") is not None]


def learn_trl(args: grpo.Args) -> list[tuple[int, float]]:
    """That of TRL's, from the same start."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    assert args.out is not None
    torch.manual_seed(args.seed)
    envs, held_out = (make_envs(args.env, args.env_kwargs, split, 64) for split in ("train", "validation"))
    policy, _ = start_policy(args, envs, args.seed)
    episodes, curve = args.questions_per_update * args.group_size, list[tuple[int, float]]()

    def evaluate(step: int, model: Any) -> None:
        now = Policy(model, policy.tokenizer)
        questions = instances(held_out, args.eval_questions)
        engine = TransformersEngine(now, held_out.envs[0].stop)
        row, _ = evaluate_policy(held_out, now, engine, questions, args.max_new_tokens, "TRL")
        curve.append((step * episodes, float(row["em"])))
        print(f"TRL, seed {args.seed}, {curve[-1][0]} episodes: {curve[-1][1]:.3f}", flush=True)

    class Evaluate(TrainerCallback):
        def on_step_end(self, _args, state, control, model, **rest):
            if state.global_step % args.eval_every == 0:
                evaluate(state.global_step, model)

    config = GRPOConfig(
        output_dir=str(args.out), use_cpu=True, bf16=False, gradient_checkpointing=False, disable_dropout=True, seed=args.seed,
        max_steps=args.updates, num_generations=args.group_size, per_device_train_batch_size=episodes,
        max_completion_length=args.max_new_tokens, temperature=args.temperature, beta=0.0, loss_type="dapo",
        epsilon=args.clip_range[0], epsilon_high=args.clip_range[1], scale_rewards="none", learning_rate=args.lr,
        lr_scheduler_type="constant", optim="adamw_torch", adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0,
        max_grad_norm=args.max_grad_norm, dataloader_pin_memory=False, save_strategy="no", report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        policy.model, args=config, processing_class=policy.tokenizer, reward_funcs=episode_return,
        rollout_func=rollout_func(args.env, policy.tokenizer),
        train_dataset=dataset(args.env, args.updates * args.questions_per_update), callbacks=[Evaluate()],
    )  # fmt: skip
    evaluate(0, policy.model)
    trainer.train()
    return curve


def draw(results: dict[str, list], file: Path) -> None:
    """For each trainer the mean over seeds with its 95 % interval."""
    with figures.style():
        count = len(next(iter(results.values())))
        told = "held-out exact match; " + (f"mean of {count} seeds and 95 % interval" if count > 1 else "one seed")
        axes = figures.new_figure(3.8, "MiniWiki: GRPO in TRL and in this trainer", told).add_subplot()
        ends = []
        for look, (name, found) in enumerate(results.items()):
            curves = np.array(found)  # [seeds, points, 2]
            figures.draw_curve(axes, curves[0, :, 0], curves[:, :, 1], look)
            end = float(curves[:, -1, 1].mean())
            ends.append((end, f"{name}  {end:.2f}", figures.LOOKS[look][0]))
            axes.set_xlim(0, curves[0, -1, 0])
        axes.set(xlabel="Episodes in training", ylim=(0, 1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        figures.label_ends(axes, ends)
        figures.save(axes.figure, file)


def main(args: Args) -> dict[str, list]:
    results: dict[str, list] = {name: [] for name in SIDES}
    for seed in args.seeds:
        ours = args.of_ours(seed)
        results["this trainer"].append(learn_ours(ours))
        file = args.out / f"trl-{seed}-{args.updates}-{args.eval_every}-{args.eval_questions}.json"
        if not file.exists():
            curve = learn_trl(ours)
            file.write_text(json.dumps(curve) + "\n", encoding="utf-8")
        results["TRL"].append(json.loads(file.read_text(encoding="utf-8")))
    (args.out / "results.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
    draw(results, args.picture or args.out / "curves.png")
    print(json.dumps(results))
    return results


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
