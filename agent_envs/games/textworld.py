"""TextWorld's games (Côté et al., arXiv 1806.11532), and ALFWorld's, which are TextWorld games of another kind."""

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_envs.generators.instances import SPLITS, split_of

SUFFIXES = (".z8", ".tw-pddl")


class TextWorldGame:
    """One game at a time, from a ``.z8`` file made by TextWorld, or from an ALFWorld ``.tw-pddl`` file.

    Attributes:
        text: what the last command led to, or the start of the game.
        commands: what can be done now, in alphabetical order.
        won, lost: whether the game ended with a win or a loss.
        score: points divided by the maximum; without points, 1 for a win and 0 otherwise.
        walkthrough: commands that win from the start, or None if the game has none.
    """

    def __init__(self):
        self._env: Any = None  # TextWorld's, once a game is loaded
        self._path: str | None = None

    def reset(self, path: str) -> None:
        """Start the game in this file."""
        with _keep_argv_and_warnings():
            if path != self._path:
                self._load(path)
            state = self._env.reset()
        pddl_walkthrough = getattr(self._env.unwrapped, "walkthrough", None)
        self.walkthrough: list[str] | None = state.get("extra.walkthrough") or pddl_walkthrough
        self._update(state)

    def step(self, command: str) -> None:
        """Give one of the ``commands``; the interpreter would also accept others, such as ``undo`` and ``save``.
        Raises ValueError: for any other command."""
        if command not in self.commands:
            raise ValueError(f"{command!r} is not among the commands {self.commands}")
        self._update(self._env.step(command)[0])

    def _update(self, state) -> None:
        self.text, self.commands = _clean_text(state["feedback"]), list(state["admissible_commands"])
        self.won, self.lost = bool(state["won"]), bool(state["lost"])
        points, most = state.get("score"), state.get("max_score")
        self.score = points / most if points and most else float(self.won)

    def _load(self, path: str) -> None:
        import textworld  # optional

        before, self._path = self._path, None  # it stays None if loading fails
        is_pddl = path.endswith(".tw-pddl")
        # The planner of .tw-pddl is never freed, so it is reused; the interpreter of .z8 leaks memory if it is reused.
        if is_pddl and str(before).endswith(".tw-pddl"):
            self._env.load(path)
        else:
            if self._env is not None:
                self._env.close()
            wanted = textworld.EnvInfos(won=True, lost=True, score=True, max_score=True, admissible_commands=True)
            wrappers = []
            if is_pddl:
                from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

                wrappers.append(AlfredDemangler)  # "Mug_bar__plus_01_dot_00" becomes "mug 1"
            self._env = textworld.start(path, wanted, wrappers=wrappers)
        self._path = path


@contextmanager
def _keep_argv_and_warnings() -> Iterator[None]:
    """Keep ``sys.argv``, which starting a game overwrites, and hide warnings of faults that TextWorld corrects."""
    arguments = sys.argv
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.argv = arguments


def _clean_text(text: str) -> str:
    """Drop TextWorld's banner, the prompt and status line, and what an interpreter asks at the end."""
    text = re.sub(r"\n>[^\n]*\s*\Z", "", text).partition("Would you like to RESTART")[0]
    lines = [line.strip() for line in text.splitlines() if not re.fullmatch(r"[\s_|\\/$>]*[_$|][\s_|\\/$>]*", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def find_games(places: str | Sequence[str], split: str) -> tuple[str, ...]:
    """The game files of ``split`` in folders, or given one by one. A digest of the game decides on the split; "all" has all.
    Raises FileNotFoundError if a place, its games, or the ``.json`` of a ``.z8`` is missing; ValueError if none is left."""
    files: list[Path] = []
    for place in map(Path, [places] if isinstance(places, str) else places):
        if not place.exists():
            raise FileNotFoundError(f"there is no {place}; games must name folders or files of TextWorld games")
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        files += [path.absolute() for path in found if path.suffix in SUFFIXES]
    if not files:
        raise FileNotFoundError(f"no game ({' or '.join(SUFFIXES)}) in {places!r}; `tw-make` makes them")
    chosen = tuple(str(path) for path in files if split in ("all", _split(path)))
    if not chosen:
        there = f"all {len(files)} games" if len(files) > 1 else "the only game"
        other = SPLITS[1 - SPLITS.index(split)]
        raise ValueError(f"{there} in {places!r} belong to {other!r}, none to {split!r}: give more, or split='all'")
    return chosen


def _split(path: Path) -> str:
    described = path if path.suffix == ".tw-pddl" else path.with_suffix(".json")
    if not described.is_file():
        raise FileNotFoundError(f"{path} lacks {described.name} beside it, which TextWorld writes with a game")
    return split_of(described.read_text(encoding="utf-8"))


def short_name(path: str) -> str:
    """A game's short name: that of its file, or of the folders of task and trial in ALFWorld."""
    parts = Path(path).parts
    return "/".join(parts[-3:-1]) if path.endswith(".tw-pddl") else Path(path).stem
