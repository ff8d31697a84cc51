"""Puzzles about numbers and dates."""

import random
from collections.abc import Callable
from datetime import date, timedelta

from agent_envs.generators.puzzles.puzzle import Puzzle

_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def counting(rng: random.Random) -> Puzzle:
    """How many numbers of a range fulfil conditions on divisors and the digit sum."""
    low, width, (p, q) = rng.randrange(1, 5000), rng.randrange(500, 9000), rng.sample((2, 3, 4, 5, 6, 7, 9, 11, 13), 2)
    modulus, high = rng.choice((2, 3, 4, 5)), low + width
    rest = rng.randrange(modulus)
    text = (
        f"How many whole numbers from {low} to {high}, both included, are divisible by {p}, are not divisible by {q}, and "
        f"have a digit sum that leaves a remainder of {rest} when divided by {modulus}?"
    )
    gold = sum(n % p == 0 and n % q != 0 and sum(map(int, str(n))) % modulus == rest for n in range(low, high + 1))
    program = f"""\
count = 0
for n in range({low}, {high} + 1):
    digits, m = 0, n
    while m:
        m, digit = divmod(m, 10)
        digits += digit
    if n % {p} == 0 and n % {q} and digits % {modulus} == {rest}:
        count += 1
print(count)"""
    return Puzzle(text, str(gold), program)


def recurrence(rng: random.Random) -> Puzzle:
    """A term of a linear recurrence of the second order, modulo a number."""
    first, second, x, y = (rng.randint(1, 9) for _ in range(4))
    modulus, n = rng.randrange(1000, 100_000), rng.randrange(50, 3000)
    text = (
        f"A sequence begins with a(1) = {first} and a(2) = {second}. Every later term is {x} times the term before it plus "
        f"{y} times the one before that, taken modulo {modulus}. What is a({n})?"
    )
    terms = [first, second]
    while len(terms) < n:
        terms.append((x * terms[-1] + y * terms[-2]) % modulus)
    program = f"""\
a, b = {first}, {second}
for _ in range({n} - 2):
    a, b = b, ({x} * b + {y} * a) % {modulus}
print(b)"""
    return Puzzle(text, str(terms[n - 1]), program)


def chains(rng: random.Random) -> Puzzle:
    """The start in a range that has the longest Collatz sequence."""
    low, width = rng.randrange(2, 3000), rng.randrange(50, 900)
    text = (
        "Halve a number if it is even; otherwise multiply it by 3 and add 1. Repeat until it is 1. Which start from "
        f"{low} to {low + width}, both included, takes the most steps? If several do, give the smallest."
    )

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    gold = max(range(low, low + width + 1), key=lambda n: (steps(n), -n))
    program = f"""\
best = (-1, 0)
for start in range({low}, {low} + {width} + 1):
    n, count = start, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    if count > best[0]:
        best = count, start
print(best[1])"""
    return Puzzle(text, str(gold), program)


def primes(rng: random.Random) -> Puzzle:
    """The number, or the sum, of the primes of a range in a residue class."""
    low, width, modulus = rng.randrange(10, 9000), rng.randrange(200, 4000), rng.choice((4, 6, 10))
    rest = rng.choice({4: (1, 3), 6: (1, 5), 10: (1, 3, 7, 9)}[modulus])
    what = rng.choice(("number", "sum"))
    phrase = f"How many primes p with {low} ≤ p ≤ {low + width} are there" if what == "number" else (
        f"What is the sum of all primes p with {low} ≤ p ≤ {low + width}")  # fmt: skip
    text = f"{phrase} for which p modulo {modulus} is {rest}?"
    sieve = bytearray([1]) * (low + width + 1)
    for n in range(2, int(len(sieve) ** 0.5) + 1):
        sieve[n * n :: n] = bytes(len(range(n * n, len(sieve), n)))
    found = [n for n in range(max(2, low), low + width + 1) if sieve[n] and n % modulus == rest]
    program = f"""\
found = [p for p in range({low}, {low} + {width} + 1)
         if p % {modulus} == {rest} and all(p % d for d in range(2, int(p ** 0.5) + 1))]
print({"len" if what == "number" else "sum"}(found))"""
    return Puzzle(text, str(len(found) if what == "number" else sum(found)), program)


def weekdays(rng: random.Random) -> Puzzle:
    """How often a day of the month falls on a weekday in a range of years."""
    first, years, weekday, day = rng.randrange(1900, 2030), rng.randrange(3, 90), rng.randrange(7), rng.randrange(1, 29)
    text = (
        f"How often was, or will be, day {day} of a month a {_DAYS[weekday]} in the years {first} to {first + years}, both "
        "included?"
    )
    dates = (date(year, month, day) for year in range(first, first + years + 1) for month in range(1, 13))
    gold = sum(one.weekday() == weekday for one in dates)
    program = f"""\
from datetime import date, timedelta
one, count = date({first}, 1, 1), 0
while one.year <= {first + years}:
    count += one.day == {day} and one.weekday() == {weekday}
    one += timedelta(1)
print(count)"""
    return Puzzle(text, str(gold), program)


def days_after(rng: random.Random) -> Puzzle:
    """The date, or the weekday, a number of days after a date."""
    start, days = (
        date(rng.randrange(1950, 2030), rng.randrange(1, 13), rng.randrange(1, 29)),
        rng.randrange(400, 20_000),
    )
    end = start + timedelta(days)
    if rng.random() < 0.5:
        text = f"Which day of the week is it {days:,} days after {start}?"
        gold, last = _DAYS[end.weekday()], "print(one.strftime('%A'))"
    else:
        text = f"Which date is it {days:,} days after {start}? Write it as year-month-day, like {start}."
        gold, last = str(end), "print(one.isoformat())"
    program = (
        f"from datetime import date, timedelta\none = date.fromisoformat('{start}') + timedelta(days={days})\n{last}"
    )
    return Puzzle(text, gold, program)


def change(rng: random.Random) -> Puzzle:
    """In how many ways coins can make an amount."""
    coins, amount = sorted(rng.sample((1, 2, 3, 5, 7, 10, 12, 20, 25, 50), rng.randint(3, 5))), rng.randrange(40, 400)
    text = (
        f"There are coins of {', '.join(map(str, coins[:-1]))} and {coins[-1]}, as many as you like of each. In how many ways "
        f"can they make {amount}, if their order does not matter?"
    )
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    program = f"""\
from functools import lru_cache
coins = {coins}
@lru_cache(None)
def ways(amount, kinds):
    if kinds == 0:
        return int(amount == 0)
    coin = coins[kinds - 1]
    return sum(ways(amount - n * coin, kinds - 1) for n in range(amount // coin + 1))
print(ways({amount}, len(coins)))"""
    return Puzzle(text, str(ways[amount]), program)


KINDS: dict[str, Callable[[random.Random], Puzzle]] = {
    "counting": counting,
    "recurrence": recurrence,
    "chains": chains,
    "primes": primes,
    "weekdays": weekdays,
    "days_after": days_after,
    "change": change,
}
