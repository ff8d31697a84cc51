"""WebShop: buy what was asked for."""

import random
import re
from collections.abc import Hashable
from functools import partial
from importlib.util import find_spec
from typing import Any

from agent_envs.games.replay import Replay, menu, normalize_command, read_menu
from agent_envs.games.webshop import WebShopGame
from agent_envs.generators.instances import check_choice, choose_instance
from agent_envs.rewards import Invalid, Metric, Reward
from agent_envs.tasks.answering import call
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool, ToolError
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_SPLITS = {"train": (1500, None), "validation": (500, 1500), "test": (0, 500)}
_MENU, _BAR = "Elements", "Search bar: "
_PAGE = 12_000  # characters of a page that the agent gets to read
_KEYWORDS = 500  # characters of a search
_SPECIAL = ("<r>", "<a>", "<c>", "<q>")  # WebShop's own shortcuts: products at random, of an attribute, a category, ...


def _search(keywords: str) -> Turn:
    return call("search", keywords=normalize_command(keywords)[:_KEYWORDS].strip())


def _wish(text: str) -> str:
    """The instruction that every page repeats."""
    found = re.search(r"Instruction:(?:\s|\[SEP\])*([^][]*)", text)
    return normalize_command(found[1]) if found else ""


def _products(text: str) -> list[str]:
    """The elements that can be clicked, except those that lead back or to another page of results."""
    return [one for one in read_menu(_MENU, text) if one != "back to search" and one[0] != "<" and one[-1] != ">"]


def wander(env: ToolEnv, rng: random.Random, text: str = "") -> Script:
    """Search for a few words of the instruction, and click on random elements."""
    text = text or env.first_observation
    while True:
        if text.rpartition(_BAR)[2].startswith("yes"):
            words = _wish(env.first_observation).split() or ["shoes"]
            text = yield _search(" ".join(rng.sample(words, min(3, len(words)))))
        else:
            text = yield call("click", element=rng.choice(read_menu(_MENU, text)))


def first_result(env: ToolEnv, rng: random.Random) -> Script:
    """Follow the rule of WebShop's paper: search for the whole instruction, buy the first product without any option."""
    text = yield _search(_wish(env.first_observation))
    if not (products := _products(text)):
        yield from wander(env, rng, text)
    yield call("click", element=products[0])
    yield call("click", element="buy now")


def buyer(env: "WebShopEnv", rng: random.Random) -> Script:
    """Buy the wanted product with its options, or the first one on the last page if the search does not find it."""
    goal = env.play.game.goal
    wanted, options = goal["asin"].lower(), goal["goal_options"]
    text = yield _search(goal["name"])
    while wanted not in read_menu(_MENU, text) and "next >" in read_menu(_MENU, text):
        text = yield call("click", element="next >")
    if not (products := _products(text)):
        yield from wander(env, rng, text)
    text = yield call("click", element=wanted if wanted in products else products[0])
    for option in options.values() if isinstance(options, dict) else options:
        if normalize_command(option) in read_menu(_MENU, text):
            text = yield call("click", element=normalize_command(option))
    yield call("click", element="buy now")


class WebShopEnv(ToolEnv):
    """Buy in a web shop what the instruction asks for.

    Each turn searches or clicks. A click on ``buy now`` terminates the episode. The reward is WebShop's score of the
    purchase in [0, 1]: how well product, attributes, options and price fit the instruction.

    This is ``WebAgentTextEnv(observation_mode="text")`` of WebShop (arXiv 2207.01206). Unlike there, random prices are
    the same in every process.

    Run ``setup.sh`` of https://github.com/princeton-nlp/WebShop and put its folder on ``PYTHONPATH``; PyPI's
    ``webshop`` is another package. Tested against a stand-in for the documented interface, not against WebShop itself.

    Args:
        split: as in WebShop's baselines: goals from 1500 on are ``"train"``, 500 to 1499 ``"validation"``, 0 to 499
            ``"test"``.
        num_products: 100, 1000, 100000, or None for all; there must be an index of that size.
        human_goals: use instructions written by people, as in the paper; else they are made from the attributes.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split`` and ``instance``. Every step adds ``score``, ``bought`` and ``success``
    (a score of 1). ``reset(options={"instance": n})`` picks a goal of the split.

    Raises:
        ImportError: WebShop is missing.
        FileNotFoundError: at the first reset, which loads WebShop: its products are missing.
        ValueError: at the first reset: there are too few products for the split to have goals.
    """

    REWARD = Reward(score=(1.0, Metric("score")))
    PRESETS = {"gigpo": Reward(success=(10.0, Metric("success")), invalid=(-0.1, Invalid()))}  # noqa: RUF012  (2505.10978)
    PRIMARY_METRIC = "score"

    SCRIPTS = {"random": wander, "scripted": first_result, "oracle": buyer}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        num_products: int | None = 1000,
        human_goals: bool = False,
        max_turns: int = 15,
        **common: Any,
    ):
        check_choice("split", split, tuple(_SPLITS))
        check_choice("num_products", num_products, (100, 1000, 100_000, None))
        if find_spec("web_agent_site") is None:
            raise ImportError(
                "WebShop is not installed: clone https://github.com/princeton-nlp/WebShop, run its setup.sh and put its "
                "folder on PYTHONPATH"
            )
        self.split = split
        self.play = Replay(partial(WebShopGame, num_products, human_goals))
        task = (
            "Buy in the shop what the instruction asks for: find a fitting product, choose its options, and click on 'buy "
            f"now', which ends the task. You have {max_turns} turns."
        )
        tools = [FunctionTool(tool, batch_key=self.play) for tool in (self.search, self.click)]
        common = {"max_calls": 1, **common}
        super().__init__(tools, instructions=task, answers=False, max_turns=max_turns, **common)

    def search(self, keywords: str) -> ToolResult:
        """look for products, on a page with a search bar."""
        if not self.play.game.has_search_bar:
            raise ToolError("there is no search bar on this page; 'back to search' leads to one")
        # Brackets would end the action that WebShop reads; its search engine accepts neither lone surrogates nor "?".
        words = normalize_command(re.sub(r"[][?\ud800-\udfff]", " ", keywords))
        if not words or words.split()[0] in _SPECIAL or len(words) > _KEYWORDS:
            raise ToolError(f"give keywords, {_KEYWORDS} characters of them at most")
        return self._do(f"search[{words}]")

    def click(self, element: str) -> ToolResult:
        """click on one of the elements that are listed."""
        known = {normalize_command(one): one for one in self.play.game.elements}
        if normalize_command(element) not in known:
            raise ToolError("there is no such element on this page")
        return self._do(f"click[{known[normalize_command(element)]}]")

    def _do(self, action: str) -> ToolResult:
        self.play.step(action)
        return ToolResult(self._page())

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        first, end = _SPLITS[self.split]
        numbers = range(first, self.play.game.count)[: end and end - first]
        if not numbers:
            raise ValueError(f"with {self.play.game.count} goals there are none for {self.split!r}: use more products")
        number = choose_instance(self.np_random, options, numbers)
        self.play.reset(number)
        return self._page(), {"source": "webshop", "split": self.split, "instance": number}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        shop = self.play.game
        metrics = {"score": shop.score, "bought": float(shop.bought), "success": float(shop.score == 1.0)}
        return TurnOutcome(metrics, terminated=shop.bought)

    def _page(self) -> str:
        return f"{self.play.game.page[:_PAGE]}\n{self.state_text()}".strip()

    def anchor(self) -> Hashable:
        """The page that is shown, with what has been chosen on it."""
        return self._page()

    def state_text(self) -> str:
        shop = self.play.game
        bar = f"{_BAR}{'yes' if shop.has_search_bar else 'no'}"
        return "" if shop.bought else f"{bar}\n{menu(_MENU, shop.elements)}"


make_vector = vector_entry_point(WebShopEnv)
