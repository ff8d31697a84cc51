"""The service desk of a shop: functions that change a state, a policy to obey, and a customer who wants something."""

import json
import random
import re
from collections.abc import Hashable
from typing import Any

from agent_envs.generators.instances import check_choice, choose_instance, draw
from agent_envs.generators.shop.conduct import Conduct
from agent_envs.generators.shop.requests import DIFFICULTIES, make_request
from agent_envs.generators.shop.service import POLICY, TOOLS, Shop
from agent_envs.rewards import AtEnd, Metric, Reward
from agent_envs.tasks.answering import ANSWER_REWARD, call
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point


def _look_up(text: str) -> Turn:
    found = re.search(r"(?:this is|my name is) (\w+ \w+)\D+(\d+)", text)
    assert found is not None  # every request names its customer
    return call("find_customer", name=found[1], postcode=found[2])


def guess(env: ToolEnv, rng: random.Random) -> Script:
    """Find the customer, then cancel a random order or hand it over."""
    found = yield _look_up(env.first_observation)
    order = rng.choice(re.findall(r"O\d+", found) or ["O0"])
    if rng.random() < 0.5:
        yield call("transfer", order_id=order, reason="already shipped")
    else:
        yield call("cancel_order", order_id=order)
        yield call("confirm")
    yield Turn(answer="Done.")


def heuristic(env: ToolEnv, rng: random.Random) -> Script:
    """Serve cancellations and new addresses of orders that are named by number; hand over what the shop refuses."""
    message = env.first_observation
    yield _look_up(message)
    for wish in re.split(r"(?<=[.!]) ", message):
        order = re.search(r"O\d+", wish)
        address = re.search(r"(?:to|say) (\d+ \w+ \w+, \w+)", wish)
        if not order or not (address or "cancel" in wish.lower()):
            continue
        if address:
            found = yield call("change_order_address", order_id=order[0], address=address[1])
        else:
            found = yield call("cancel_order", order_id=order[0])
            if "Prepared" in found:
                found = yield call("confirm")
        if "only pending orders" in found:
            yield call("transfer", order_id=order[0], reason="already shipped")
    yield Turn(answer="Done.")


def oracle(env: "APIEnv", rng: random.Random) -> Script:
    """Make the calls that the request was generated from, one a turn: some formats and models write no more."""
    for one in env.request.calls:
        yield Turn(calls=(one,))
    yield Turn(answer="It is done.")


class APIEnv(ToolEnv):
    """Serve a customer of a shop through its functions, and obey its policy.

    A message holds one to three wishes of 18 kinds. A wish that the policy forbids must be handed to a colleague with the
    right reason. Calls that move money take effect after ``confirm``. An answer ends the episode; its text does not count.

    Modelled on τ-bench (Yao et al., arXiv 2406.12045) and BFCL's stateful functions, without a simulated user.

    The episode is a success if its calls leave the shop in the right state and none broke the policy. The customer must
    be found before any other call. Other customers' records must not be written to, and only values that the request
    names may change. A wrong value in the right place can still be corrected.

    A digest of the request decides the split.

    Args:
        split: ``"train"`` or ``"validation"``.
        difficulty: ``"easy"`` (one wish, orders named by number), ``"normal"`` (one or two wishes; orders often
            described by their items) or ``"hard"`` (two or three wishes).
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance`` and ``kinds`` (of wishes). Every step has ``progress``,
    the share of the values to change that are right. ``wrong_writes`` counts the records written to against the request
    or the policy, and ``broken_rules`` names the broken rules. The last step adds ``success``.

    ``reset(options={"instance": n})`` picks an instance.
    """

    # No penalty for repeats: a second confirm is as valid as the first.
    REWARD = Reward(
        **{name: term for name, term in ANSWER_REWARD.items() if name != "repeat"},
        wrong=(-0.1, AtEnd(Metric("wrong_writes"))),
    )
    SCRIPTS = {"random": guess, "scripted": heuristic, "oracle": oracle}  # noqa: RUF012

    def __init__(self, split: str = "train", difficulty: str = "normal", max_turns: int = 20, **common: Any):
        check_choice("split", split)
        check_choice("difficulty", difficulty, DIFFICULTIES)
        self.split, self.difficulty = split, difficulty
        self.shop = Shop()
        tools = [FunctionTool(getattr(self.shop, name), batch_key=self.shop) for name in TOOLS]
        super().__init__(tools, instructions=POLICY, max_turns=max_turns, **common)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options)
        key = f"api:{self.difficulty}:{number}"
        self.request = draw(lambda rng: make_request(rng, self.difficulty), self.split, key)
        self.conduct = Conduct(self.request)
        self.shop.load(self.request.state, watch=self.conduct)
        info = {"source": "generated", "split": self.split, "instance": number, "kinds": list(self.request.kinds)}
        return self.request.text, info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        state, broken = self.shop.state, self.conduct.broken
        metrics = {"progress": self.conduct.progress(state)}
        metrics["wrong_writes"] = float(len(self.conduct.wrong_records(state)))
        if done:
            metrics["success"] = float(turn.answer is not None and state == self.request.goal and not broken)
        return TurnOutcome(metrics, {"broken_rules": list(broken)})

    def anchor(self) -> Hashable:
        """The results of the shop's functions, and its state: two changes of one value may come in either order."""
        return super().anchor(), json.dumps(self.shop.state, sort_keys=True)


make_vector = vector_entry_point(APIEnv)
