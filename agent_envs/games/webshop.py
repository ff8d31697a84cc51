"""WebShop's own environment (Yao et al., arXiv 2207.01206), made reproducible."""

import contextlib
import random
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

_GOAL_SEED = 233  # WebShop shuffles its goals with this seed, but draws the prices in them earlier, without a seed
_sessions = count()


class WebShopGame:
    """One customer of a shop. All customers of this process share the products and the search engine.
    It has the text of its ``page``, whether that ``has_search_bar``, and the ``elements`` that can be clicked. A purchase is
    ``bought``, with a ``score`` in [0, 1]. ``count`` is the number of goals."""

    def __init__(self, num_products: int | None, human_goals: bool):
        server = _server(num_products, human_goals)
        self.count = len(server.goals)
        self._env = _make_env(server=server, session_prefix=f"{next(_sessions)}-")

    def reset(self, instance: int) -> None:
        """Start with goal number ``instance``, from 0 to ``count`` - 1."""
        self._env.server.user_sessions.pop(self._env.session, None)  # WebShop keeps all of them
        self.page = self._env.reset(session=instance)[0]
        self.bought, self.score = False, 0.0
        self._update()

    def step(self, action: str) -> None:
        """Do ``search[keywords]`` or ``click[element]``."""
        self.page, reward, done, _ = self._env.step(action)
        self.bought, self.score = bool(done), min(float(reward), 1.0)  # more options than wanted give more than 1 there
        self._update()

    @property
    def goal(self) -> dict[str, Any]:
        """The goal of the customer: ``asin`` and ``name`` of the product, ``goal_options`` and more."""
        return self._env.server.user_sessions[self._env.session]["goal"]

    def _update(self) -> None:
        offered = self._env.get_available_actions()
        self.has_search_bar = bool(offered["has_search_bar"]) and not self.bought
        # Searching has its own action, and WebShop cannot read a click on an element with brackets in it.
        offered = [] if self.bought else offered["clickables"]
        self.elements = [one for one in offered if one.strip() and one != "search" and not set(one) & set("[]")]


@cache
def _server(num_products: int | None, human_goals: bool):
    try:
        return _make_env(num_products=num_products, human_goals=human_goals).server
    except FileNotFoundError as error:
        raise FileNotFoundError(f"WebShop's products are missing ({error}): run its setup.sh") from error


def _make_env(**arguments: Any):
    from web_agent_site.envs import WebAgentTextEnv  # WebShop's package, optional

    with _private_random_state(), contextlib.redirect_stdout(sys.stderr):
        return WebAgentTextEnv(observation_mode="text", **arguments)


@contextlib.contextmanager
def _private_random_state() -> Iterator[None]:
    """Keep the state of the global random generator, which WebShop draws from and seeds."""
    before = random.getstate()
    random.seed(_GOAL_SEED)
    try:
        yield
    finally:
        random.setstate(before)
