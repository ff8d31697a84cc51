"""Two arms with names that hint at how they pay: the prudent one always a little, the daring one rarely but much."""

import random
from dataclasses import dataclass

# Each family goes from prudent to daring. Any two words of one family make a pair. The two splits share no word.
FAMILIES = {
    "train": (
        ("Tortoise", "Ox", "Wolf", "Dragon"),
        ("Archivist", "Baker", "Broker", "Stuntman"),
        ("Pond", "River", "Rapids", "Waterfall"),
        ("Savings", "Bond", "Share", "Lottery"),
        ("Breeze", "Rain", "Gale", "Tornado"),
        ("Candle", "Stove", "Bonfire", "Volcano"),
        ("Stroll", "Jog", "Sprint", "Parkour"),
        ("Tractor", "Bus", "Motorbike", "Rocket"),
    ),
    "validation": (
        ("Sheep", "Donkey", "Falcon", "Phoenix"),
        ("Clerk", "Teacher", "Explorer", "Gambler"),
        ("Meadow", "Hill", "Mountain", "Abyss"),
        ("Dominoes", "Chess", "Poker", "Roulette"),
        ("Nap", "Walk", "Safari", "Skydive"),
        ("Pebble", "Brick", "Dynamite", "Comet"),
    ),
}

SAFE = 0.1
HIGH, CHANCE = 1.0, 0.25


@dataclass(frozen=True, slots=True)
class Arms:
    """Two arms, in the order in which they are shown: ``risky`` pays ``HIGH`` with probability ``CHANCE`` and else nothing, the
    other one always ``SAFE``."""

    names: tuple[str, str]
    risky: str

    def expected(self, name: str) -> float:
        """Mean payoff of an arm."""
        return HIGH * CHANCE if name == self.risky else SAFE

    def pull(self, name: str, rng: random.Random) -> float:
        """Draw the payoff of an arm."""
        if name != self.risky:
            return SAFE
        return HIGH if rng.random() < CHANCE else 0.0


def draw_arms(rng: random.Random, split: str) -> Arms:
    """Two words of one family; their order is random."""
    family = rng.choice(FAMILIES[split])
    prudent, daring = sorted(rng.sample(range(len(family)), 2))
    names = [family[prudent], family[daring]]
    rng.shuffle(names)
    return Arms(names=(names[0], names[1]), risky=family[daring])
