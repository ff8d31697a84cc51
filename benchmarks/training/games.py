"""Train the tiny policy with PPO on RAGEN's games: success before and after, beside the baselines to beat.

    python -m benchmarks.training.games                                 # 3 seeds of every game
    python -m benchmarks.training.games --games bandit --seeds 0
    python -m benchmarks.training.games --games --out FOLDER            # the table of FOLDER/results.json

Each seed of a game has one cold start: SFT on an agent that acts at random in a share of its episodes. PPO and a longer cold
start begin from it; the latter continues for as many seconds as PPO took for rollouts and updates. All three are evaluated on
the same instances, by greedy decoding and sampled as in training. The scripted agents are evaluated too.

Writes table.md and results.json, which keep the other seeds and games that the folder already holds. Complete runs are not
repeated.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import tyro

from experiments import compute_matched
from trainers import ppo
from trainers.config import read_config
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.report.intervals import mean_and_half
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime import integrity
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types
from trainers.tiny.cold_start import run_cold_start

SCRIPTS = {"random": "Random agent", "scripted": "Scripted agent", "oracle": "Oracle"}
BEFORE, IMITATION, AFTER = LEARNERS = "Cold start", "Longer cold start", "PPO"


@dataclass(frozen=True, kw_only=True)
class Game:
    """One game and how it is learned.

    ``on``: splits to evaluate on, by the name of their line in the table. ``instances``: number of instances per split.
    ``config``: a shipped configuration of `trainers.ppo`. ``options``: further arguments of `trainers.ppo`. An update takes
    several gradient steps on a batch of many groups: a gradient from few boards fits only those boards.
    """

    on: dict[str, str]
    config: str = ""
    options: dict = field(default_factory=dict)
    instances: int = 500


GAMES = {
    "bandit": Game(
        on={"Bandit, words of training": "train", "Bandit, new words": "validation"},
        options={
            "env": "Bandit", "cold_start_steps": 400, "updates": 60, "group_size": 16, "lr": 2e-4,  # its reward is the noisiest
        },
    ),
    "sokoban": Game(
        on={"Sokoban": "validation"},
        options={
            "env": "Sokoban", "cold_start_steps": 4000, "updates": 40,
            "value_clip": 10.0,  # returns are large: 10 for a solution
        },
    ),
    "sokoban-shown-easy": Game(on={"Sokoban, shown easy boards": "validation"}, config="sokoban-shown-easy"),
    "frozenlake-firm": Game(
        on={"FrozenLake, firm ice": "validation"},
        options={"env": "FrozenLake", "env_kwargs": {"slippery": False}, "cold_start_steps": 500, "updates": 60},
    ),
    "frozenlake": Game(
        # Slips are chance, which a critic of turns sees. A cold start with few random actions tries only the shortest path.
        on={"FrozenLake, slippery": "validation"}, config="frozenlake-slippery",
        options={"eval_questions": 500, "final_questions": 500, "eval_temperature": 1.0},
        instances=2000,  # success varies between 0.2 and 0.5
    ),
}  # fmt: skip


@dataclass(kw_only=True)
class Args:
    """Train on RAGEN's games, and compare with a longer cold start and with scripted agents."""

    games: tuple[str, ...] = tuple(GAMES)
    """Games to train on; with none, only the table is written."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; each has one cold start, one PPO run and one longer cold start."""
    out: Path = Path("runs/games")
    """Folder of the runs and the results."""


def arguments(game: Game, seed: int = 0) -> ppo.Args:
    """Return the arguments of one run: PPO's defaults, except for the sizes below and what the game sets."""
    shipped = read_config(game.config, ppo.Args(), "ppo") if game.config else {}
    size = {
        "questions_per_update": 64,
        "group_size": 4,
        "minibatches": 4,
        "eval_questions": 200,
        "final_questions": 200,
    }
    wanted = size | shipped | game.options
    return ppo.Args(**{"seed": seed, "eval_every": max(1, wanted["updates"] // 10), **wanted})


def train(wanted: ppo.Args, run: Path) -> tuple[Policy, dict]:
    """Train one run, or resume it; returns its policy and its summary with the ``seconds`` of rollouts and updates."""
    summary = compute_matched.finish(ppo.main, wanted, run)
    lines = read_metrics(run / METRICS_FILE)
    summary["seconds"] = sum(line.get("time/rollout", 0.0) + line.get("time/update", 0.0) for line in lines)
    return load_policy(integrity.latest(run)), summary


def policies(args: Args, name: str, seed: int) -> Iterator[tuple[str, Policy, dict]]:
    """Yield what one seed of a game compares: the name, the policy, and the cost of its training."""
    wanted = arguments(GAMES[name], seed)
    run = args.out / f"{name}-{seed}"
    after, summary = train(wanted, run / "ppo")
    envs = make_envs(wanted.env, wanted.env_kwargs, "train", wanted.questions_per_update * wanted.group_size)
    whom = wanted.demonstrator()
    before, seconds = run_cold_start(envs, seed, wanted.cold_start_steps, lambda *_: None, whom)
    more, spent = compute_matched.continue_imitation(before, envs, seed, summary["seconds"], run / "imitation", whom)
    yield BEFORE, before, {"seconds": seconds, "steps": wanted.cold_start_steps}
    yield IMITATION, more, spent
    yield AFTER, after, {key: summary[key] for key in ("seconds", "episodes", "symptoms")}


def evaluate(game: Game, policy: Policy | None = None) -> dict[str, dict[str, float]]:
    """Compute success by line of the table: of a policy ``greedy`` and ``sampled``; without a policy, of each scripted agent."""
    found, numbers, args = {}, list(range(game.instances)), arguments(game)
    for line, split in game.on.items():
        envs = make_envs(args.env, args.env_kwargs, split, 64)
        if policy is None:
            scripts = envs.envs[0].SCRIPTS
            infos = {title: evaluator.run_script(envs, numbers, scripts[script]) for script, title in SCRIPTS.items()}
        else:
            engine, length = TransformersEngine(policy, envs.envs[0].stop), ppo.Args.max_new_tokens
            torch.manual_seed(0)  # for the sampling
            infos = {
                how: evaluator.run_policy(envs, policy, engine, numbers, length, temperature)[0]
                for how, temperature in (("greedy", 0.0), ("sampled", 1.0))
            }
        found[line] = {name: float(np.mean([info["success"] for info in own])) for name, own in infos.items()}
    return found


def _lines(results: Mapping) -> list[tuple[str, list[dict]]]:
    """List each line of the table with the seeds of its game."""
    return [(line, seeds) for game, seeds in results["seeds"].items() for line in results["scripts"][game]]


def table(results: Mapping) -> str:
    """Write the tables: success by greedy decoding and sampled, the gains of PPO, and the seconds of training."""
    rates = {line: rate for game in results["seeds"] for line, rate in results["scripts"][game].items()}
    instances = ", ".join(f"{game}: {results['games'][game]['instances']:,}" for game in results["seeds"])
    lines = [
        "# RAGEN's games: success", "", f"Held-out instances: {instances}.", "",
        "Mean over seeds ± half of the 95% CI (Student's t; of a gain, over the differences within a seed).",
    ]  # fmt: skip
    gains = {f"Gain over {name.lower()}": name for name in (BEFORE, IMITATION)}
    for how in ("greedy", "sampled"):
        header = ["Game", *SCRIPTS.values(), *LEARNERS, *gains]
        lines += ["", f"Policies {how}:", "", _row(header), _row(["---", *["---:"] * (len(header) - 1)])]
        for line, seeds in _lines(results):
            found = [{name: of[line][how] for name, of in seed["success"].items()} for seed in seeds]
            cells = [f"{rates[line][name]:.3f}" for name in SCRIPTS.values()]
            cells += [_cell([f[name] for f in found]) for name in LEARNERS]
            lines.append(
                _row([line, *cells, *(_cell([f[AFTER] - f[than] for f in found], "+") for than in gains.values())])
            )
    lines += ["", "Seconds of training:", "", _row(["Game", *LEARNERS]), _row(["---", *["---:"] * len(LEARNERS)])]
    for game, seeds in results["seeds"].items():
        lines.append(_row([game, *(_cell([s["training"][n]["seconds"] for s in seeds], digits=0) for n in LEARNERS)]))
    return "\n".join(lines) + "\n"


def _cell(values: list[float], sign: str = "", digits: int = 3) -> str:
    mean, half = mean_and_half(values)
    return f"{mean:{sign}.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(args: Args) -> dict:
    file = args.out / "results.json"
    empty: dict = {"games": {}, "scripts": {}, "seeds": {}}
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else empty
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.games:
        results["games"][name] = asdict(GAMES[name])
        results["scripts"][name] = evaluate(GAMES[name])
    for seed, name in itertools.product(args.seeds, args.games):
        one: dict = {"seed": seed, "success": {}, "training": {}}
        for title, policy, told in policies(args, name, seed):
            one["success"][title] = evaluate(GAMES[name], policy)
            one["training"][title] = told
        others = [other for other in results["seeds"].get(name, []) if other["seed"] != seed]
        results["seeds"][name] = sorted([*others, to_json_types(one)], key=lambda one: one["seed"])
        file.write_text(
            json.dumps(results, indent=2) + "\n", encoding="utf-8"
        )  # partial results: the experiment is long
    (args.out / "table.md").write_text(table(results), encoding="utf-8")
    print(table(results))
    return results


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
