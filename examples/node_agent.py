"""Train an agent that is a command, unchanged: [`agent.js`](agent.js), run by node.

The command finds the policy by OPENAI_BASE_URL and OPENAI_API_KEY, gets its task as JSON on stdin, and prints its answer. If it
fails, or takes too long between its calls, only its episode fails. The example prints the table and the share of failed episodes.

    python examples/node_agent.py [--quick]
"""

import sys
from pathlib import Path

from trainers import grpo
from trainers.runtime.progress import read_metrics

COMMAND = f"node {Path(__file__).with_name('agent.js')}"
QUICK = dict(
    updates=1, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2, eval_every=9,
    eval_questions=2, final_questions=2, env_kwargs={"entities": 150, "questions": 100},
)  # fmt: skip


def main(out: str = "runs/node-agent", quick: bool = False) -> None:
    grpo.main(grpo.Args(env="MiniWiki", agent=COMMAND, out=Path(out), **(QUICK if quick else {})))
    lines = [line for line in read_metrics(Path(out) / "metrics.jsonl") if "train/failed" in line]
    print("episodes that failed:", [line["train/failed"] for line in lines])
    print("turns:", [round(line["train/turns"], 2) for line in lines])


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
