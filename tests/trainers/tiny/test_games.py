"""The cold start of a game, more of it, and the experiment of `benchmarks.training.games`."""

import json
import random
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from agent_envs.games import sokoban
from agent_envs.games.bandit import FAMILIES
from agent_envs.types import Turn
from benchmarks.training import games, games_report
from experiments import imitation
from experiments.agents import start_identity, start_settings
from trainers import ppo
from trainers.checkpoints import checkpoint
from trainers.config import Demonstrator
from trainers.episodes.report import figures
from trainers.factory import make_envs
from trainers.models.policy import Policy
from trainers.tiny import curriculum
from trainers.tiny import model as tiny
from trainers.tiny.cold_start import start_policy


@pytest.fixture(scope="module")
def bandit():
    return make_envs("AgentR1/Bandit-v0", "{}", "train", 8)


@pytest.fixture(scope="module")
def policy(bandit):
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer(curriculum.list_texts(None, bandit))
    return Policy(tiny.make_model(len(tokenizer)), tokenizer)


def test_words_of_both_splits_are_one_token_each(policy):
    """A policy that had to spell the new words could not name an arm, let alone choose one."""
    for families in FAMILIES.values():
        assert all(len(policy.encode(f"are {word} and")) == 3 for family in families for word in family)


def test_episodes_of_a_game_teach_turns_that_can_be_read(policy, bandit, monkeypatch):
    monkeypatch.setattr(curriculum, "POOL", 12)
    first, other, again = (curriculum.episodes(policy, bandit, random.Random(n)) for n in (0, 1, 0))
    assert first == again != other
    words = {word for family in FAMILIES["train"] for word in family}
    for sequence in first:
        said = policy.decode([i for i, taught in zip(sequence.ids, sequence.mask, strict=True) if taught])
        assert said.strip().removeprefix("<answer>").removesuffix("</answer>").strip() in words
        assert said.count("<answer>") == 1


@pytest.mark.parametrize(("skill", "least", "most"), [(0.0, 0, 0), (0.25, 10, 40), (1.0, 100, 100)])
def test_whom_a_game_imitates(policy, bandit, monkeypatch, skill, least, most):
    """`cold_start_skill` is the share of episodes that the scripted agent plays."""

    def say(name, env, rng):
        yield Turn(answer=name)

    scripts = {name: partial(say, name) for name in ("scripted", "random")}
    monkeypatch.setattr(type(bandit.envs[0]), "SCRIPTS", scripts)
    monkeypatch.setattr(curriculum, "POOL", 100)
    whom = ppo.Args(cold_start_skill=skill).demonstrator()
    played = curriculum.episodes(policy, bandit, random.Random(0), whom)
    said = [policy.decode([i for i, taught in zip(s.ids, s.mask, strict=True) if taught]) for s in played]
    assert least <= sum("scripted" in turn for turn in said) <= most


def test_a_demonstrator_may_play_easier_instances(monkeypatch):
    """Those of ``env_kwargs``; what else the task was made with stays, and the policy learns on the task itself."""
    envs, solved = make_envs("AgentR1/Sokoban-v0", '{"size": 7, "moves": [3, 9]}', "train", 4), []
    policy = curriculum.make_policy(envs, 0)
    monkeypatch.setattr(curriculum, "POOL", 40)
    scripted_episodes = curriculum.demonstrations.scripted_episodes

    def watch(stage, *args):
        boards = [stage.envs[0].reset(seed=seed)[0] for seed in range(30)]
        solved.append((type(stage.envs[0]), {len(sokoban.solve(sokoban.read(board))) for board in boards}))
        solved[-1] += ({sokoban.read(board).size for board in boards}, {env.split for env in stage.envs})
        return scripted_episodes(stage, *args)

    monkeypatch.setattr(curriculum.demonstrations, "scripted_episodes", watch)
    easy = ppo.Args(env="Sokoban", cold_start_skill=1.0, cold_start_env_kwargs='{"moves": [1, 2]}').demonstrator()
    shown = curriculum.episodes(policy, envs, random.Random(0), easy)
    usual = curriculum.episodes(policy, envs, random.Random(0), Demonstrator(skill=1.0))
    (kind, moves, sizes, splits), (_, usual_moves, *_) = solved
    assert (kind, moves, sizes, splits) == (type(envs.envs[0]), {1, 2}, {7}, {"train"})
    assert usual_moves <= set(range(3, 10)) and len(usual_moves) > 3
    taught = [sum(sum(sequence.mask) for sequence in sequences) for sequences in (shown, usual)]
    assert taught[0] < taught[1]  # fewer moves
    assert envs.envs[0].moves == (3, 9)
    assert curriculum._cache_folder(envs, 0, 9, easy) != curriculum._cache_folder(envs, 0, 9, Demonstrator(skill=1.0))


def test_a_comparison_knows_where_its_start_was_shown_how():
    """As earlier versions kept it, where that is the task itself."""
    args = ppo.Args(env="Sokoban", cold_start_steps=9, seed=3)
    assert start_settings(args) == ["AgentR1/Sokoban-v0", {}, "float32", 9, 0.25, 0.75, 3]
    easy = replace(args, cold_start_env_kwargs='{"moves": [2, 4]}')
    assert start_settings(easy) == ["AgentR1/Sokoban-v0", {}, "float32", 9, 0.25, 0.75, {"moves": [2, 4]}, 3]
    assert start_identity(args, 3) != start_identity(easy, 3)


def test_how_well_somebody_else_plays_is_no_argument(bandit):
    reads = make_envs("AgentR1/MiniWiki-Easy-v0", '{"entities": 60, "questions": 9}', "train", 1)
    curriculum.choose_script(bandit, Demonstrator(skill=0.5)), curriculum.choose_script(reads, Demonstrator(0.5))
    for envs, whom, said in (
        (bandit, Demonstrator(0.5), "cold_start_continue_probability makes no difference here.*noisy_expert"),
        (reads, Demonstrator(skill=0.5), "cold_start_skill makes no difference here.*early_stopping"),
        (reads, Demonstrator(env_kwargs='{"k": 2}'), "cold_start_env_kwargs makes no difference here.*early_stopping"),
        (bandit, Demonstrator(env_kwargs='{"split": "validation"}'), "split.*cannot be among"),
        (bandit, Demonstrator(env_kwargs='{"pay"'), "cold_start_env_kwargs is not valid JSON"),
    ):
        args = {f"cold_start_{name}": value for name, value in asdict(whom).items()}
        with pytest.raises(ValueError, match=said):
            start_policy(ppo.Args(**args), envs, 0)
    with pytest.raises(TypeError, match=r"Bandit-v0 cannot be made: .*moves"):  # as of --env-kwargs
        start_policy(ppo.Args(cold_start_env_kwargs='{"moves": [2, 4]}'), bandit, 0)


def test_more_imitation_of_a_game(policy, bandit, monkeypatch, tmp_path):
    monkeypatch.setattr(curriculum, "POOL", 32)
    whom, imitated, episodes = Demonstrator(skill=0.1), [], curriculum.episodes
    monkeypatch.setattr(curriculum, "episodes", lambda *args: imitated.append(args[-1]) or episodes(*args))
    more, told = imitation.continue_imitation(policy, bandit, 0, 0.5, tmp_path / "more", whom)
    assert set(imitated) == {whom}
    assert told["steps"] >= 1
    assert told["seconds"] >= told["asked"] == 0.5
    assert not torch.equal(more.model.lm_head.weight, policy.model.lm_head.weight)
    assert checkpoint.is_checkpoint(tmp_path / "more")


def test_arguments_that_make_no_sense():
    for wrong, said in (({"games": ("chess",)}, "chess"), ({"games": ()}, "game"), ({"seeds": ()}, "seed")):
        with pytest.raises(ValueError, match=said):
            games.Args(**wrong)


def test_every_game_is_run_by_ppo_in_its_own_task():
    for name, game in games.GAMES.items():
        made = games.arguments(games.Args(), game, 7)
        assert (made.filter, made.env, made.seed, made.updates) == ("none", game.env, 7, game.updates), name
        assert make_envs(made.env, made.env_kwargs, "validation", 1).envs[0].SCRIPTS.keys() >= games.SCRIPTS.keys()
    assert games.arguments(games.Args(updates=3, cold_start_steps=9), game, 0).updates == 3


def invented(seeds):
    def one(seed):
        rates = {"Cold start": 0.2, "More imitation": 0.3, "PPO": 0.5 + 0.1 * seed}
        success = {name: {"Chess": {"greedy": rate, "sampled": rate / 2}} for name, rate in rates.items()}
        return {"seed": seed, "success": success, "training": {name: {"seconds": 60.0} for name in rates}}

    scripts = {"Random agent": 0.1, "Scripted agent": 0.7, "Oracle": 1.0}
    return {
        "settings": {}, "games": {"chess": {"instances": 50}}, "scripts": {"chess": {"Chess": scripts}},
        "seeds": {"chess": [one(seed) for seed in range(seeds)]},
    }  # fmt: skip


def test_the_table_compares_within_seeds():
    text = games_report.table(invented(3))
    assert "\n50 held-out instances, mean over seeds" in text
    differing = {"seeds": {"chess": [], "go": []}, "games": {"chess": {"instances": 50}, "go": {"instances": 2000}}}
    assert games_report.count_instances(differing) == "chess: 50, go: 2,000"
    greedy = "| Chess | 0.100 | 0.700 | 1.000 | 0.200 ± 0.000 | 0.300 ± 0.000 | 0.600 ± 0.248 |"
    assert f"{greedy} +0.400 ± 0.248 | +0.300 ± 0.248 |" in text
    assert "0.100 ± 0.000 | 0.150 ± 0.000 | 0.300 ± 0.124 | +0.200 ± 0.124 | +0.150 ± 0.124 |" in text
    assert "| chess | 60 ± 0 | 60 ± 0 | 60 ± 0 |" in text
    assert "| 0.200 | 0.300 | 0.500 | +0.300 | +0.200 |" in games_report.table(invented(1))


def test_the_picture_shows_every_game(tmp_path, monkeypatch):
    for seed in range(2):
        run = tmp_path / f"chess-{seed}" / "ppo"
        run.mkdir(parents=True)
        lines = [{"episodes": 8 * n, "train/success": 0.1 * n, "eval/success": 0.2} for n in range(5)]
        del lines[1]["eval/success"], lines[0]["train/success"]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "summary.json").write_text(json.dumps({"evaluation": {"eval_temperature": 0.0}}))
    drawn, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, out: (drawn.extend(figure.axes), save(figure, out))[1])
    games_report.draw(tmp_path, invented(2))
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    (axes,) = drawn
    assert axes.get_title(loc="left") == "Chess" and axes.get_xlim() == (0, 32)
    named = {"held out, greedy", "in training", "random", "scripted", "more imitation"}
    assert {text.get_text() for text in axes.texts} == named


def test_success_is_drawn_for_both_ways_to_play(tmp_path):
    scores = {how: games_report.success(invented(3), how) for how in ("sampled", "greedy")}
    assert list(scores["sampled"]) == ["Random", "Cold start", "More imitation", "PPO"]
    assert scores["sampled"]["Random"] == {"Chess": (0.1, None)}
    assert scores["greedy"]["PPO"]["Chess"] == (pytest.approx(0.6), pytest.approx(0.248, abs=1e-3))
    games_report.draw_success(scores, tmp_path / "success.png")
    assert (tmp_path / "success.png").stat().st_size > 10_000


def test_the_page_has_the_figures_that_are_kept():
    docs = Path(__file__).parents[3] / "docs"
    kept, page = json.loads((docs / "results" / "games.json").read_text()), (docs / "games.md").read_text()
    for how in ("sampled", "greedy"):
        scores = games_report.success(kept, how)
        for name in ("Cold start", "More imitation", "PPO"):
            for mean, half in scores[name].values():
                cell = f"{mean:.3f}" + ("" if half is None else f" ± {half:.3f}")
                assert f" {cell.replace('0.', '.')} |" in page, (how, name, cell)


def test_games_that_were_run_before_stay_in_the_results(tmp_path, monkeypatch):
    monkeypatch.setattr(games, "scripted", lambda args, game: {})
    monkeypatch.setattr(games, "policies", lambda args, name, seed: [("PPO", None, {"seconds": 1.0})])
    monkeypatch.setattr(games, "evaluated", lambda args, name, policy, file: {name: {"greedy": 0.5}})
    write = lambda folder, results: (folder / "results.json").write_text(json.dumps(results))  # noqa: E731
    monkeypatch.setattr(games_report, "write", write)
    games.main(games.Args(games=("bandit",), seeds=(0, 1), updates=7, out=tmp_path))
    both = games.main(games.Args(games=("sokoban",), seeds=(0,), out=tmp_path))
    assert {name: len(seeds) for name, seeds in both["seeds"].items()} == {"bandit": 2, "sokoban": 1}
    assert {name: game["updates"] for name, game in both["games"].items()} == {"bandit": 7, "sokoban": 40}
    again = games.main(games.Args(games=("bandit",), seeds=(2,), out=tmp_path))
    assert [one["seed"] for one in again["seeds"]["bandit"]] == [2] and len(again["seeds"]["sokoban"]) == 1
    last = games.main(games.Args(games=("bandit",), seeds=(0,), instances=9, out=tmp_path))
    assert {name: game["instances"] for name, game in last["games"].items()} == {"bandit": 9, "sokoban": 500}


@pytest.mark.slow
def test_a_whole_run_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 64)
    args = games.Args(
        games=("bandit",), seeds=(0,), updates=2, cold_start_steps=20, instances=8, curve_instances=8,
        out=tmp_path / "out",
    )  # fmt: skip
    results = games.main(args)
    assert [list(one["success"]) for one in results["seeds"]["bandit"]] == [["Cold start", "More imitation", "PPO"]]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert "Bandit, new words" in (tmp_path / "out" / "table.md").read_text()

    def never(*_, **__):
        raise AssertionError("this was run before")

    for owner, name in ((games.ppo, "main"), (games.curriculum, "fit"), (games.playing, "evaluate_policy")):
        monkeypatch.setattr(owner, name, never)
    assert games.main(args) == results
    with pytest.raises(ValueError, match="other settings"):
        games.main(games.replace(args, updates=3))
