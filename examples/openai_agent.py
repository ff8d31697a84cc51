"""Train an agent over the `openai` client, unchanged: the policy answers at the endpoint that the client calls.

`solve` imports nothing of this project, and could call any API. Its messages have the form of the environment's own rollout: the
tiny policy was taught that form, and so can learn MiniWiki here too. The example prints the table and statistics of the rollouts.

    python examples/openai_agent.py [--quick]

Or: python -m trainers.grpo --agent examples.openai_agent:solve
"""

import re
import sys
from pathlib import Path

from trainers import grpo
from trainers.runtime.progress import read_metrics

QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2, env_kwargs={"entities": 150, "questions": 100},
)  # fmt: skip

FORM = """In each turn you may think inside <think></think>, and then either call a tool or answer:
- <search>query</search>: search Wikipedia; returns the passages that match the query best.
- <answer>text</answer>: give the final answer, as short as possible, and finish.
Results come back inside <information></information>. Use one hop at a time."""
WRONG = "Invalid turn: There is no action. Write <search>query</search> or <answer>text</answer>."


def solve(task, client):
    """Search until there is an answer, in five turns at most."""
    search = task.tools[0]
    messages = [
        {"role": "system", "content": f"{task['instructions']} {FORM}"},
        {"role": "user", "content": task["question"]},
    ]
    for _ in range(5):
        reply = client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        actions = re.findall(r"<(search|answer)>\s*([^<]*[^<\s])\s*</\1>", said)
        kind, text = actions[0] if len(actions) == 1 else ("none", "")
        if kind == "answer":
            return text
        if kind == "search":
            found = search(query=text)
        else:
            found = WRONG
            task.reward(-0.1)
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": f"<information>{found}</information>"})
    return ""  # no answer


def main(out: str = "runs/openai-agent", quick: bool = False) -> None:
    grpo.main(grpo.Args(env="MiniWiki", agent=f"{__name__}:solve", out=Path(out), **(QUICK if quick else {})))
    lines = [line for line in read_metrics(Path(out) / "metrics.jsonl") if "train/rows" in line]
    print("rows an episode:", [line["train/rows"] for line in lines])
    print("calls of tools:", [round(line["train/calls"], 2) for line in lines])
    print("edited turns:", sum(line["train/edits"] for line in lines))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
