"""Does the index ever lie? Random damage to its files, and builds that are killed at random moments.

    python -m benchmarks.retrieval.faults --mutations 1000 --kills 50

Every damaged index must be rejected with a clear error, and never crash the process, which is why the openings run in a
process of their own. After every kill the folder must hold the old index or the new one, whole: its manifest, passages
and search results are compared with both. Ends with one line of JSON.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import tyro

import retrieval_index
from agent_envs.generators.miniwiki.world import World
from retrieval_index import Corpus, IndexCorrupt
from retrieval_index.progress import progress_bars

BACKENDS = ("bm25", "dense", "hybrid")


@dataclass(kw_only=True)
class Args:
    """Damage indexes and kill builds; count what comes of it."""

    mutations: int = 1000
    """Random changes to files of an index."""
    kills: int = 50
    """Builds to kill."""
    passages: int = 30_000
    """Passages of the index whose builds are killed; of those that are damaged, a hundredth."""
    seed: int = 0
    """Of the random choices."""


def mutate(folder: Path, other: Path, draw: random.Random) -> str:
    """Change one file of an index (`other` is an index of another corpus); says what was done, to which file."""
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kind = draw.choice(("flip", "truncate", "append", "delete", "zero", "swap", "mix"))
    content = path.read_bytes()
    if kind == "flip":
        at = draw.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :])
    elif kind == "truncate":
        path.write_bytes(content[: draw.randrange(len(content))])
    elif kind == "append":
        path.write_bytes(content + draw.randbytes(draw.randint(1, 100)))
    elif kind == "delete":
        path.unlink()
    elif kind == "zero":
        at = draw.randrange(len(content))
        path.write_bytes(content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :])
    elif kind == "swap":
        partner = draw.choice([each for each in path.parent.iterdir() if each.is_file() and each != path])
        path.write_bytes(partner.read_bytes())
        partner.write_bytes(content)
    else:
        shutil.copyfile(other / path.relative_to(folder), path)
    return f"{kind} {path.name}"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_mutations(work: Path, number: int, seed: int) -> Counter:
    """Damage, open, restore; counts rejected, unchanged (the damage changed no byte) and missed ones."""
    draw, outcomes = random.Random(seed), Counter()
    with progress_bars() as track:
        for _ in track(range(number), "Damaging", number):
            backend = draw.choice(BACKENDS)
            folder = work / backend
            whole = contents(folder)
            done = mutate(folder, work / f"other-{backend}", draw)
            if contents(folder) == whole:
                outcomes["unchanged"] += 1
                continue
            try:
                retrieval_index.load(folder)
                outcomes["missed"] += 1
                print("MISSED:", done, file=sys.stderr)
            except (IndexCorrupt, FileNotFoundError) as error:
                outcomes["rejected" if str(folder) in str(error) else "unclear"] += 1
            for path, content in whole.items():
                path.write_bytes(content)
    return outcomes


def check_kills(work: Path, number: int, seed: int) -> Counter:
    """Builds over an old index, killed after a random share of the time that a whole build takes."""
    draw, outcomes, folder = random.Random(seed), Counter(), work / "killed"
    sources = [work / "a.jsonl", work / "b.jsonl"]
    expected = [retrieval_index.build(retrieval_index.read_passages(source)) for source in sources]
    queries = [passage.title for index in expected for passage in list(index.corpus)[:50]]
    answers = [index.search(queries, 5) for index in expected]

    def start(source: Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "retrieval_index", "build", "--corpus", str(source), "--out", str(folder)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    started = time.perf_counter()
    start(sources[0]).wait()
    whole = time.perf_counter() - started
    with progress_bars() as track:
        for _ in track(range(number), "Killing builds", number):
            build = start(draw.choice(sources))
            time.sleep(draw.uniform(0, 1.1 * whole))
            outcomes["killed" if build.poll() is None else "finished before"] += 1
            build.kill()
            build.wait()
            found = retrieval_index.load(folder)
            state = [found.corpus.fingerprint == index.corpus.fingerprint for index in expected]
            right = sum(state) == 1 and found.search(queries, 5) == answers[state.index(True)]
            outcomes["whole" if right else "mixed"] += 1
    start(sources[1]).wait()
    assert retrieval_index.load(folder).search(queries, 5) == answers[1]
    outcomes["left over"] = len([path for path in work.iterdir() if path.name.startswith(".killed")])
    return outcomes


def main(args: Args) -> dict:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for letter, seed in (("a", 1), ("b", 2)):
            corpus = Corpus(World(args.passages, seed).passages())
            corpus.write(work)
            os.replace(work / "passages.jsonl", work / f"{letter}.jsonl")
        (work / "offsets.npy").unlink()
        for prefix, seed in (("", 3), ("other-", 4)):
            corpus = Corpus(World(max(args.passages // 100, 50), seed).passages())
            for backend in BACKENDS:
                retrieval_index.build(corpus, backend).save(work / f"{prefix}{backend}")
        code = (
            "import json, sys; from pathlib import Path; from benchmarks.retrieval import faults; "
            "print(json.dumps(faults.check_mutations(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))"
        )
        command = [sys.executable, "-c", code, name, str(args.mutations), str(args.seed)]
        damaged = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        mutations = json.loads(damaged.stdout) if damaged.returncode == 0 else {"crashed": damaged.returncode}
        result = {"mutations": mutations, "kills": check_kills(work, args.kills, args.seed)}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
