"""The shop's service desk: functions that read and change a shop's state, and reject what cannot be done. They carry out
some actions that `POLICY` forbids; `conduct` detects these."""

import copy
import inspect
import pickle
from collections.abc import Callable
from datetime import date
from functools import wraps
from typing import Any, Literal

from agent_envs.types import ToolCall

ShopState = dict[str, Any]  # {"products": {id: record}, "customers": …, "orders": …, "transfers": {order id: reason}}
TODAY = date(2031, 6, 15)
Reason = Literal[
    "not their order", "already shipped", "return too late", "final sale", "refund above limit", "quantity above limit"
]
POLICY = f"""\
You work at the service desk of a shop; today is {TODAY}. Rules:
1. Find the customer by name and postcode first, before any other call. Act only on orders that belong to this customer.
2. A pending order may be cancelled or changed. One that has been shipped or delivered can no longer be.
3. Delivered items may be returned up to 30 days after delivery, by gold customers up to 60 days after it. Items on \
final sale cannot be returned.
4. Do not cancel an order worth more than $500, since the refund would be above your limit.
5. A customer may have 5 pieces of a product in an order at most.
6. An item may be exchanged for the same product in another colour that is in stock.
7. Where a wish goes against these rules, do not carry it out, not even in part: call transfer with the order and the \
reason. Carry out all other wishes.
cancel_order, exchange_item, return_items and place_order only prepare what they do: call confirm to carry it out.
Do exactly what the customer asks for and nothing else. When everything is done, answer with a short message."""


Watch = Callable[[ToolCall, Any, ShopState], None]  # a call that was carried out, what it returned, the state after it


def _watched(function: Callable) -> Callable:
    """Wrap a function so that it reports every call that it carries out to the shop's watch."""
    signature = inspect.signature(function)

    @wraps(function)
    def carry_out(self: "Shop", *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if self.watch is not None:
            _, *arguments = signature.bind(self, *args, **kwargs).arguments.items()
            self.watch(ToolCall(function.__name__, dict(arguments)), result, self.state)
        return result

    return carry_out


class Shop:
    """The functions of the service desk over one state. They raise ValueError for a mistake of the caller."""

    watch: Watch | None

    def __init__(self):
        self.load({"products": {}, "customers": {}, "orders": {}, "transfers": {}})

    def load(self, state: ShopState, watch: Watch | None = None) -> None:
        """Start again with a copy of ``state``. ``watch`` is called after every call that succeeds."""
        # Ten times as fast as deepcopy, and safe: the bytes are made here.
        self.state, self.watch = pickle.loads(pickle.dumps(state)), watch
        self._unconfirmed: tuple[str, tuple] | None = None

    @_watched
    def find_customer(self, name: str, postcode: str) -> dict[str, Any]:
        """look up a customer by full name and postcode; gives the customer's data and orders."""
        for id, record in self.state["customers"].items():
            if _normalize(record["name"]) == _normalize(name) and record["postcode"] == postcode.strip():
                orders = [number for number, order in self.state["orders"].items() if order["customer"] == id]
                return {"customer_id": id, **record, "orders": sorted(orders)}
        raise ValueError("there is no customer with this name and postcode.")

    @_watched
    def get_order(self, order_id: str) -> dict[str, Any]:
        """the data of an order, with its items by product id and their total."""
        order = self._get("orders", order_id)
        items = {
            id: {key: self.state["products"][id][key] for key in ("name", "colour", "final_sale")} | item
            for id, item in order["items"].items()
        }
        return {"order_id": order_id, **order, "items": items, "total": order_total(order)}

    @_watched
    def find_products(self, name: str) -> dict[str, Any]:
        """all colours of a product, by product id, with price and stock."""
        wanted = _normalize(name)
        products = self.state["products"]
        found = {id: r for id, r in products.items() if wanted in (r["name"], f"{r['colour']} {r['name']}")}
        if not found:
            names = sorted({record["name"] for record in products.values()})
            raise ValueError(f"there is no product of that name; there are: {', '.join(names)}.")
        return copy.deepcopy(found)

    @_watched
    def change_order_address(self, order_id: str, address: str) -> str:
        """have a pending order delivered to another address."""
        self._get_pending(order_id)["address"] = _clean_address(address)
        return f"Order {order_id} will be delivered to {address.strip()}."

    @_watched
    def change_account_address(self, customer_id: str, address: str) -> str:
        """change the address in a customer's account; orders keep theirs."""
        self._get("customers", customer_id)["address"] = _clean_address(address)
        return f"The account's address is now {address.strip()}."

    @_watched
    def set_quantity(self, order_id: str, product_id: str, quantity: int) -> str:
        """set how many pieces of a product a pending order holds; 0 takes it out."""
        order, product = self._get_pending(order_id), self._get("products", product_id)
        if not 0 <= quantity <= 100:
            raise ValueError(f"the quantity must be from 0 to 100, got {quantity}.")
        have = order["items"].get(product_id, {"quantity": 0})["quantity"]
        if quantity == 0 and set(order["items"]) <= {product_id}:
            raise ValueError("an order cannot be empty; it can be cancelled.")
        self._take_stock(product_id, quantity - have)
        if quantity:
            price = order["items"].get(product_id, product)["price"]
            order["items"][product_id] = {"quantity": quantity, "price": price}
        else:
            order["items"].pop(product_id, None)
        return f"Order {order_id} now has {quantity} of {product_id}."

    @_watched
    def transfer(self, order_id: str, reason: Reason) -> str:
        """hand a wish about an order to a colleague, because it goes against the rules."""
        self._get("orders", order_id)
        self.state["transfers"][order_id] = reason
        return f"A colleague will see to order {order_id}."

    @_watched
    def cancel_order(self, order_id: str) -> str:
        """prepare to cancel a pending order and refund it."""
        refund = order_total(self._get_pending(order_id))
        return self._prepare(f"cancel order {order_id} and refund ${refund}", "_cancel", order_id)

    def _cancel(self, order_id: str) -> None:
        order = self._get_pending(order_id)
        order["status"], order["refunded"] = "cancelled", order_total(order)
        for id, item in order["items"].items():
            self.state["products"][id]["stock"] += item["quantity"]

    @_watched
    def exchange_item(self, order_id: str, product_id: str, new_product_id: str) -> str:
        """prepare to exchange a product in a pending order for another colour of it, as many pieces."""
        self._check_exchange(order_id, product_id, new_product_id)
        what = f"exchange {product_id} in order {order_id} for {new_product_id}"
        return self._prepare(what, "_exchange", order_id, product_id, new_product_id)

    def _check_exchange(self, order_id: str, old: str, new: str) -> dict[str, Any]:
        order = self._get_pending(order_id)
        self._check_ordered(order, order_id, old)
        self._get("products", new)
        if new == old or new not in variants(self.state, self.state["products"][old]["name"]) or new in order["items"]:
            raise ValueError(f"{old} cannot be exchanged for {new}: another colour of the same product is needed.")
        self._check_stock(new, order["items"][old]["quantity"])
        return order

    def _exchange(self, order_id: str, old: str, new: str) -> None:
        order = self._check_exchange(order_id, old, new)
        quantity = order["items"].pop(old)["quantity"]
        self._take_stock(new, quantity)
        self._take_stock(old, -quantity)
        order["items"][new] = {"quantity": quantity, "price": self.state["products"][new]["price"]}

    @_watched
    def return_items(self, order_id: str, product_ids: list[str]) -> str:
        """prepare to take back products of a delivered order, all pieces of each, and refund them."""
        refund = self._compute_refund(order_id, product_ids)
        what = f"take {', '.join(product_ids)} back and refund ${refund}"
        return self._prepare(what, "_return", order_id, product_ids)

    def _compute_refund(self, order_id: str, product_ids: list[str]) -> int:
        order = self._get("orders", order_id)
        if order["status"] != "delivered":
            raise ValueError(f"order {order_id} is {order['status']}: only delivered items can be returned.")
        if not product_ids or len(set(product_ids)) < len(product_ids):
            raise ValueError("name the products to return, each once.")
        for id in product_ids:
            self._check_ordered(order, order_id, id)
        return order_total({"items": {id: order["items"][id] for id in product_ids}})

    def _return(self, order_id: str, product_ids: list[str]) -> None:
        order = self._get("orders", order_id)
        order["refunded"] += self._compute_refund(order_id, product_ids)
        for id in product_ids:
            self._take_stock(id, -order["items"].pop(id)["quantity"])

    @_watched
    def place_order(self, customer_id: str, product_id: str, quantity: int) -> str:
        """prepare a new order of a product, to the address in the customer's account."""
        self._get("customers", customer_id)
        if not 1 <= quantity <= 100:
            raise ValueError(f"the quantity must be from 1 to 100, got {quantity}.")
        self._check_stock(product_id, quantity)
        price = self.state["products"][product_id]["price"] * quantity
        what = f"order {quantity} of {product_id} for ${price}"
        return self._prepare(what, "_place", customer_id, product_id, quantity)

    def _place(self, customer_id: str, product_id: str, quantity: int) -> None:
        self._take_stock(product_id, quantity)
        number = max(int(id[1:]) for id in self.state["orders"]) + 1
        price = self.state["products"][product_id]["price"]
        self.state["orders"][f"O{number}"] = {
            "customer": customer_id,
            "status": "pending",
            "delivered": None,
            "address": self.state["customers"][customer_id]["address"],
            "items": {product_id: {"quantity": quantity, "price": price}},
            "refunded": 0,
        }

    @_watched
    def confirm(self) -> str:
        """carry out what was prepared last."""
        if self._unconfirmed is None:
            raise ValueError("nothing is prepared.")
        (name, arguments), self._unconfirmed = self._unconfirmed, None
        getattr(self, name)(*arguments)
        return "Done."

    def _prepare(self, what: str, name: str, *arguments: Any) -> str:
        self._unconfirmed = name, arguments
        return f"Prepared: {what}. Call confirm to carry it out."

    def _get(self, table: str, id: str) -> dict[str, Any]:
        if id not in self.state[table]:
            raise ValueError(f"there is no {table[:-1]} {id[:40]!r}.")
        return self.state[table][id]

    def _get_pending(self, order_id: str) -> dict[str, Any]:
        order = self._get("orders", order_id)
        if order["status"] != "pending":
            raise ValueError(f"order {order_id} is {order['status']}: only pending orders can be changed.")
        return order

    def _check_ordered(self, order: dict[str, Any], order_id: str, product_id: str) -> None:
        if product_id not in order["items"]:
            raise ValueError(f"order {order_id} has no item {product_id[:40]!r}.")

    def _check_stock(self, product_id: str, quantity: int) -> None:
        if (stock := self._get("products", product_id)["stock"]) < quantity:
            raise ValueError(f"only {stock} of {product_id} are in stock.")

    def _take_stock(self, product_id: str, quantity: int) -> None:
        self._check_stock(product_id, quantity)
        self.state["products"][product_id]["stock"] -= quantity


TOOLS = """find_customer get_order find_products change_order_address change_account_address set_quantity cancel_order
exchange_item return_items place_order confirm transfer""".split()


def variants(state: ShopState, name: str) -> list[str]:
    """The ids of a product in all its colours."""
    return [id for id, record in state["products"].items() if record["name"] == name]


def order_total(order: dict[str, Any]) -> int:
    """What the items of an order cost, in dollars."""
    return sum(item["quantity"] * item["price"] for item in order["items"].values())


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def _clean_address(text: str) -> str:
    if not 5 <= len(text.strip()) <= 200:
        raise ValueError("an address has from 5 to 200 characters.")
    return " ".join(text.split())
