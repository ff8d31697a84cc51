"""Your own reward term, beside those of the task: a function of the agent's turn and the task's metrics.

MiniWiki rewards the right answer; here an answer of more than four words also has a penalty. The example prints the reward terms,
the reward of a short and a long answer, and the mean of the new term per update.

    python examples/own_reward.py [--quick]

To change the weights of existing terms you need no code: --env-kwargs '{"rewards": {"evidence": 0.3, "progress": 0}}'.
"""

import json
import sys
from pathlib import Path

import gymnasium

from agent_envs.rewards import Reward
from agent_envs.tasks.qa import QAEnv
from agent_envs.types import TurnContext
from trainers import grpo
from trainers.runtime.progress import read_metrics

SMALL = {"entities": 150, "questions": 100}
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


def wordy(context: TurnContext) -> float:
    """Return 1 for an answer of more than four words. A term sees only turns and metrics, never tool output."""
    return float(len((context.turn.answer or "").split()) > 4)


class Brief(QAEnv):
    """MiniWiki, answered briefly."""

    REWARD = Reward(**QAEnv.REWARD, brief=(-0.2, wordy))


gymnasium.register("Mine/Brief-v0", entry_point=Brief)


def main(out: str = "runs/own-reward", quick: bool = False) -> None:
    env = Brief(**SMALL)
    print(env.reward, "\n")
    for words in ("", " as far as I could find out"):
        env.reset(seed=0)
        answer = env.question.answer + words
        _, reward, _, _, info = env.step(f"<answer>{answer}</answer>")
        paid = {name: round(value, 2) for name, value in info["reward_terms"].items() if value}
        print(f"{answer!r} earns {reward:+.2f}: {paid}")

    size = QUICK | {"env_kwargs": json.dumps(SMALL)} if quick else {}
    grpo.main(grpo.Args(env="Mine/Brief-v0", out=Path(out), **size))
    lines = read_metrics(Path(out) / "metrics.jsonl")
    print("paid for brevity, by update:", [round(line["reward/brief"], 3) for line in lines if "reward/brief" in line])


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
