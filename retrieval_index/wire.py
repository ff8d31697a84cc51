"""The wire format of Search-R1's retrieval server, which verl and SkyRL use too, and the limits of a server.

    POST /retrieve   {"queries": ["rock band from Los Angeles"], "topk": 3, "return_scores": true}
    200              {"result": [[{"document": {"id": "1", "contents": "\\"Toto\\"\\nToto is a rock band ..."},
                                   "score": 9.5}, ...]]}

`result` has one list per query, best first. Without `return_scores` its entries are the documents themselves. Our server
also sends the `title`, since one may contain a newline.
"""

import math
from dataclasses import dataclass, fields

from retrieval_index.corpus import Passage, split_contents

PATH = "/retrieve"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server. The defaults let a Search-R1 rollout of a few thousand episodes search in one request."""

    topk: int = 100  # passages per query
    queries: int = 4096  # in one request
    passages: int = 131_072  # that one request may ask for, `queries` times `topk`: some 100 MB
    query_chars: int = 10_000  # in one query
    body_bytes: int = 8_000_000  # of one request
    waiting: int = 8192  # queries of all requests that wait for a search; a request beyond this gets status 429

    def __post_init__(self):
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ValueError(f"{limit.name} must be at least 1, got {getattr(self, limit.name)}")
        if self.waiting < self.queries:
            few = f"waiting (--max-waiting, {self.waiting}) is less than queries (--max-batch, {self.queries})"
            raise ValueError(f"{few}: at least one request must fit")


def entry_of(passage: Passage, with_score: bool) -> dict:
    """One entry of a result list."""
    contents = f'"{passage.title}"\n{passage.text}'
    document = {"id": passage.id, "contents": contents, "title": passage.title}
    return {"document": document, "score": passage.score} if with_score else document


def passage_of(entry: object) -> Passage:
    """Make a passage from an entry with a score; raises ValueError if the entry is invalid. Documents of other servers may
    lack the id, lack the title (see `split_contents`), or have the text in a field of its own."""
    match entry:
        case {"document": {"contents": str(contents)} as document, "score": int() | float() as score}:
            known = document.get("title")
            title, text = split_contents(contents, known if isinstance(known, str) else None)
            if isinstance(document.get("text"), str):
                text = document["text"]
            if not math.isfinite(score):
                raise ValueError(f"a score is a number, got {score}")
            return Passage(str(document.get("id", "")), title, text, float(score))
    raise ValueError(f'expected {{"document": {{"id", "contents"}}, "score"}}, got {entry!r:.200}')
