"""Episodes as `episodes.jsonl` holds them, made by scripted agents in real environments.

PYTHONPATH=. python tests/trainers/episodes/played_records.py OUT [QUESTIONS]

lets several agents play MiniWiki; with AGENT_ENVS_DATA, three benchmarks.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import gymnasium

import agent_envs  # noqa: F401 - registers the environments
from agent_envs.tool_env import ToolEnv

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\x1b[2J\x1b]0;pwned\x07 \u202egnp.exe \x00 {{ 7*7 }} \ud800"
)
SUMMARY = {
    "env": "AgentR1/HotpotQA-v0", "source": "STAND-IN for hotpotqa: miniwiki:validation-0", "score": "em",
    "seed": 3, "episodes": 640,
    "rows": [
        {"name": "Naive RAG", "em": 0.1, "em_interval": [0.05, 0.15], "f1": 0.2, "failed": 0.0, "episodes": 50},
        {"name": "Trained", "em": 0.5, "em_interval": [0.4, 0.6], "f1": 0.6, "failed": 0.1, "episodes": 50},
    ],
    "settings": {"lr": 0.5, "env_kwargs": '{"data": "<b>"}'}, "evaluation": {"eval_every": 2}, "command": "python -m x --a '<i>'",
    "symptoms": [{"update": 7, "name": "entropy collapsed", "message": "0.1 < 0.2", "stop": True}],
    "seconds_training": 90.0, "stopped_on_collapse": True,
}  # fmt: skip


def play(env: ToolEnv, script: str, instance: int, agent: str, step: int | None = None, sample: int = 0) -> dict:
    """One episode of a scripted agent about question number ``instance``, as a record."""
    number = {"question": instance} if env.questions is not None else None
    observation, info = env.reset(seed=instance, options=number)
    question = getattr(env, "question", None)
    missing = env.missing_titles() if question else []
    messages = [{"role": "system", "content": info["instructions"]}, {"role": "user", "content": observation}]
    player, reply, turns, faults, done = env.SCRIPTS[script](env, random.Random(instance)), None, [], 0, False
    while not done:
        turn = next(player) if reply is None else player.send(reply)
        action = env.format.write(turn)
        messages.append({"role": "assistant", "content": action})
        reply, reward, terminated, truncated, info = env.step(action)
        done, faults = terminated or truncated, faults + info["tool_faults"]
        before, missing = missing, env.missing_titles() if question else []
        calls = env.history.turns[-1].calls
        turns.append({
            "message": len(messages) - 1, "action": action, "observation": reply, "invalid": not info["valid"],
            "calls": [
                {"tool": c.name, "arguments": json.dumps(c.arguments), "result": text, "fault": False}
                for c, text in zip(calls, env.feedback, strict=False)
            ],
            "found": [title for title in before if title not in missing],
            "reward": reward, "reward_terms": info["reward_terms"], "advantage": None,
        })  # fmt: skip
        if not done:
            messages.append({"role": "tool", "content": reply})
    score = env.PRIMARY_METRIC
    return {
        "key": f"evaluation/{step}/{agent}/{instance}/{sample}", "phase": "evaluation", "step": step, "agent": agent,
        "env": env.spec.id if env.spec else "AgentR1/Test-v0", "split": "validation",
        "source": env.task.source if hasattr(env, "task") else "generated", "instance": instance, "sample": sample,
        "group": instance, "id": question.id if question else None, "question": messages[1]["content"],
        "golds": list(question.golds) if question else [],
        "kind": {"type": question.type, "hops": len(question.supporting_titles)} if question else {},
        "supporting": list(dict.fromkeys(question.supporting_titles)) if question else [],
        "messages": messages, "turns": turns,
        "metrics": {k: float(v) for k, v in info.items() if isinstance(v, int | float)},
        "score_name": score, "score": float(info[score]), "return": sum(t["reward"] for t in turns), "advantage": None,
        "terminated": terminated, "truncated": truncated, "failed": faults > 0, "tool_faults": faults,
        "prompt_tokens": 0, "completion_tokens": 0, "seconds": None,
    }  # fmt: skip


def tokens_of(record: dict) -> dict:
    """Tokens for a record, a word each: log-probabilities and advantages by chance, for actions alone."""
    rng, sequence = (
        random.Random(record["key"]),
        {"ids": [], "mask": [], "logprobs": [], "advantages": [], "pieces": []},
    )
    for message in record["messages"]:
        own = message["role"] == "assistant"
        words = [f" {word}" for word in f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n".split(" ")]
        for word in words:
            sequence["ids"].append(rng.randrange(50_000))
            sequence["mask"].append(own)
            sequence["logprobs"].append(-rng.expovariate(1.5) if own else 0.0)
            sequence["advantages"].append(rng.gauss(0, 1) if own else 0.0)
            sequence["pieces"].append(word)
    return {"key": record["key"], "sequences": [sequence]}


def write(folder: Path, records: Iterable[dict], tokens: bool = False) -> Path:
    """Write ``episodes.jsonl``, and with ``tokens`` the side file; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    records = list(records)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if tokens:
        lines = (json.dumps(tokens_of(record)) + "\n" for record in records)
        (folder / "episode_tokens.jsonl").write_text("".join(lines))
    return folder


if __name__ == "__main__":
    import os
    import sys

    names = {
        "oracle": "Oracle (knows the answer)",
        "scripted": "Scripted agent",
        "reader": "Reader",
        "random": "Random",
    }
    real = "AGENT_ENVS_DATA" in os.environ
    tasks = ["HotpotQA", "2WikiMultihopQA", "MuSiQue"] if real else ["MiniWiki"]
    played: list[dict] = []
    for task in tasks:
        for split in ("validation", "train"):
            made = gymnasium.make(f"AgentR1/{task}-v0", split=split, **({"source": "local"} if real else {})).unwrapped
            for instance in range(min(len(made.questions), int(sys.argv[2]) if len(sys.argv) > 2 else 100)):
                rows = [play(made, script, instance, name) for script, name in names.items()]
                played += [row | {"split": split, "key": f"{task}/{split}/{row['key']}"} for row in rows]
    write(Path(sys.argv[1]), played, tokens=True)
    print(len(played), "episodes")
