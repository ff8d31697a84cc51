"""What is left after a power loss at any moment of a save, a build or a download?

    python -m benchmarks.power_loss

A trace is recorded of everything that a writer does to the names in a folder, and of what it forces to the disk. Every
prefix of it is then replayed into the states that a disk may be in when the power fails there: names change in the order in
which they were changed, as with the journal of a file system, up to any point between the last folder that was forced to the
disk and now; a file holds what was forced to the disk, and one that was changed since holds nothing, half, or all of the
rest. In each state the reader must find the old content or the new one, whole, and what a writer has reported as done must be
there; a writer that is started again must come to its end. Ends with one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import tyro

_CHANGES = ("rename", "replace", "mkdir", "unlink", "rmdir", "link")
KEPT = {"nothing": 0.0, "half": 0.5, "all": 1.0}  # how much is left of what was not forced to the disk


@dataclass(slots=True)
class Moment:
    """The folder after one step of a writer.

    Attributes:
        names: by relative path the number of a file, or None for a folder.
        contents: by number what a file holds now.
        safe: by number what of it was forced to the disk.
        settled: all names so far are on the disk: a folder was forced there.
        done: what the writer had reported as done by then.
    """

    names: dict[str, int | None]
    contents: dict[int, bytes]
    safe: dict[int, bytes]
    settled: bool
    done: int


@dataclass
class Trace:
    """The moments of a writer in a folder, in order."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    done: int = 0
    _files: dict[int, int] = field(default_factory=dict)  # by inode, the number that a file is known by here
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def note(self, forced: int | None = None, settled: bool = False) -> None:
        """Take down what the folder looks like. ``forced``: the inode of a file that was forced to the disk just now."""
        names: dict[str, int | None] = {}
        contents: dict[int, bytes] = {}
        for path in sorted(self.root.rglob("*")):
            inode = None if path.is_dir() else path.stat().st_ino
            if inode is not None:  # numbers are given out anew: one that was gone stands for another file
                inode = self._files.get(inode) or next(self._numbers) << 64 | inode
            names[str(path.relative_to(self.root))] = inode
            if inode is not None:
                contents[inode] = path.read_bytes()
        self._files = {file & (1 << 64) - 1: file for file in contents}
        known = self.moments[-1].safe if self.moments else {}
        safe = {file: content for file, content in known.items() if file in contents}
        if forced in self._files:
            safe[self._files[forced]] = contents[self._files[forced]]
        self.moments.append(Moment(names, contents, safe, settled, self.done))

    def report(self) -> None:
        """The writer says that something is done: from now on it must be there."""
        self.done += 1
        self.note()

    def states(self) -> Iterator[tuple[dict[str, bytes | None], int]]:
        """Each state that the disk may be in after a power loss, once: by relative path the content of a file, or None for
        a folder; and how much the writer had reported as done."""
        seen = set()
        settled = 0
        for now, moment in enumerate(self.moments):
            settled = now if moment.settled else settled
            for earlier in self.moments[settled : now + 1]:
                for kept in KEPT.values():
                    state = {
                        path: None if inode is None else _left(inode, earlier, moment, kept)
                        for path, inode in earlier.names.items()
                    }
                    key = hash((frozenset(state.items()), moment.done))
                    if key not in seen:
                        seen.add(key)
                        yield state, moment.done


def _left(inode: int, earlier: Moment, now: Moment, kept: float) -> bytes:
    content, safe = earlier.contents[inode], now.safe.get(inode, earlier.safe.get(inode, b""))
    return safe if content == safe else safe + content[len(safe) : len(safe) + int(kept * (len(content) - len(safe)))]


@contextmanager
def recording(root: Path) -> Iterator[Trace]:
    """Record what this process does to the names below a folder, and what of it is forced to the disk."""
    trace = Trace(root)
    trace.note(settled=True)
    real = {name: getattr(os, name) for name in (*_CHANGES, "fsync")}

    def change(name: str) -> Callable:
        def changed(*args, **kwargs):
            trace.note()
            result = real[name](*args, **kwargs)
            trace.note()
            return result

        return changed

    def fsync(handle: int) -> None:
        trace.note()  # what came before it, a swap of two folders, say
        real["fsync"](handle)
        state = os.fstat(handle)
        folder = os.path.isdir(f"/proc/self/fd/{handle}")
        trace.note(None if folder else state.st_ino, settled=folder)

    with mock.patch.multiple(os, fsync=fsync, **{name: change(name) for name in _CHANGES}):
        yield trace
    trace.note()


def replay(trace: Trace, check: Callable[[Path, int], None], scratch: Path, every: int = 1) -> int:
    """Call ``check(folder, done)`` on each ``every``-th state that a power loss may leave; it raises where the state is bad.
    Returns how many were checked."""
    count = 0
    for number, (state, done) in enumerate(trace.states()):
        if number % every:
            continue
        folder = scratch / "state"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path, content in sorted(state.items()):
            if content is None:
                (folder / path).mkdir(parents=True, exist_ok=True)
            else:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
        check(folder, done)
        count += 1
    return count


# -- what is written ---------------------------------------------------------------------------------------------------


def index_builds(root: Path, scratch: Path, rebuild_every: int = 10) -> int:
    """Two builds of an index in one folder, of other passages each. Every state opens as one of the two, or as none before
    the first was reported; every ``rebuild_every``-th is built anew from what was left."""
    import retrieval_index

    sources = []
    for name in ("old", "new"):
        rows = [{"id": str(i), "title": f"{name} {i}", "text": f"{name} text number {i}"} for i in range(40)]
        sources.append(scratch / f"{name}.jsonl")
        sources[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))

    def titles(folder: Path) -> set[str]:
        searcher = retrieval_index.load(folder / "index")
        return {p.title.split()[0] for p in searcher.corpus} | {
            p.title.split()[0] for p in searcher.search(["text number 7"], k=40)[0]
        }

    with mock.patch("os.cpu_count", return_value=1):  # or the words are counted in processes of their own
        with recording(root) as trace:
            for source in sources:
                retrieval_index.build_folder(source, root / "index")
                trace.report()
        tried = 0

        def check(folder: Path, done: int) -> None:
            nonlocal tried
            tried += 1
            try:
                found = titles(folder)
            except FileNotFoundError:
                found = set()
            assert found in ([{"new"}], [{"old"}, {"new"}], [set(), {"old"}, {"new"}])[2 - done], (done, found)
            if tried % rebuild_every == 0:
                retrieval_index.build_folder(sources[1], folder / "index")
                assert titles(folder) == {"new"}

        return replay(trace, check, scratch)


def checkpoints(root: Path, scratch: Path) -> int:
    """Three checkpoints of a run, of which the newest two are kept, and the second is written twice. In every state the
    latest is whole, and no older than the last that was reported."""
    import torch

    from trainers.checkpoints import checkpoint
    from trainers.tiny.model import make_model, make_tokenizer

    tokenizer = make_tokenizer(["the river town of the comet"])
    model = make_model(len(tokenizer), hidden_size=8, layers=1, heads=1)
    optimizers = [torch.optim.AdamW(model.parameters())]
    with recording(root) as trace:
        for step in (1, 2, 2, 3):
            checkpoint.save(
                root / f"checkpoint-{step}",
                model=model,
                tokenizer=tokenizer,
                optimizers=optimizers,
                step=step,
                extra={},
            )
            trace.report()

    def check(folder: Path, done: int) -> None:
        newest = checkpoint.latest(folder)
        least = (0, 1, 2, 2, 3)[done]
        assert least == 0 or newest is not None, "a checkpoint that was reported is gone"
        if newest is not None:
            checkpoint.verify(newest)
            assert int(newest.name.removeprefix("checkpoint-")) >= least

    return replay(trace, check, scratch)


def published_files(root: Path, scratch: Path) -> int:
    """A summary that is written twice, and a folder of a cache that is published once."""
    from retrieval_index import durable

    with recording(root) as trace:
        for number in (1, 2):
            durable.write_text(root / "summary.json", json.dumps({"number": number}))
            trace.report()
        durable.make_folder(root / "cache" / "staging")
        (root / "cache" / "staging" / "rows").write_text("whole")
        durable.publish(root / "cache" / "staging", root / "cache" / "ready")
        trace.report()

    def check(folder: Path, done: int) -> None:
        summary, ready = folder / "summary.json", folder / "cache" / "ready"
        number = json.loads(summary.read_text())["number"] if summary.exists() else 0
        assert number >= min(done, 2), "an older summary than the one reported"
        assert ready.exists() or done < 3, "what was reported is gone"
        assert not ready.exists() or (ready / "rows").read_text() == "whole"

    return replay(trace, check, scratch)


WRITERS = {"index builds": index_builds, "checkpoints": checkpoints, "published files": published_files}


def main() -> None:
    """Record and replay every writer."""
    counts = {}
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as scratch:
            counts[name] = write(Path(root), Path(scratch))
            print(f"{name}: {counts[name]} states, none bad", flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
