"""What a customer may wish of the shop of `shop_service`.

A wish puts what it is about into the shop, adds the calls that serve it, and returns what gives its wording. A wish that
is against the policy is served by a transfer.
"""

from collections.abc import Callable

from agent_envs.generators import Redraw
from agent_envs.generators.shop.data import make_address, total, variants
from agent_envs.generators.shop.draft import Draft

_LIMIT = 500  # dollars of a refund, see the policy


Wording = Callable[[], str]


def cancel(d: Draft) -> Wording:
    order = d.order("pending")
    if total(d.state["orders"][order]) > _LIMIT:
        raise Redraw
    d.call("cancel_order", order_id=order)
    d.call("confirm")
    return lambda: d.rng.choice(("Please cancel {}, I no longer need it.", "I would like to cancel {}.")).format(
        d.named(order)
    )


def cancel_shipped(d: Draft) -> Wording:
    order = d.order("shipped")
    if total(d.state["orders"][order]) > _LIMIT:  # there would be two reasons to refuse
        raise Redraw
    d.call("transfer", order_id=order, reason="already shipped")
    return lambda: f"Please cancel {d.named(order)}, I ordered it by mistake."


def cancel_large(d: Draft) -> Wording:
    dear = sorted(d.state["products"], key=lambda p: -d.state["products"][p]["price"])[:3]
    order = d.order("pending", products=tuple(dear))
    if total(d.state["orders"][order]) <= _LIMIT:
        raise Redraw
    d.call("transfer", order_id=order, reason="refund above limit")
    return lambda: f"Please cancel {d.named(order)} and refund me."


def order_address(d: Draft) -> Wording:
    order, address = d.order("pending"), make_address(d.rng)
    d.call("change_order_address", order_id=order, address=address)
    return lambda: f"Please have {d.named(order)} delivered to {address} instead."


def shipped_address(d: Draft) -> Wording:
    order, address = d.order("shipped"), make_address(d.rng)
    d.call("transfer", order_id=order, reason="already shipped")
    return lambda: f"Please have {d.named(order)} sent to {address} instead."


def account_address(d: Draft) -> Wording:
    address = make_address(d.rng)
    d.call("change_account_address", customer_id=d.customer, address=address)
    return lambda: f"I have moved: my account should say {address} from now on, but leave my orders as they are."


def quantity(d: Draft) -> Wording:
    order = d.order("pending")
    item = d.rng.choice(sorted(d.items))
    pieces = d.rng.choice([n for n in range(1, 6) if n != d.items[item]["quantity"]])
    d.call("set_quantity", order_id=order, product_id=item, quantity=pieces)
    before = d.items[item]["quantity"]
    return lambda: f"Please change {d.named(order, item)}: I want {pieces} of the {d.name(item)}, not {before}."


def quantity_large(d: Draft) -> Wording:
    order, pieces = d.order("pending"), d.rng.randint(6, 9)
    item = d.rng.choice(sorted(d.items))
    d.call("transfer", order_id=order, reason="quantity above limit")
    return lambda: f"In {d.named(order, item)}, I now want {pieces} of the {d.name(item)}."


def remove(d: Draft) -> Wording:
    order = d.order("pending")
    item = d.rng.choice(sorted(d.items))
    d.call("set_quantity", order_id=order, product_id=item, quantity=0)
    return lambda: f"Please take the {d.name(item)} out of {d.named(order, item)}."


def exchange(d: Draft) -> Wording:
    order = d.order("pending")
    old = d.rng.choice(sorted(d.items))
    new = d.rng.choice(d.stocked(d.name(old), d.items[old]["quantity"], without=old))
    d.call("find_products", name=d.name(old))
    d.call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.call("confirm")
    return lambda: (
        f"In {d.named(order, old)}, I would like the {d.name(old)} in {d.colour(new)} rather than in {d.colour(old)}."
    )


def exchange_cheapest(d: Draft) -> Wording:
    order = d.order("pending")
    old = d.rng.choice(sorted(d.items))
    new = d.stocked(d.name(old), d.items[old]["quantity"], without=old)[0]
    d.call("find_products", name=d.name(old))
    d.call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.call("confirm")
    return lambda: (f"I do not like the colour of the {d.name(old)} in {d.named(order, old)}: exchange it for whichever other "
                    "colour is the cheapest of those that you have enough of.")  # fmt: skip


def exchange_or(d: Draft) -> Wording:
    order = d.order("pending")
    old = d.rng.choice(sorted(d.items))
    others = [p for p in variants(d.state, d.name(old)) if p != old]
    first, second = d.rng.sample(others, 2)
    pieces = d.items[old]["quantity"]
    new = first if d.state["products"][first]["stock"] >= pieces else second
    d.call("find_products", name=d.name(old))
    d.call("exchange_item", order_id=order, product_id=old, new_product_id=new)
    d.call("confirm")
    return lambda: (f"Please exchange the {d.name(old)} in {d.named(order, old)} for the {d.colour(first)} one, or for the "
                    f"{d.colour(second)} one if there is not enough of it in {d.colour(first)}.")  # fmt: skip


def give_back(d: Draft, *, late: bool = False, all_but_one: bool = False) -> Wording:
    window = 60 if d.state["customers"][d.customer]["tier"] == "gold" else 30
    order = d.order("delivered", days_ago=d.rng.randint(window + 1, 90) if late else d.rng.randint(1, window))
    item = d.rng.choice(sorted(d.items))
    back = [p for p in d.items if p != item] if all_but_one else [item]
    if any(d.state["products"][p]["final_sale"] for p in back):
        raise Redraw
    if late:
        d.call("transfer", order_id=order, reason="return too late")
    else:
        d.call("return_items", order_id=order, product_ids=back)
        d.call("confirm")
    what = f"everything but the {d.name(item)}" if all_but_one else f"the {d.name(item)}"
    return lambda: d.rng.choice(("I want to return {} from {}.", "Please take back {} from {}.")).format(
        what, d.named(order, item)
    )


def give_back_sale(d: Draft) -> Wording:
    order = d.order("delivered", days_ago=d.rng.randint(1, 30))
    sale = [p for p in sorted(d.items) if d.state["products"][p]["final_sale"]]
    if not sale:
        raise Redraw
    d.call("transfer", order_id=order, reason="final sale")
    return lambda: (
        f"The {d.name(sale[0])} from {d.named(order, sale[0])} is not what I expected, so I am sending it back for a refund."
    )


def place(d: Draft) -> Wording:
    pieces = d.rng.randint(1, 5)
    name = d.name(d.rng.choice(sorted(d.state["products"])))
    product = d.stocked(name, pieces)[0]
    d.touch({name})
    d.call("find_products", name=name)
    d.call("place_order", customer_id=d.customer, product_id=product, quantity=pieces)
    d.call("confirm")
    return lambda: (
        f"I want to order {pieces} of your cheapest {name}, in whatever colour, as long as there are enough of it."
    )


def not_theirs(d: Draft) -> Wording:
    foreign = sorted(
        id
        for id, order in d.state["orders"].items()
        if order["customer"] != d.customer and order["status"] == "pending" and total(order) <= _LIMIT
    )
    if not foreign:
        raise Redraw
    order = d.rng.choice(foreign)
    d.call("transfer", order_id=order, reason="not their order")
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
