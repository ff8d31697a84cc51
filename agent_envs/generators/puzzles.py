"""Questions that need a program to answer, each with a program that prints the answer."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date

_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_WORDS = """apple anchor basket beacon bridge candle canyon castle cherry copper desert dragon eagle ember falcon feather
forest garden glacier harbour hammer island jacket kettle ladder lantern lemon marble meadow mirror needle ocean orchard
paper pebble pepper planet rabbit ribbon river saddle shadow silver spider stone summer temple thunder tiger timber tower
valley velvet violin walnut willow window winter""".split()
_CITIES = "Ashford Brighton Calder Dunmore Elmstead Fairview".split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A question; ``program`` prints its ``answer``."""

    text: str
    program: str
    answer: str
    kind: str = ""


def make_puzzle(rng: random.Random, kinds: tuple[str, ...]) -> Puzzle:
    """A puzzle of one of ``kinds``, see `KINDS`. The answer is not 0, which would be a good guess."""
    kind = rng.choice(kinds)
    while (puzzle := KINDS[kind](rng)).answer == "0":
        pass
    return replace(puzzle, kind=kind)


def _solve(text: str, program: str) -> Puzzle:
    """Make the puzzle and run its program, which is code of this module with random numbers and words inserted."""
    printed: list[object] = []
    exec(program, {"print": printed.append})
    return Puzzle(text, program, str(printed[0]))


# -- numbers and dates -------------------------------------------------------------------------------------------------


def counting(rng: random.Random) -> Puzzle:
    """How many numbers of a range fulfil conditions on divisors and the digit sum."""
    low, width, (p, q) = rng.randrange(1, 5000), rng.randrange(500, 9000), rng.sample((2, 3, 4, 5, 6, 7, 9, 11, 13), 2)
    modulus, high = rng.choice((2, 3, 4, 5)), low + width
    rest = rng.randrange(modulus)
    text = (
        f"How many whole numbers from {low} to {high}, both included, are divisible by {p}, are not divisible by {q}, and "
        f"have a digit sum that leaves a remainder of {rest} when divided by {modulus}?"
    )
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
    return _solve(text, program)


def recurrence(rng: random.Random) -> Puzzle:
    """A term of a linear recurrence of the second order, modulo a number."""
    first, second, x, y = (rng.randint(1, 9) for _ in range(4))
    modulus, n = rng.randrange(1000, 100_000), rng.randrange(50, 3000)
    text = (
        f"A sequence begins with a(1) = {first} and a(2) = {second}. Every later term is {x} times the term before it plus "
        f"{y} times the one before that, taken modulo {modulus}. What is a({n})?"
    )
    program = f"""\
a, b = {first}, {second}
for _ in range({n} - 2):
    a, b = b, ({x} * b + {y} * a) % {modulus}
print(b)"""
    return _solve(text, program)


def chains(rng: random.Random) -> Puzzle:
    """The number in a range that starts the longest Collatz sequence."""
    low, width = rng.randrange(2, 3000), rng.randrange(50, 900)
    text = (
        "Halve a number if it is even; otherwise multiply it by 3 and add 1. Repeat until it is 1. Which start from "
        f"{low} to {low + width}, both included, takes the most steps? If several do, give the smallest."
    )
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
    return _solve(text, program)


def primes(rng: random.Random) -> Puzzle:
    """The number, or the sum, of the primes of a range in a residue class."""
    low, width, modulus = rng.randrange(10, 9000), rng.randrange(200, 4000), rng.choice((4, 6, 10))
    rest = rng.choice({4: (1, 3), 6: (1, 5), 10: (1, 3, 7, 9)}[modulus])
    what = rng.choice(("number", "sum"))
    high = low + width
    if what == "number":
        phrase = f"How many primes p with {low} ≤ p ≤ {high} are there"
    else:
        phrase = f"What is the sum of all primes p with {low} ≤ p ≤ {high}"
    program = f"""\
found = [p for p in range({low}, {low} + {width} + 1)
         if p % {modulus} == {rest} and all(p % d for d in range(2, int(p ** 0.5) + 1))]
print({"len" if what == "number" else "sum"}(found))"""
    return _solve(f"{phrase} for which p modulo {modulus} is {rest}?", program)


def weekdays(rng: random.Random) -> Puzzle:
    """How often a day of the month falls on a weekday in a range of years."""
    first, years, weekday, day = rng.randrange(1900, 2030), rng.randrange(3, 90), rng.randrange(7), rng.randrange(1, 29)
    text = (
        f"How often was, or will be, day {day} of a month a {_DAYS[weekday]} in the years {first} to {first + years}, both "
        "included?"
    )
    program = f"""\
from datetime import date, timedelta
one, count = date({first}, 1, 1), 0
while one.year <= {first + years}:
    count += one.day == {day} and one.weekday() == {weekday}
    one += timedelta(1)
print(count)"""
    return _solve(text, program)


def days_after(rng: random.Random) -> Puzzle:
    """The date, or the weekday, a number of days after a date."""
    start = date(rng.randrange(1950, 2030), rng.randrange(1, 13), rng.randrange(1, 29))
    days = rng.randrange(400, 20_000)
    if rng.random() < 0.5:
        text, last = f"Which day of the week is it {days:,} days after {start}?", "print(one.strftime('%A'))"
    else:
        text = f"Which date is it {days:,} days after {start}? Write it as year-month-day, like {start}."
        last = "print(one.isoformat())"
    when = f"one = date.fromisoformat('{start}') + timedelta(days={days})"
    return _solve(text, f"from datetime import date, timedelta\n{when}\n{last}")


def change(rng: random.Random) -> Puzzle:
    """The number of ways in which coins can make an amount."""
    coins, amount = sorted(rng.sample((1, 2, 3, 5, 7, 10, 12, 20, 25, 50), rng.randint(3, 5))), rng.randrange(40, 400)
    text = (
        f"There are coins of {', '.join(map(str, coins[:-1]))} and {coins[-1]}, as many as you like of each. In how many ways "
        f"can they make {amount}, if their order does not matter?"
    )
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
    return _solve(text, program)


# -- data given in the question ----------------------------------------------------------------------------------------


def windows(rng: random.Random) -> Puzzle:
    """A property of the substrings of a string of letters."""
    letters = "".join(rng.choices(rng.choice(("abc", "abcd", "aabbcde", "abcdefgh")), k=rng.randrange(40, 120)))
    what = rng.choice(("palindrome", "distinct", "unrepeated"))
    size = rng.randrange(3, 6)
    if what == "palindrome":
        ask = "How many letters does the longest palindrome have that stands in it without a gap?"
        body = "print(max(j - i for i in range(n) for j in range(i + 1, n + 1) if s[i:j] == s[i:j][::-1]))"
    elif what == "distinct":
        ask = f"How many different strings of {size} letters in a row does it contain?"
        body = f"print(len(set(zip(*(s[k:] for k in range({size}))))))"
    else:
        ask = "How many letters does its longest part without a repeated letter have?"
        body = "print(max(j - i for i in range(n) for j in range(i + 1, n + 1) if len(set(s[i:j])) == j - i))"
    return _solve(f"Here is a string of letters: {letters}\n{ask}", f"s = '{letters}'\nn = len(s)\n{body}")


def cipher(rng: random.Random) -> Puzzle:
    """A text to decrypt, given the Vigenère key."""
    plain, key = " ".join(rng.sample(_WORDS, rng.randint(3, 6))), rng.choice(_WORDS)
    shifts = [_LETTERS.index(letter) for letter in key]
    position, coded = 0, ""
    for letter in plain:
        if letter != " ":
            letter = _LETTERS[(_LETTERS.index(letter) + shifts[position % len(key)]) % 26]
            position += 1
        coded += letter
    text = (
        f"A text was encrypted with the Vigenère cipher and the key '{key}': the letters of the key, repeated as often as "
        f"needed, say how far each letter was moved on in the alphabet (a: 0, b: 1, and so on); spaces were kept and do not "
        f"use up a letter of the key. The result is: {coded}\nWhat was the text?"
    )
    program = f"""\
from itertools import cycle
key, out = cycle('{key}'), []
for letter in '{coded}':
    out.append(letter if letter == ' ' else chr((ord(letter) - ord(next(key))) % 26 + 97))
print(''.join(out))"""
    return _solve(text, program)


def table(rng: random.Random) -> Puzzle:
    """A sum over, or the best group of, the rows of a CSV table."""
    things = rng.sample(_WORDS, 5)
    rows = []
    for _ in range(rng.randrange(18, 45)):
        rows.append((rng.choice(_CITIES), rng.choice(things), rng.randint(1, 40), rng.randint(3, 90)))
    lines = "\n".join(["city,item,quantity,price", *(",".join(map(str, row)) for row in rows)])
    city, thing, limit = rng.choice(rows)[0], rng.choice(rows)[1], rng.randint(10, 40)
    revenue: Counter[str] = Counter()
    for row in rows:
        revenue[row[0]] += row[2] * row[3]
    (_, most), *others = revenue.most_common(2)
    what = rng.choice(("revenue", "best", "pieces"))
    if what == "best" and others and others[0][1] < most:
        ask = "Which city has the highest revenue (quantity times price, summed over its rows)?"
        body = "print(max(cities, key=lambda c: sum(q * p for d, _, q, p in rows if d == c)))"
    elif what == "pieces":
        ask = f"How many pieces were sold in all in rows of the item '{thing}' or with a price of more than {limit}?"
        body = f"print(sum(q for _, i, q, p in rows if i == '{thing}' or p > {limit}))"
    else:
        ask = (
            f"What is the revenue (quantity times price, summed over rows) of {city} from rows with a quantity of at "
            f"least {limit // 4}?"
        )
        body = f"print(sum(q * p for c, _, q, p in rows if c == '{city}' and q >= {limit // 4}))"
    program = f"""\
import csv, io
rows = [(r['city'], r['item'], int(r['quantity']), int(r['price'])) for r in csv.DictReader(io.StringIO('''{lines}'''))]
cities = sorted({{r[0] for r in rows}})
{body}"""
    return _solve(f"This is a table of sales:\n{lines}\n{ask}", program)


def walks(rng: random.Random) -> Puzzle:
    """The number of monotone paths through a grid with obstacles; there is at least one."""
    height, width = rng.randrange(5, 11), rng.randrange(5, 11)
    while True:
        drawn = "\n".join("".join(rng.choices(".#", (5, 1), k=width)) for _ in range(height))
        text = (
            f"In this map '.' is a free field and '#' a blocked one:\n{drawn}\nHow many ways are there from the top left field "
            "to the bottom right one, if every step goes one field to the right or one field down, over free fields alone?"
        )
        program = f"""\
from functools import lru_cache
grid = '''{drawn}'''.split()
@lru_cache(None)
def ways(i, j):
    if i < 0 or j < 0 or grid[i][j] == '#':
        return 0
    return 1 if i == j == 0 else ways(i - 1, j) + ways(i, j - 1)
print(ways(len(grid) - 1, len(grid[0]) - 1))"""
        if (puzzle := _solve(text, program)).answer != "0":
            return puzzle


def roads(rng: random.Random) -> Puzzle:
    """The length of the shortest path in a weighted graph."""
    count = rng.randrange(7, 13)
    towns = [_LETTERS[i].upper() for i in range(count)]
    pairs = {(rng.randrange(i), i) for i in range(1, count)}  # a tree, so that every town can be reached
    for _ in range(count):
        first, second = sorted(rng.sample(range(count), 2))
        pairs.add((first, second))
    links = [(towns[i], towns[j], rng.randint(2, 60)) for i, j in sorted(pairs)]
    start, end = rng.sample(towns, 2)
    listed = ", ".join(f"{a}-{b} {length}" for a, b, length in links)
    text = (
        f"Roads join towns, each with its length in kilometres: {listed}. How many kilometres long is the shortest way from "
        f"{start} to {end}?"
    )
    program = f"""\
links = {links}
far = {{t: 10**9 for a, b, _ in links for t in (a, b)}}
far['{start}'] = 0
for _ in far:
    for a, b, length in links:
        far[b] = min(far[b], far[a] + length)
        far[a] = min(far[a], far[b] + length)
print(far['{end}'])"""
    return _solve(text, program)


# -- rules that are carried out step by step ---------------------------------------------------------------------------


def circle(rng: random.Random) -> Puzzle:
    """The Josephus problem: who leaves the circle last, second to last or third to last."""
    people, step, place = rng.randrange(20, 900), rng.randrange(2, 20), rng.choice((0, 0, 1, 2))
    which = ("last", "second to last", "third to last")[place]
    text = (
        f"{people} people stand in a circle, numbered 1 to {people}. Counting begins with number 1, and every person counted "
        f"as number {step} leaves; counting then starts again with the next one. What is the number of the one who leaves "
        f"{which}?"
    )
    program = f"""\
from collections import deque
ring, order = deque(range(1, {people} + 1)), []
while ring:
    ring.rotate(-({step} - 1))
    order.append(ring.popleft())
print(order[-1 - {place}])"""
    return _solve(text, program)


def automaton(rng: random.Random) -> Puzzle:
    """How many cells are set after some steps of an elementary cellular automaton on a ring."""
    width = rng.randrange(20, 60)
    rule = rng.choice((18, 22, 30, 45, 54, 60, 73, 90, 105, 110, 126, 150))
    steps = rng.randrange(10, 200)
    cells = "".join(rng.choices("01", k=width))
    text = (
        f"{width} cells form a ring; they hold {cells}. In every step all cells change at once: a cell becomes bit number "
        f"4*left + 2*itself + right of the number {rule} (bit 0 is the lowest), where left and right are its neighbours. "
        f"How many ones are there after {steps} steps?"
    )
    program = f"""\
cells = '{cells}'
table = {{f'{{n:03b}}': '{rule:08b}'[7 - n] for n in range(8)}}
for _ in range({steps}):
    wide = cells[-1] + cells + cells[0]
    cells = ''.join(table[wide[i:i + 3]] for i in range(len(cells)))
print(cells.count('1'))"""
    return _solve(text, program)


def robot(rng: random.Random) -> Puzzle:
    """How many fields a robot visits when it repeats a sequence of moves."""
    moves = "".join(rng.choices("FLR", (3, 1, 1), k=rng.randrange(12, 40)))
    times = rng.randrange(2, 30)
    text = (
        f"A robot on a square grid faces north. F moves it one field forward, L and R turn it left and right by 90 degrees. It "
        f"carries out {moves} {times} times in a row. How many different fields has it been on, counting the first?"
    )
    program = f"""\
at, way, seen = 0, 1j, {{0}}
for _ in range({times}):
    for move in '{moves}':
        if move == 'F':
            at += way
            seen.add(at)
        else:
            way *= 1j if move == 'L' else -1j
print(len(seen))"""
    return _solve(text, program)


_NUMBERS = counting, recurrence, chains, primes, weekdays, days_after, change
_DATA, _RULES = (windows, cipher, table, walks, roads), (circle, automaton, robot)
KINDS: dict[str, Callable[[random.Random], Puzzle]] = {make.__name__: make for make in (*_NUMBERS, *_DATA, *_RULES)}
