"""The trainers as functions, for a notebook or a script: every command has an `Args` and a `main`.

The example trains, reads the metrics, loads the checkpoint, rolls out one episode with it turn by turn, and evaluates it.

    python examples/in_a_notebook.py [--quick]
"""

import json
import sys
from pathlib import Path

from trainers import evaluate, grpo
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.runtime.progress import read_metrics

QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


def main(out: str = "runs/notebook", quick: bool = False) -> None:
    world = json.dumps({"entities": 150, "questions": 100} if quick else {})
    args = grpo.Args(env="AgentR1/MiniWiki-v0", env_kwargs=world, out=Path(out) / "run", **(QUICK if quick else {}))

    # Train: returns what summary.json holds
    summary = grpo.main(args)
    print({row["name"]: row["em"] for row in summary["rows"]})

    # The curve: one line for each update; docs/report.md explains the names
    lines = read_metrics(args.out / "metrics.jsonl")
    print("held out:", {line["step"]: line["eval/em"] for line in lines if "eval/em" in line})

    # Roll out the checkpoint by greedy decoding: one episode, on held-out question 0
    folder = args.out / f"checkpoint-{args.updates}"
    policy, longest = evaluator.load_agent(folder)
    envs = make_envs(args.env, args.env_kwargs, "validation", 1)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    _, transcripts = evaluator.run_policy(envs, policy, engine, [0], longest)
    for turn in transcripts[0]:
        print(turn.get("observation", "")[:80], "->", turn.get("action", turn))

    # The table with baselines, also written to evaluation.md
    rows = evaluate.main(
        evaluate.Args(env_kwargs=world, checkpoint=(folder,), questions=4 if quick else 200, out=Path(out) / "table")
    )
    print([row["name"] for row in rows])


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
