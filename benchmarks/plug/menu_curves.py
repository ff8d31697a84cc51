"""PPO of Stable-Baselines3 in games behind a `Menu`: success on held-out boards while it learns, beside a random agent.

    pip install 'stable-baselines3==2.9.*'
    python -m benchmarks.plug.menu_curves                                   # 3 seeds of each game
    python -m benchmarks.plug.menu_curves --games sokoban --seeds 0

A run that its folder already holds is not made again. Writes results.json, table.md and the picture.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro

from agent_envs.integrations import Menu
from trainers.episodes.report import figures
from trainers.episodes.report.intervals import mean_and_half

SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 128, "n_epochs": 6, "learning_rate": 1e-3, "gamma": 0.98}
SETTINGS |= {"ent_coef": 0.01, "policy_kwargs": {"net_arch": [128, 128]}, "device": "cpu"}
ENVS = 16


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game, how it is made, and how many choices a run takes in training."""

    title: str
    env: str
    kwargs: dict[str, Any]
    steps: int


GAMES = {
    "frozenlake": Game(
        title="FrozenLake, firm ice", env="AgentR1/FrozenLake-v0", kwargs={"slippery": False}, steps=40_960
    ),
    "sokoban": Game(
        title="Sokoban 5x5, 1 to 4 moves", env="AgentR1/Sokoban-v0", kwargs={"size": 5, "moves": [1, 4]}, steps=24_576
    ),
}


@dataclass(kw_only=True)
class Args:
    """Learn games by numbers."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which: frozenlake, sokoban."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of each game for each."""
    steps: int | None = None
    """Choices of a run, in training; by default the game's own number."""
    points: int = 4
    """Evaluations of a run after the first, which is before training."""
    episodes: int = 100
    """Held-out episodes of an evaluation, greedily."""
    out: Path = Path("runs/menu-curves")
    """Folder of the runs and results."""
    picture: Path | None = None
    """Where to draw the curves; by default curves.png in that folder."""

    def __post_init__(self):
        if unknown := set(self.games) - set(GAMES):
            raise ValueError(f"unknown games {sorted(unknown)}; known are {list(GAMES)}")


def success(agent: Callable[[np.ndarray], Any], game: Game, episodes: int) -> float:
    """The share of held-out episodes in which it succeeds."""
    env, successes = Menu(gymnasium.make(game.env, split="validation", **game.kwargs)), 0.0
    for seed in range(episodes):
        (observation, info), over = env.reset(seed=seed), False
        while not over:
            observation, _, terminated, truncated, info = env.step(agent(observation))
            over = terminated or truncated
        successes += info["success"]
    return successes / episodes


def learn(args: Args, game: Game, seed: int) -> list[tuple[int, float]]:
    """The curve of one run: (choices so far, success)."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([lambda: Menu(gymnasium.make(game.env, **game.kwargs))] * ENVS)
    model = PPO("MlpPolicy", envs, seed=seed, **SETTINGS)
    curve = []
    for point in range(args.points + 1):
        if point:
            model.learn((args.steps or game.steps) // args.points, reset_num_timesteps=False)
        share = success(lambda seen: model.predict(seen, deterministic=True)[0], game, args.episodes)
        curve.append((int(model.num_timesteps), share))
        print(f"{game.title}, seed {seed}, {model.num_timesteps} choices: {share:.3f}", flush=True)
    return curve


def random_success(game: Game, episodes: int) -> float:
    """That of an agent that chooses anything."""
    rng = np.random.default_rng(0)
    return success(lambda _: rng.integers(4), game, episodes)


def kept(file: Path, make: Callable[..., Any], *arguments: Any) -> Any:
    """What a file holds; made first, if it is not there."""
    if not file.exists():
        made = make(*arguments)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def table(results: Mapping[str, dict]) -> str:
    """Success before and after, over seeds, beside the random agent."""
    lines = ["| game | random agent | before | after | choices |", "|---|---:|---:|---:|---:|"]
    for name, found in results.items():
        ends = [mean_and_half([curve[place][1] for curve in found["curves"]]) for place in (0, -1)]
        before, after = (f"{mean:.3f}" + (f" ± {half:.3f}" if half is not None else "") for mean, half in ends)
        choices = found["curves"][0][-1][0]
        lines.append(f"| {GAMES[name].title} | {found['random']:.3f} | {before} | {after} | {choices:,} |")
    return "\n".join(lines) + "\n"


def draw(results: Mapping[str, dict], file: Path) -> None:
    """A panel for each game: the mean over seeds with its 95 % interval, every seed thin, and the random agent."""
    told = "share of held-out episodes, greedily: mean of seeds, 95 % interval, each seed thin"
    with figures.style():
        figure = figures.new_figure(3.4, "PPO of Stable-Baselines3 behind a menu", told)
        for axes, (name, found) in zip(np.ravel(figure.subplots(1, len(results))), results.items(), strict=True):
            curves = np.array(found["curves"])  # [seeds, points, 2]
            figures.draw_curve(axes, curves[0, :, 0], curves[:, :, 1])
            figures.draw_level(axes, found["random"])
            axes.set_title(GAMES[name].title, loc="left", weight="bold")
            axes.set(xlabel="Choices in training", ylim=(0, 1), xlim=(0, curves[0, -1, 0]))
            axes.locator_params(axis="x", nbins=5)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            end, color = float(curves[:, -1, 1].mean()), figures.LOOKS[0][0]
            random = (found["random"], f"random  {found['random']:.2f}", figures.MUTED)
            figures.label_ends(axes, [(end, f"PPO  {end:.2f}", color), random])
        figures.save(figure, file)


def main(args: Args) -> dict[str, dict]:
    results = {}
    for name in args.games:
        game, folder, many = GAMES[name], args.out / name, 5 * args.episodes
        run = f"{args.steps or game.steps}-{args.points}-{args.episodes}"  # other settings are other files
        results[name] = {
            "random": kept(folder / f"random-{many}.json", random_success, game, many),
            "curves": [kept(folder / f"seed-{seed}-{run}.json", learn, args, game, seed) for seed in args.seeds],
        }
    written = {
        "settings": asdict(args),
        "ppo": SETTINGS,
        "games": {n: asdict(GAMES[n]) for n in results},
        "results": results,
    }
    (args.out / "results.json").write_text(json.dumps(written, indent=2, default=str) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text(table(results), encoding="utf-8")
    draw(results, args.picture or args.out / "curves.png")
    print(table(results))
    return results


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
