"""Train a graph of LangGraph, unchanged. Needs pip install langgraph langchain-openai.

One node calls the policy and another one the tool, until a turn has no call. The example prints how many rows and policy calls
the training episodes had: a conversation that grows is one row.

    python examples/langgraph_agent.py                # Qwen3-0.6B
    python examples/langgraph_agent.py --quick        # the tiny policy, which calls no functions, on a CPU, in seconds
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


def solve(task):
    """Let the graph search and answer, in five turns at most."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    @tool
    def search(query: str) -> str:
        """Search the encyclopedia for passages."""
        return task.tools[0](query=query)

    model = ChatOpenAI(model="policy", base_url=task.base_url, api_key=task.api_key, max_retries=0).bind_tools([search])
    graph = StateGraph(MessagesState)
    graph.add_node("policy", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([search]))
    graph.add_edge(START, "policy")
    graph.add_conditional_edges("policy", tools_condition)
    graph.add_edge("tools", "policy")
    opening = [("system", task["instructions"]), ("user", task["question"])]
    *_, state = graph.compile().stream({"messages": opening}, {"recursion_limit": 20}, stream_mode="values")
    return state["messages"][-1].content


def main(out: str = "runs/langgraph-agent", quick: bool = False) -> None:
    settings = QUICK if quick else LARGE
    grpo.main(grpo.Args(env="MiniWiki", agent=f"{__name__}:solve", out=Path(out), **settings))
    episodes = [e for e in read_episodes(Path(out) / EPISODES_FILE) if e["phase"] == "training"]
    print("rows of an episode:", sorted({int(e["metrics"]["rows"]) for e in episodes}))
    print("calls of the policy:", sorted({len(e["turns"]) for e in episodes}))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
