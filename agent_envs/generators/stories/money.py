"""Stories about money: each tells exactly ``tale.length`` steps, from 2 to 6, and ends with the question."""

from collections.abc import Callable

from agent_envs.generators.stories.tale import Tale, dollars

_GOODS = """notebooks pencils mugs candles lamps cushions scarves plants kites puzzles bowls baskets clocks umbrellas
brushes blankets jars tickets helmets bells""".split()


def shopping(t: Tale) -> None:
    """A bill with several items, discounts and fees."""
    goods = t.rng.sample(_GOODS, 3)
    count, price = t.amount(2, 15), t.price(1, 20)
    t.say(f"{t.name} buys {count} {goods[0]} at {dollars(price)} each.",
          f"In a shop, {t.name} takes {count} {goods[0]}, which cost {dollars(price)} apiece.")  # fmt: skip
    total = t.step(f"{count} * {price}")
    changes = t.rng.sample((_discount, _voucher, _delivery, _tax), 4)
    while t.left > 1:
        if t.left > 2 and len(goods) > 1 and t.rng.random() < 0.6:
            item, count, price = goods.pop(), t.amount(2, 12), t.price(1, 15)
            t.say(f"{t.name} also takes {count} {item} for {dollars(price)} each.",
                  f"Then come {count} {item} at {dollars(price)} each.")  # fmt: skip
            line = t.step(f"{count} * {price}")
            total = t.step(f"{total} + {line}")
        else:
            total = changes.pop()(t, total)
    if t.rng.random() < 0.5:
        friends = t.amount(2, 6)
        total = t.step(f"{total} / {friends}")
        t.say(f"The bill is shared equally by {friends} people. How many dollars does each of them pay?")
    else:
        note = t.pick((50, 100, 200, 500))
        t.step(f"{note} - {total}")
        t.say(f"{t.name} pays with ${note}. How many dollars does {t.name} get back?",
              f"How many dollars are left of the ${note} that {t.name} had before paying?")  # fmt: skip


def _discount(t: Tale, total: str) -> str:
    percent = t.amount(5, 40, 5)
    t.say(f"A discount of {percent}% is taken off everything so far.", f"The sum so far is reduced by {percent}%.")
    return t.step(f"{total} * (100 - {percent}) / 100")


def _voucher(t: Tale, total: str) -> str:
    value = t.price(2, 12)
    t.say(f"A voucher takes {dollars(value)} off the sum.", f"{t.name} hands in a voucher worth {dollars(value)}.")
    return t.step(f"{total} - {value}")


def _delivery(t: Tale, total: str) -> str:
    fee = t.price(2, 9)
    t.say(f"Delivery adds {dollars(fee)}.", f"Wrapping costs another {dollars(fee)} in all.")
    return t.step(f"{total} + {fee}")


def _tax(t: Tale, total: str) -> str:
    percent = t.pick((4, 5, 8, 10, 20, 25))
    t.say(f"A tax of {percent}% is added to the sum so far.")
    return t.step(f"{total} * (100 + {percent}) / 100")


def wages(t: Tale) -> None:
    """A week's pay with overtime, taxes and rent."""
    hours, rate, days = t.amount(4, 9), t.price(9, 32), t.amount(3, 6)
    t.say(f"{t.name} earns {dollars(rate)} an hour and works {hours} hours a day, {days} days a week.")
    pay = t.step(f"{rate} * {hours} * {days}")
    if t.left >= 3:
        extra, percent = t.amount(2, 8), t.pick((25, 50, 100))
        t.say(f"This week there are {extra} hours of overtime on top, which are paid {percent}% more.")
        bonus = t.step(f"{extra} * {rate} * (100 + {percent}) / 100")
        pay = t.step(f"{pay} + {bonus}")
    if t.left >= 2:
        percent = t.amount(10, 35, 5)
        t.say(f"Of the week's pay, {percent}% goes to taxes.", f"Taxes take {percent}% of the pay.")
        pay = t.step(f"{pay} * (100 - {percent}) / 100")
    if t.left >= 2:
        rent = t.amount(60, 240, 10)
        t.say(f"{t.name} then puts ${rent} aside for rent.", f"Rent and food take another ${rent} a week.")
        pay = t.step(f"{pay} - {rent}")
    weeks = t.amount(2, 12)
    if t.rng.random() < 0.5:
        t.say(f"How many dollars does that leave {t.name} with after {weeks} such weeks?")
        t.step(f"{pay} * {weeks}")
    else:
        goal = t.amount(20, 60)
        t.say(f"{t.name} then spends ${goal} on a present. How many dollars remain of the week's pay?")
        t.step(f"{pay} - {goal}")


def trip(t: Tale) -> None:
    """What a school trip costs, and who pays for it."""
    classes, pupils, adults = t.amount(2, 6), t.amount(18, 30), t.amount(3, 10)
    t.say(f"A school sends {classes} classes of {pupils} pupils to a museum, and {adults} adults come along.")
    people = t.step(f"{classes} * {pupils} + {adults}")
    price, goal = t.price(3, 15), t.pick(("museum", "train", "boat"))
    what = {"museum": "Entry", "train": "The train", "boat": "A boat trip on the way"}[goal]
    t.say(f"{what} costs {dollars(price)} a head.", f"For every one of them, {what.lower()} costs {dollars(price)}.")
    cost = t.step(f"{people} * {price}")
    if t.left >= 2:
        percent = t.amount(5, 30, 5)
        t.say(f"Groups of this size pay {percent}% less.", f"The group gets a reduction of {percent}% on that.")
        cost = t.step(f"{cost} * (100 - {percent}) / 100")
    if t.left >= 2:
        bus = t.amount(80, 600, 20)
        t.say(f"Hiring buses costs another ${bus}.")
        cost = t.step(f"{cost} + {bus}")
    if t.left >= 2:
        grant = t.amount(50, 400, 10)
        t.say(f"The town contributes ${grant}.", f"A club gives ${grant} towards it.")
        cost = t.step(f"{cost} - {grant}")
    if not t.left:
        t.say("How many dollars is that in all?")
    elif t.rng.random() < 0.5:
        t.step(f"{cost} / {classes}")
        t.say("The classes share the cost equally. How many dollars does each class pay?")
    else:
        have = t.amount(1000, 6000, 100)
        t.step(f"{have} - {cost}")
        t.say(f"The school has set aside ${have:,}. How many dollars of it are left over?")


def savings(t: Tale) -> None:
    """Simple interest on savings, and what is left of them."""
    capital, rate = t.amount(400, 9000, 100), t.pick(("1.5", "2", "2.5", "3", "4", "5"))
    t.say(f"{t.name} puts ${capital:,} into an account with simple interest of {rate}% a year.")
    interest = t.step(f"{capital} * {rate} / 100")
    years = t.amount(2, 9)
    interest = t.step(f"{interest} * {years}")
    t.say(f"The interest is paid out after {years} years.")
    if not t.left:
        t.say(f"How many dollars of interest does {t.name} get?")
        return
    if t.left >= 4:
        percent = t.amount(10, 30, 5)
        t.say(f"Of the interest, {percent}% is kept back as tax.")
        interest = t.step(f"{interest} * (100 - {percent}) / 100")
    balance = t.step(f"{capital} + {interest}")
    if t.left >= 2:
        monthly, months = t.amount(10, 120, 5), t.amount(3, 18)
        t.say(f"Besides, {t.name} has saved ${monthly} a month for {months} months in a jar at home.")
        balance = t.step(f"{balance} + {monthly} * {months}")
    if not t.left:
        t.say(f"How many dollars does {t.name} then have, capital and interest together?")
        return
    price = t.amount(200, 3000, 50)
    t.say(
        f"{t.name} buys a bicycle for ${price:,} from that. How many dollars remain of capital, interest and savings?"
    )
    t.step(f"{balance} - {price}")


STORIES: dict[str, Callable[[Tale], None]] = {
    "shopping": shopping,
    "wages": wages,
    "trip": trip,
    "savings": savings,
}
