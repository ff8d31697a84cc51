"""Frozen lakes on Gymnasium's FrozenLakeEnv: maps from a seed, drawing, and the best plan for a turn."""

import random

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from agent_envs.games.boards import board_rows, canonical_form
from agent_envs.generators.instances import split_of

ACTIONS = ("Left", "Down", "Right", "Up")  # in Gymnasium's numbering
STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
SYMBOLS = {"S": "_", "F": "_", "H": "O", "G": "G"}
TRIES = 500
LONGEST_PLAN = 5  # actions of one turn that `best_plan` looks ahead; 4 ** n sequences


def generate(rng: random.Random, size: int, frozen: float, longest: int, split: str) -> list[str]:
    """A map of ``split``, as rows of S, F, H and G, whose goal is at most ``longest`` moves from the start. Start and goal are
    any two cells of ice, as in RAGEN. A digest of the map up to rotation and reflection decides on the split."""
    for _ in range(TRIES):
        cells = [list(row) for row in generate_random_map(size, frozen, seed=rng.randrange(2**31))]
        cells[0][0] = cells[-1][-1] = "F"
        ice = [(r, c) for r in range(size) for c in range(size) if cells[r][c] == "F"]
        start, goal = rng.sample(ice, 2)
        cells[start[0]][start[1]], cells[goal[0]][goal[1]] = "S", "G"
        rows = ["".join(row) for row in cells]
        path = shortest_path(rows, start)
        if path and len(path) <= longest and split_of(canonical_form(rows)) == split:
            return rows
    raise ValueError(f"found no {size}x{size} lake for {split!r} whose goal is at most {longest} moves away")


def render(rows: list[str], position: tuple[int, int]) -> str:
    """The lake in RAGEN's symbols, with a space between cells."""
    cells = [[SYMBOLS[cell] for cell in row] for row in rows]
    r, c = position
    cells[r][c] = {"O": "X", "G": "√"}.get(cells[r][c], "P")
    return "\n".join(" ".join(row) for row in cells)


def read(text: str) -> tuple[list[str], tuple[int, int]]:
    """The inverse of `render`: rows of F, H and G, and the position. Lines that are not part of a lake are ignored."""
    back = {"_": "F", "P": "F", "O": "H", "X": "H", "G": "G", "√": "G"}
    rows = board_rows(text, "".join(back))
    found = [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell in "PX√"]
    if len(found) != 1:
        raise ValueError(f"not a lake with one player: {text!r}")
    return ["".join(back[cell] for cell in row) for row in rows], found[0]


def shortest_path(rows: list[str], start: tuple[int, int]) -> list[str] | None:
    """The fewest actions from ``start`` to the goal on ice that does not slip; None if there is no path."""
    paths: dict[tuple[int, int], list[str]] = {start: []}
    for (r, c), path in (queue := [(start, paths[start])]):
        if rows[r][c] == "G":
            return path
        for action, (dr, dc) in STEPS.items():
            cell = r + dr, c + dc
            inside = 0 <= cell[0] < len(rows) and 0 <= cell[1] < len(rows)
            if inside and rows[cell[0]][cell[1]] != "H" and cell not in paths:
                paths[cell] = [*path, action]
                queue.append((cell, paths[cell]))
    return None


def best_plan(lake: FrozenLakeEnv, state: int, turns: int, left: int, longest: int) -> tuple[list[str], float]:
    """The best actions for this turn, and the probability of reaching the goal with them.
    Value iteration over turns. A turn is a sequence of up to ``longest`` actions, chosen before any slip is seen.
    ``values[n]`` (``[states]``) is the best chance of reaching the goal in the turns to come with n actions left."""
    outcomes = _outcomes(lake, min(longest, left, LONGEST_PLAN))
    goal = (np.asarray(lake.desc).ravel() == b"G").astype(float)
    values = [goal] * (left + 1)
    for _ in range(turns - 1):
        after_n = [
            [(after @ values[n - k]).max(axis=0) for k, after in enumerate(outcomes[:n], 1)] for n in range(left + 1)
        ]
        values = [np.max([goal, *chances], axis=0) for chances in after_n]
    best: tuple[list[str], float] = ([], float(goal[state]))
    for k, after in enumerate(outcomes, 1):
        chances = after[:, state] @ values[left - k]
        plan = int(chances.argmax())
        if chances[plan] > best[1] + 1e-12:  # of equally good plans the shortest: the agent sees the lake between turns
            best = [ACTIONS[plan // 4 ** (k - 1 - i) % 4] for i in range(k)], float(chances[plan])
    return best


def _outcomes(lake: FrozenLakeEnv, longest: int) -> list[np.ndarray]:
    """For k = 1 … ``longest``: the probabilities [4 ** k, states, states] of where each sequence of k actions ends."""
    count = lake.nrow * lake.ncol
    one = np.zeros((4, count, count))
    for state, by_action in lake.P.items():
        for action, transitions in by_action.items():
            for probability, to, *_ in transitions:
                one[action, state, to] += probability
    outcomes = [one]
    for _ in range(longest - 1):
        outcomes.append((one[:, None] @ outcomes[-1]).reshape(-1, count, count))
    return outcomes
