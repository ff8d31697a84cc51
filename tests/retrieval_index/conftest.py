import random

import pytest

from retrieval_index import Passage
from retrieval_index.corpus import write_passages

WORDS = (
    *("river", "town", "film", "band", "author", "bridge", "castle"),
    *("island", "orchestra", "novel", "painter", "queen", "railway", "harbour", "comet"),
)


@pytest.fixture(scope="session")
def passages() -> list[Passage]:
    """200 short passages of few words, so that ties and shared terms abound."""
    draw = random.Random(0)
    return [
        Passage(str(row), f"{draw.choice(WORDS)} {row}", " ".join(draw.choices(WORDS, k=draw.randint(3, 30))))
        for row in range(200)
    ]


@pytest.fixture(scope="session")
def source(passages, tmp_path_factory):
    """A file of these passages."""
    folder = tmp_path_factory.mktemp("source")
    write_passages(passages, folder)
    return folder / "passages.jsonl"
