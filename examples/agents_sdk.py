"""Train an agent of the OpenAI Agents SDK, unchanged. Needs pip install openai-agents.

The SDK requests turns by the Responses API, with the tool as a function. A model that calls functions learns from all of its
turns. The example prints how many rows and policy calls the training episodes had: a conversation that grows is one row.

    python examples/agents_sdk.py                # Qwen3-0.6B
    python examples/agents_sdk.py --quick        # the tiny policy, which calls no functions, on a CPU, in seconds
"""

import sys
from pathlib import Path

from trainers import grpo
from trainers.episodes.records import EPISODES_FILE, read_episodes

LARGE = dict(model="Qwen/Qwen3-0.6B", lr=1e-6, dtype="bfloat16", max_new_tokens=512, questions_per_update=8, updates=40)
QUICK = dict(
    updates=1, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2, eval_every=9,
    eval_questions=2, final_questions=2, env_kwargs={"entities": 150, "questions": 100},
)  # fmt: skip


async def solve(task, client):
    """Let the SDK's loop search and answer, in five turns at most."""
    from agents import Agent, MaxTurnsExceeded, OpenAIResponsesModel, RunConfig, Runner, function_tool

    @function_tool
    def search(query: str) -> str:
        """Search the encyclopedia for passages."""
        return task.tools[0](query=query)

    model = OpenAIResponsesModel(model="policy", openai_client=client)
    agent = Agent(name="searcher", instructions=task["instructions"], tools=[search], model=model)
    try:
        config = RunConfig(tracing_disabled=True)
        return (await Runner.run(agent, task["question"], max_turns=5, run_config=config)).final_output
    except MaxTurnsExceeded:
        return ""


def main(out: str = "runs/agents-sdk", quick: bool = False) -> None:
    settings = QUICK if quick else LARGE
    grpo.main(grpo.Args(env="MiniWiki", agent=f"{__name__}:solve", out=Path(out), **settings))
    episodes = [e for e in read_episodes(Path(out) / EPISODES_FILE) if e["phase"] == "training"]
    print("rows of an episode:", sorted({int(e["metrics"]["rows"]) for e in episodes}))
    print("calls of the policy:", sorted({len(e["turns"]) for e in episodes}))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
