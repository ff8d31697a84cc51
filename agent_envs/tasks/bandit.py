"""A bandit whose arms are words: RAGEN's test of reasoning under risk."""

import random
import re
from typing import Any

from agent_envs.games.bandit import draw_arms
from agent_envs.generators.instances import check_choice, make_noise_rng
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point


def _read(env: ToolEnv) -> tuple[str, ...]:
    found = re.search(r"The arms are (\w+) and (\w+)\.", env.first_observation)
    assert found is not None  # as `BanditEnv.begin` writes it
    return found.groups()


def pull_any(env: ToolEnv, rng: random.Random) -> Script:
    """Pull a random arm."""
    yield Turn(answer=rng.choice(_read(env)))


def pull_first(env: ToolEnv, rng: random.Random) -> Script:
    """Pull the arm that is named first: as good as chance."""
    yield Turn(answer=_read(env)[0])


def pull_risky(env: "BanditEnv", rng: random.Random) -> Script:
    """Pull the arm with the higher mean, whatever it pays in this episode."""
    yield Turn(answer=env.arms.risky)


class BanditEnv(ToolEnv):
    """Pull one of two arms, by name, once.

    One arm always pays 0.1. The other, with the more daring name, pays 1 with probability 0.25, else nothing.

    After RAGEN (arXiv 2504.20073). Unlike there, names come in families ordered from prudent to daring (Tortoise, Ox,
    Wolf, Dragon), and any two of a family make a pair. A word is risky against one partner and safe against another.

    Args:
        split: ``"train"`` or ``"validation"``. They share no word.
        max_turns: more than 1 forgives malformed turns; the last turn ends the game in any case.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split`` and ``arms``. The step adds the metrics ``payoff``, ``expected`` (the
    mean payoff of the arm) and ``success`` (1 for the risky arm), and ``arm``, empty if the answer is neither. The
    reward is the payoff; with the preset ``"expected"`` it is the mean payoff.

    ``reset(seed=s, options={"noise_seed": i})`` gives the same arms for every i, but different payoffs. Give rollouts
    that are compared with each other different noise seeds.
    """

    REWARD = Reward(payoff=(1.0, Metric("payoff")))
    PRESETS = {"expected": Reward(expected=(1.0, Metric("expected")))}  # noqa: RUF012
    TAKES_NOISE_SEED = True
    SCRIPTS = {"random": pull_any, "scripted": pull_first, "oracle": pull_risky}  # noqa: RUF012

    def __init__(self, split: str = "train", max_turns: int = 1, **common: Any):
        check_choice("split", split)
        self.split = split
        task = (
            "Two arms of a bandit pay in different ways, each in keeping with what its name stands for. Work out from the "
            "names which one pays more on average, and give its name as the answer. You pull once."
        )
        super().__init__((), instructions=task, max_turns=max_turns, **common)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        instance = int(self.np_random.integers(2**63))
        self.arms = draw_arms(random.Random(instance), self.split)
        self._noise = make_noise_rng(instance, options)
        first, second = self.arms.names
        info = {"source": "generated", "split": self.split, "arms": [first, second]}
        return f"The arms are {first} and {second}.", info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        requested = (turn.answer or "").strip().casefold()
        arm = next((name for name in self.arms.names if name.casefold() == requested), "")
        metrics = {"payoff": 0.0, "expected": 0.0, "success": float(arm == self.arms.risky)}
        if arm:
            metrics |= {"payoff": self.arms.pull(arm, self._noise), "expected": self.arms.expected(arm)}
        over = len(self.history.turns) + 1 >= self.max_turns  # the last turn is part of the game: no truncation
        return TurnOutcome(metrics, {"arm": arm}, terminated=over)

    def menu(self) -> dict[str, bool]:
        """The turns that pull an arm, in the order in which the arms are named, see `agent_envs.integrations.Menu`."""
        return {self.format.write(Turn(answer=name)): True for name in self.arms.names}


make_vector = vector_entry_point(BanditEnv)
