"""Puzzles about rules that are played out step by step."""

import random
from collections.abc import Callable

from agent_envs.generators.puzzles.puzzle import Puzzle


def circle(rng: random.Random) -> Puzzle:
    """The Josephus problem: who leaves the circle last, or shortly before."""
    people, step, place = rng.randrange(20, 900), rng.randrange(2, 20), rng.choice((0, 0, 1, 2))
    which = ("last", "second to last", "third to last")[place]
    text = (
        f"{people} people stand in a circle, numbered 1 to {people}. Counting begins with number 1, and every person counted "
        f"as number {step} leaves; counting then starts again with the next one. What is the number of the one who leaves "
        f"{which}?"
    )
    standing, order, at = list(range(1, people + 1)), [], 0
    while standing:
        at = (at + step - 1) % len(standing)
        order.append(standing.pop(at))
    program = f"""\
from collections import deque
ring, order = deque(range(1, {people} + 1)), []
while ring:
    ring.rotate(-({step} - 1))
    order.append(ring.popleft())
print(order[-1 - {place}])"""
    return Puzzle(text, str(order[-1 - place]), program)


def automaton(rng: random.Random) -> Puzzle:
    """How many cells are set after some steps of an elementary cellular automaton on a ring."""
    width, rule, steps = (
        rng.randrange(20, 60),
        rng.choice((18, 22, 30, 45, 54, 60, 73, 90, 105, 110, 126, 150)),
        rng.randrange(10, 200),
    )
    cells = "".join(rng.choices("01", k=width))
    text = (
        f"{width} cells form a ring; they hold {cells}. In every step all cells change at once: a cell becomes bit number "
        f"4*left + 2*itself + right of the number {rule} (bit 0 is the lowest), where left and right are its neighbours. "
        f"How many ones are there after {steps} steps?"
    )
    now = [int(cell) for cell in cells]
    for _ in range(steps):
        now = [rule >> (4 * now[i - 1] + 2 * now[i] + now[(i + 1) % width]) & 1 for i in range(width)]
    program = f"""\
cells = '{cells}'
table = {{f'{{n:03b}}': '{rule:08b}'[7 - n] for n in range(8)}}
for _ in range({steps}):
    wide = cells[-1] + cells + cells[0]
    cells = ''.join(table[wide[i:i + 3]] for i in range(len(cells)))
print(cells.count('1'))"""
    return Puzzle(text, str(sum(now)), program)


def robot(rng: random.Random) -> Puzzle:
    """How many fields a robot visits that repeats a sequence of moves."""
    moves = "".join(rng.choices("FLR", (3, 1, 1), k=rng.randrange(12, 40)))
    times = rng.randrange(2, 30)
    text = (
        f"A robot on a square grid faces north. F moves it one field forward, L and R turn it left and right by 90 degrees. It "
        f"carries out {moves} {times} times in a row. How many different fields has it been on, counting the first?"
    )
    x = y = 0
    dx, dy = 0, 1
    seen = {(0, 0)}
    for move in moves * times:
        if move == "F":
            x, y = x + dx, y + dy
            seen.add((x, y))
        else:
            dx, dy = (-dy, dx) if move == "L" else (dy, -dx)
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
    return Puzzle(text, str(len(seen)), program)


KINDS: dict[str, Callable[[random.Random], Puzzle]] = {"circle": circle, "automaton": automaton, "robot": robot}
