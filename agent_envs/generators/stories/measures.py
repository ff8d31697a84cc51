"""Stories about measures: each tells exactly ``tale.length`` steps, from 2 to 6, and ends with the question."""

from collections.abc import Callable

from agent_envs.generators import Redraw
from agent_envs.generators.stories.tale import Tale, dollars


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
    if not t.left:
        t.say("How many kilometres is that in all?", f"How many kilometres does {t.name} cover in all?")
        return
    litres = t.price(5, 12)
    t.say(f"The {vehicle} uses {litres} litres of fuel for every 100 km.")
    fuel = t.step(f"{distance} * {litres} / 100")
    if not t.left:
        t.say("How many litres of fuel does the journey take?")
        return
    price = t.pick(("1.2", "1.5", "1.6", "1.8", "2"))
    t.say(f"A litre costs {dollars(price)}.")
    cost = t.step(f"{fuel} * {price}")
    if not t.left:
        t.say("How many dollars does the fuel cost?")
        return
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
            level = t.step(f"{level} + {rate} * {minutes}")
        elif event == "out":
            t.say(f"Then {rate} litres a minute run out for {minutes} minutes.")
            level = t.step(f"{level} - {rate} * {minutes}")
        else:
            word = {2: "half", 4: "a quarter", 5: "a fifth"}[share]
            t.say(f"After that, {word} of the water that is there is used up.")
            level = t.step(f"{level} - {level} / {share}")
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
    grams, price = t.amount(20, 60, 5), t.price(4, 15)
    t.say(f"Every square metre of lawn needs {grams} grams of seed.")
    if t.left >= 3:
        kilos = t.step(f"{area} * {grams} / 1000")
        cost = t.step(f"{kilos} * {price}")
        bill = t.amount(20, 90, 5)
        t.say(
            f"A kilogram of seed costs {dollars(price)}, and a gardener charges ${bill}. How many dollars is that together?"
        )
        t.step(f"{cost} + {bill}")
    else:
        kilos = t.step(f"{area} * {grams} / 1000")
        t.say(f"A kilogram of seed costs {dollars(price)}. How many dollars does the seed cost?")
        t.step(f"{kilos} * {price}")


STORIES: dict[str, Callable[[Tale], None]] = {
    "journey": journey,
    "tank": tank,
    "garden": garden,
}
