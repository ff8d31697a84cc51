"""Resume a stopped run from its latest checkpoint, as if it had never stopped.

One run makes four updates without a stop; another one makes two, and two more after it is resumed. On one thread, both end with
the same metrics, to the last digit. A checkpoint holds weights, optimizer and random state; questions depend on seed and update.

    python examples/resume.py [--quick]

From the command line: python -m trainers.grpo --resume runs/resume/halves --updates 4. Ctrl-C (or SIGTERM) finishes the current
update and saves it: docs/reliability.md.
"""

import json
import sys
from pathlib import Path

import torch

from trainers import grpo
from trainers.runtime.progress import read_metrics

SMALL = json.dumps({"entities": 150, "questions": 100})
QUICK = dict(
    env_kwargs=SMALL, cold_start_steps=3, questions_per_update=2, group_size=4, eval_questions=2, final_questions=2,
    max_new_tokens=8,
)  # fmt: skip


def main(out: str = "runs/resume", quick: bool = False) -> None:
    torch.set_num_threads(1)  # with several threads, the order of sums can differ
    size = (QUICK if quick else {}) | {"seed": 0, "save_every": 2}
    whole, halves = Path(out) / "whole", Path(out) / "halves"
    grpo.main(grpo.Args(out=whole, updates=4, **size))

    grpo.main(grpo.Args(out=halves, updates=2, **size))
    print("saved:", sorted(path.name for path in halves.glob("checkpoint-*")))
    grpo.main(grpo.Args(resume=halves, updates=4, **size))

    kept = "train/return", "policy/grad_norm", "policy/loss"
    for name, folder in (("at once", whole), ("resumed", halves)):
        last = read_metrics(folder / "metrics.jsonl")[-1]
        print(f"{name}: update {last['step']}", {key: last[key] for key in kept if key in last})
    weights = [(folder / "checkpoint-4" / "model.safetensors").read_bytes() for folder in (whole, halves)]
    print("the same weights:", weights[0] == weights[1])


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
