"""Draw the pictures of docs/gallery.md: an episode of each task, rolled out by its oracle script.

python -m benchmarks.envs.gallery      # ten seconds; writes docs/pictures/TASK.svg
"""

import textwrap
import warnings
from pathlib import Path
from xml.sax.saxutils import escape

from agent_envs.integrations.hosting import make
from agent_envs.utils.scripts import roll_out

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
TOWN = {"data": str(ROOT / "examples/town/questions.jsonl"), "corpus": str(ROOT / "examples/town/passages.jsonl")}
SEEDS = {
    "MiniWiki": 4,
    "QA": 0,
    "Calculator": 1,
    "Python": 1,
    "SQL": 5,
    "API": 5,
    "Mixed": 1,
    "Bandit": 3,
    "Countdown": 1,
}
BOARDS = {"Sokoban": 11, "FrozenLake": 2}
WIDTH, COLUMNS, LINE = 480, 57, 19  # pixels, characters, pixels
INK, QUIET, CALL, GOOD = "#1f2933", "#66727f", "#0a5ea8", "#2e7d4f"
FLOOR = {"#": "#5b6570", "G": "#cfe8cf", "√": "#9ccc9c"}  # colours of cells; the others are light
ICE = FLOOR | {"O": "#27405e"}  # where O is a hole, and not a target


def text(x: float, y: float, words: str, colour: str = INK, size: float = 13, more: str = "") -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" xml:space="preserve" {more}>{escape(words)}</text>'
    )


def svg(title: str, height: float, parts: list[str]) -> str:
    mono = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    frame = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" stroke="#c9d1d9"/>'
    head = text(16, 28, title, size=15, more='font-weight="bold"')
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-family="{mono}">'
    )
    return "\n".join([opening, frame, head, *parts, "</svg>", ""])


def draw_transcript(title: str, turns: list[dict]) -> str:
    """The question, and of each turn its call, the first line that came back, and its reward."""
    parts, y = [], 54.0
    for line in textwrap.wrap(turns[0]["observation"], COLUMNS):
        parts.append(text(16, y, line))
        y += LINE
    for turn in turns:
        y += 6
        colour = GOOD if turn["reward"] > 0 else QUIET
        parts.append(text(WIDTH - 16, y, f"{turn['reward']:+.2f}", colour, 12, 'text-anchor="end"'))
        action = turn["action"].splitlines()
        action = textwrap.wrap(action[0], COLUMNS - 7) if len(action) == 1 else [*action[:4], "…"][: len(action)]
        for line in action:
            parts.append(text(16, y, line, CALL))
            y += LINE
        if back := plain(turn["next_observation"]).replace("\n", " "):
            parts.append(text(30, y, textwrap.shorten(back, COLUMNS - 2, placeholder=" …"), QUIET))
            y += LINE
    return svg(title, y, parts)


def plain(observation: str) -> str:
    return observation.removeprefix("<information>").removesuffix("</information>")


def draw_boards(title: str, turns: list[dict]) -> str:
    """The first and the last board, with the actions between them."""
    colours = ICE if title == "FrozenLake" else FLOOR
    boards = (16, turns[0]["observation"]), (WIDTH - 184, plain(turns[-1]["next_observation"]))
    parts = [part for x, board in boards for part in draw_board(board, x, 44, colours)]
    actions = [turn["action"].split(">")[1].split("<")[0].split(" || ") for turn in turns]
    lines = [*(line for action in actions for line in action), f"{sum(turn['reward'] for turn in turns):+.1f}"]
    for i, line in enumerate(lines):
        colour = GOOD if i == len(lines) - 1 else CALL
        parts.append(text(WIDTH / 2, 133 + LINE * (i - (len(lines) - 1) / 2), line, colour, 13, 'text-anchor="middle"'))
    return svg(title, 226, parts)


def draw_board(board: str, x: float, y: float, colours: dict[str, str]) -> list[str]:
    rows = [line.split() for line in board.splitlines() if set(line) <= set("#_OX√PSG ")]
    size, parts = 168 / len(rows), []
    for i, row in enumerate(rows):
        for j, symbol in enumerate(row):
            left, top = round(x + j * size, 1), round(y + i * size, 1)
            fill = colours.get(symbol, "#eef1f4")
            parts.append(
                f'<rect x="{left}" y="{top}" width="{size:.1f}" height="{size:.1f}" fill="{fill}" stroke="#ffffff"/>'
            )
            parts += draw_piece(symbol, left + size / 2, top + size / 2, size, colours)
    return parts


def draw_piece(symbol: str, x: float, y: float, size: float, colours: dict[str, str]) -> list[str]:
    """What stands on a cell: you, a target, a box, a goal."""
    half, ring = round(size * 0.3, 1), f'fill="none" stroke="{GOOD}" stroke-width="3"'
    x, y = round(x, 1), round(y, 1)
    pieces = []
    if symbol in "SG" or (symbol == "O" and "O" not in colours):
        pieces.append(f'<circle cx="{x}" cy="{y}" r="{half}" {ring}/>')
    if symbol in "X√" and "O" not in colours:
        corner = f'x="{x - half:.1f}" y="{y - half:.1f}" width="{2 * half:.1f}" height="{2 * half:.1f}"'
        pieces.append(f'<rect {corner} rx="3" fill="#c98a3c"/>')
    if symbol in "PS" or (symbol == "√" and "O" in colours):
        pieces.append(f'<circle cx="{x}" cy="{y}" r="{round(size * 0.2, 1)}" fill="{CALL}"/>')
    return pieces


def draw(task: str) -> str:
    """The picture of one task, always the same."""
    env = make(f"AgentR1/{task}-v0", **(TOWN if task == "QA" else {}))
    turns = roll_out(env, env.SCRIPTS["oracle"], (SEEDS | BOARDS)[task])
    return (draw_boards if task in BOARDS else draw_transcript)(task, turns)


def main() -> None:
    warnings.simplefilter("ignore")
    PICTURES.mkdir(exist_ok=True)
    for task in SEEDS | BOARDS:
        (PICTURES / f"{task}.svg").write_text(draw(task), encoding="utf-8")


if __name__ == "__main__":
    main()
