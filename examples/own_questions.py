r"""Your own questions and corpus: nine questions about a town and ten passages, in files as you would write them.

It prints where the questions come from and how they are split, an episode of an agent that knows the answer, and the table
after training. With so few questions that shows that everything runs, and no more: docs/own_data.md says what is sensible.

    python examples/own_questions.py            # minutes on a CPU: a tiny policy is made and taught first
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
    "name": "Tarn",  # what reports call it
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
