"""What a customer may ask of the shop of `service`.

A wish puts what it is about into the shop, adds the calls that serve it, and returns what gives its wording. A wish that
is against the policy is served by a transfer.
"""

from collections.abc import Callable

from agent_envs.generators import Redraw
from agent_envs.generators.shop.data import make_address, order_total, variants
from agent_envs.generators.shop.draft import Draft

_LIMIT = 500  # dollars of a refund, see the policy


Wording = Callable[[], str]


def cancel(d: Draft) -> Wording:
    """Cancel a pending order."""
    order = d.add_order("pending")
    if order_total(d.state["orders"][order]) > _LIMIT:
        raise Redraw
    d.add_call("cancel_order", order_id=order)
    d.add_call("confirm")
    return lambda: d.rng.choice(("Please cancel {}, I no longer need it.", "I would like to cancel {}.")).format(
        d.refer_to(order)
    )


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
    """Change the address in the account, and none of the orders."""
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
    d.add_call("find_products", name=d.name(old))
    d.add_call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.add_call("confirm")
    return lambda: (
        f"In {d.refer_to(order, old)}, I would like the {d.name(old)} in {d.colour(new)} rather than in {d.colour(old)}."
    )


def exchange_cheapest(d: Draft) -> Wording:
    """Exchange a product for the cheapest other colour of it that is in stock."""
    order = d.add_order("pending")
    old = d.rng.choice(sorted(d.items))
    new = d.variants_in_stock(d.name(old), d.items[old]["quantity"], without=old)[0]
    d.add_call("find_products", name=d.name(old))
    d.add_call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.add_call("confirm")
    return lambda: (f"I do not like the colour of the {d.name(old)} in {d.refer_to(order, old)}: exchange it for whichever other "
                    "colour is the cheapest of those that you have enough of.")  # fmt: skip


def exchange_or(d: Draft) -> Wording:
    """Exchange a product for one colour or, where there is not enough of it, for another."""
    order = d.add_order("pending")
    old = d.rng.choice(sorted(d.items))
    others = [p for p in variants(d.state, d.name(old)) if p != old]
    first, second = d.rng.sample(others, 2)
    pieces = d.items[old]["quantity"]
    new = first if d.state["products"][first]["stock"] >= pieces else second
    d.add_call("find_products", name=d.name(old))
    d.add_call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.add_call("confirm")
    return lambda: (f"Please exchange the {d.name(old)} in {d.refer_to(order, old)} for the {d.colour(first)} one, or for the "
                    f"{d.colour(second)} one if there is not enough of it in {d.colour(first)}.")  # fmt: skip


def give_back(d: Draft, *, late: bool = False, all_but_one: bool = False) -> Wording:
    """Return one product of a delivered order, or all but one; where `late`, after the time for returns is over."""
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
    return lambda: d.rng.choice(("I want to return {} from {}.", "Please take back {} from {}.")).format(
        what, d.refer_to(order, item)
    )


def give_back_sale(d: Draft) -> Wording:
    """Against the policy: return a product on final sale."""
    order = d.add_order("delivered", days_ago=d.rng.randint(1, 30))
    sale = [p for p in sorted(d.items) if d.state["products"][p]["final_sale"]]
    if not sale:
        raise Redraw
    d.add_call("transfer", order_id=order, reason="final sale")
    return lambda: (
        f"The {d.name(sale[0])} from {d.refer_to(order, sale[0])} is not what I expected, so I am sending it back for a refund."
    )


def place(d: Draft) -> Wording:
    """Order the cheapest colour of a product that is in stock."""
    pieces = d.rng.randint(1, 5)
    name = d.name(d.rng.choice(sorted(d.state["products"])))
    product = d.variants_in_stock(name, pieces)[0]
    d.claim_products({name})
    d.add_call("find_products", name=name)
    d.add_call("place_order", customer_id=d.customer, product_id=product, quantity=pieces)
    d.add_call("confirm")
    return lambda: (
        f"I want to order {pieces} of your cheapest {name}, in whatever colour, as long as there are enough of it."
    )


def not_theirs(d: Draft) -> Wording:
    """Against the policy: cancel the order of another customer."""
    foreign = sorted(
        id
        for id, order in d.state["orders"].items()
        if order["customer"] != d.customer and order["status"] == "pending" and order_total(order) <= _LIMIT
    )
    if not foreign:
        raise Redraw
    order = d.rng.choice(foreign)
    d.add_call("transfer", order_id=order, reason="not their order")
    return lambda: d.rng.choice(
        (
            "Please cancel order {}, which a friend placed for me.",
            "Cancel order {}, my neighbour asked me to see to it.",
        )
    ).format(order)


WISH_KINDS: dict[str, Callable[[Draft], Wording]] = {
    "cancel": cancel,
    "cancel_shipped": cancel_shipped,
    "cancel_large": cancel_large,
    "order_address": order_address,
    "shipped_address": shipped_address,
    "account_address": account_address,
    "quantity": quantity,
    "quantity_large": quantity_large,
    "remove": remove,
    "exchange": exchange,
    "exchange_cheapest": exchange_cheapest,
    "exchange_or": exchange_or,
    "return": give_back,
    "return_all_but": lambda d: give_back(d, all_but_one=True),
    "return_late": lambda d: give_back(d, late=True),
    "return_sale": give_back_sale,
    "place": place,
    "not_theirs": not_theirs,
}
