"""Tools of an MCP server, mounted with the official client: pip install -e '.[mcp]'.

The server is servers/telephone_book.py. The environment starts it as a separate program and gives its tool to the agent; a server
that runs elsewhere is mounted by its URL. The example prints what the agent reads, calls the tool once, then trains.

    python examples/mcp_tools.py [--quick]
"""

import re
import sys
from pathlib import Path

import gymnasium

from agent_envs.rewards import AtEnd, Invalid, Metric, PerTurn, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.tools.mcp import mount
from agent_envs.types import ToolCall, Turn, TurnOutcome
from trainers import grpo

SERVER = Path(__file__).parent / "servers" / "telephone_book.py"
BOOK = {name: str(200 + 37 * i) for i, name in enumerate(("Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hope"))}
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


def scripted(env, rng, reads=True):  # with "random", demonstrations for the tiny policy
    said = yield Turn(calls=(ToolCall("number_of", {"name": env.name}),))
    yield Turn(answer=re.findall(r"\d+", said)[0] if reads else rng.choice(list(BOOK.values())))


class Operator(ToolEnv):
    REWARD = Reward(right=(1.0, AtEnd(Metric("success"))), time=(-0.01, PerTurn()), invalid=(-0.1, Invalid()))
    SCRIPTS = {"random": lambda env, rng: scripted(env, rng, False), "scripted": scripted}  # noqa: RUF012

    def __init__(self, **common):
        tools = mount([sys.executable, str(SERVER)])  # one server for all environments of the process
        super().__init__(tools, instructions="You are a telephone operator.", **common)

    def begin(self, options):
        self.name = str(self.np_random.choice(list(BOOK)))
        return f"Which number has {self.name}?", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"success": float(turn.answer == BOOK[self.name])})


def main(out: str = "runs/mcp-tools", quick: bool = False) -> None:
    gymnasium.register("Mine/Operator-v0", entry_point=Operator)
    env = Operator()
    print(env.system_prompt, env.reset(seed=0)[0], sep="\n\n")
    print(env.step(f"<number_of>{env.name}</number_of>")[0])
    summary = grpo.main(grpo.Args(env="Mine/Operator-v0", out=Path(out), **(QUICK if quick else {})))
    print("success:", {row["name"]: row["success"] for row in summary["rows"]})


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
