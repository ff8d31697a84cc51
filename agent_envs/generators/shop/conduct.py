"""Check whether the calls of an episode obey the shop's policy. The final state does not show it: another customer's order
may have been changed and restored."""

from typing import Any

from agent_envs.generators.shop.requests import Request
from agent_envs.generators.shop.service import ShopState
from agent_envs.types import ToolCall

MOST_PIECES = 5  # of a product in an order, see the policy
_MISSING = "missing"
_READING = ("find_customer", "get_order", "find_products")
Path = tuple[str, ...]  # of a value: ("orders", "O1001", "status")


class Conduct:
    """Judges the calls of one episode as they are carried out; see `Shop.load`.

    A call breaks a rule if it comes before the customer is found, writes to another customer's order or account, puts too
    many pieces into an order, or changes a value that the request does not change. No later call undoes that. A wrong
    value in the right place breaks no rule.
    """

    def __init__(self, request: Request):
        self._before, self._goal = values_of(request.state), values_of(request.goal)
        self.requested = different_paths(self._before, self._goal)  # values that serving the request changes
        self.touched: set[Path] = set()  # records, ("orders", "O1001"), that calls wrote to against the rules
        self.broken: list[str] = []  # what was against the rules, a line for each call and reason
        self._customer = request.customer
        self._found = False
        self._now = self._before

    def __call__(self, call: ToolCall, result: Any, state: ShopState) -> None:
        """Judge a call that was carried out, given what it returned and the state after it."""
        if call.name == "find_customer":
            self._found = self._found or result["customer_id"] == self._customer
        elif not self._found:
            self.broken.append(f"{call.name} before the customer was found")
        if call.name in _READING:
            return
        now = values_of(state)
        changed = different_paths(self._now, now)
        self._now = now
        records = {path[:2] for path in changed} | _named_records(call)
        strangers = {record for record in records if self._is_strangers(record, state)}
        others = {path[:2] for path in changed - self.requested} - strangers
        self.touched |= strangers | others
        self.broken += [f"{call.name}: {id} belongs to another customer" for _, id in sorted(strangers)]
        self.broken += [f"{call.name}: no one asked to change {id} in this way" for _, id in sorted(others)]
        if any(path[0] == "orders" and path[-1] == "quantity" and now.get(path, 0) > MOST_PIECES for path in changed):
            self.broken.append(f"{call.name}: more than {MOST_PIECES} pieces of a product in an order")

    def wrong_records(self, state: ShopState) -> set[Path]:
        """The records that calls wrote to against the rules, or that hold a value that no one asked for."""
        now = values_of(state)
        before, goal = self._before, self._goal
        paths = now.keys() | before.keys() | goal.keys()
        return self.touched | {path[:2] for path in paths if _at(now, path) not in (_at(before, path), _at(goal, path))}

    def progress(self, state: ShopState) -> float:
        """The share of the values to change that are right."""
        now = values_of(state)
        return sum(_at(now, path) == _at(self._goal, path) for path in self.requested) / len(self.requested)

    def _is_strangers(self, record: Path, state: ShopState) -> bool:
        table, id = record
        if table == "customers":
            return id != self._customer
        return table == "orders" and state["orders"][id]["customer"] != self._customer


def _named_records(call: ToolCall) -> set[Path]:
    """The order or account that a call writes to without a confirmation, even if no value changes."""
    if call.name in ("change_order_address", "set_quantity"):
        return {("orders", call.arguments["order_id"])}
    if call.name == "change_account_address":
        return {("customers", call.arguments["customer_id"])}
    return set()


def values_of(state: ShopState, path: Path = ()) -> dict[Path, Any]:
    """Every value of a state by its path."""
    values: dict[Path, Any] = {}
    for key, value in state.items():
        values |= values_of(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return values


def different_paths(values: dict[Path, Any], others: dict[Path, Any]) -> set[Path]:
    """The paths at which two states differ."""
    return {path for path in values.keys() | others.keys() if _at(values, path) != _at(others, path)}


def _at(values: dict[Path, Any], path: Path) -> Any:
    return values.get(path, _MISSING)
