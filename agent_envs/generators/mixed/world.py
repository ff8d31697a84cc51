"""A MiniWiki world with statistics beside its articles: what is in the one is not in the other."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import retrieval_index
from agent_envs.generators.miniwiki import World
from agent_envs.generators.sql.sqlite import Database

YEARS = range(2015, 2020)
SCRIPT = """
CREATE TABLE visitors (town TEXT NOT NULL, year INTEGER NOT NULL, visitors INTEGER NOT NULL);
CREATE TABLE accounts (company TEXT NOT NULL, year INTEGER NOT NULL, revenue INTEGER NOT NULL, profit INTEGER NOT NULL);
"""
_SPLITS = {"train": "train", "validation": "heldout"}


@dataclass(frozen=True)
class MixedWorld:
    """``visitors`` [towns, years]; ``revenue`` and ``profit`` [companies, years], in thousands of dollars."""

    world: World
    searcher: retrieval_index.Searcher
    database: Database
    visitors: np.ndarray
    revenue: np.ndarray
    profit: np.ndarray


@lru_cache(maxsize=4)
def make_mixed_world(entities: int, seed: int, split: str) -> MixedWorld:
    """Made once a process; worlds of the two splits share no name."""
    world = World(entities, seed, _SPLITS[split])
    rng = np.random.default_rng([seed, *split.encode()])
    towns, companies = world.names["town"], world.names["company"]
    visitors = _avoid_hundreds(rng.integers(3_000, 90_000, (len(towns), len(YEARS))))
    revenue = _avoid_hundreds(rng.integers(12_000, 90_000, (len(companies), len(YEARS))))
    profit = _avoid_hundreds((revenue * rng.uniform(0.2, 0.5, revenue.shape)).astype(np.int64))
    rows: dict[str, list[tuple]] = {
        "visitors": [(town, year, int(visitors[i, j])) for i, town in enumerate(towns) for j, year in enumerate(YEARS)],
        "accounts": [
            (company, year, int(revenue[i, j]), int(profit[i, j]))
            for i, company in enumerate(companies)
            for j, year in enumerate(YEARS)
        ],
    }
    searcher = world.build_index()
    return MixedWorld(world, searcher, Database(SCRIPT, rows), visitors, revenue, profit)


def _avoid_hundreds(values: np.ndarray) -> np.ndarray:
    """Articles hold years, days, lengths below 1,000 and inhabitants in hundreds, so no number here can be found there."""
    return values + (values % 100 == 0)
