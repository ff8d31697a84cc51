"""Stories about things: each tells exactly ``tale.length`` steps, from 2 to 6, and ends with the question."""

import itertools
from collections.abc import Callable

from agent_envs.generators.stories.tale import Tale, dollars


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
            t.say(
                f"Then {number} crates with {each} {goods} each arrive.",
                f"The {place} receives {number} boxes of {each} {goods}.",
            )
            have = t.step(f"{have} + {number} * {each}", whole=True)
        elif event == "percent":
            t.say(
                f"Of what is there, {percent}% is handed out.", f"Next, {percent}% of the {goods} there are handed out."
            )
            have = t.step(f"{have} * (100 - {percent}) / 100", whole=True)
        elif event == "part":
            word, share = t.pick((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5)))
            t.say(
                f"After that {word} of the {goods} it has go to a customer.",
                f"The {place} sells {word} of what it has.",
            )
            have = t.step(f"{have} - {have} / {share}", whole=True)
        else:
            word, sign = (
                ("turn out to be damaged and are thrown away", "-") if event == "some" else ("are brought back", "+")
            )
            t.say(f"{each} {goods} {word}.", f"Later, {each} {goods} {word}.")
            have = t.step(f"{have} {sign} {each}", whole=True)
    size = t.amount(2, 12)
    t.step(f"{have} / {size}", whole=True)
    t.say(f"What is left is packed in bags of {size}. How many bags are filled?",
          f"The {goods} that remain are put on {size} shelves, equally many on each. How many are on one shelf?")  # fmt: skip


def comparison(t: Tale) -> None:
    """Several people, each with more, fewer or as many times the things of the one before."""
    goods = t.pick(("stamps", "marbles", "shells", "cards", "coins", "stickers", "medals"))
    people = [t.name, t.other, t.third, *t.rng.sample(("Ola", "Pia", "Ralf", "Sven", "Tess"), 3)][: t.length]
    counts = [str(t.amount(8, 90))]
    t.say(f"{people[0]} has {counts[0]} {goods}.")
    for before, person in itertools.pairwise(people):
        kind, difference, factor = t.pick(("more", "fewer", "times", "part")), t.amount(3, 40), t.amount(2, 5)
        if kind in ("more", "fewer"):
            t.say(f"{person} has {difference} {kind} than {before}.")
            counts.append(t.step(f"{counts[-1]} {'+' if kind == 'more' else '-'} {difference}", whole=True))
        elif kind == "times":
            times = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[factor]
            t.say(f"{person} has {times} as many as {before}.")
            counts.append(t.step(f"{counts[-1]} * {factor}", whole=True))
        else:
            part = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[factor]
            t.say(f"{person} has {part} as many as {before}.")
            counts.append(t.step(f"{counts[-1]} / {factor}", whole=True))
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
    if not t.left:
        t.say(f"How many grams of {ingredient} are needed?")
        return
    kilos = t.step(f"{needed} / 1000")
    if not t.left:
        t.say(f"How many kilograms of {ingredient} are needed?")
        return
    price = t.pick(("1.2", "2", "2.5", "3", "4", "5"))
    t.step(f"{kilos} * {price}")
    t.say(f"A kilogram costs {dollars(price)}. How many dollars does the {ingredient} that {t.name} buys come to?")


def factory(t: Tale) -> None:
    """What a machine makes, less the faulty pieces, in boxes."""
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
        percent = t.amount(1, 12)
        t.say(f"Of all {goods} made, {percent}% are faulty and are thrown away.")
        made = t.step(f"{made} * (100 - {percent}) / 100", whole=True)
    size = t.amount(4, 60)
    boxes = t.step(f"{made} / {size}", whole=True)
    t.say(f"The good ones are packed in boxes of {size}." if t.length > 2 else f"They are packed in boxes of {size}.")
    if not t.left:
        t.say("How many boxes are filled?")
        return
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
    if not t.left:
        t.say("How many pages are still to be read?")
        return
    days = t.amount(2, 14)
    share = t.step(f"{rest} / {days}", whole=True)
    t.say(f"The rest is to be finished in {days} more days, with the same number of pages on each of them.")
    if not t.left:
        t.say("How many pages a day is that?")
        return
    seconds = t.amount(30, 150, 15)
    t.say(f"A page takes {t.name} {seconds} seconds.")
    minutes = t.step(f"{share} * {seconds} / 60")
    if not t.left:
        t.say(f"How many minutes does {t.name} read on each of these days?")
        return
    t.step(f"{minutes} * {days}")
    t.say(f"How many minutes will {t.name} read in these {days} days?")


STORIES: dict[str, Callable[[Tale], None]] = {
    "stock": stock,
    "comparison": comparison,
    "recipe": recipe,
    "factory": factory,
    "reading": reading,
}
