"""Why episodes of the best run went wrong: counted by cause, and twenty of them to read.

Sorted by what an episode says of itself: its answer, the share of the gold passages that it was shown, and the text of its
turns. So a cause is where an episode first left the way, which need not be all that was wrong with it.
"""

import json
import random
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from agent_envs import scoring
from agent_envs.tools.search import read_shown
from retrieval_index import durable
from retrieval_index.printable import printable

CAUSES = {
    "format": ("Format", "gave no answer that can be read"),
    "no-search": ("Retrieval", "answered without a search"),
    "retrieval": ("Retrieval", "searched, and was shown no gold passage"),
    "second-query": ("Second query", "was shown some of the gold passages, and not all"),
    "yes-no": ("Reading", 'all shown; said "yes" or "no" where that was not asked, or the wrong one, or something else'),
    "reading": ("Reading", "all shown, and the answer stands in the text"),
    "not-in-text": ("Reading", "all shown; the answer does not stand in the text: cut off, to be inferred, or in other words"),
}  # fmt: skip
NEEDED = {"em", "f1", "prediction", "golds", "calls", "support_recall", "support_f1", "episode"}
NEAR = 0.5


def cause_of(episode: Mapping) -> str:
    """Which of `CAUSES` made an episode wrong.

    Args:
        episode: the last info of an episode of a task that names its gold passages, and its turns under ``episode``: dicts
            with ``observation``, what the agent read, and ``action``.
    """
    if not episode["prediction"].strip():
        return "format"
    if not episode["support_recall"]:
        return "retrieval" if episode["calls"] else "no-search"
    if episode["support_recall"] < 1:
        return "second-query"
    if any(map(_is_yes_no, (episode["prediction"], *episode["golds"]))):
        return "yes-no"
    shown = "\n".join(
        _untag(turn["observation"]) for turn in episode["episode"][1:]
    )  # what comes first is the question
    golds = filter(None, map(scoring.normalize_answer, episode["golds"]))
    in_text = any(f" {gold} " in f" {scoring.normalize_answer(shown)} " for gold in golds)
    return "reading" if in_text else "not-in-text"


def write(folder: Path, results: Mapping, count: int = 20, seed: int = 0) -> Path | None:
    """Write failures.md about the run with the best mean score over the columns.

    Args:
        results: of `experiments.compare`; each row names the ``file`` with its episodes.

    Returns:
        The page; None where no column has episodes that can be sorted, as on games.
    """
    titles = {run["title"] for run in results["recipe"]["runs"].values()}
    runs = {
        f"{title}, seed {of}": rows
        for title in titles & set(results["rows"])
        for of, rows in zip(results["seeds"][title], results["rows"][title], strict=True)
    }
    if not runs:
        return None
    title, rows = max(sorted(runs.items()), key=lambda run: sum(row["score"] for row in run[1].values()))
    episodes = {column: _read(row["file"]) for column, row in rows.items()}
    sortable = {column: own for column, own in episodes.items() if own and all(set(e) >= NEEDED for e in own)}
    if not sortable:
        return None
    durable.write_text(page := folder / "failures.md", describe(title, sortable, count, seed))
    return page


def describe(title: str, episodes: Mapping[str, Sequence[Mapping]], count: int, seed: int) -> str:
    """The page: how often each cause made an episode wrong, by column, and ``count`` episodes drawn by a seed.

    Args:
        episodes: by column, all of them, right or wrong, as `cause_of` takes them.
    """
    wrong = {column: [(cause_of(e), e) for e in own if not e["em"]] for column, own in episodes.items()}
    counts = {column: Counter(cause for cause, _ in own) for column, own in wrong.items()}
    near = Counter(cause for own in wrong.values() for cause, e in own if e["f1"] >= NEAR)
    lines = [
        f"# Wrong episodes of {title}", "",
        f"The cause is the first of these that holds. Near: F1 of at least {NEAR}, all columns together.", "",
        f"| Cause | The agent … | {' | '.join(wrong)} | Near |", f"|---|---|{'---:|' * (len(wrong) + 1)}",
    ]  # fmt: skip
    for cause, (name, happened) in CAUSES.items():
        cells = [_share(counts[column][cause], len(wrong[column])) for column in wrong]
        lines.append(f"| {name} | {happened} | {' | '.join(cells)} | {near[cause]} |")
    totals = [f"{len(wrong[column])} of {len(own)}" for column, own in episodes.items()]
    lines += [f"| Wrong in all | | {' | '.join(totals)} | {near.total()} |", ""]
    drawn = draw([(cause, column, e) for column, own in wrong.items() for cause, e in own], count, seed)
    lines += [f"## {len(drawn)} of them", "", f"Drawn by seed {seed}, from each cause as many as there are for it.", ""]
    for number, (cause, column, episode) in enumerate(drawn, 1):
        lines += [f"**{number}. {CAUSES[cause][0]}** ({column}): {CAUSES[cause][1]}", "", *_lines_of(episode), ""]
    return "\n".join(lines)


def draw(wrong: Iterable[tuple[str, str, Mapping]], count: int, seed: int) -> list[tuple[str, str, Mapping]]:
    """At most ``count`` of them, (cause, column, episode), from each cause in turn, and in the order of `CAUSES`."""
    rng, by_cause = random.Random(seed), {cause: list[tuple[str, str, Mapping]]() for cause in CAUSES}
    for each in wrong:
        by_cause[each[0]].append(each)
    for own in by_cause.values():
        rng.shuffle(own)
    in_turn = sorted((place, cause) for cause, own in by_cause.items() for place in range(len(own)))
    taken = Counter(cause for _, cause in in_turn[:count])
    return [each for cause, own in by_cause.items() for each in own[: taken[cause]]]


def _lines_of(episode: Mapping) -> list[str]:
    """Its question, its turns with the titles that each brought up, and what its answer was worth, as a list."""
    turns = episode["episode"]
    lines = [f"- Question: {_plain(turns[0]['observation'], 300)}"]
    for turn, following in pairwise(turns):
        titles = "; ".join(title for title, _ in read_shown(following["observation"]))
        found = titles or following["observation"]
        lines.append(f"- {_plain(turn['action'], 120)} → {_plain(found, 160)}")
    said, golds = _plain(episode["prediction"] or turns[-1]["action"], 120), " / ".join(episode["golds"][:3])
    lines.append(
        f"- Answer: {said if episode['prediction'] else f'none; its last turn: {said}'}. Gold: {_plain(golds, 120)}."
    )
    lines.append(f"- F1 {episode['f1']:.2f}, support recall {episode['support_recall']:.2f}")
    return lines


def _plain(text: str, width: int) -> str:
    """On one line, without tags, shortened, and with nothing in it that Markdown takes for its own."""
    text = textwrap.shorten(_untag(printable(text)), width, placeholder=" …")
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def _untag(text: str) -> str:
    return re.sub(r"</?\w+>", " ", text)


def _is_yes_no(answer: str) -> bool:
    return scoring.normalize_answer(answer) in ("yes", "no")


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.0%})" if count else "0"


def _read(file: str) -> list[dict]:
    """The episodes of a column, which stand in its file below a line about all of them."""
    _, *episodes = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
    return episodes
