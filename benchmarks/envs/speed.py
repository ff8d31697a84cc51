"""What a step costs beside its tool, and what a vector of environments gains over single ones.

    python -m benchmarks.envs.speed --data FOLDER                      # BM25 in this process
    python -m benchmarks.envs.speed --data FOLDER --index my-index     # any index: a folder, or a server's URL

Both sides of the ratio step the same 256 HotpotQA environments through the same questions, searches and order in one
run: `gymnasium.make` 256 times and stepped one by one, against `gymnasium.make_vec(num_envs=256)`. Each round takes new
queries, so no cache answers. The step without its tool is MiniWiki's, with a searcher that returns at once.
"""

import json
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import tyro
from rich.progress import track

import agent_envs  # noqa: F401  (registers the ids)


@dataclass
class Args:
    """Measure steps."""

    data: Path | None = None
    """Folder with HotpotQA; without it the stand-in is searched."""
    index: str | None = None
    """A folder built by `python -m retrieval_index build`, or the URL of a server; by default BM25 over the data."""
    num_envs: int = 256
    """Environments on each side."""
    rounds: int = 7
    """Measurements, each of three steps of all environments; the median counts."""


class AtOnce:
    """A searcher that costs nothing."""

    def __init__(self, found: list):
        self.found = found

    def search(self, queries: list[str], k: int) -> list:
        return [self.found] * len(queries)


def step_without_tool(episodes: int = 5000) -> dict[str, float]:
    """Microseconds of a step: a search, a search with a thought, an answer."""
    env = gymnasium.make("AgentR1/MiniWiki-Easy-v0").unwrapped
    env.tools["search"].searcher = AtOnce(env.task.searcher.search(["a town"], 2)[0])
    turns = ("<search>the town</search>", "<think>so it is</think><search>another</search>", "<answer>x</answer>")
    spent: list[list[float]] = [[] for _ in turns]
    for _ in range(episodes):
        env.reset()
        for kind, turn in enumerate(turns):
            begun = time.perf_counter()
            env.step(turn)
            spent[kind].append(time.perf_counter() - begun)
    names = ("search", "search_with_thought", "answer")
    return {name: round(statistics.median(times) * 1e6, 1) for name, times in zip(names, spent, strict=True)}


def main(args: Args) -> None:
    kwargs = {"data": str(args.data)} if args.data else {}
    kwargs |= {"index": args.index} if args.index else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vector = gymnasium.make_vec("AgentR1/HotpotQA-v0", num_envs=args.num_envs, **kwargs)
        single = [gymnasium.make("AgentR1/HotpotQA-v0", **kwargs) for _ in range(args.num_envs)]
    times: dict[str, list[float]] = {"vector": [], "serial": [], "search_batch": [], "search_single": []}
    tool = vector.envs[0].tools["search"]
    for round_ in track(range(-1, args.rounds), "rounds", transient=True):  # the first one warms up
        questions, _ = vector.reset(seed=1000 * round_ + 1000)
        for i, env in enumerate(single):
            env.reset(seed=1000 * round_ + 1000 + i)
        turns = [[f"<search>{q} {round_} {step}</search>" for q in questions] for step in range(3)]
        found = {}
        begun = time.perf_counter()
        for said in turns:
            vector.step(said)
        found["vector"] = time.perf_counter() - begun
        begun = time.perf_counter()
        for said in turns:
            for env, turn in zip(single, said, strict=True):
                env.step(turn)
        found["serial"] = time.perf_counter() - begun
        queries = [[{"query": f"{q} {round_} {step} x"} for q in questions] for step in range(3)]
        begun = time.perf_counter()
        for batch in queries:
            tool.execute_batch(batch)
        found["search_batch"] = time.perf_counter() - begun
        begun = time.perf_counter()
        for batch in queries:
            for query in batch:
                tool.execute(query)
        found["search_single"] = time.perf_counter() - begun
        if round_ >= 0:
            for name, seconds in found.items():
                times[name].append(seconds / (3 * args.num_envs) * 1e6)
    result = {f"{name}_us_per_step": round(statistics.median(values), 1) for name, values in times.items()}
    result["ratio"] = round(statistics.median(s / v for s, v in zip(times["serial"], times["vector"], strict=True)), 2)
    result["source"] = vector.envs[0].task.source
    result["step_without_tool_us"] = step_without_tool()
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(tyro.cli(Args))
