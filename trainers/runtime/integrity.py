"""Find and verify the folders of checkpoints. Nothing here imports torch."""

import hashlib
import re
import sys
from pathlib import Path

from trainers.runtime.errors import UserError

STATE_FILE = "trainer_state.pt"
CHECKSUMS_FILE = "SHA256SUMS"  # in the format of sha256sum, which can check it too
BEST = "best"  # the folder of the weights with the best evaluation, inside the folder of a run
CARD_FILE = "README.md"  # for people to read: it may change, so it has no checksum
STEP_FOLDER = re.compile(r"checkpoint-(\d+)")
_READ = {".safetensors", ".bin", ".pt", ".json", ".jinja", ".model", ".txt"}  # suffixes of files to load a model from


class CheckpointDamaged(UserError):
    """A checkpoint is not what was saved: a file is missing, cut short or changed."""


def latest(run_folder: str | Path) -> Path | None:
    """Return the latest intact checkpoint, or None; warn of damaged ones after it."""
    whole, damaged = find_latest(run_folder)
    for path, reason in damaged:
        instead = f"{whole.name} is taken instead" if whole else "and there is none before it"
        print(f"Warning: {path} is damaged ({reason}): {instead}", file=sys.stderr, flush=True)
    return whole


def find_latest(run_folder: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the latest intact checkpoint, or None; and the damaged ones after it, each with its fault."""
    damaged = []
    for folder in step_folders(run_folder):
        try:
            verify(folder)
        except (CheckpointDamaged, OSError) as error:
            damaged.append((folder, str(error)))
        else:
            return folder, damaged
    return None, damaged


def step_folders(run_folder: str | Path) -> list[Path]:
    """List the folders `run_folder/checkpoint-<step>` that are not empty, intact or damaged, the latest step first."""
    found = [path for path in Path(run_folder).glob("checkpoint-*") if STEP_FOLDER.fullmatch(path.name)]
    return sorted((p for p in found if p.is_dir() and any(p.iterdir())), key=step_of, reverse=True)


def find_best(path_or_id: str | Path) -> str:
    """Resolve the folder of a run to its best, or else its latest checkpoint; return any other path or id unchanged."""
    folder, best = Path(path_or_id), Path(path_or_id) / BEST
    if not path_or_id or (folder / "config.json").is_file():
        return str(path_or_id)
    if not (steps := step_folders(folder)) and not is_checkpoint(best):  # a short run has no other than its best
        return str(path_or_id)
    chosen = best if best.is_dir() else find_latest(folder)[0] or steps[0]
    print(
        f"{folder} is a run: {chosen} is taken, its {'best' if chosen == best else 'latest'} checkpoint",
        file=sys.stderr,
    )
    return str(chosen)


def is_checkpoint(folder: str | Path) -> bool:
    """Whether a folder was written by `save`. A plain Hugging Face model has weights, but no state to continue from."""
    return (Path(folder) / CHECKSUMS_FILE).is_file()


def is_written_here(folder: str | Path) -> bool:
    """Whether `save` wrote a folder, even if its checksums are lost: it must not be taken for a plain model."""
    return is_checkpoint(folder) or (Path(folder) / STATE_FILE).is_file()


def verify(folder: str | Path) -> None:
    """Check every file of a checkpoint against its checksum. Raises as `load_state` does."""
    folder = Path(folder)
    if is_written_here(folder) and not is_checkpoint(folder):
        raise CheckpointDamaged(f"{folder}: its checksums, {CHECKSUMS_FILE}, are missing: it cannot be checked")
    if not is_checkpoint(folder):
        what = "is not a checkpoint of a trainer" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {what} (no {CHECKSUMS_FILE})")
    lines = (folder / CHECKSUMS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    sums = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    for name in (STATE_FILE, *sums):
        if not (folder / name).is_file():
            raise CheckpointDamaged(f"{folder}: {name or 'the list of checksums'} is missing or damaged")
        if sums.get(name) != _checksum(folder / name):
            raise CheckpointDamaged(f"{folder}: {name} is not what was saved: its checksum differs")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix in _READ and name not in sums and path.is_file():
            raise CheckpointDamaged(f"{folder}: {name} is not in {CHECKSUMS_FILE}, so no checksum covers it")


def step_of(folder: Path) -> int:
    """Return the number of updates in the name of a checkpoint folder."""
    return int(folder.name.removeprefix("checkpoint-"))


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files of a folder, except its `CARD_FILE`."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    text = "".join(f"{_checksum(folder / name)}  {name}\n" for name in names if name != CARD_FILE)
    (folder / CHECKSUMS_FILE).write_text(text, encoding="utf-8")


def _checksum(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
