"""Puzzles about data that the question contains: texts, tables, grids and graphs."""

import heapq
import random
from collections import Counter
from collections.abc import Callable

from agent_envs.generators.puzzles.puzzle import Puzzle

_WORDS = """apple anchor basket beacon bridge candle canyon castle cherry copper desert dragon eagle ember falcon feather
forest garden glacier harbour hammer island jacket kettle ladder lantern lemon marble meadow mirror needle ocean orchard
paper pebble pepper planet rabbit ribbon river saddle shadow silver spider stone summer temple thunder tiger timber tower
valley velvet violin walnut willow window winter""".split()
_CITIES = "Ashford Brighton Calder Dunmore Elmstead Fairview".split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def windows(rng: random.Random) -> Puzzle:
    """A property of the substrings of a string of letters."""
    letters = "".join(rng.choices(rng.choice(("abc", "abcd", "aabbcde", "abcdefgh")), k=rng.randrange(40, 120)))
    what = rng.choice(("palindrome", "distinct", "unrepeated"))
    length, size = len(letters), rng.randrange(3, 6)
    parts = {letters[i:j] for i in range(length) for j in range(i + 1, min(length, i + 60) + 1)}
    if what == "palindrome":
        ask = "How many letters does the longest palindrome have that stands in it without a gap?"
        gold = max(len(part) for part in parts if part == part[::-1])
        body = "print(max(j - i for i in range(n) for j in range(i + 1, n + 1) if s[i:j] == s[i:j][::-1]))"
    elif what == "distinct":
        ask = f"How many different strings of {size} letters in a row does it contain?"
        gold = sum(len(part) == size for part in parts)
        body = f"print(len(set(zip(*(s[k:] for k in range({size}))))))"
    else:
        ask = "How many letters does its longest part without a repeated letter have?"
        gold = max(len(part) for part in parts if len(set(part)) == len(part))
        body = "print(max(j - i for i in range(n) for j in range(i + 1, n + 1) if len(set(s[i:j])) == j - i))"
    return Puzzle(f"Here is a string of letters: {letters}\n{ask}", str(gold), f"s = '{letters}'\nn = len(s)\n{body}")


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
    return Puzzle(text, plain, program)


def table(rng: random.Random) -> Puzzle:
    """A sum over, or the best group of, the rows of a CSV table."""
    things = rng.sample(_WORDS, 5)
    rows = [
        (rng.choice(_CITIES), rng.choice(things), rng.randint(1, 40), rng.randint(3, 90))
        for _ in range(rng.randrange(18, 45))
    ]
    lines = "\n".join(["city,item,quantity,price", *(",".join(map(str, row)) for row in rows)])
    city, thing, limit = rng.choice(rows)[0], rng.choice(rows)[1], rng.randint(10, 40)
    revenue: Counter[str] = Counter()
    for row in rows:
        revenue[row[0]] += row[2] * row[3]
    (best, most), *others = revenue.most_common(2)
    what = rng.choice(("revenue", "best", "pieces"))
    if what == "best" and others and others[0][1] < most:
        ask = "Which city has the highest revenue (quantity times price, summed over its rows)?"
        gold: int | str = best
        body = "print(max(cities, key=lambda c: sum(q * p for d, _, q, p in rows if d == c)))"
    elif what == "pieces":
        ask = f"How many pieces were sold in all in rows of the item '{thing}' or with a price of more than {limit}?"
        gold = sum(quantity for _, item, quantity, price in rows if item == thing or price > limit)
        body = f"print(sum(q for _, i, q, p in rows if i == '{thing}' or p > {limit}))"
    else:
        ask = (
            f"What is the revenue (quantity times price, summed over rows) of {city} from rows with a quantity of at "
            f"least {limit // 4}?"
        )
        gold = sum(q * p for c, _, q, p in rows if c == city and q >= limit // 4)
        body = f"print(sum(q * p for c, _, q, p in rows if c == '{city}' and q >= {limit // 4}))"
    program = f"""\
import csv, io
rows = [(r['city'], r['item'], int(r['quantity']), int(r['price'])) for r in csv.DictReader(io.StringIO('''{lines}'''))]
cities = sorted({{r[0] for r in rows}})
{body}"""
    return Puzzle(f"This is a table of sales:\n{lines}\n{ask}", str(gold), program)


def walks(rng: random.Random) -> Puzzle:
    """The number of monotone paths through a grid with obstacles."""
    height, width = rng.randrange(5, 11), rng.randrange(5, 11)
    while True:
        grid = ["".join(rng.choices(".#", (5, 1), k=width)) for _ in range(height)]
        ways = [[0] * width for _ in range(height)]
        for i in range(height):
            for j in range(width):
                if grid[i][j] == ".":
                    ways[i][j] = 1 if i == j == 0 else (ways[i - 1][j] if i else 0) + (ways[i][j - 1] if j else 0)
        if ways[-1][-1]:
            break
    drawn = "\n".join(grid)
    text = (
        f"In this map '.' is a free field and '#' a blocked one:\n{drawn}\nHow many ways are there from the top left field to "
        "the bottom right one, if every step goes one field to the right or one field down, over free fields alone?"
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
    return Puzzle(text, str(ways[-1][-1]), program)


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
    near: dict[str, list[tuple[str, int]]] = {town: [] for town in towns}
    for a, b, length in links:
        near[a].append((b, length))
        near[b].append((a, length))
    queue = [(0, start)]
    done: dict[str, int] = {}
    while queue:
        far, town = heapq.heappop(queue)
        if done.setdefault(town, far) == far:
            for other, length in near[town]:
                if other not in done:
                    heapq.heappush(queue, (far + length, other))
    program = f"""\
links = {links}
far = {{t: 10**9 for a, b, _ in links for t in (a, b)}}
far['{start}'] = 0
for _ in far:
    for a, b, length in links:
        far[b] = min(far[b], far[a] + length)
        far[a] = min(far[a], far[b] + length)
print(far['{end}'])"""
    return Puzzle(text, str(done[end]), program)


KINDS: dict[str, Callable[[random.Random], Puzzle]] = {
    "windows": windows,
    "cipher": cipher,
    "table": table,
    "walks": walks,
    "roads": roads,
}
