"""Messages of customers to the shop of `service`, with the calls that serve them and the state after these calls.

A function for a wish adds its orders to the shop, records the calls that serve it (a transfer if the policy forbids it),
and returns a function that writes its text.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from agent_envs.generators.instances import Redraw
from agent_envs.generators.people import FAMILY_NAMES, GIVEN_NAMES
from agent_envs.generators.shop.service import TODAY, Shop, ShopState, order_total, variants
from agent_envs.types import ToolCall

COLOURS = "red blue green black white grey".split()
_PRODUCTS = """kettle teapot blanket lamp backpack umbrella desk chair bench clock rug mirror suitcase toaster grill
bicycle tent jacket keyboard headset""".split()
_STREETS = (
    *("Mill Lane", "Station Road", "Park Avenue", "Harbour Street"),
    *("Church Hill", "Garden Row", "Castle Street", "River Walk"),
)
_CITIES = "Ashford Brighton Calder Dunmore Elmstead Fairview Glenrock Harwick".split()


def make_state(rng: random.Random) -> ShopState:
    """A shop with 14 products, each in several colours, 10 customers and two orders for each of them."""
    state: ShopState = {"products": {}, "customers": {}, "orders": {}, "transfers": {}}
    for name in sorted(rng.sample(_PRODUCTS, 14)):
        base = rng.randrange(12, 120)
        for colour in rng.sample(COLOURS, rng.randint(3, 4)):
            record = {"name": name, "colour": colour, "price": base + rng.randrange(0, 12)}
            record |= {"stock": rng.choice((0, 6, 9, 14)), "final_sale": rng.random() < 0.15}
            state["products"][f"P{100 + len(state['products'])}"] = record
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
    """Put an order into the state, of ``products`` or two or three random ones that differ in name; return its id."""
    if not products:
        names = sorted({record["name"] for record in state["products"].values()})
        chosen = rng.sample(names, rng.randint(2, 3))
        products = tuple(rng.choice(variants(state, name)) for name in chosen)
    while (order := f"O{rng.randrange(1000, 1400)}") in state["orders"]:
        pass
    state["orders"][order] = {
        "customer": customer,
        "status": status,
        "delivered": str(TODAY - timedelta(days_ago)) if status == "delivered" else None,
        "address": state["customers"][customer]["address"],
        "items": {p: {"quantity": rng.randint(1, 3), "price": state["products"][p]["price"]} for p in products},
        "refunded": 0,
    }
    return order


class Draft:
    """A request under construction: the shop's state, the customer, the calls, and the ``items`` of the last added order."""

    def __init__(self, rng: random.Random, by_number: bool):
        self.rng, self.by_number = rng, by_number
        self.state = make_state(rng)
        self.customer = rng.choice(sorted(self.state["customers"]))
        self.calls: list[ToolCall] = []
        self._claimed: set[str] = set()

    def add_call(self, name: str, /, **arguments: Any) -> None:
        """Append a call of one of the shop's functions to those that serve the request."""
        self.calls.append(ToolCall(name, arguments))

    def add_exchange(self, order: str, old: str, new: str) -> None:
        """Append the calls that exchange a product of an order."""
        self.add_call("find_products", name=self.name(old))
        self.add_call("exchange_item", order_id=order, product_id=old, new_product_id=new)
        self.add_call("confirm")

    def add_order(self, status: str, *, days_ago: int = 0, products: tuple[str, ...] = ()) -> str:
        """Add an order of the customer to the shop and return its id; sets ``items`` to those of this order.
        Raises Redraw if another wish is about one of its products."""
        id = add_order(self.state, self.rng, self.customer, status, days_ago=days_ago, products=products)
        self.items = self.state["orders"][id]["items"]
        self.claim_products({self.name(product) for product in self.items})
        return id

    def claim_products(self, names: set[str]) -> None:
        """Reserve products, by name, for the current wish, since two wishes could need the same stock.
        Raises Redraw if another wish is about one of them."""
        if names & self._claimed:
            raise Redraw
        self._claimed |= names

    def refer_to(self, order: str, item: str = "") -> str:
        """Words for an order: its number, or a product in it, except ``item``, that no other order of the customer has."""
        orders = self.state["orders"]
        rest = [o for id, o in orders.items() if id != order and o["customer"] == self.customer]
        others = {self.name(p) for o in rest for p in o["items"]}
        unique = [self.name(p) for p in orders[order]["items"] if self.name(p) not in others and p != item]
        if self.by_number or not unique:
            return f"order {order}"
        status = orders[order]["status"]
        if self.rng.random() < 0.5:
            return f"my {status} order with the {unique[0]}"
        return f"the order that has the {unique[0]} in it"

    def name(self, product: str) -> str:
        """The name of a product, given its id."""
        return self.state["products"][product]["name"]

    def colour(self, product: str) -> str:
        """The colour of a product, given its id."""
        return self.state["products"][product]["colour"]

    def variants_in_stock(self, name: str, pieces: int, without: str = "") -> list[str]:
        """Ids of the colours of a product with enough pieces, cheapest first; raises Redraw if none has, or two are cheapest."""
        found = [p for p in variants(self.state, name) if self.state["products"][p]["stock"] >= pieces and p != without]
        found.sort(key=lambda p: self.state["products"][p]["price"])
        if not found or len({self.state["products"][p]["price"] for p in found[:2]}) < len(found[:2]):
            raise Redraw
        return found


_LIMIT = 500  # dollars of a refund, see the policy


Wording = Callable[[], str]


def cancel(d: Draft) -> Wording:
    """Cancel a pending order."""
    order = d.add_order("pending")
    if order_total(d.state["orders"][order]) > _LIMIT:
        raise Redraw
    d.add_call("cancel_order", order_id=order)
    d.add_call("confirm")
    wordings = "Please cancel {}, I no longer need it.", "I would like to cancel {}."
    return lambda: d.rng.choice(wordings).format(d.refer_to(order))


def cancel_shipped(d: Draft) -> Wording:
    """Against the policy: cancel an order that has been shipped."""
    order = d.add_order("shipped")
    if order_total(d.state["orders"][order]) > _LIMIT:  # there would be two reasons to reject it
        raise Redraw
    d.add_call("transfer", order_id=order, reason="already shipped")
    return lambda: f"Please cancel {d.refer_to(order)}, I ordered it by mistake."


def cancel_large(d: Draft) -> Wording:
    """Against the policy: cancel an order whose refund is above the limit."""
    dear = sorted(d.state["products"], key=lambda p: -d.state["products"][p]["price"])[:3]
    order = d.add_order("pending", products=tuple(dear))
    if order_total(d.state["orders"][order]) <= _LIMIT:
        raise Redraw
    d.add_call("transfer", order_id=order, reason="refund above limit")
    return lambda: f"Please cancel {d.refer_to(order)} and refund me."


def order_address(d: Draft) -> Wording:
    """Deliver a pending order to another address."""
    order, address = d.add_order("pending"), make_address(d.rng)
    d.add_call("change_order_address", order_id=order, address=address)
    return lambda: f"Please have {d.refer_to(order)} delivered to {address} instead."


def shipped_address(d: Draft) -> Wording:
    """Against the policy: deliver a shipped order to another address."""
    order, address = d.add_order("shipped"), make_address(d.rng)
    d.add_call("transfer", order_id=order, reason="already shipped")
    return lambda: f"Please have {d.refer_to(order)} sent to {address} instead."


def account_address(d: Draft) -> Wording:
    """Change the address in the account, but in none of the orders."""
    address = make_address(d.rng)
    d.add_call("change_account_address", customer_id=d.customer, address=address)
    return lambda: f"I have moved: my account should say {address} from now on, but leave my orders as they are."


def quantity(d: Draft) -> Wording:
    """Change how many pieces of a product a pending order holds."""
    order = d.add_order("pending")
    item = d.rng.choice(sorted(d.items))
    pieces = d.rng.choice([n for n in range(1, 6) if n != d.items[item]["quantity"]])
    d.add_call("set_quantity", order_id=order, product_id=item, quantity=pieces)
    before = d.items[item]["quantity"]
    return lambda: f"Please change {d.refer_to(order, item)}: I want {pieces} of the {d.name(item)}, not {before}."


def quantity_large(d: Draft) -> Wording:
    """Against the policy: more pieces of a product than an order may hold."""
    order, pieces = d.add_order("pending"), d.rng.randint(6, 9)
    item = d.rng.choice(sorted(d.items))
    d.add_call("transfer", order_id=order, reason="quantity above limit")
    return lambda: f"In {d.refer_to(order, item)}, I now want {pieces} of the {d.name(item)}."


def remove(d: Draft) -> Wording:
    """Take a product out of a pending order."""
    order = d.add_order("pending")
    item = d.rng.choice(sorted(d.items))
    d.add_call("set_quantity", order_id=order, product_id=item, quantity=0)
    return lambda: f"Please take the {d.name(item)} out of {d.refer_to(order, item)}."


def exchange(d: Draft) -> Wording:
    """Exchange a product for a given colour of it."""
    order = d.add_order("pending")
    old = d.rng.choice(sorted(d.items))
    new = d.rng.choice(d.variants_in_stock(d.name(old), d.items[old]["quantity"], without=old))
    d.add_exchange(order, old, new)
    wish = f"I would like the {d.name(old)} in {d.colour(new)} rather than in {d.colour(old)}"
    return lambda: f"In {d.refer_to(order, old)}, {wish}."


def exchange_cheapest(d: Draft) -> Wording:
    """Exchange a product for the cheapest other colour of it that is in stock."""
    order = d.add_order("pending")
    old = d.rng.choice(sorted(d.items))
    new = d.variants_in_stock(d.name(old), d.items[old]["quantity"], without=old)[0]
    d.add_exchange(order, old, new)
    return lambda: (f"I do not like the colour of the {d.name(old)} in {d.refer_to(order, old)}: exchange it for whichever other "
                    "colour is the cheapest of those that you have enough of.")  # fmt: skip


def exchange_or(d: Draft) -> Wording:
    """Exchange a product for one colour or, if there is not enough of it, for another."""
    order = d.add_order("pending")
    old = d.rng.choice(sorted(d.items))
    others = [p for p in variants(d.state, d.name(old)) if p != old]
    first, second = d.rng.sample(others, 2)
    pieces = d.items[old]["quantity"]
    new = first if d.state["products"][first]["stock"] >= pieces else second
    d.add_exchange(order, old, new)
    return lambda: (f"Please exchange the {d.name(old)} in {d.refer_to(order, old)} for the {d.colour(first)} one, or for the "
                    f"{d.colour(second)} one if there is not enough of it in {d.colour(first)}.")  # fmt: skip


def give_back(d: Draft, *, late: bool = False, all_but_one: bool = False) -> Wording:
    """Return one product of a delivered order, or all but one; if ``late``, after the time limit for returns."""
    window = 60 if d.state["customers"][d.customer]["tier"] == "gold" else 30
    order = d.add_order("delivered", days_ago=d.rng.randint(window + 1, 90) if late else d.rng.randint(1, window))
    item = d.rng.choice(sorted(d.items))
    back = [p for p in d.items if p != item] if all_but_one else [item]
    if any(d.state["products"][p]["final_sale"] for p in back):
        raise Redraw
    if late:
        d.add_call("transfer", order_id=order, reason="return too late")
    else:
        d.add_call("return_items", order_id=order, product_ids=back)
        d.add_call("confirm")
    what = f"everything but the {d.name(item)}" if all_but_one else f"the {d.name(item)}"
    wordings = "I want to return {} from {}.", "Please take back {} from {}."
    return lambda: d.rng.choice(wordings).format(what, d.refer_to(order, item))


def give_back_sale(d: Draft) -> Wording:
    """Against the policy: return a product on final sale."""
    order = d.add_order("delivered", days_ago=d.rng.randint(1, 30))
    sale = [p for p in sorted(d.items) if d.state["products"][p]["final_sale"]]
    if not sale:
        raise Redraw
    d.add_call("transfer", order_id=order, reason="final sale")
    wish = "is not what I expected, so I am sending it back for a refund."
    return lambda: f"The {d.name(sale[0])} from {d.refer_to(order, sale[0])} {wish}"


def place(d: Draft) -> Wording:
    """Order the cheapest colour of a product with enough pieces in stock."""
    pieces = d.rng.randint(1, 5)
    name = d.name(d.rng.choice(sorted(d.state["products"])))
    product = d.variants_in_stock(name, pieces)[0]
    d.claim_products({name})
    d.add_call("find_products", name=name)
    d.add_call("place_order", customer_id=d.customer, product_id=product, quantity=pieces)
    d.add_call("confirm")
    stock = "in whatever colour, as long as there are enough of it"
    return lambda: f"I want to order {pieces} of your cheapest {name}, {stock}."


def not_theirs(d: Draft) -> Wording:
    """Against the policy: cancel the order of another customer."""
    others = {id: o for id, o in d.state["orders"].items() if o["customer"] != d.customer and o["status"] == "pending"}
    foreign = sorted(id for id, order in others.items() if order_total(order) <= _LIMIT)
    if not foreign:
        raise Redraw
    order = d.rng.choice(foreign)
    d.add_call("transfer", order_id=order, reason="not their order")
    excuses = (
        "Please cancel order {}, which a friend placed for me.",
        "Cancel order {}, my neighbour asked me to see to it.",
    )
    return lambda: d.rng.choice(excuses).format(order)


_BY_NAME: tuple[Callable[[Draft], Wording], ...] = (
    *(cancel, cancel_shipped, cancel_large, order_address, shipped_address, account_address),
    *(quantity, quantity_large, remove, exchange, exchange_cheapest, exchange_or),
)
WISH_KINDS: dict[str, Callable[[Draft], Wording]] = {wish.__name__: wish for wish in _BY_NAME} | {
    "return": give_back,
    "return_all_but": partial(give_back, all_but_one=True),
    "return_late": partial(give_back, late=True),
    "return_sale": give_back_sale,
    "place": place,
    "not_theirs": not_theirs,
}
WISHES = {"easy": (1, 1), "normal": (1, 2), "hard": (2, 3)}
DIFFICULTIES = tuple(WISHES)


@dataclass(frozen=True, slots=True)
class Request:
    """A message to the service desk. The ``calls`` that serve it turn ``state`` into ``goal``. ``kinds`` are those of its
    wishes, ``customer`` is the id of its author."""

    text: str
    state: ShopState
    goal: ShopState
    calls: tuple[ToolCall, ...]
    kinds: tuple[str, ...]
    customer: str


def make_request(rng: random.Random, difficulty: str = "normal") -> Request:
    """A random request of `WISHES[difficulty]` wishes. Only easy ones always name orders by number."""
    while True:
        draft = Draft(rng, by_number=difficulty == "easy" or rng.random() < 0.3)
        kinds = rng.sample(tuple(WISH_KINDS), rng.randint(*WISHES[difficulty]))
        if {"account_address", "place"} <= set(kinds):  # the address of the new order would be ambiguous
            continue
        record = draft.state["customers"][draft.customer]
        draft.add_call("find_customer", name=record["name"], postcode=record["postcode"])
        try:
            wishes = [WISH_KINDS[kind](draft) for kind in kinds]
            texts = [wish() for wish in wishes]  # written once all orders exist, so that descriptions are unique
            shop = Shop()
            shop.load(draft.state)
            for call in draft.calls:
                getattr(shop, call.name)(**call.arguments)
        except (Redraw, ValueError):
            continue
        if shop.state != draft.state:
            text = _write_message(draft, record, texts)
            return Request(text, draft.state, shop.state, tuple(draft.calls), tuple(kinds), draft.customer)


def _write_message(draft: Draft, record: dict[str, Any], texts: list[str]) -> str:
    hello = draft.rng.choice(("Hello", "Hi", "Good morning", "Good afternoon"))
    who = draft.rng.choice(("this is {name}, postcode {postcode}.", "my name is {name} and my postcode is {postcode}."))
    links = ["", draft.rng.choice(("Also, ", "Besides, ", "Then: ")), draft.rng.choice(("Finally, ", "And lastly, "))]
    sentences = [
        link + (text[0].lower() + text[1:] if link and not text.startswith("I ") else text)
        for link, text in zip(links, texts, strict=False)
    ]
    thanks = draft.rng.choice(("Thank you!", "Thanks.", "Many thanks."))
    return " ".join([f"{hello}, {who.format(**record)}", *sentences, thanks])
