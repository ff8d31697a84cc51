"""Names of fictional things, combined from word pools that are the same in every world. A hash of the name decides its
split, so worlds of different splits share no entity."""

import random
import zlib
from collections.abc import Iterator
from functools import cache

SPLITS = ("train", "heldout")

_ONSETS = "b br c d dr f g gr h j k l m n p qu r s st t th v w z".split()
_VOWELS = "a e i o u ae ia ei".split()
_CODAS = ["", "", "", "l", "n", "r", "s", "th", "x", "m", "nd", "rk"]
_ENDINGS = {"given": ["a", "o", "in", "el", "us"], "family": ["son", "ez", "ari", "ov", "wick", "man"],
            "place": ["ville", "mouth", "ford", "vik", "burg", "ham"], "river": ["awa", "ent", "ine", "ube"]}  # fmt: skip
_ADJECTIVES = """silent golden broken crimson hidden distant frozen hollow burning gentle savage endless pale bitter
secret wild ancient restless scarlet quiet lonely velvet iron silver fallen shining wooden sleeping electric paper
sunken stolen lost little northern southern painted last first second blind brave winter summer midnight morning""".split()
_NOUNS = """harbor river garden mountain letter shadow mirror lantern orchard winter voyage castle bridge forest island
storm kingdom window doctor soldier stranger daughter brother widow hunter sailor teacher thief prince queen tower valley
desert ocean station circus carnival wedding promise memory silence whisper thunder feather arrow candle crown diamond
engine falcon horse lion owl raven serpent sparrow tiger wolf road train ship meadow night dawn""".split()
_INDUSTRIES = """Shipping Motors Pictures Press Records Steel Mills Bank Foods Airways Chemicals Media Textiles
Mining""".split()
_PLACE_PREFIXES = "Port Upper Lower Saint New Old East West North South".split()
_PLACE_SUFFIXES = "Falls Heights Springs Bay Hill Cross".split()


@cache
def syllable_words(kind: str, count: int) -> tuple[str, ...]:
    """The first ``count`` invented words of a pool; a longer pool starts with the shorter one."""
    rng = random.Random(f"names:{kind}")
    endings, syllables = _ENDINGS[kind], 1
    words: dict[str, None] = {}  # a set in order of insertion
    while len(words) < count:
        for _ in range(4 * count):  # many misses in a row mean that words of this length run out
            stem = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
            words.setdefault((stem + rng.choice(endings)).capitalize(), None)
            if len(words) == count:
                break
        else:
            syllables += 1
    return tuple(words)


def split_of(name: str) -> str:
    """The split that may use this name: three names in four are for training."""
    return SPLITS[zlib.crc32(name.encode()) % 4 == 3]


# Words of each invented pool in a world of ordinary size; larger worlds use a multiple.
_POOLS = {"given": 120, "family": 200, "place": 200, "river": 160}
_BAND_WORDS = ("Band", "Trio", "Quartet", "Orchestra")
_RIVER_WORDS = ("River", "Great", "Little", "Black", "White", "Blue")
_COMBINATIONS = dict(person=24_000, town=3_200, river=960, company=2_800, band=8_800, film=5_000, book=5_000)


def _candidate(kind: str, rng: random.Random, scale: int) -> str:
    def invented(pool: str) -> str:
        return rng.choice(syllable_words(pool, _POOLS[pool] * scale))

    if kind == "person":
        return f"{invented('given')} {invented('family')}"
    if kind == "town":
        place = invented("place")
        return rng.choice((f"{rng.choice(_PLACE_PREFIXES)} {place}", f"{place} {rng.choice(_PLACE_SUFFIXES)}"))
    if kind == "river":
        return f"{rng.choice(_RIVER_WORDS)} {invented('river')}"
    if kind == "company":
        return f"{invented('family')} {rng.choice(_INDUSTRIES)}"
    adjective, (noun, other) = rng.choice(_ADJECTIVES).title(), (n.title() for n in rng.sample(_NOUNS, 2))
    if scale > 1:  # a large world has far more works than the plain pools have titles
        other = f"{other} of {invented('place')}"
    if kind == "band":
        return f"{adjective} {noun} {rng.choice(_BAND_WORDS)}" if scale == 1 else f"{adjective} {other} Band"
    return rng.choice((f"The {adjective} {other}", f"{adjective} {noun} {other}", f"{noun} and {other}"))


def unique_names(kind: str, count: int, split: str, rng: random.Random, taken: set[str]) -> Iterator[str]:
    """Yield ``count`` names of ``kind`` in ``split`` that are not taken yet, and record them in ``taken``."""
    scale = max(1, -(-6 * count // _COMBINATIONS[kind]))  # most combinations stay unused, so draws rarely collide
    while count:
        name = _candidate(kind, rng, scale)
        if name not in taken and split_of(name) == split:
            taken.add(name)
            count -= 1
            yield name


def vocabulary() -> list[str]:
    """Every word that a name can hold in a world of up to about 3,000 entities."""
    words = [word for pool, count in _POOLS.items() for word in syllable_words(pool, count)]
    words += [w.title() for w in (*_ADJECTIVES, *_NOUNS)] + [*_INDUSTRIES, *_PLACE_PREFIXES, *_PLACE_SUFFIXES]
    return [*words, *_BAND_WORDS, *_RIVER_WORDS, "The", "and"]
