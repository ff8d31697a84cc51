r"""Your own questions and corpus: nine questions about a town and ten passages, in files as you would write them.

The example prints an episode of an agent that knows the answer, trains, and prints the source and split of the questions and the
scores. So few questions only show that everything runs: docs/own_data.md states how many are useful.

    python examples/own_questions.py            # minutes on a CPU: makes and teaches a tiny policy first
    python examples/own_questions.py --quick    # seconds, and nothing is learned

The same from the command line:

    python -m trainers.grpo --env AgentR1/QA-v0 \
        --env-kwargs '{"data": "examples/town/questions.jsonl", "corpus": "examples/town/passages.jsonl"}'
"""

import json
import sys
from pathlib import Path

import gymnasium

import agent_envs  # noqa: F401  (registers the environments)
from agent_envs.utils.scripts import roll_out
from trainers import grpo

TOWN = Path(__file__).parent / "town"
QUESTIONS = {
    "data": str(TOWN / "questions.jsonl"),
    "corpus": str(TOWN / "passages.jsonl"),  # or a folder of .txt and .md files, or index= a folder or URL
    "name": "Tarn",  # shown in reports
    "instructions": "You know the town of Tarn and its neighbours. Answer the question of a visitor.",
}
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


def main(out: str = "runs/own-questions", quick: bool = False) -> None:
    env = gymnasium.make("AgentR1/QA-v0", **QUESTIONS).unwrapped
    print(env.system_prompt, "\n")
    for turn in roll_out(env, env.SCRIPTS["oracle"], seed=3):
        print(turn["observation"], "->", turn["action"], f"  reward {turn['reward']:+.2f}")

    size = QUICK if quick else {"updates": 20}
    summary = grpo.main(grpo.Args(env="AgentR1/QA-v0", env_kwargs=json.dumps(QUESTIONS), out=Path(out), **size))
    print("questions:", summary["source"])
    print("exact match:", {row["name"]: row["em"] for row in summary["rows"]})


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
