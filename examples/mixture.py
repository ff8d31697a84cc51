"""Train one policy on a mixture of tasks: each episode draws a task by weight, with its own tools and reward.

The tasks are questions over MiniWiki, word problems with a calculator, and bandits. For each task, the example prints the number
of episodes, the mean score of the scripted agent, and a question. Then it trains, and prints the scores of the report.

    python examples/mixture.py [--quick]

Add a task of your own by its id: {"my_task:Mine/MyTask-v0": 1}, from the folder that holds my_task.py.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import gymnasium

import agent_envs  # noqa: F401  (registers the environments)
from agent_envs.utils.scripts import roll_out
from trainers import grpo

TASKS = {
    "AgentR1/MiniWiki-v0": {"weight": 2, "kwargs": {"entities": 150, "questions": 100}},
    "AgentR1/Calculator-v0": 1,
    "AgentR1/Bandit-v0": {"weight": 1, "kwargs": {"max_turns": 1}},
}
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=4, group_size=2,
    eval_questions=4, final_questions=4,
)  # fmt: skip


def main(out: str = "runs/mixture", quick: bool = False) -> None:
    env = gymnasium.make("AgentR1/Mixture-v0", tasks=TASKS).unwrapped
    scores = defaultdict(list)
    for seed in range(40):
        last = roll_out(env, env.SCRIPTS["scripted"], seed)[-1]
        scores[last["task"]].append(last["score"])
    print(
        "scripted:",
        {task: f"{len(own)} episodes, mean score {sum(own) / len(own):.2f}" for task, own in scores.items()},
    )

    seen = {}
    for seed in range(40):
        question, info = env.reset(seed=seed)
        seen.setdefault(info["task"], question)
    for task, question in seen.items():
        print(f"{task}: {question.splitlines()[0][:100]}")

    size = QUICK if quick else {}
    kwargs = json.dumps({"tasks": TASKS})
    summary = grpo.main(grpo.Args(env="AgentR1/Mixture-v0", env_kwargs=kwargs, out=Path(out), **size))
    print("score:", {row["name"]: row["score"] for row in summary["rows"]})


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
