"""Save the answers of an API as they come: they cost money and time. A repeated command requests only the missing ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval_index import durable
from trainers.episodes.records import read_episodes, to_line
from trainers.runtime.errors import UserError

ANSWERS_FILE = "api_answers.jsonl"
_CHANGED = {"data": "their file was changed", "program": "the file of the program was changed"}  # held as digests


class Answers:
    """The episodes of an API in a folder of results: ``records`` holds the latest by agent, instance and number of the rollout.
    The first line of the file holds the settings of the episodes; other ``settings`` raise a UserError."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        path, self.records = folder / ANSWERS_FILE, dict[tuple[str, int, int], dict]()
        earlier = _read_settings(path) if path.exists() else {}
        for record in read_episodes(path) if earlier else ():
            self.records[_identify(record)] = record
        answered = sum(not record["failed"] for record in self.records.values())
        for name, now in json.loads(to_line(dict(settings))).items():
            if answered and (before := earlier.get(name)) != now:
                was = _CHANGED.get(name, f"{name} was {before!r}, and is {now!r}")
                raise UserError(
                    f"{folder} holds {answered} answers of an API to other questions or settings ({was}): give another --out, "
                    "or those settings to continue"
                )
        self.records = self.records if answered else {}
        lines = [to_line({"settings": dict(settings)}), *map(to_line, self.records.values())]
        durable.write_text(path, "".join(f"{line}\n" for line in lines))  # without a line that a kill truncated
        self._file = path.open("a", encoding="utf-8", errors="replace")

    def add(self, record: dict) -> None:
        """Add a record and write it to the file."""
        self.records[_identify(record)] = record
        self._file.write(f"{to_line(record)}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _identify(record: Mapping[str, Any]) -> tuple[str, int, int]:
    return record["agent"], record["instance"], record["sample"]


def _read_settings(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        try:
            return dict(json.loads(next(lines, ""))["settings"])
        except (ValueError, LookupError, TypeError):  # the line is truncated, as after a kill
            return {}
