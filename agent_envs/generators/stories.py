"""Word problems of several steps, each with the calculation that solves it.

A story has exactly ``tale.length`` steps, 2 to 6, and ends with the question. Numbers are drawn until every intermediate
value is positive and has at most two decimals, or is an integer if the story counts things.
"""

import itertools
import random
from collections.abc import Callable
from contextlib import suppress

from agent_envs.generators.arithmetic import evaluate
from agent_envs.generators.instances import Redraw
from agent_envs.generators.tales import Problem, Tale, Told, dollars

STEPS = {"easy": (2, 2), "normal": (3, 4), "hard": (5, 6)}
DISTRACTORS = {"easy": (0, 0), "normal": (0, 1), "hard": (1, 2)}
DIFFICULTIES = tuple(STEPS)
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
    texts = "A discount of {percent}% is taken off everything so far.", "The sum so far is reduced by {percent}%."
    return t.take_off(total, 5, 40, 5, *texts)


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
        texts = "Of the week's pay, {percent}% goes to taxes.", "Taxes take {percent}% of the pay."
        pay = t.take_off(pay, 10, 35, 5, *texts)
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
        texts = "Groups of this size pay {percent}% less.", "The group gets a reduction of {percent}% on that."
        cost = t.take_off(cost, 5, 30, 5, *texts)
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
    t.end(f"How many dollars of interest does {t.name} get?")
    if t.left >= 4:
        interest = t.take_off(interest, 10, 30, 5, "Of the interest, {percent}% is kept back as tax.")
    balance = t.step(f"{capital} + {interest}")
    if t.left >= 2:
        monthly, months = t.amount(10, 120, 5), t.amount(3, 18)
        t.say(f"Besides, {t.name} has saved ${monthly} a month for {months} months in a jar at home.")
        balance = t.step(f"{balance} + {monthly} * {months}")
    t.end(f"How many dollars does {t.name} then have, capital and interest together?")
    price = t.amount(200, 3000, 50)
    question = "How many dollars remain of capital, interest and savings?"
    t.say(f"{t.name} buys a bicycle for ${price:,} from that. {question}")
    t.step(f"{balance} - {price}")


def stock(t: Tale) -> None:
    """A stock of goods that comes and goes, packed at the end."""
    place, goods = t.pick((("bakery", "loaves"), ("farm", "eggs"), ("library", "books"), ("nursery", "seedlings"),
                           ("depot", "parcels"), ("kiosk", "postcards"), ("museum", "posters")))  # fmt: skip
    have = str(t.amount(40, 600))
    t.say(f"In the morning a {place} has {have} {goods}.", f"A {place} starts the day with {have} {goods}.")
    while t.left > 1:
        event = t.pick(("boxes", "percent", "part", "some", "more"))
        number, each, percent = t.amount(3, 20), t.amount(4, 36), t.amount(5, 75, 5)
        if event == "boxes":
            t.say(f"Then {number} crates with {each} {goods} each arrive.",
                  f"The {place} receives {number} boxes of {each} {goods}.")  # fmt: skip
            step = f"{have} + {number} * {each}"
        elif event == "percent":
            t.say(f"Of what is there, {percent}% is handed out.",
                  f"Next, {percent}% of the {goods} there are handed out.")  # fmt: skip
            step = f"{have} * (100 - {percent}) / 100"
        elif event == "part":
            word, share = t.pick((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5)))
            t.say(
                f"After that {word} of the {goods} it has go to a customer.",
                f"The {place} sells {word} of what it has.",
            )
            step = f"{have} - {have} / {share}"
        else:
            lost = event == "some"
            word = "turn out to be damaged and are thrown away" if lost else "are brought back"
            t.say(f"{each} {goods} {word}.", f"Later, {each} {goods} {word}.")
            step = f"{have} {'-' if lost else '+'} {each}"
        have = t.step(step, whole=True)
    size = t.amount(2, 12)
    t.step(f"{have} / {size}", whole=True)
    t.say(f"What is left is packed in bags of {size}. How many bags are filled?",
          f"The {goods} that remain are put on {size} shelves, equally many on each. How many are on one shelf?")  # fmt: skip


def comparison(t: Tale) -> None:
    """Things of several people, each with more, fewer, a multiple or a fraction of those of the person before."""
    goods = t.pick(("stamps", "marbles", "shells", "cards", "coins", "stickers", "medals"))
    people = [t.name, t.other, t.third, *t.rng.sample(("Ola", "Pia", "Ralf", "Sven", "Tess"), 3)][: t.length]
    counts = [str(t.amount(8, 90))]
    t.say(f"{people[0]} has {counts[0]} {goods}.")
    for before, person in itertools.pairwise(people):
        kind, difference, factor = t.pick(("more", "fewer", "times", "part")), t.amount(3, 40), t.amount(2, 5)
        if kind in ("more", "fewer"):
            text, step = f"{difference} {kind} than", f"{'+' if kind == 'more' else '-'} {difference}"
        elif kind == "times":
            text = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[factor] + " as many as"
            step = f"* {factor}"
        else:
            text = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[factor] + " as many as"
            step = f"/ {factor}"
        t.say(f"{person} has {text} {before}.")
        counts.append(t.step(f"{counts[-1]} {step}", whole=True))
    t.step(" + ".join(counts), whole=True)
    t.say(f"How many {goods} do they have altogether?", f"How many {goods} is that in all?")


def recipe(t: Tale) -> None:
    """A recipe scaled to a number of guests."""
    dish = t.pick(("stew", "cake", "salad", "soup", "curry"))
    ingredient = t.pick(("flour", "rice", "carrots", "beans", "lentils", "potatoes"))
    grams, serves, guests = t.amount(150, 1200, 25), t.amount(2, 8), t.amount(9, 40)
    t.say(f"A recipe for a {dish} takes {grams} grams of {ingredient} for {serves} people.")
    each = t.step(f"{grams} / {serves}")
    t.say(f"{t.name} cooks it for {guests} guests.", f"{t.name} expects {guests} people.")
    needed = t.step(f"{each} * {guests}")
    if t.left >= 3:
        percent = t.pick((10, 20, 25, 50))
        t.say(f"To be safe, {t.name} takes {percent}% more than that.")
        needed = t.step(f"{needed} * (100 + {percent}) / 100")
    if t.left >= 3:
        have = t.amount(100, 900, 50)
        t.say(f"There are {have} grams in the kitchen already, and only the rest is bought.")
        needed = t.step(f"{needed} - {have}")
    t.end(f"How many grams of {ingredient} are needed?")
    kilos = t.step(f"{needed} / 1000")
    t.end(f"How many kilograms of {ingredient} are needed?")
    price = t.pick(("1.2", "2", "2.5", "3", "4", "5"))
    t.step(f"{kilos} * {price}")
    t.say(f"A kilogram costs {dollars(price)}. How many dollars does the {ingredient} that {t.name} buys come to?")


def factory(t: Tale) -> None:
    """The output of machines without the faulty pieces, in boxes."""
    goods = t.pick(("screws", "bulbs", "buttons", "bottles", "springs", "tiles"))
    rate, hours = t.amount(4, 60), t.amount(2, 12)
    t.say(f"A machine makes {rate} {goods} a minute and runs for {hours} hours.")
    made = t.step(f"{rate} * 60 * {hours}", whole=True)
    if t.left >= 4:
        slower, more = t.amount(2, 30), t.amount(2, 9)
        t.say(f"An older one, which makes {slower} a minute, runs for {more} hours.")
        others = t.step(f"{slower} * 60 * {more}", whole=True)
        made = t.step(f"{made} + {others}", whole=True)
    if t.left >= 2:
        text = f"Of all {goods} made, {{percent}}% are faulty and are thrown away."
        made = t.take_off(made, 1, 12, 1, text, whole=True)
    size = t.amount(4, 60)
    boxes = t.step(f"{made} / {size}", whole=True)
    t.say(f"The good ones are packed in boxes of {size}." if t.length > 2 else f"They are packed in boxes of {size}.")
    t.end("How many boxes are filled?")
    price = t.price(2, 30)
    t.say(f"A box is sold for {dollars(price)}. How many dollars do all boxes bring in?")
    t.step(f"{boxes} * {price}")


def reading(t: Tale) -> None:
    """How long it takes to finish a book."""
    pages, daily, days = t.amount(180, 900, 10), t.amount(8, 45), t.amount(3, 9)
    t.say(f"{t.name} has a book of {pages} pages and reads {daily} pages a day for {days} days.")
    done = t.step(f"{daily} * {days}", whole=True)
    if t.left >= 4:
        more = t.amount(10, 60)
        t.say(f"On the day after that, {t.name} reads {more} pages.")
        done = t.step(f"{done} + {more}", whole=True)
    rest = t.step(f"{pages} - {done}", whole=True)
    t.end("How many pages are still to be read?")
    days = t.amount(2, 14)
    share = t.step(f"{rest} / {days}", whole=True)
    t.say(f"The rest is to be finished in {days} more days, with the same number of pages on each of them.")
    t.end("How many pages a day is that?")
    seconds = t.amount(30, 150, 15)
    t.say(f"A page takes {t.name} {seconds} seconds.")
    minutes = t.step(f"{share} * {seconds} / 60")
    t.end(f"How many minutes does {t.name} read on each of these days?")
    t.step(f"{minutes} * {days}")
    t.say(f"How many minutes will {t.name} read in these {days} days?")


def journey(t: Tale) -> None:
    """Distance, fuel and cost of a journey by road."""
    vehicle, verb = t.pick((("van", "drives"), ("lorry", "drives"), ("motorcycle", "rides"), ("bus", "drives")))
    speeds, minutes = [t.amount(30, 110, 5) for _ in range(3)], [t.amount(30, 240, 6) for _ in range(3)]
    t.say(f"{t.name} {verb} a {vehicle} for {minutes[0]} minutes at {speeds[0]} km/h.")
    distance = t.step(f"{speeds[0]} * {minutes[0]} / 60")
    if t.left >= 2:
        t.say(f"After a break, {t.name} goes on for {minutes[1]} minutes at {speeds[1]} km/h.")
        leg = t.step(f"{speeds[1]} * {minutes[1]} / 60")
        distance = t.step(f"{distance} + {leg}")
    t.end("How many kilometres is that in all?", f"How many kilometres does {t.name} cover in all?")
    litres = t.price(5, 12)
    t.say(f"The {vehicle} uses {litres} litres of fuel for every 100 km.")
    fuel = t.step(f"{distance} * {litres} / 100")
    t.end("How many litres of fuel does the journey take?")
    price = t.pick(("1.2", "1.5", "1.6", "1.8", "2"))
    t.say(f"A litre costs {dollars(price)}.")
    cost = t.step(f"{fuel} * {price}")
    t.end("How many dollars does the fuel cost?")
    people = t.amount(2, 5)
    t.step(f"{cost} / {people}")
    t.say(f"{people} people share the cost of the fuel equally. How many dollars does each pay?")


def tank(t: Tale) -> None:
    """Water that runs into a tank and out of it."""
    volume, percent = t.amount(200, 4000, 50), t.amount(10, 60, 5)
    vessel = t.pick(("tank", "pool", "cistern"))
    t.say(f"A {vessel} holds {volume:,} litres of water when full, and {percent}% of that is in it.",
          f"A {vessel} for {volume:,} litres of water is {percent}% full.")  # fmt: skip
    level = t.step(f"{volume} * {percent} / 100")
    while t.left > 1:
        rate, minutes, share = t.price(1, 12), t.amount(5, 40), t.pick((2, 4, 5))
        event = t.pick(("in", "out", "part"))
        if event == "in":
            t.say(f"A pump brings in {rate} litres a minute for {minutes} minutes.")
            change = f"+ {rate} * {minutes}"
        elif event == "out":
            t.say(f"Then {rate} litres a minute run out for {minutes} minutes.")
            change = f"- {rate} * {minutes}"
        else:
            word = {2: "half", 4: "a quarter", 5: "a fifth"}[share]
            t.say(f"After that, {word} of the water that is there is used up.")
            change = f"- {level} / {share}"
        level = t.step(f"{level} {change}")
        if float(level) > volume:
            raise Redraw
    t.say(f"How many litres are missing until the {vessel} is full?", f"How many more litres would fill the {vessel}?")
    t.step(f"{volume} - {level}")


def garden(t: Tale) -> None:
    """The fence around a garden, or the seed for its lawn."""
    length, width = t.amount(8, 60), t.price(4, 30)
    t.say(f"A rectangular garden is {length} metres long and {width} metres wide.")
    if t.length < 4:
        price = t.price(2, 25)
        border = t.step(f"2 * ({length} + {width})")
        if t.left == 2:
            gate = t.pick(("1.5", "2", "3"))
            t.say(f"A fence goes round the garden, apart from a gate {gate} metres wide.")
            border = t.step(f"{border} - {gate}")
        else:
            t.say("A fence goes all round the garden.")
        t.step(f"{border} * {price}")
        t.say(f"A metre of fence costs {dollars(price)}. How many dollars does the fence cost?")
        return
    area = t.step(f"{length} * {width}")
    pond, bed = (t.amount(2, 5), t.amount(2, 4)), t.amount(5, 40, 5)
    t.say(f"A pond takes up {pond[0]} metres by {pond[1]} metres of the garden.")
    area = t.step(f"{area} - {pond[0]} * {pond[1]}")
    if t.left >= 3:
        t.say(f"Of the rest, {bed}% are flower beds, and everything else is lawn.")
        area = t.step(f"{area} * (100 - {bed}) / 100")
    else:
        t.say("The rest is lawn.")
    grams, price, with_bill = t.amount(20, 60, 5), t.price(4, 15), t.left >= 3
    t.say(f"Every square metre of lawn needs {grams} grams of seed.")
    kilos = t.step(f"{area} * {grams} / 1000")
    if with_bill:
        cost = t.step(f"{kilos} * {price}")
        bill = t.amount(20, 90, 5)
        costs = f"A kilogram of seed costs {dollars(price)}, and a gardener charges ${bill}."
        t.say(f"{costs} How many dollars is that together?")
        t.step(f"{cost} + {bill}")
    else:
        t.say(f"A kilogram of seed costs {dollars(price)}. How many dollars does the seed cost?")
        t.step(f"{kilos} * {price}")


STORIES: dict[str, Callable[[Tale], None]] = {
    story.__name__: story
    for story in (shopping, wages, trip, savings, stock, comparison, recipe, factory, reading, journey, tank, garden)
}


def make_problem(rng: random.Random, difficulty: str = "normal") -> Problem:
    """Make a random word problem; `STEPS` and `DISTRACTORS` are the ranges of its steps and irrelevant sentences."""
    length = rng.randint(*STEPS[difficulty])
    kind = rng.choice(tuple(STORIES))
    while True:
        tale = Tale(rng, length)
        try:
            with suppress(Told):
                STORIES[kind](tale)
        except Redraw:
            continue
        assert not tale.left, f"the story {kind} of {length} steps has {len(tale.steps)}"
        tale.distract(rng.randint(*DISTRACTORS[difficulty]))
        return Problem(" ".join(tale.sentences), evaluate(tale.steps[-1]), tuple(tale.steps), kind)
