"""The folder of a training run: its path, its checkpoints, and the report that closes it.

| file | written by | when |
|---|---|---|
| .lock | `checkpoints.lock` | while a process holds the folder |
| metrics.jsonl | `lifecycle.logger`, a line an update | after each update |
| episodes.jsonl, episode_tokens.jsonl | `episodes.records` | baselines, evaluations, kept training episodes, closing table |
| checkpoint-N, best | `checkpoints.checkpoint` | arguments.json (`settings`) and README.md (`card`) are in each |
| baselines.json | `lifecycle.setup` | at the start |
| evaluation.md, learning_curve.png, summary.json | here | at the end |
| report.html | `episodes.report.page` | every minute, with each checkpoint, and at the end |
| start; demonstrations.jsonl | `tiny.cold_start`; `imitation.demonstrations`, of sft | at the start |
"""

import itertools
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from agent_envs.utils.view import show_conversation
from retrieval_index import durable
from trainers.checkpoints import card, checkpoint
from trainers.checkpoints.lock import FolderInUse, hold_folder
from trainers.checkpoints.settings import ARGUMENTS_FILE, check_resumed, describe_arguments, settings
from trainers.episodes.records import EPISODES_FILE, TOKENS_FILE
from trainers.episodes.report import page as html_report
from trainers.episodes.report import tables
from trainers.inputs import check_folder_free, is_used
from trainers.models import lora
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime import distributed, integrity
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import BEST
from trainers.runtime.progress import METRICS_FILE, read_metrics
from trainers.runtime.signals import TrainingStopped


@contextmanager
def create_run_dir(args, algorithm: str) -> Iterator[Path]:
    """Yield the folder of the run, locked; the first of several processes chooses it, never one with an earlier run.

    Inside, a disk that gets full or read-only raises TrainingStopped. Half-written files never have the names of whole ones.
    """
    with ExitStack() as stack:
        folder = None if distributed.rank() else _claim(args, algorithm, stack)
        chosen = distributed.broadcast(folder)
        assert chosen is not None
        try:
            yield chosen
        except Exception as error:
            if reason := durable.find_write_failure(error):
                raise TrainingStopped(f"{chosen} cannot be written to ({reason}). {_describe_rest(chosen)}") from None
            raise


def _describe_rest(folder: Path) -> str:
    whole, _ = integrity.find_latest(folder)
    if whole is None:
        return "There is no checkpoint."
    return f"{whole} is whole: make room, and --resume {folder} continues from there."


def _claim(args, algorithm: str, stack: ExitStack) -> Path:
    if args.resume:
        if args.out:
            raise UserError("a resumed run stays in its folder: leave out --out")
        if not integrity.step_folders(args.resume):
            raise UserError(f"there is no checkpoint in {args.resume}")
        stack.enter_context(hold_folder(args.resume))
        _check_checkpoint(args)
        return args.resume
    if args.out:
        stack.enter_context(hold_folder(args.out))
        check_folder_free(args.out)
        _clear(args.out)
        return args.out
    name = Path("runs") / f"{algorithm}-{args.env.split('/')[-1]}-{args.seed}"
    for number in itertools.count(2):
        if not is_used(name):
            try:
                stack.enter_context(hold_folder(name))
                _clear(name)
                return name
            except FolderInUse:
                pass  # another run that has just begun
        name = Path("runs") / f"{algorithm}-{args.env.split('/')[-1]}-{args.seed}-{number}"
    raise AssertionError("numbers do not end")


def _clear(folder: Path) -> None:
    """Set aside what was left by a run that ended before its first checkpoint."""
    for path in (folder / name for name in (METRICS_FILE, EPISODES_FILE, TOKENS_FILE, BEST)):
        if path.exists():
            print(f"{path} of an earlier run is kept as {durable.set_aside(path, 'earlier').name}", file=sys.stderr)


def _check_checkpoint(args) -> None:
    """Raise a UserError if there is no whole checkpoint of this experiment; set later ones, which are damaged, aside."""
    whole, damaged = integrity.find_latest(args.resume)
    if whole is None:
        raise UserError(f"no checkpoint in {args.resume} is whole: {'; '.join(reason for _, reason in damaged)}")
    check_resumed(whole, checkpoint.read_extra(whole), args)
    if (had := checkpoint.step_of(whole)) > (getattr(args, "updates", None) or math.inf):
        raise UserError(f"{args.resume} has had {had} updates: updates must be at least as many, got {args.updates}")
    for path, reason in damaged:
        aside = durable.set_aside(path, "damaged").name
        print(f"Warning: {reason}. It is set aside as {aside}, and {whole.name} is continued from.", file=sys.stderr)


def save(
    run: Path, policy: Policy, optimizers: list, modules: dict, step: int, args: Any, extra: dict[str, Any]
) -> None:
    """Write the checkpoint of an update into the folder of the run, once its metrics are on the disk."""
    if (run / METRICS_FILE).exists():
        durable.sync(run / METRICS_FILE)
    checkpoint.save(
        run / f"checkpoint-{step}", model=policy.model, tokenizer=policy.tokenizer, optimizers=optimizers, step=step,
        extra=settings(args) | extra, modules=modules, keep_last=args.save_total_limit - 1,
        texts={ARGUMENTS_FILE: describe_arguments(args)},
    )  # fmt: skip


def save_best(run: Path, policy: Policy, step: int, score: float | None, args: Any, extra: dict[str, Any]) -> None:
    """Write the weights of the best evaluation so far into ``best`` in the folder of the run; no run continues from them."""
    checkpoint.save(
        run / BEST, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=step,
        extra=settings(args) | extra | {"best": {"update": step, "score": score}},
        texts={ARGUMENTS_FILE: describe_arguments(args)},
    )  # fmt: skip


def resume(run: Path, policy: Policy, optimizers: list, modules: dict) -> int:
    """Load the latest checkpoint into the policy, the optimizers and the modules; return its number of updates."""
    folder = integrity.step_folders(run)[0]  # `_check_checkpoint` has set damaged ones aside
    step, _ = checkpoint.load_state(folder, optimizers, modules)
    load_weights(policy, folder)
    return step


def load_weights(policy: Policy, folder: Path) -> None:
    """Load the weights of a checkpoint of the same run into the policy. Raises UserError if the vocabularies differ."""
    if lora.has_lora(policy.model):
        lora.load_lora_weights(policy.model, folder)
    else:
        precision = torch.get_float32_matmul_precision()  # that of the run: loading a model in float32 resets it
        saved = load_policy(folder, "cpu")
        torch.set_float32_matmul_precision(precision)
        if saved.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise UserError(
                f"{folder} has another vocabulary than the new cold start, and the cold start of its run is gone. To continue "
                f"with its weights, begin another run with --model {folder}"
            )
        policy.model.load_state_dict(saved.model.state_dict())


def write_unfinished_page(run: Path, summary: dict, done: str) -> None:
    """Write report.html of an unfinished run, with its newest episodes; ``done`` is a text such as "12 of 50 updates"."""
    html_report.write_beside(run, summary=summary, unfinished=done, episodes=500, newest=2**23)


def write_report(run: Path, summary: dict, records: list[dict]) -> None:
    """Write the closing table, the learning curve and the page; print an episode of the trained policy, one of ``records``."""
    console, rows = Console(), summary["rows"]
    _draw_curve(run, summary)
    header = f"{summary['env']} · source: {summary['source']}\n\n"
    durable.write_text(run / "evaluation.md", header + tables.table(rows))
    tables.write_summary(run, summary)
    card.write_cards(run)
    html_report.write_beside(run)
    longest = max(
        records, key=lambda record: (sum(turn["reward"] for turn in record["turns"][-1:]) > 0.5, len(record["turns"]))
    )
    console.print("A sample episode", show_conversation(longest), sep="\n")
    console.print(f"source: {summary['source']}", markup=False)
    tables.print_table(rows, console)
    files = "report.html, summary.json, learning_curve.png, metrics.jsonl, episodes.jsonl, checkpoints"
    console.print(f"Everything is in {run}: {files}.", markup=False, highlight=False)
    with suppress(integrity.CheckpointDamaged, OSError, LookupError):  # what is missing was deleted by hand
        best = checkpoint.read_extra(run / BEST)["best"]["update"]
        if best != (last := checkpoint.step_of(integrity.step_folders(run)[0])):
            told = (
                f"The table has the weights after {last} updates. --checkpoint {run} takes {BEST}, from update {best}."
            )
            console.print(told, markup=False, highlight=False, soft_wrap=True)


def _draw_curve(run: Path, summary: dict) -> None:
    score = summary["score"]
    names = {row["name"]: row[score] for row in summary["rows"] if row["name"] in ("Naive RAG", "Scripted agent")}
    metrics, key = {f"seed {summary['seed']}": run / METRICS_FILE}, f"eval/{score}"
    if any(line.get(key) is not None for line in read_metrics(run / METRICS_FILE)):
        picture = run / "learning_curve.png"
        from trainers.episodes.report import figures  # takes a second for matplotlib, which most commands need not wait

        figures.draw_learning_curve(metrics, picture, names, key=key, title=summary["env"], subtitle=summary["source"])
