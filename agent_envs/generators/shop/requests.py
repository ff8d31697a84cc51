"""The messages of customers to the shop of `service`, with the calls that serve them and the state these lead to."""

import random
from dataclasses import dataclass
from typing import Any

from agent_envs.generators import Redraw
from agent_envs.generators.shop.data import ShopState
from agent_envs.generators.shop.draft import Draft
from agent_envs.generators.shop.service import Shop
from agent_envs.generators.shop.wishes import WISH_KINDS
from agent_envs.types import ToolCall

WISHES = {"easy": (1, 1), "normal": (1, 2), "hard": (2, 3)}
DIFFICULTIES = tuple(WISHES)


@dataclass(frozen=True, slots=True)
class Request:
    """A message to the service desk. ``calls`` serve it: they turn ``state`` into ``goal``. ``kinds``: of its wishes;
    ``customer``: the id of who wrote it."""

    text: str
    state: ShopState
    goal: ShopState
    calls: tuple[ToolCall, ...]
    kinds: tuple[str, ...]
    customer: str


def make_request(rng: random.Random, difficulty: str = "normal") -> Request:
    """A request of one wish when easy, one or two when normal, two or three when hard; only easy ones always name orders
    by number. Some wishes are against the policy."""
    while True:
        draft = Draft(rng, by_number=difficulty == "easy" or rng.random() < 0.3)
        kinds = rng.sample(tuple(WISH_KINDS), rng.randint(*WISHES[difficulty]))
        if {"account_address", "place"} <= set(kinds):  # the address of the new order would be ambiguous
            continue
        record = draft.state["customers"][draft.customer]
        draft.add_call("find_customer", name=record["name"], postcode=record["postcode"])
        try:
            wishes = [WISH_KINDS[kind](draft) for kind in kinds]
            texts = [wish() for wish in wishes]  # worded once all orders are there, so that descriptions are unique
            goal = _apply_calls(draft)
        except (Redraw, ValueError):
            continue
        if goal == draft.state:
            continue
        text = _write_message(draft, record, texts)
        return Request(text, draft.state, goal, tuple(draft.calls), tuple(kinds), draft.customer)


def _apply_calls(draft: Draft) -> ShopState:
    shop = Shop()
    shop.load(draft.state)
    for call in draft.calls:
        getattr(shop, call.name)(**call.arguments)
    return shop.state


def _write_message(draft: Draft, record: dict[str, Any], texts: list[str]) -> str:
    hello = draft.rng.choice(("Hello", "Hi", "Good morning", "Good afternoon"))
    who = draft.rng.choice(("this is {name}, postcode {postcode}.", "my name is {name} and my postcode is {postcode}."))
    links = ["", draft.rng.choice(("Also, ", "Besides, ", "Then: ")), draft.rng.choice(("Finally, ", "And lastly, "))]
    sentences = [
        link + (text[0].lower() + text[1:] if link and not text.startswith("I ") else text)
        for link, text in zip(links, texts, strict=False)
    ]
    return " ".join(
        [f"{hello}, {who.format(**record)}", *sentences, draft.rng.choice(("Thank you!", "Thanks.", "Many thanks."))]
    )
