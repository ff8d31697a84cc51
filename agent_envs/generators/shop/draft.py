"""The builder of a request to the shop."""

import random
from typing import Any

from agent_envs.generators import Redraw
from agent_envs.generators.shop.data import add_order, make_state, variants
from agent_envs.types import ToolCall


class Draft:
    """A request that is being built: the shop's state, the customer, and the order that the present wish is about."""

    def __init__(self, rng: random.Random, by_number: bool):
        self.rng, self.by_number = rng, by_number
        self.state = make_state(rng)
        self.customer = rng.choice(sorted(self.state["customers"]))
        self.calls: list[ToolCall] = []
        self._claimed: set[str] = set()

    def add_call(self, name: str, /, **arguments: Any) -> None:
        """Append a call of one of the shop's functions to those that serve the request."""
        self.calls.append(ToolCall(name, arguments))

    def add_order(self, status: str, *, days_ago: int = 0, products: tuple[str, ...] = ()) -> str:
        """Add an order of the customer to the shop and return its id; `items` are then those of this order.

        Raises:
            Redraw: another wish is about one of its products.
        """
        id = add_order(self.state, self.rng, self.customer, status, days_ago=days_ago, products=products)
        self.items = self.state["orders"][id]["items"]
        self.claim_products({self.name(product) for product in self.items})
        return id

    def claim_products(self, names: set[str]) -> None:
        """Reserve products, by name, for the present wish: serving two wishes about one product could change the stock that
        the second depends on.

        Raises:
            Redraw: another wish is about one of them.
        """
        if names & self._claimed:
            raise Redraw
        self._claimed |= names

    def refer_to(self, order: str, item: str = "") -> str:
        """The order by its number, or by something in it, besides ``item``, that no other order of this customer has."""
        others = {self.name(p) for id, o in self.state["orders"].items() if id != order and o["customer"] == self.customer
                  for p in o["items"]}  # fmt: skip
        unique = [
            self.name(p) for p in self.state["orders"][order]["items"] if self.name(p) not in others and p != item
        ]
        if self.by_number or not unique:
            return f"order {order}"
        status = self.state["orders"][order]["status"]
        return (
            f"my {status} order with the {unique[0]}"
            if self.rng.random() < 0.5
            else f"the order that has the {unique[0]} in it"
        )

    def name(self, product: str) -> str:
        """The name of a product, given its id."""
        return self.state["products"][product]["name"]

    def colour(self, product: str) -> str:
        """The colour of a product, given its id."""
        return self.state["products"][product]["colour"]

    def variants_in_stock(self, name: str, pieces: int, without: str = "") -> list[str]:
        """Colours of a product of which there are enough pieces, from the cheapest up; Redraw if the price is a tie."""
        found = [p for p in variants(self.state, name) if self.state["products"][p]["stock"] >= pieces and p != without]
        found.sort(key=lambda p: self.state["products"][p]["price"])
        if not found or len({self.state["products"][p]["price"] for p in found[:2]}) < len(found[:2]):
            raise Redraw
        return found
