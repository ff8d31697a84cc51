"""Draw the pictures of docs/results from the JSON files beside them.

    python -m experiments.pictures                     # all of them, in half a minute
    python -m experiments.pictures masks echo_trap

A picture has the name of its page. Its title is the finding, so it is written here and not in a recipe.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from experiments.curves import draw, draw_scores
from experiments.report import describe_scores, mean_scores, score_name
from trainers.episodes.report.intervals import mean_and_half

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
CURVES = {  # by page: its JSON and the title; held-out scores over training, sampled as in training
    "reward_hacking": ("reward-hacking", "A reward of 1 for each thought is hacked"),
    "masks": ("masks", "Without the loss mask, training fails"),
    "echo_trap": ("echo-trap", "Eight passes over a batch collapse, with or without a filter"),
    "one_step_off_policy": ("one-step-off-policy", "Rollouts one update old: no significant difference"),
}
MEAN = {"Avg": "Mean over five kinds of questions"}
SCORES: dict[
    str, tuple[str, dict[str, str], str]
] = {  # by page: its JSON, the columns, the title; scores after training
    "algorithms": ("algorithms", MEAN, "All RL algorithms and rejection sampling end close together"),
    "sparse_rewards": ("rewards", MEAN, "Right answers are rare: RL 0.50, rejection sampling 0.31 (p = 0.08)"),
    "shape_of_rollouts": (
        "rollout-shaping",
        {
            "As in training": "As in training",
            "5 actions, 2 turns": "5 actions a turn",
            "1 action, 10 turns": "1 action a turn",
        },
        "A policy trained on turns of five actions fails one action at a time",
    ),
}
GAMES = {  # by page: the lines of games.json and the title
    "games": (
        ("Bandit, words of training", "Sokoban", "FrozenLake, firm ice", "FrozenLake, slippery"),
        "PPO improves on the cold start in every game",
    ),
    "sokoban": (
        ("Sokoban", "Sokoban, shown easy boards"),
        "With greedy decoding, PPO leads only if demonstrations are of easy boards",
    ),
}


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def game_scores(results: Mapping, lines: tuple[str, ...]) -> dict[str, dict[str, tuple[float, float | None]]]:
    """By agent and way of decoding, and by line of the table: the mean over seeds and half of its 95% CI."""
    seeds = {line: own for game, own in results["seeds"].items() for line in results["scripts"][game] if line in lines}
    return {
        f"{agent}, {how}": {
            line: mean_and_half([seed["success"][agent][line][how] for seed in seeds[line]]) for line in lines
        }
        for how in ("sampled", "greedy")
        for agent in next(iter(seeds.values()))[0]["success"]
    }


def make(page: str) -> None:
    """Draw the picture of one page."""
    out = RESULTS / f"{page}.png"
    if page in CURVES:
        name, title = CURVES[page]
        draw(read(name)["curves"], out, f"Sampled {score_name(read(name))}", title)
    elif page in SCORES:
        name, columns, title = SCORES[page]
        scores = {
            agent: {shown: own[column] for column, shown in columns.items()}
            for agent, own in mean_scores(read(name)).items()
        }
        draw_scores(scores, out, title, describe_scores(read(name)))
    elif page == "agents":
        draw(
            read(page)["curves"], out, "Greedy EM", "A program over openai learns as the environment's own rollout does"
        )
    else:
        lines, title = GAMES[page]
        subtitle = "Success on held-out instances: mean and 95% CI of 3 seeds"
        draw_scores(game_scores(read("games"), lines), out, title, subtitle)


if __name__ == "__main__":
    for name_of_page in sys.argv[1:] or [*CURVES, *SCORES, *GAMES, "agents"]:
        make(name_of_page)
