import os
import random
from pathlib import Path

import pytest

from retrieval_index import Passage

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
def real_data() -> Path:
    """The folder of real questions and passages. It lies outside the repository; tests that need it skip without."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("AGENT_ENVS_TEST_DATA", default))
    if not (folder / "passages.jsonl").is_file():
        pytest.skip(f"no passages.jsonl in {folder}: set AGENT_ENVS_TEST_DATA to the folder of real data")
    return folder
