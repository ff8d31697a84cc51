"""A program of two agents that share the policy: one searches and takes notes, the other one answers from them.

Their conversations differ, so each is a separate row, and both learn from the episode's return. A search that finds something
new is rewarded at once, by `task.reward`. The example prints how many rows and policy calls the training episodes had.

    python examples/two_agents.py [--quick]
"""

import re
import sys
from pathlib import Path

from trainers import grpo
from trainers.episodes.records import EPISODES_FILE, read_episodes

QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2, env_kwargs={"entities": 150, "questions": 100},
)  # fmt: skip


def ask(client, system: str, text: str) -> str:
    """Ask the policy in the role that a system message gives it; returns its reply without tags."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
    return re.sub(r"<[^>]*>", " ", said).strip()


def search(task, client) -> str:
    """Act as the searcher: make two searches, the second with the notes of the first; returns the notes."""
    notes = ""
    for _ in range(2):
        query = ask(client, "You search. Say what for.", f"{task['question']} {notes}".strip())
        found = task.tools[0](query=query)
        if found not in notes:
            task.reward(0.05)
            notes = f"{notes}\n{found}".strip()
    return notes


def solve(task, client) -> str:
    """Act as the planner: let the searcher search, and answer from its notes."""
    notes = search(task, client)
    return ask(client, "You answer from notes.", f"Notes:\n{notes}\n\nQuestion: {task['question']}")


def main(out: str = "runs/two-agents", quick: bool = False) -> None:
    grpo.main(grpo.Args(env="MiniWiki", agent=f"{__name__}:solve", out=Path(out), **(QUICK if quick else {})))
    episodes = [e for e in read_episodes(Path(out) / EPISODES_FILE) if e["phase"] == "training"]
    print("rows of an episode:", sorted({int(e["metrics"]["rows"]) for e in episodes}))
    print("calls of the policy:", sorted({len(e["turns"]) for e in episodes}))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
