"""Your own tool: a Python function with type hints and a docstring, in an environment of twenty lines.

The agent is asked for the distance between two towns. Arguments that do not fit the hints never reach the function, and a
`ToolError` is reported to the agent as its mistake. The example prints a call with such an error and a right one, then trains.

    python examples/own_tool.py [--quick]
"""

import sys
from pathlib import Path

import gymnasium

from agent_envs.rewards import AtEnd, Invalid, Metric, PerTurn, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import ToolError
from agent_envs.types import ToolCall, Turn, TurnOutcome
from trainers import grpo

TOWNS = {"Tarn": 0, "Osk": 7, "Brill": 12, "Amber": 31, "Noor": 44}  # kilometres along the river
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


def distance(a: str, b: str) -> str:
    """tells how far two towns are apart, in kilometres."""
    if unknown := {a, b} - set(TOWNS):
        raise ToolError(f"there is no town {unknown.pop()}; there are {', '.join(TOWNS)}")
    return f"{abs(TOWNS[a] - TOWNS[b])} km"


def scripted(env, rng, share=1.0):  # with "random", demonstrations for the tiny policy
    said = yield Turn(calls=(ToolCall("distance", {"a": env.towns[0], "b": env.towns[1]}),))
    yield Turn(answer="".join(filter(str.isdigit, said)) if rng.random() < share else "7")


class HowFar(ToolEnv):
    REWARD = Reward(right=(1.0, AtEnd(Metric("success"))), time=(-0.01, PerTurn()), invalid=(-0.1, Invalid()))
    SCRIPTS = {"random": lambda env, rng: scripted(env, rng, 0.0), "scripted": scripted}  # noqa: RUF012

    def __init__(self, **common):
        super().__init__([distance], instructions="Answer with a number of kilometres.", **common)

    def begin(self, options):
        self.towns = self.np_random.choice(list(TOWNS), 2, replace=False).tolist()
        return f"How far is it from {self.towns[0]} to {self.towns[1]}?", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"success": float(turn.answer == distance(*self.towns).removesuffix(" km"))})


def main(out: str = "runs/own-tool", quick: bool = False) -> None:
    gymnasium.register("Mine/HowFar-v0", entry_point=HowFar)
    env = HowFar()
    print(env.reset(seed=0)[0])
    for turn in ('<distance>{"a": "Tarn", "b": "Rome"}</distance>', '<distance>{"a": "Tarn", "b": "Osk"}</distance>'):
        print(turn, "->", env.step(turn)[0])
    summary = grpo.main(grpo.Args(env="Mine/HowFar-v0", out=Path(out), **(QUICK if quick else {})))
    print("success:", {row["name"]: row["success"] for row in summary["rows"]})


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
