"""ALFWorld: household tasks in words; and any game made by TextWorld."""

import contextlib
import io
import os
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_envs.games.replay import Replay, menu, normalize_command, read_menu
from agent_envs.games.textworld import TextWorldGame, find_games, short_name
from agent_envs.generators.instances import check_choice, choose_instance
from agent_envs.rewards import Invalid, Metric, Reward
from agent_envs.tasks.answering import call
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool, ToolError
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

_FOLDERS = {
    "train": "train",
    "validation": "valid_seen",
    "eval_in_distribution": "valid_seen",
    "eval_out_of_distribution": "valid_unseen",
}
_MENU = "Commands"


def wander(env: ToolEnv, rng: random.Random) -> Script:
    """Give a random one of the listed commands."""
    text = env.first_observation
    while True:
        text = yield call("act", command=rng.choice(read_menu(_MENU, text)))


def explore(env: ToolEnv, rng: random.Random) -> Script:
    """Give one of the listed commands that were given least often so far; commands that only look come last."""
    text = env.first_observation
    given: Counter[str] = Counter()
    while True:
        commands = read_menu(_MENU, text)
        idle = {one for one in commands if one.split()[0] in ("look", "inventory", "help", "examine")}
        fewest = min((one in idle, given[one]) for one in commands)
        command = rng.choice([one for one in commands if (one in idle, given[one]) == fewest])
        given[command] += 1
        text = yield call("act", command=command)


def walkthrough(env: "ALFWorldEnv", rng: random.Random) -> Script:
    """Give the winning commands of the game's maker or of ALFWorld's expert."""
    commands = env.play.game.walkthrough
    if not commands:
        raise ValueError(f"the game {env.play.instance} comes without a walkthrough")
    for command in commands:
        yield call("act", command=command)


class ALFWorldEnv(ToolEnv):
    """Do a household task by giving commands in a world of words.

    The agent reads where it is, its task and the possible commands; other commands never reach the game. The episode
    terminates when the task is done or can no longer be done.

    The games are those of ALFWorld (arXiv 2010.03768) as text, or of TextWorld (arXiv 1806.11532). TextWorld evaluates
    expressions in game files: run only files that you trust.

    Install it with ``pip install alfworld`` and run ``alfworld-download`` once. For ``.z8`` games, install ``textworld``
    instead.

    Args:
        split: ``"train"``, ``"eval_in_distribution"`` (valid_seen; also called ``"validation"``) or
            ``"eval_out_of_distribution"`` (valid_unseen). For ``games``: ``"train"`` or ``"validation"``, by a digest of the
            game, or ``"all"``.
        data: ALFWorld's data folder (with ``json_2.1.1``); by default ``$ALFWORLD_DATA`` or ``~/.cache/alfworld``.
        games: instead of ``data``, a folder of TextWorld games, or a list of files: ``.z8`` with ``.json`` beside it, or
            ``.tw-pddl``.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``instance`` and ``game``. Every step adds ``won``, ``lost``, ``score``
    (points over the maximum) and ``success``. ``reset(options={"instance": n})`` picks a game of ``env.files``.

    Raises:
        ImportError: a package is missing.
        FileNotFoundError: the games are missing.
    """

    REWARD = Reward(won=(1.0, Metric("won")))
    PRESETS = {"gigpo": Reward(won=(10.0, Metric("won")), invalid=(-0.1, Invalid()))}  # noqa: RUF012  (arXiv 2505.10978)

    SCRIPTS = {"random": wander, "scripted": explore, "oracle": walkthrough}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        data: str | None = None,
        games: str | Sequence[str] | None = None,
        max_turns: int = 50,
        **common: Any,
    ):
        if data is not None and games is not None:
            raise ValueError("give data (ALFWorld's folder) or games (TextWorld's), not both")
        check_choice("split", split, tuple(_FOLDERS) if games is None else ("train", "validation", "all"))
        self.split, self.source = split, "alfworld" if games is None else "textworld"
        self.files = _alfworld(data, _FOLDERS[split]) if games is None else find_games(games, split)
        _check_packages(any(file.endswith(".tw-pddl") for file in self.files))
        self.play = Replay(TextWorldGame)
        task = (
            "You are in a world of words. Do the task that is set at the start, by giving commands. Every observation ends "
            f"with the commands that can be given at that point. You have {max_turns} turns."
        )
        common = {"max_calls": 1, **common}
        super().__init__((FunctionTool(self.act),), instructions=task, answers=False, max_turns=max_turns, **common)

    def act(self, command: str) -> ToolResult:
        """do what the command says; it must be one of those that are listed."""
        game = self.play.game
        if game.won or game.lost:
            raise ToolError("the game is over")
        known = {normalize_command(one): one for one in game.commands}
        if normalize_command(command) not in known:
            return ToolResult("Nothing happens.", ok=False)
        self.play.step(known[normalize_command(command)])
        return ToolResult(f"{game.text}\n{self.state_text()}".strip())

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = choose_instance(self.np_random, options, range(len(self.files)))
        self.play.reset(self.files[number])
        info = {"source": self.source, "split": self.split, "instance": number, "game": short_name(self.files[number])}
        return f"{self.play.game.text}\n{self.state_text()}", info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        game = self.play.game
        won = float(game.won)
        metrics = {"won": won, "lost": float(game.lost), "score": float(game.score), "success": won}
        return TurnOutcome(metrics, terminated=game.won or game.lost)

    def anchor(self) -> Hashable:
        """The game's last text and its commands, as in GiGPO's paper: the menu without the text would merge different states."""
        return self.play.game.text, self.state_text()

    def state_text(self) -> str:
        game = self.play.game
        return "" if game.won or game.lost else menu(_MENU, game.commands)


def _alfworld(data: str | None, folder: str) -> tuple[str, ...]:
    _check_packages(pddl=True)
    root = Path(data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / "json_2.1.1" / folder
    files = _solvable(str(root)) if root.is_dir() else ()
    if not files:
        raise FileNotFoundError(
            f"no ALFWorld games in {root}: run `alfworld-download`, and give data= or set ALFWORLD_DATA if it is another "
            "folder; or play games made by TextWorld with games="
        )
    return files


@cache  # ALFWorld reads thousands of files to tell which games can be won
def _solvable(folder: str) -> tuple[str, ...]:
    from alfworld.agents.environment.alfred_tw_env import TASK_TYPES, AlfredTWEnv

    paths = dict.fromkeys(("data_path", "eval_id_data_path", "eval_ood_data_path"), folder)
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": list(TASK_TYPES)},
        "dataset": {**paths, "num_train_games": 0, "num_eval_games": 0},
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return tuple(sorted(AlfredTWEnv(config, train_eval="train").game_files))


def _check_packages(pddl: bool) -> None:
    needed = ("textworld", "fast_downward", "alfworld") if pddl else ("textworld",)
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ImportError(f"these games need {', '.join(missing)}: pip install {'alfworld' if pddl else 'textworld'}")


make_vector = vector_entry_point(ALFWorldEnv)
