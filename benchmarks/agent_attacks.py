"""Attack the endpoint while a program is trained: nothing may be lost, be mixed between episodes, or hang.

    python -m benchmarks.agent_attacks                  # some minutes; ends with one line of JSON

The tiny policy is trained three times. The first run is undisturbed. The second is attacked by slow and half-open clients, 300
requests at once, bodies of 100 MB, and keys of unknown or ended episodes. The third gets SIGTERM in the middle, and is resumed.
Each episode leaves a stream unread. All three must end with the same episodes and weights; otherwise the exit status is 1.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

COMMAND = [
    sys.executable, "-m", "trainers.grpo", "--agent", "benchmarks.agent_attacks:solve", "--updates", "4", "--group-size", "4",
    "--questions-per-update", "4", "--eval-questions", "8", "--final-questions", "8", "--save-every", "1",
    "--max-new-tokens", "16",
]  # fmt: skip
LOG = "AGENT_ATTACKS"  # variable with the file in which the program tells the attackers its address and key
UNREAD: list[socket.socket] = []


def solve(task, client):
    """Ask three times: in process, as a stream of which only the first byte is read, and over HTTP."""
    from trainers.rollouts import dispatcher

    dispatcher.PATIENCE = 60.0  # attacks delay programs, and the size of a batch changes rounding
    tell("begin", task)
    messages = [{"role": "user", "content": f"{task['question']} Once."}]
    said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{task['question']} Twice."}]
    body = json.dumps({"model": "policy", "messages": messages, "stream": True}).encode()
    stream = connect(task.base_url)
    stream.settimeout(300)
    stream.sendall(head(task.api_key, len(body)) + body)
    assert stream.recv(1) == b"H"
    UNREAD.append(stream)
    task.reward(len(said) % 7 / 7)  # something to learn
    again = client.with_options(timeout=300).chat.completions.create(model="policy", messages=messages[:1])
    tell("end", task)
    return again.choices[0].message.content or "-"


def tell(event: str, task) -> None:
    with open(os.environ[LOG], "a") as log:
        log.write(f"{event} {time.time()} {task.base_url} {task.api_key}\n")


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(key: str, length: int) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


PARTS: dict[
    str, tuple[int, bool, Callable[[str], list[bytes]]]
] = {  # by attack: clients at once, whether the key is live, parts to send
    "slow body": (20, True, lambda key: [head(key, 1000), *[b" "] * 15]),
    "half a head": (200, True, lambda key: [head(key, 9)[:40], *[b""] * 15]),
    "nothing": (200, True, lambda key: [b""] * 15),
    "100 MB": (1, True, lambda key: [head(key, 100 * 2**20) + b" " * (100 * 2**20)]),
    "no JSON": (300, True, lambda key: [head(key, 1) + b"{"]),
    "a key of no episode": (300, False, lambda key: [head(key, 2) + b"{}"]),
}


def attack(log: Path, seen: Counter, name: str, is_over: threading.Event) -> None:
    """Repeat one attack until ``is_over``; ``seen`` counts the statuses of the responses."""
    at_once, has_live_key, parts_of = PARTS[name]
    while not is_over.wait(0.5):
        lines = [line.split() for line in log.read_text().splitlines()]
        ended = {key: float(when) for event, when, _, key in lines if event == "end"}
        past = [key for key, when in ended.items() if time.time() - when > 60] + ["none"]
        live = [key for event, _, _, key in lines if event == "begin" and key not in ended]
        if not lines or (has_live_key and not live):
            continue
        status = "closed"
        with suppress(OSError):
            sockets = [connect(lines[-1][2]) for _ in range(at_once)]
            for number, part in enumerate(parts_of(live[-1] if has_live_key else past[0])):
                time.sleep(min(number, 1))
                for one in sockets:
                    one.sendall(part)
            status = sockets[0].recv(20).decode()[9:12] or "closed"
        seen[f"{name}: {status}"] += at_once


def train(out: Path, *options: str, stop_after: int = 99) -> int:
    """Run a training to its end, or send SIGTERM after ``stop_after`` updates; returns the exit status."""
    metrics, is_stopped = out / "metrics.jsonl", False
    environment = os.environ | {LOG: f"{out}.log", "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen([*COMMAND, *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 1500
    while run.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if not is_stopped and metrics.exists() and metrics.read_text().count('"train/rows"') >= stop_after:
            run.send_signal(signal.SIGTERM)
            is_stopped = True
    run.kill()  # if it hangs
    return run.wait()


def digest(out: Path) -> dict[str, str | int]:
    """Hash the last weights and the episodes of a run, and count its messages without the question of their episode."""
    weights = (out / "checkpoint-4" / "model.safetensors").read_bytes()
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    records = [record for record in records if record["phase"] == "training"]
    told = json.dumps([[r["question"], r["messages"], r["turns"]] for r in records]).encode()
    mixed = [m for r in records for m in r["messages"] if m["role"] == "user" and r["question"] not in m["content"]]
    hashes = {name: hashlib.sha256(part).hexdigest()[:16] for name, part in (("weights", weights), ("episodes", told))}
    return hashes | {"mixed": len(mixed)}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        calm, attacked, stopped = (Path(folder) / name for name in ("calm", "attacked", "stopped"))
        statuses = [train(calm, "--out", str(calm))]
        seen, is_over, log = Counter[str](), threading.Event(), Path(f"{attacked}.log")
        log.touch()
        for name in PARTS:
            threading.Thread(target=attack, args=(log, seen, name, is_over), daemon=True).start()
        statuses.append(train(attacked, "--out", str(attacked)))
        is_over.set()
        statuses += [train(stopped, "--out", str(stopped), stop_after=2), train(stopped, "--resume", str(stopped))]
        found = {out.name: digest(out) for out in (calm, attacked, stopped)}
        print(json.dumps({"statuses": statuses, "answers": dict(sorted(seen.items())), "found": found}))
        same = all(each == found["calm"] and not each["mixed"] for each in found.values())
        return int(statuses != [0, 0, 128 + signal.SIGTERM, 0] or not same)


if __name__ == "__main__":
    sys.exit(main())
