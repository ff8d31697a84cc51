"""Sokoban levels with a known shortest solution.

A level is made by playing backwards. From every solved position of a random room, a breadth-first search over undone
moves finds all positions that are d moves away from being solved, and the start is drawn among those; so each level can
be solved, and in how many moves is known before anyone plays it.
"""

import random
from collections.abc import Iterable

from agent_envs.games.boards import canonical_form
from agent_envs.games.sokoban import DIRECTIONS, Cell, Level, State, rows
from agent_envs.games.split import check_split, split_of

TRIES = 2_000  # rooms before giving up
ROOM, ALL_ROOMS = 30_000, 1_000_000  # positions that are looked at in one room, and in all of them: seconds


def generate(rng: random.Random, size: int, boxes: int, moves: tuple[int, int], split: str) -> tuple[Level, int]:
    """A level of ``split`` and the length of its shortest solution, which lies in ``moves``.

    Lengths are drawn evenly from those that the room offers. The split goes by a digest of the board up to rotation and
    reflection, so that no level of one split is the mirror image of a level of the other.
    """
    check_split(split)
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
    raise ValueError(
        f"found no {size}x{size} level with {boxes} boxes that takes {moves[0]} to {moves[1]} moves; "
        "ask for fewer boxes or moves, or another size"
    )


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
