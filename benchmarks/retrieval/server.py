"""The retrieval server under load: many clients, every answer checked against the search in this process.

    python -m benchmarks.retrieval.server --data ../shared/data --clients 256 --seconds 120

The server runs in a process of its own. Four phases: a warm-up; one query a request; many queries a request; and, with
a server of a short queue, more than it takes, which it must answer with 429. Ends with one line of JSON.

The load comes from a few lines of HTTP on asyncio streams: httpx takes several times as long over a request as the
server does (milliseconds, with 256 connections), and would be all that is measured.
"""

import asyncio
import json
import multiprocessing
import os
import random
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro

import retrieval_index
from retrieval_index.progress import progress_bars
from retrieval_index.wire import PATH, Limits

SHORT_QUEUE = 1024  # queries
Work = list[tuple[bytes, list]]  # requests, each with the right answer


@dataclass(kw_only=True)
class Args:
    """Load a retrieval server and check what it answers."""

    data: Path = Path("../shared/data")
    """Folder with passages.jsonl and the questions of the benchmarks (*.validation.jsonl)."""
    index: Path | None = None
    """Index folder to serve; without, BM25 over the passages is built. Answers must be equal to the last bit, which
    those of a dense index need not be."""
    clients: int = 256
    """Concurrent connections."""
    seconds: float = 120.0
    """Length of the phase of one query a request; the other phases last a quarter of it each."""
    topk: int = 3
    """Passages per query."""
    batch: int = 64
    """Queries in a request of the batched phase and of the overload."""


@dataclass(kw_only=True)
class Phase:
    """What was seen of a server for some seconds."""

    name: str
    queries_per_request: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # seconds, of requests answered with 200
    statuses: Counter = field(default_factory=Counter)
    wrong: int = 0
    memory: list[float] = field(default_factory=list)  # of the server, bytes, once a second
    server_cpu: float = 0.0  # seconds
    client_cpu: float = 0.0  # seconds, of all clients

    @property
    def rate(self) -> float:
        """Queries a second."""
        return self.statuses[200] * self.queries_per_request / self.seconds

    def summary(self) -> dict:
        queries = self.statuses[200] * self.queries_per_request
        p50, p99 = np.percentile(self.latencies or [np.nan], (50, 99)) * 1e3
        rounded = {
            "requests_per_second": self.statuses[200] / self.seconds,
            "queries_per_second": self.rate,
            "p50_ms": p50,
            "p99_ms": p99,
            "server_cpu_us_per_query": self.server_cpu / max(1, queries) * 1e6,
            "client_cpu_us_per_query": self.client_cpu / max(1, queries) * 1e6,
        }
        statuses = {str(status): count for status, count in sorted(self.statuses.items())}
        return {"statuses": statuses, "wrong_answers": self.wrong} | {n: round(v, 1) for n, v in rounded.items()}


def serve(folder: Path, port: int, limits: Limits) -> None:
    from retrieval_index.server import serve

    serve(retrieval_index.load(folder), port=port, limits=limits)


@contextmanager
def server(folder: Path, **limits: int):
    """A server in a process of its own; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, port, Limits(**limits)))
    process.start()
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except urllib.error.URLError:
                if not process.is_alive():
                    raise RuntimeError("the server did not start; its output says why") from None
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.join()


async def request(reader, writer, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One HTTP exchange on an open connection: status and body."""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    start = head.index(b"content-length:") + len(b"content-length:")
    return int(head[9:12]), await reader.readexactly(int(head[start : head.index(b"\r", start)]))


async def client(port: int, work: Work, number: int, stop: float, seen: Phase) -> None:
    """Send requests one after another until the clock says `stop`, and check each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    draw = random.Random(number)
    while (started := time.perf_counter()) < stop:
        body, expected = draw.choice(work)
        status, answer = await request(reader, writer, "POST", PATH, body)
        seen.statuses[status] += 1
        if status == 200:
            seen.latencies.append(time.perf_counter() - started)
            seen.wrong += parse_answer(answer) != expected
        elif status == 429:
            await asyncio.sleep(1)  # as Retry-After says
    writer.close()


async def observe(name: str, port: int, work: Work, clients: int, seconds: float, track) -> Phase:
    """Let the clients work for some seconds, and watch the server."""
    seen = Phase(name=name, queries_per_request=len(work[0][1]))
    watch = await asyncio.open_connection("127.0.0.1", port)
    before = (await metrics(*watch))["process_cpu_seconds_total"]
    started, cpu = time.perf_counter(), time.process_time()
    crowd = [asyncio.create_task(client(port, work, n, started + seconds, seen)) for n in range(clients)]
    for _ in track(range(max(1, round(seconds))), name, max(1, round(seconds))):
        seen.memory.append((await metrics(*watch))["process_resident_memory_bytes"])
        await asyncio.sleep(max(0, started + len(seen.memory) - time.perf_counter()))
    await asyncio.gather(*crowd)
    seen.seconds, seen.client_cpu = time.perf_counter() - started, time.process_time() - cpu
    seen.server_cpu = (await metrics(*watch))["process_cpu_seconds_total"] - before
    watch[1].close()
    return seen


async def metrics(reader, writer) -> dict[str, float]:
    """What /metrics says, by name."""
    _, text = await request(reader, writer, "GET", "/metrics")
    lines = (line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def parse_answer(answer: bytes) -> list:
    """What an answer says, in the form that `work_of` expects."""
    return [
        [(entry["document"]["id"], entry["document"]["contents"], entry["score"]) for entry in entries]
        for entries in json.loads(answer)["result"]
    ]


def work_of(searcher, questions: list[str], size: int, topk: int) -> Work:
    """Requests of `size` questions each."""
    found = searcher.search(questions, topk)
    right = [[(p.id, f'"{p.title}"\n{p.text}', p.score) for p in passages] for passages in found]
    parts = [slice(start, start + size) for start in range(0, len(questions) - size + 1, size)]
    fields = {"topk": topk, "return_scores": True}
    return [(json.dumps({"queries": questions[part], **fields}).encode(), right[part]) for part in parts]


def main(args: Args) -> dict:
    files = [path.read_text(encoding="utf-8") for path in sorted(args.data.glob("*.validation.jsonl"))]
    questions = [json.loads(line)["question"] for file in files for line in file.strip().split("\n")]
    with tempfile.TemporaryDirectory() as scratch, progress_bars() as track:
        folder = args.index or Path(scratch) / "index"
        if args.index is None:
            retrieval_index.build_folder(args.data / "passages.jsonl", folder)
        searcher = retrieval_index.load(folder)
        single, many = (work_of(searcher, questions, size, args.topk) for size in (1, args.batch))

        def run(name: str, port: int, work: Work, seconds: float = args.seconds / 4) -> Phase:
            return asyncio.run(observe(name, port, work, args.clients, seconds, track))

        with server(folder, waiting=max(Limits().waiting, args.clients * args.batch)) as port:
            warm_up = run("warm-up", port, single)
            phases = [run("one query", port, single, args.seconds), run("batched", port, many)]
        with server(folder, queries=SHORT_QUEUE, waiting=SHORT_QUEUE) as port:
            phases.append(run("overload", port, many))
    one, batched = phases[:2]
    memory = warm_up.memory + one.memory + batched.memory
    points = {"start": memory[0], "after_warm_up": one.memory[0], "end": memory[-1], "max": max(memory)}
    result = {
        "passages": len(searcher.corpus),
        "clients": args.clients,
        "cpus": len(os.sched_getaffinity(0)),
        "queries_per_batched_request": args.batch,
        "phases": {phase.name: phase.summary() for phase in phases},
        "batched_over_one_query": round(batched.rate / one.rate, 2),
        "server_memory_mb": {name: round(value / 1e6, 1) for name, value in points.items()},
        "wrong_answers": sum(phase.wrong for phase in (warm_up, *phases)),
    }
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
