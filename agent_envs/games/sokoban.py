"""Sokoban: rules, drawing and solving; and levels with a known shortest solution.

A breadth-first search over undone moves, from every solved position of a random room, finds the positions that are d moves
away from being solved. The start is drawn among those.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from agent_envs.games.boards import board_rows, canonical_form
from agent_envs.generators.instances import split_of

Cell = tuple[int, int]  # row, column
State = tuple[Cell, frozenset[Cell]]  # player, boxes

SYMBOLS = "#_OX√PS"
DIRECTIONS: dict[str, Cell] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
MAX_STATES = 200_000  # positions that a search visits at most: seconds
TRIES = 2_000  # rooms before giving up
ROOM, ALL_ROOMS = 30_000, 1_000_000  # positions visited in one room, and in all rooms: seconds


@dataclass(frozen=True, slots=True)
class Level:
    """A position: what is floor and what is a target (the rest is wall), and where the boxes and the player are."""

    size: int
    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def placed(self) -> int:
        """Boxes on targets."""
        return len(self.boxes & self.targets)

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes == self.targets


def move(level: Level, action: str) -> Level:
    """The position after one action. A move against a wall, or a push that is not possible, changes nothing."""
    after = _move(level.floor, (level.player, level.boxes), DIRECTIONS[action])
    return replace(level, player=after[0], boxes=after[1]) if after else level


def render(level: Level) -> str:
    """The board in RAGEN's symbols, a space between cells, so that each cell is a token of its own."""
    return "\n".join(" ".join(row) for row in rows(level))


def rows(level: Level) -> list[str]:
    """The board, as one string of symbols per row."""

    def symbol(cell: Cell) -> str:
        if cell not in level.floor:
            return "#"
        target = cell in level.targets
        if cell == level.player:
            return "S" if target else "P"
        if cell in level.boxes:
            return "√" if target else "X"
        return "O" if target else "_"

    return ["".join(symbol((r, c)) for c in range(level.size)) for r in range(level.size)]


def read(text: str) -> Level:
    """The inverse of `render`; lines that are not part of a board are ignored."""
    lines = board_rows(text, SYMBOLS)
    cells = {(r, c): symbol for r, line in enumerate(lines) for c, symbol in enumerate(line)}
    players = [cell for cell, symbol in cells.items() if symbol in "PS"]
    if len(players) != 1 or any(len(line) != len(lines) for line in lines):
        raise ValueError(f"not a square board with one player: {text!r}")
    return Level(
        size=len(lines),
        floor=frozenset(cell for cell, symbol in cells.items() if symbol != "#"),
        targets=frozenset(cell for cell, symbol in cells.items() if symbol in "O√S"),
        boxes=frozenset(cell for cell, symbol in cells.items() if symbol in "X√"),
        player=players[0],
    )


def solve(level: Level) -> list[str] | None:
    """A shortest solution in moves, by A* search; None where none is found within ``MAX_STATES`` positions.
    The lower bound is the sum over boxes of the pushes to the nearest target on an otherwise empty board."""
    pushes = _pushes(level.floor, level.targets)
    start: State = (level.player, level.boxes)
    moves: dict[State, int] = {start: 0}
    came: dict[State, tuple[State, str]] = {}
    order = count()  # ties go to the older entry: positions themselves have no order
    queue = [(0, next(order), start)]
    while queue and len(moves) <= MAX_STATES:
        _, _, state = heappop(queue)
        if state[1] == level.targets:
            actions = []
            while state in came:
                state, action = came[state]
                actions.append(action)
            return actions[::-1]
        for action, step in DIRECTIONS.items():
            after = _move(level.floor, state, step)
            if after is None or not after[1] <= pushes.keys():
                continue
            cost = moves[state] + 1
            if cost < moves.get(after, cost + 1):
                moves[after], came[after] = cost, (state, action)
                heappush(queue, (cost + sum(pushes[box] for box in after[1]), next(order), after))
    return None


def find_push_closer(level: Level) -> list[str] | None:
    """The shortest walk to a push that brings a box nearer to a free target, and that push; None where there is none."""
    free = sorted(level.targets - level.boxes)
    plans = []
    for r, c in sorted(level.boxes - level.targets):
        for action, (dr, dc) in DIRECTIONS.items():
            to, stand = (r + dr, c + dc), (r - dr, c - dc)
            nearer = any(abs(to[0] - y) + abs(to[1] - x) < abs(r - y) + abs(c - x) for y, x in free)
            if nearer and to in level.floor - level.boxes and (path := _walk(level, stand)) is not None:
                plans.append([*path, action])
    return min(plans, key=len, default=None)


# -- moves and searches -------------------------------------------------------------------------------------------------


def _move(floor: frozenset[Cell], state: State, step: Cell) -> State | None:
    (r, c), boxes = state
    to, beyond = (r + step[0], c + step[1]), (r + 2 * step[0], c + 2 * step[1])
    if to not in floor:
        return None
    if to not in boxes:
        return to, boxes
    if beyond not in floor or beyond in boxes:
        return None
    return to, boxes - {to} | {beyond}


def _walk(level: Level, to: Cell) -> list[str] | None:
    """The shortest path of the player to a cell without a push; None if there is none."""
    paths: dict[Cell, list[str]] = {level.player: []}
    for r, c in (queue := [level.player]):
        for action, (dr, dc) in DIRECTIONS.items():
            cell = r + dr, c + dc
            if cell in level.floor and cell not in level.boxes and cell not in paths:
                paths[cell] = [*paths[r, c], action]
                queue.append(cell)
    return paths.get(to)


def _pushes(floor: frozenset[Cell], targets: frozenset[Cell]) -> dict[Cell, int]:
    """The fewest pushes from each cell to a target, without other boxes and with the player always in place."""
    pushes = dict.fromkeys(sorted(targets), 0)
    for r, c in (queue := list(pushes)):
        for dr, dc in DIRECTIONS.values():
            origin, player = (r - dr, c - dc), (r - 2 * dr, c - 2 * dc)
            if origin in floor and player in floor and origin not in pushes:
                pushes[origin] = pushes[r, c] + 1
                queue.append(origin)
    return pushes


# -- levels -------------------------------------------------------------------------------------------------------------


def generate(rng: random.Random, size: int, boxes: int, moves: tuple[int, int], split: str) -> tuple[Level, int]:
    """A level of ``split`` and the length of its shortest solution, drawn evenly from the lengths within ``moves`` that the
    room offers. A digest of the board up to rotation and reflection decides on the split."""
    searched = 0
    for _ in range(TRIES):
        if searched >= ALL_ROOMS:
            break
        floor = _carve(rng, size, boxes)
        targets = frozenset(rng.sample(sorted(floor), boxes))
        lengths = _undo(floor, targets, moves[1])
        searched += len(lengths)
        by_length: dict[int, list[State]] = {}
        for state, length in lengths.items():
            if length >= moves[0]:
                by_length.setdefault(length, []).append(state)
        if not by_length:
            continue
        length = rng.choice(sorted(by_length))
        player, at = rng.choice(by_length[length])
        level = Level(size, floor, targets, at, player)
        if split_of(canonical_form(rows(level))) == split:
            return level, length
    level_of = f"{size}x{size} level with {boxes} boxes that takes {moves[0]} to {moves[1]} moves"
    raise ValueError(f"found no {level_of}; ask for fewer boxes or moves, or another size")


def _undo(floor: frozenset[Cell], targets: frozenset[Cell], depth: int) -> dict[State, int]:
    """Positions and how many moves they are from being solved: all up to ``depth``, or the nearest ``ROOM`` of them."""
    queue: list[State] = [(player, targets) for player in sorted(floor - targets)]
    lengths = dict.fromkeys(queue, 0)
    for state in queue:
        if lengths[state] == depth or len(lengths) >= ROOM:
            break
        for before in _predecessors(floor, state):
            if before not in lengths:
                lengths[before] = lengths[state] + 1
                queue.append(before)
    return lengths


def _predecessors(floor: frozenset[Cell], state: State) -> Iterable[State]:
    (r, c), boxes = state
    for dr, dc in DIRECTIONS.values():
        origin, ahead = (r - dr, c - dc), (r + dr, c + dc)
        if origin in floor and origin not in boxes:
            yield origin, boxes  # the player walked here
            if ahead in boxes:
                yield origin, boxes - {ahead} | {(r, c)}  # or pushed the box from here to there


def _carve(rng: random.Random, size: int, boxes: int) -> frozenset[Cell]:
    """A connected room: the cells that a random walk over the inside of the board has visited."""
    inside = (size - 2) ** 2
    wanted = max(round(inside * rng.uniform(0.5, 0.9)), min(2 * boxes + 2, inside))
    r, c = rng.randint(1, size - 2), rng.randint(1, size - 2)
    floor = {(r, c)}
    while len(floor) < wanted:
        dr, dc = rng.choice(list(DIRECTIONS.values()))
        r, c = min(max(r + dr, 1), size - 2), min(max(c + dc, 1), size - 2)
        floor.add((r, c))
    return frozenset(floor)
