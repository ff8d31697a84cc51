"""Write a page to look at runs and evaluations in a browser: the table, the curves and every episode.

    python -m trainers.report runs/grpo-MiniWiki-v0-0                # writes report.html into the folder of the run
    python -m trainers.report runs/evaluation                        # the same for an evaluation
    python -m trainers.report runs/one runs/two --out both.html      # curves and episodes of both, side by side
    python -m trainers.report episodes.jsonl                         # a file of episodes

The page needs no server and no network. Runs write theirs every minute, evaluations at their end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainers import inputs
from trainers.cli import parse
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args:
    """Write report.html."""

    sources: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs or evaluations, or files of episodes or metrics."""
    out: Path | None = None
    """Page to write; by default report.html in the folder of the first source."""
    episodes: int = 5000
    """Largest number of episodes on the page; 0 for all. Whole questions are kept, those of the table first."""


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "report")

from retrieval_index.printable import printable
from trainers.episodes.report import page as html_report


def main(args: Args) -> Path:
    """Write the page; return its path. Raises UserError if a source is missing or empty, or ``out`` cannot be written."""
    if not args.sources:
        raise UserError("there is no source: give the folder of a run or an evaluation, or an episodes.jsonl")
    if args.episodes < 0:
        raise UserError(f"--episodes must be at least 0 (all), got {args.episodes}")
    first = args.sources[0]
    out = args.out or (first if first.is_dir() else first.parent) / html_report.PAGE_FILE
    if out.is_dir():
        raise UserError(f"--out must be a file, got the folder {out}")
    inputs.check_out(out.parent)
    path = html_report.write(args.sources, out, episodes=args.episodes)
    print(f"{printable(str(path))}: {path.stat().st_size / 2**20:.1f} MiB")
    return path


if __name__ == "__main__":
    main(ARGS)
