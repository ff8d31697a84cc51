"""An agent over the `openai` client, trained as it is: the policy answers at the endpoint that the client calls.

`solve` imports nothing of ours; it could talk to any API. GRPO trains the tiny policy in it on MiniWiki's questions, which the
environment scores. It prints what the rollouts were like, and the table of the run.

    python examples/openai_agent.py [--quick]

Or from the folder examples: python -m trainers.grpo --agent openai_agent:solve
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


def solve(task, client):
    """Search until there is an answer, four times at most."""
    search = task.tools[0]
    messages = [{"role": "system", "content": task["instructions"]}, {"role": "user", "content": task["question"]}]
    for _ in range(5):
        reply = client.chat.completions.create(model="policy", messages=messages, stop=["</search>", "</answer>"])
        said = reply.choices[0].message.content or ""
        action, _, text = said.rpartition("<")[2].partition(">")
        if action == "answer":
            return text
        if action != "search":
            return re.sub(r"<[^>]*>", "", said)  # no action: what there is
        messages.append({"role": "assistant", "content": said})
        found = search(query=text.strip())
        messages.append({"role": "user", "content": f"<information>\n{found}\n</information>"})
    return ""  # no answer


def main(out: str = "runs/openai-agent", quick: bool = False) -> None:
    grpo.main(grpo.Args(env="MiniWiki", agent=f"{__name__}:solve", out=Path(out), **(QUICK if quick else {})))
    lines = [line for line in read_metrics(Path(out) / "metrics.jsonl") if "train/rows" in line]
    print("rows an episode:", [line["train/rows"] for line in lines])
    print("calls of tools:", [round(line["train/calls"], 2) for line in lines])
    print("edited turns:", sum(line["train/edits"] for line in lines))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
