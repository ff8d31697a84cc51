"""RAGEN's games, learned with PPO by the tiny policy: success before and after, beside what it must beat.

    python -m benchmarks.training.games                                 # 3 seeds of every game
    python -m benchmarks.training.games --games bandit --seeds 0

For each seed of a game, one cold start, which imitates an agent that plays at random in a share of its episodes; from it,
reinforcement learning, and more imitation: the cold start continued for as many seconds as reinforcement learning took
for rollouts and updates. Each is evaluated on the same held-out instances, greedily and sampled as in
training. Beside them: the scripted agents.

Writes table.md, success.png and results.json, also of other games that its folder holds. What is there already is not run
again.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import tyro

from benchmarks.training import games_report
from experiments import imitation
from trainers import ppo
from trainers.checkpoints import checkpoint
from trainers.checkpoints.settings import check_settings
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types
from trainers.tiny.cold_start import run_cold_start

SCRIPTS = {"random": "Random agent", "scripted": "Scripted agent", "oracle": "Oracle"}
BEFORE, IMITATION, AFTER = "Cold start", "More imitation", "PPO"


@dataclass(frozen=True, kw_only=True)
class Game:
    """One game and how it is learned.

    ``on``: the splits to evaluate on, by the name of a line of the table; ``groups`` of ``group_size`` episodes in a
    batch, of which four gradient steps are taken. A gradient from few boards learns what happens to be right on those.
    ``instances``: held-out ones for the table.
    ``options``: further arguments of `trainers.ppo`.
    """

    env: str
    kwargs: dict = field(default_factory=dict)
    on: dict[str, str]
    cold_start_steps: int
    updates: int
    groups: int = 64
    group_size: int = 4
    instances: int = 500
    options: dict = field(default_factory=dict)


GAMES = {
    "bandit": Game(
        env="AgentR1/Bandit-v0", on={"Bandit, words of training": "train", "Bandit, new words": "validation"},
        cold_start_steps=400, updates=60, group_size=16, options={"lr": 2e-4},  # its pay is the noisiest
    ),
    "sokoban": Game(
        env="AgentR1/Sokoban-v0", on={"Sokoban": "validation"}, cold_start_steps=4000, updates=40,
        options={"value_clip": 10.0},  # returns are that large: 10 for a solution
    ),
    "sokoban-shown-easy": Game(
        env="AgentR1/Sokoban-v0", on={"Sokoban, shown easy boards": "validation"}, cold_start_steps=4000, updates=120,
        options={"value_clip": 10.0, "cold_start_env_kwargs": '{"moves": [2, 4]}'},
    ),
    "frozenlake-firm": Game(
        env="AgentR1/FrozenLake-v0", kwargs={"slippery": False}, on={"FrozenLake, firm ice": "validation"},
        cold_start_steps=500, updates=60,
    ),
    "frozenlake": Game(
        env="AgentR1/FrozenLake-v0", on={"FrozenLake, slippery": "validation"}, cold_start_steps=1000, updates=100,
        groups=256, group_size=2, instances=2000,  # success moves between .2 and .5
        options={
            # Slips are luck, which a critic of turns sees. A start with little chance in it tries only the shortest way.
            "turn_level": True, "turn_gamma": 1.0, "turn_lam": 0.5, "share_layers": True, "cold_start_skill": 0.25,
            "epochs": 2, "lr": 1e-3, "eval_every": 10, "eval_questions": 500, "final_questions": 500,
            "eval_temperature": 1.0,
        },
    ),
}  # fmt: skip


@dataclass(kw_only=True)
class Args:
    """Learn RAGEN's games, and compare with imitation and with scripted agents."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which: bandit, sokoban, sokoban-shown-easy, frozenlake-firm, frozenlake."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One cold start, one run and one more imitation for each."""
    updates: int | None = None
    """Policy updates of each run; by default the game's own number."""
    cold_start_steps: int | None = None
    """Gradient steps of imitation before them; by default the game's own number."""
    instances: int | None = None
    """Held-out instances for the table; by default the game's own number."""
    curve_instances: int = 200
    """Held-out instances for each point of the learning curves."""
    out: Path = Path("runs/games")
    """Folder of the runs and the results."""

    def __post_init__(self):
        if unknown := set(self.games) - set(GAMES):
            raise ValueError(f"unknown games {sorted(unknown)}; known are {list(GAMES)}")
        if not self.games or not self.seeds:
            raise ValueError("give at least one game and one seed")


def arguments(args: Args, game: Game, seed: int) -> ppo.Args:
    """Those of one run: PPO's own, but for what the game sets."""
    lengths = _lengths(args, game)
    usual = {
        "eval_every": max(1, lengths["updates"] // 10), "eval_questions": args.curve_instances,
        "final_questions": args.curve_instances,
    }  # fmt: skip
    return replace(
        ppo.Args(), env=game.env, env_kwargs=json.dumps(game.kwargs), seed=seed, minibatches=4, **lengths,
        questions_per_update=game.groups, group_size=game.group_size, **usual | game.options,
    )  # fmt: skip


def _lengths(args: Args, game: Game) -> dict[str, int]:
    steps = args.cold_start_steps or game.cold_start_steps
    return {"updates": args.updates or game.updates, "cold_start_steps": steps}


def _instances(args: Args, name: str) -> int:
    return args.instances or GAMES[name].instances


def trained(wanted: ppo.Args, run: Path) -> tuple[Policy, dict]:
    """The policy of one run, and its summary with the ``seconds`` that rollouts and updates took."""
    if not (run / "summary.json").exists():
        started = checkpoint.latest(run) is not None
        ppo.main(replace(wanted, resume=run) if started else replace(wanted, out=run))
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    check_settings(run, summary, wanted)
    lines = read_metrics(run / METRICS_FILE)
    summary["seconds"] = sum(line.get("time/rollout", 0.0) + line.get("time/update", 0.0) for line in lines)
    return load_policy(checkpoint.latest(run)), summary


def policies(args: Args, name: str, seed: int) -> Iterator[tuple[str, Policy, dict]]:
    """What is compared in one seed of a game: its name, the policy, and what training it took."""
    wanted = arguments(args, GAMES[name], seed)
    run = args.out / f"{name}-{seed}"
    after, summary = trained(wanted, run / "ppo")
    envs = make_envs(wanted.env, wanted.env_kwargs, "train", wanted.questions_per_update * wanted.group_size)
    whom = wanted.demonstrator()
    before, seconds = run_cold_start(envs, seed, wanted.cold_start_steps, lambda *_: None, whom)
    more, spent = imitation.continue_imitation(before, envs, seed, summary["seconds"], run / "imitation", whom)
    yield BEFORE, before, {"seconds": seconds, "steps": wanted.cold_start_steps}
    yield IMITATION, more, spent
    yield AFTER, after, {key: summary[key] for key in ("seconds", "episodes", "symptoms")}


def evaluated(args: Args, name: str, policy: Policy, kept: Path) -> dict[str, dict[str, float]]:
    """Success by line of the table, ``greedy`` and ``sampled``; kept in a file."""
    if not kept.exists():
        game, success = GAMES[name], {}
        for line, split in game.on.items():
            envs = make_envs(game.env, json.dumps(game.kwargs), split, 64)
            engine, numbers = TransformersEngine(policy, envs.envs[0].stop), list(range(_instances(args, name)))
            common = envs, policy, engine, numbers, ppo.Args.max_new_tokens, line
            torch.manual_seed(0)  # of the sampling
            rows = {"greedy": evaluator.evaluate_policy(*common), "sampled": evaluator.evaluate_policy(*common, 1.0)}
            success[line] = {how: row["success"] for how, (row, _) in rows.items()}
        kept.parent.mkdir(parents=True, exist_ok=True)
        staging = kept.with_suffix(".staging")
        staging.write_text(json.dumps(success) + "\n", encoding="utf-8")
        staging.replace(kept)
    return json.loads(kept.read_text(encoding="utf-8"))


def scripted(args: Args, name: str) -> dict[str, dict[str, float]]:
    """Success of the task's scripted agents on the same instances, by line of the table."""
    found, game = {}, GAMES[name]
    for line, split in game.on.items():
        envs = make_envs(game.env, json.dumps(game.kwargs), split, 64)
        play, numbers = envs.envs[0].SCRIPTS, list(range(_instances(args, name)))
        found[line] = {
            title: evaluator.evaluate_script(envs, numbers, play[script], title)["success"]
            for script, title in SCRIPTS.items()
        }
    return found


def read_others(args: Args) -> dict[str, dict]:
    """What the folder's results.json says of games that are not asked for now."""
    file, parts = args.out / "results.json", ("games", "scripts", "seeds")
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {part: {n: of for n, of in found.get(part, {}).items() if n not in args.games} for part in parts}


def main(args: Args) -> dict:
    others = read_others(args)
    played = {n: replace(GAMES[n], instances=_instances(args, n), **_lengths(args, GAMES[n])) for n in args.games}
    results: dict = {"settings": {"curve_instances": args.curve_instances}}
    results["games"] = others["games"] | {name: asdict(game) for name, game in played.items()}
    results["scripts"] = others["scripts"] | {name: scripted(args, name) for name in played}
    seeds: dict[str, list[dict]] = others["seeds"]
    for seed, name in itertools.product(args.seeds, args.games):
        one = {"seed": seed, "success": {}, "training": {}}
        for title, policy, told in policies(args, name, seed):
            file = args.out / f"{name}-{seed}" / f"{title.lower().replace(' ', '-')}-{_instances(args, name)}.json"
            one["success"][title] = evaluated(args, name, policy, file)
            one["training"][title] = told
        seeds.setdefault(name, []).append(one)
        results = to_json_types(results | {"seeds": seeds})
        games_report.write(args.out, results)  # what there is so far: the experiment is long
    return results


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
