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

from agent_envs.plug.trl import dataset, episode_return, rollout_func
from trainers import grpo
from trainers.cold_start.start import start_policy
from trainers.comparison.intervals import mean_and_half
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluate import evaluate_policy, instances
from trainers.models.policy import Policy
from trainers.runs.logger import METRICS_FILE, read_metrics
from trainers.runs.setup import make_envs

COLORS = {"TRL": "#d55e00", "this trainer": "#0072b2"}


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
        epsilon=args.clip_low, epsilon_high=args.clip_high, scale_rewards="none", learning_rate=args.lr,
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
    """Mean over seeds with its 95 % interval for each trainer, every seed thin."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for name, found in results.items():
        curves = np.array(found)  # [seeds, points, 2]
        x, intervals = curves[0, :, 0], [mean_and_half(list(values)) for values in curves[:, :, 1].T]
        mean, half = np.array([one for one, _ in intervals]), np.array([wide or 0.0 for _, wide in intervals])
        axes.fill_between(x, (mean - half).clip(0, 1), (mean + half).clip(0, 1), color=COLORS[name], alpha=0.12, lw=0)
        for curve in curves:
            axes.plot(curve[:, 0], curve[:, 1], color=COLORS[name], lw=0.8, alpha=0.4)
        label = f"{name}, mean of {len(curves)} seeds" if len(curves) > 1 else name
        axes.plot(x, mean, color=COLORS[name], lw=2.2, label=label)
    axes.set_title("MiniWiki: GRPO in TRL and in this trainer", loc="left", weight="bold")
    axes.set(xlabel="Episodes in training", ylabel="Held-out exact match", ylim=(0, 1), xlim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    FigureCanvasAgg(figure).print_png(file)


def main(args: Args) -> dict[str, list]:
    results: dict[str, list] = {name: [] for name in COLORS}
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
