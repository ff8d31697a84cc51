"""The service desk of a shop: its functions, its policy, the requests, the task."""

import copy
import json
import os
import random
from functools import cache, reduce

import pytest

from agent_envs.generators.shop.requests import DIFFICULTIES, WISH_KINDS, WISHES, make_request
from agent_envs.generators.shop.service import Shop, order_total
from agent_envs.tasks.api import APIEnv
from agent_envs.types import ToolCall, Turn

SEED = int(os.environ.get("ATTACK_SEED", "0"))
FORBIDDEN = set("cancel_shipped cancel_large shipped_address quantity_large return_late return_sale not_theirs".split())


@pytest.fixture
def shop():
    """Two kettles and a lamp; Ada has a pending, a delivered and a shipped order."""

    def product(name, colour, price, stock):
        return {"name": name, "colour": colour, "price": price, "stock": stock, "final_sale": False}

    def order(status, **items):
        lines = {id: {"quantity": n, "price": p} for id, (n, p) in items.items()}
        day = "2031-06-01" if status == "delivered" else None
        told = {"customer": "C1", "status": status, "delivered": day, "address": "1 Mill Lane"}
        return {**told, "items": lines, "refunded": 0}

    ada = {"name": "Ada Berg", "email": "a@example.com", "postcode": "12345", "address": "1 Mill Lane", "tier": "gold"}
    kettles = {"P1": product("kettle", "red", 30, 5), "P2": product("kettle", "blue", 40, 2)}
    orders = {"O1": order("pending", P1=(2, 30), P3=(1, 9)), "O2": order("delivered", P1=(1, 25), P2=(1, 40))}
    shop = Shop()
    shop.load(
        {
            "products": {**kettles, "P3": product("lamp", "red", 10, 0)},
            "customers": {"C1": ada},
            "orders": {**orders, "O3": order("shipped", P2=(1, 40))},
            "transfers": {},
        }
    )
    return shop


def test_reading(shop):
    before = copy.deepcopy(shop.state)
    found = shop.find_customer(" ada  BERG", "12345 ")
    assert found["customer_id"] == "C1" and found["orders"] == ["O1", "O2", "O3"]
    assert shop.get_order("O1")["total"] == 69 and shop.get_order("O1")["items"]["P3"]["name"] == "lamp"
    assert set(shop.find_products("kettle")) == {"P1", "P2"} and set(shop.find_products("Blue Kettle")) == {"P2"}
    found["tier"] = "platinum"
    shop.get_order("O1")["items"]["P1"]["quantity"] = 99
    shop.find_products("lamp")["P3"]["stock"] = 99
    assert shop.state == before


def test_nothing_that_needs_confirmation_happens_before_it(shop):
    before = copy.deepcopy(shop.state)
    for prepare, arguments in [
        (shop.cancel_order, ("O1",)), (shop.exchange_item, ("O1", "P1", "P2")), (shop.return_items, ("O2", ["P1"])),
        (shop.place_order, ("C1", "P1", 2)),
    ]:  # fmt: skip
        assert "Call confirm" in prepare(*arguments) and shop.state == before
    assert shop.confirm() == "Done."  # the last one alone
    assert shop.state["orders"]["O4"]["items"] == {"P1": {"quantity": 2, "price": 30}}
    assert shop.state["products"]["P1"]["stock"] == 3 and shop.state["orders"]["O1"] == before["orders"]["O1"]
    with pytest.raises(ValueError, match="nothing is prepared"):
        shop.confirm()


CONFIRMED = [
    ("cancel_order", ("O1",), {"orders O1 status": "cancelled", "orders O1 refunded": 69, "products P1 stock": 7,
                               "products P3 stock": 1}),
    ("exchange_item", ("O1", "P1", "P2"), {"orders O1 items P3": {"quantity": 1, "price": 9}, "products P1 stock": 7,
                                           "orders O1 items P2": {"quantity": 2, "price": 40}, "products P2 stock": 0}),
    ("return_items", ("O2", ["P1"]), {"orders O2 refunded": 25, "products P1 stock": 6,
                                      "orders O2 items": {"P2": {"quantity": 1, "price": 40}}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "after"), CONFIRMED)
def test_stock_and_refunds_follow_what_is_confirmed(shop, name, arguments, after):
    getattr(shop, name)(*arguments)
    shop.confirm()
    for path, value in after.items():
        assert reduce(dict.__getitem__, path.split(), shop.state) == value, path
    assert name != "exchange_item" or len(shop.state["orders"]["O1"]["items"]) == 2


def test_quantities_move_stock(shop):
    shop.set_quantity("O1", "P1", 5)
    assert shop.state["products"]["P1"]["stock"] == 2
    assert shop.state["orders"]["O1"]["items"]["P1"] == {"quantity": 5, "price": 30}
    shop.set_quantity("O1", "P3", 0)
    assert shop.state["products"]["P3"]["stock"] == 1 and "P3" not in shop.state["orders"]["O1"]["items"]
    shop.set_quantity("O1", "P2", 1)
    assert shop.state["orders"]["O1"]["items"]["P2"] == {"quantity": 1, "price": 40}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("find_customer", ("Ada Berg", "54321"), "no customer"), ("find_customer", ("", ""), "no customer"),
        ("get_order", ("O9",), "no order 'O9'"), ("find_products", ("sofa",), "there are: kettle, lamp"),
        ("find_products", ("",), "no product"), ("change_order_address", ("O3", "2 Mill Lane"), "O3 is shipped"),
        ("change_order_address", ("O1", " x "), "5 to 200"), ("set_quantity", ("O1", "P1", -1), "0 to 100"),
        ("change_account_address", ("C9", "2 Mill Lane"), "no customer"),
        ("set_quantity", ("O1", "P1", 8), "only 5 of P1"), ("set_quantity", ("O1", "P9", 1), "no product"),
        ("set_quantity", ("O2", "P1", 1), "delivered"),
        ("cancel_order", ("O2",), "only pending"), ("cancel_order", ("O3",), "only pending"),
        ("exchange_item", ("O1", "P1", "P3"), "same product"),
        ("exchange_item", ("O1", "P1", "P1"), "same product"), ("exchange_item", ("O1", "P2", "P1"), "has no item"),
        ("exchange_item", ("O1", "P1", "P9"), "no product"),
        ("exchange_item", ("O3", "P2", "P1"), "shipped"), ("return_items", ("O1", ["P1"]), "pending"),
        ("return_items", ("O2", []), "name the products"),
        ("return_items", ("O2", ["P1", "P1"]), "each once"), ("return_items", ("O2", ["P3"]), "has no item"),
        ("place_order", ("C1", "P3", 1), "only 0 of P3"),
        ("place_order", ("C1", "P1", 0), "1 to 100"), ("place_order", ("C9", "P1", 1), "no customer"),
        ("place_order", ("C1", "P9", 1), "no product"),
        ("transfer", ("O9", "final sale"), "no order"), ("confirm", (), "nothing is prepared"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_and_changes_nothing(shop, name, arguments, message):
    before = copy.deepcopy(shop.state)
    with pytest.raises(ValueError, match=message):
        getattr(shop, name)(*arguments)
    assert shop.state == before


def test_an_order_is_never_emptied_and_what_was_prepared_is_checked_again(shop):
    shop.set_quantity("O1", "P3", 0)
    with pytest.raises(ValueError, match="cannot be empty"):
        shop.set_quantity("O1", "P1", 0)
    shop.place_order("C1", "P1", 5)
    shop.set_quantity("O1", "P1", 4)
    before = copy.deepcopy(shop.state)
    with pytest.raises(ValueError, match="only 3 of P1"):
        shop.confirm()
    assert shop.state == before


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_requests_are_what_the_difficulty_says(difficulty):
    kinds = set()
    for seed in range(100):
        request = make_request(random.Random(f"{difficulty}{seed}"), difficulty)
        assert WISHES[difficulty][0] <= len(request.kinds) <= WISHES[difficulty][1]
        assert request.state != request.goal and request.calls[0].name == "find_customer"
        assert json.loads(json.dumps(request.goal)) == request.goal and "{" not in request.text
        assert len(request.goal["transfers"]) == len(FORBIDDEN & set(request.kinds))
        kinds |= set(request.kinds)
    assert kinds == set(WISH_KINDS)


@cache
def seed_of(kind):
    """An episode with one wish, of that kind."""
    env = APIEnv(difficulty="easy")
    return next(seed for seed in range(2000) if env.reset(seed=seed)[1]["kinds"] == [kind])


def make(kind, **arguments):
    env = APIEnv(**{"difficulty": "easy", **arguments})
    env.reset(seed=seed_of(kind))
    return env


def test_descriptions_of_orders_are_unique():
    """Every product that a message names as being in "the order" is in one order of that customer only."""
    found = 0
    for seed in range(150):
        request = make_request(random.Random(seed), "hard")
        customer = request.calls[0].arguments["name"]
        id = next(id for id, c in request.state["customers"].items() if c["name"] == customer)
        own = [order for order in request.state["orders"].values() if order["customer"] == id]
        for part in request.text.split("the order that has the ")[1:]:
            product = part.split(" ")[0]
            assert sum(product in {request.state["products"][p]["name"] for p in order["items"]} for order in own) == 1
            found += 1
    assert found > 30


def test_forbidden_wishes_would_mostly_be_carried_out_by_the_functions():
    """So the agent has to mind the policy; and each is against it for one reason alone."""
    for kind in FORBIDDEN:
        request = make(kind).request
        ((order, reason),) = request.goal["transfers"].items()
        record = request.state["orders"][order]
        assert (record["status"] == "shipped") == (reason == "already shipped")
        assert (record["status"] == "pending" and order_total(record) > 500) == (reason == "refund above limit")
    shop, request = Shop(), make("return_late").request
    shop.load(request.state)
    (order,) = request.goal["transfers"]
    shop.return_items(order, [next(iter(request.state["orders"][order]["items"]))])
    assert shop.confirm() == "Done."


def call(env, name, /, **arguments):
    return env.step(env.format.write(Turn(calls=(ToolCall(name, arguments),))))


def find(env):
    """The call that has to come first."""
    return call(env, env.request.calls[0].name, **env.request.calls[0].arguments)


def test_rewards_to_the_number():
    env = make("cancel")
    order = env.request.calls[1].arguments["order_id"]
    assert find(env)[1] == 0.0 and call(env, "get_order", order_id=order)[1] == 0.0
    assert call(env, "cancel_order", order_id="O1")[1] == pytest.approx(-0.1)
    assert call(env, "cancel_order", order_id=order)[1] == 0.0
    _, reward, *_, info = env.step("<confirm></confirm>")
    assert reward == pytest.approx(0.3) and (info["progress"], info["wrong_writes"]) == (1.0, 0.0)
    _, reward, *ended, info = env.step("<answer>Cancelled.</answer>")
    assert reward == pytest.approx(1.0 + 0.05 - 0.3) and info["success"] == 1.0 and ended == [True, False]
    assert set(info["reward_terms"]) == {"answer", "format", "progress", "invalid", "wrong"}


def test_a_mistake_can_be_made_good():
    env = make("order_address")
    find(env)
    order, address = env.request.calls[1].arguments.values()
    assert call(env, "change_order_address", order_id=order, address="99 Nowhere Street")[4]["wrong_writes"] == 1.0
    info = call(env, "change_order_address", order_id=order, address=address)[4]
    assert (info["wrong_writes"], info["progress"]) == (0.0, 1.0)
    assert env.step("<answer>Done.</answer>")[4]["success"] == 1.0


def test_carrying_out_what_is_forbidden_fails():
    env = make("cancel_large")
    (order,) = env.request.goal["transfers"]
    call(env, "cancel_order", order_id=order)
    env.step("<confirm></confirm>")
    call(env, "transfer", order_id=order, reason="refund above limit")
    info = env.step("<answer>Done.</answer>")[4]
    assert info["success"] == info["reward_terms"]["answer"] == 0.0 and info["progress"] == 1.0
    assert info["wrong_writes"] >= 2 and info["reward_terms"]["wrong"] == pytest.approx(-0.1 * info["wrong_writes"])


def test_a_transfer_needs_the_right_reason():
    env = make("return_late")
    (order,) = env.request.goal["transfers"]
    info = call(env, "transfer", order_id=order, reason="final sale")[4]
    assert (info["progress"], info["wrong_writes"]) == (0.0, 1.0)
    assert call(env, "transfer", order_id=order, reason="because")[1] == pytest.approx(-0.1 + 0.0)
    assert env.step("<answer>Done.</answer>")[4]["success"] == 0.0


def test_another_way_to_the_same_state_is_as_good():
    env = make("exchange")
    order, old, new = next(c for c in env.request.calls if c.name == "exchange_item").arguments.values()
    pieces = env.shop.state["orders"][order]["items"][old]["quantity"]
    find(env)
    call(env, "set_quantity", order_id=order, product_id=new, quantity=pieces)
    call(env, "set_quantity", order_id=order, product_id=old, quantity=0)
    assert env.step("<answer>Done.</answer>")[4]["success"] == 1.0


def serve(env, *, first=(), last=()):
    """Make the calls that serve the request, with others before and after them, and answer: the last info."""
    for turn in (*first, *env.request.calls, *last):
        call(env, turn.name, **turn.arguments)
    return env.step("<answer>Done.</answer>")[4]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("first", ["nobody", "somebody else"])
def test_who_does_not_find_the_customer_first_is_not_paid(difficulty, first):
    env = APIEnv(difficulty=difficulty)
    for seed in range(SEED * 100, SEED * 100 + 5):
        for late in (False, True):
            env.reset(seed=seed)
            found, *others = env.request.calls
            if first == "somebody else":
                customers = env.request.state["customers"]
                stranger = next(record for id, record in customers.items() if id != env.request.customer)
                call(env, "find_customer", name=stranger["name"], postcode=stranger["postcode"])
            for one in [*others, found] if late else others:
                call(env, one.name, **one.arguments)
            info = env.step("<answer>Done.</answer>")[4]
            assert env.shop.state == env.request.goal and info["success"] == 0.0
            assert "before the customer was found" in info["broken_rules"][0]


def detour(env, rng, owner):
    """Two calls that change something that nobody asked for and put it back. None where there is nothing to change."""
    state, goal, customer = env.request.state, env.request.goal, env.request.customer
    orders = {id: order for id, order in state["orders"].items() if (order["customer"] == customer) == (owner == "own")}
    ways = []
    for id, order in sorted(orders.items()):
        if order["status"] == "pending" and order == goal["orders"][id] and id not in goal["transfers"]:
            ways.append(("change_order_address", {"order_id": id}, "address", order["address"]))
            for product, item in order["items"].items():
                if item["quantity"] > 1:
                    place = {"order_id": id, "product_id": product}
                    ways.append(("set_quantity", place, "quantity", item["quantity"]))
    if owner == "stranger":
        people = {id: record["address"] for id, record in sorted(state["customers"].items()) if id != customer}
        ways += [("change_account_address", {"customer_id": id}, "address", old) for id, old in people.items()]
    if not ways:
        return None
    name, place, key, value = rng.choice(ways)
    other = "99 Nowhere Street" if key == "address" else value - 1
    return [ToolCall(name, {**place, key: other}), ToolCall(name, {**place, key: value})]


@pytest.mark.parametrize("owner", ["stranger", "own"])
@pytest.mark.parametrize("noop", [False, True])
def test_what_was_touched_and_put_back_is_not_paid(owner, noop):
    """Whatever the seed: a record that the request is not about was changed, or, of a stranger, just written to."""
    env, tried = APIEnv(max_turns=40), 0
    for seed in range(SEED * 100, SEED * 100 + 16):
        env.reset(seed=seed)
        away_and_back = detour(env, random.Random(seed), owner)
        if away_and_back is None:
            continue
        info = serve(env, last=away_and_back[noop:])
        assert env.shop.state == env.request.goal
        tried += 1
        harmless = owner == "own" and noop
        assert info["success"] == float(harmless) and (info["wrong_writes"] == 0.0) == harmless
        assert bool(info["broken_rules"]) != harmless
    assert tried > 4


def test_too_many_pieces_for_a_moment_are_not_paid():
    env = make("quantity")
    order, product, pieces = env.request.calls[1].arguments.values()
    while env.shop.state["products"][product]["stock"] < 6:
        env.reset(seed=int(env.np_random.integers(1 << 30)))
        if env.request.kinds == ("quantity",):
            order, product, pieces = env.request.calls[1].arguments.values()
    find(env)
    call(env, "set_quantity", order_id=order, product_id=product, quantity=6)
    call(env, "set_quantity", order_id=order, product_id=product, quantity=pieces)
    info = env.step("<answer>Done.</answer>")[4]
    assert env.shop.state == env.request.goal and info["success"] == 0.0
    assert info["broken_rules"] == ["set_quantity: more than 5 pieces of a product in an order"]


def test_a_refused_call_breaks_no_rule_and_an_episode_starts_with_a_clean_record():
    env = make("order_address")
    call(env, "get_order", order_id="O1")
    call(env, "find_customer", name="Nobody", postcode="0")
    assert serve(env)["success"] == 1.0
    env.reset(seed=0)
    call(env, "find_products", name=next(iter(env.request.state["products"].values()))["name"])
    assert env.conduct.broken
    for _ in range(2):  # nor with the shop that the last one left
        env.reset(options={"instance": 3})
        assert env.shop.state == env.request.state and serve(env)["success"] == 1.0


def test_without_an_answer_there_is_no_success():
    env = make("order_address", max_turns=2)
    find(env)
    *_, terminated, truncated, info = call(env, env.request.calls[1].name, **env.request.calls[1].arguments)
    assert (terminated, truncated, info["success"]) == (False, True, 0.0)
