"""A synthetic shop: products, customers and orders, as one JSON-able state."""

import random
from datetime import date, timedelta
from typing import Any

from agent_envs.generators.people import FAMILY_NAMES, GIVEN_NAMES

ShopState = dict[str, Any]  # {"products": {id: record}, "customers": …, "orders": …, "transfers": {order id: reason}}
TODAY = date(2031, 6, 15)
COLOURS = "red blue green black white grey".split()
_PRODUCTS = """kettle teapot blanket lamp backpack umbrella desk chair bench clock rug mirror suitcase toaster grill
bicycle tent jacket keyboard headset""".split()
_STREETS = "Mill Lane,Station Road,Park Avenue,Harbour Street,Church Hill,Garden Row,Castle Street,River Walk".split(
    ","
)
_CITIES = "Ashford Brighton Calder Dunmore Elmstead Fairview Glenrock Harwick".split()


def make_state(rng: random.Random) -> ShopState:
    """A shop with 14 products, each in several colours, 10 customers and two orders for each of them."""
    state: ShopState = {"products": {}, "customers": {}, "orders": {}, "transfers": {}}
    for name in sorted(rng.sample(_PRODUCTS, 14)):
        base = rng.randrange(12, 120)
        for colour in rng.sample(COLOURS, rng.randint(3, 4)):
            state["products"][f"P{100 + len(state['products'])}"] = {
                "name": name,
                "colour": colour,
                "price": base + rng.randrange(0, 12),
                "stock": rng.choice((0, 6, 9, 14)),
                "final_sale": rng.random() < 0.15,
            }
    people = map(" ".join, zip(rng.sample(GIVEN_NAMES, 10), rng.sample(FAMILY_NAMES, 10), strict=True))
    for number, name in zip(rng.sample(range(100, 1000), 10), people, strict=True):
        state["customers"][f"C{number}"] = {
            "name": name,
            "email": f"{name.lower().replace(' ', '.')}@example.com",
            "postcode": f"{rng.randrange(10000, 99999)}",
            "address": make_address(rng),
            "tier": rng.choice(("standard", "standard", "gold")),
        }
    for customer in list(state["customers"]) * 2:
        add_order(state, rng, customer, rng.choice(("pending", "shipped", "delivered")), days_ago=rng.randint(1, 120))
    return state


def make_address(rng: random.Random) -> str:
    """A random address of one line."""
    return f"{rng.randint(1, 180)} {rng.choice(_STREETS)}, {rng.choice(_CITIES)}"


def add_order(
    state: ShopState, rng: random.Random, customer: str, status: str, *, days_ago: int, products: tuple[str, ...] = ()
) -> str:
    """Put an order of a customer into the state: of ``products``, or of two or three that are chosen at random and differ
    in name. Returns its id."""
    if not products:
        names = sorted({record["name"] for record in state["products"].values()})
        chosen = rng.sample(names, rng.randint(2, 3))
        products = tuple(rng.choice(variants(state, name)) for name in chosen)
    order = f"O{draw_order_number(state, rng)}"
    state["orders"][order] = {
        "customer": customer,
        "status": status,
        "delivered": str(TODAY - timedelta(days_ago)) if status == "delivered" else None,
        "address": state["customers"][customer]["address"],
        "items": {p: {"quantity": rng.randint(1, 3), "price": state["products"][p]["price"]} for p in products},
        "refunded": 0,
    }
    return order


def draw_order_number(state: ShopState, rng: random.Random) -> int:
    """A random order number, without the O, that no order of the state has."""
    while f"O{(number := rng.randrange(1000, 1400))}" in state["orders"]:
        pass
    return number


def variants(state: ShopState, name: str) -> list[str]:
    """The ids of a product in all its colours."""
    return [id for id, record in state["products"].items() if record["name"] == name]


def order_total(order: dict[str, Any]) -> int:
    """What the items of an order cost, in dollars."""
    return sum(item["quantity"] * item["price"] for item in order["items"].values())
