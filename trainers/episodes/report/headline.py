"""The sentence at the head of report.html: the result of a run or an evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

_MEASURES = {"em": "Exact match", "success": "Success", "score": "Score", "f1": "F1"}


def make_headline(known: Mapping[str, Any], rows: Sequence[Mapping], lines: Sequence[Mapping], score: str) -> str:
    """Make one sentence, such as "Exact match 0.14 → 0.85 on 500 held-out questions, 8 minutes"; "" without a result.

    ``known``: the summary; ``lines``: those of metrics.jsonl; both may be empty.
    """
    seconds = known.get("seconds_training") or known.get("seconds") or _sum_seconds(lines)
    took = f", {format_duration(seconds)}" if seconds else ""
    measure = _MEASURES.get(score, score)
    before, after = known.get(f"{score}_cold_start"), known.get(f"{score}_trained")
    if before is not None and after is not None:
        return f"{measure} {before:.2f} → {after:.2f}{_count(rows[-1].get('episodes') if rows else None, score)}{took}"
    if known.get("heldout_loss_before") is not None and known.get("heldout_loss") is not None:
        losses = f"{known['heldout_loss_before']:.2f} → {known['heldout_loss']:.2f}"
        return f"Held-out loss {losses} nats per token{_count(known.get('episodes_held_out'), 'loss')}{took}"
    for name, what in ((f"eval/{score}", measure), ("eval/loss", "Held-out loss")):
        if values := [line[name] for line in lines if line.get(name) is not None]:
            asked = _count((known.get("evaluation") or {}).get("eval_questions"), score) if score in name else ""
            if len(values) == 1:
                return f"{what} {values[0]:.2f}{asked}, untrained"
            return f"{what} {values[0]:.2f} → {values[-1]:.2f}{asked} so far{took}"
    return _describe_row(rows[-1], score, measure) if rows and not lines else ""


def _describe_row(row: Mapping, score: str, measure: str) -> str:
    """Describe the last agent of an evaluation."""
    if row.get(score) is None:
        return ""
    said = f"{row['name']}: {measure[0].lower()}{measure[1:]} {row[score]:.2f}"
    if interval := row.get(f"{score}_interval"):
        said += f" (95% CI {interval[0]:.2f} to {interval[1]:.2f})"
    questions = (row.get("episodes") or 0) // (row.get("samples") or 1)
    said += _count(questions, score).replace("held-out ", "")
    if (difference := row.get("difference")) is not None and row.get("difference_to"):
        said += f", {difference:+.2f} against {row['difference_to']}"
    return said


def _count(number: int | None, score: str) -> str:
    what = {"em": "question", "f1": "question", "loss": "demonstration"}.get(score, "episode")
    return f" on {number:,} held-out {what}{'s' * (number != 1)}" if number else ""


def _sum_seconds(lines: Sequence[Mapping]) -> float:
    return sum((line.get("time/rollout") or 0.0) + (line.get("time/update") or 0.0) for line in lines)


def format_duration(seconds: float) -> str:
    """Format a duration in words."""
    for size, name, most in ((1, "second", 100), (60, "minute", 5400)):
        if seconds < most:
            number = round(seconds / size)
            return f"{number} {name}{'s' * (number != 1)}"
    return f"{seconds / 3600:.1f} hours"
