import json
from contextlib import nullcontext

import pytest
import tyro

import retrieval_index
from experiments import agents, columns, compare, curves, report
from experiments.curves import Point, draw, draw_scores, mean_curve, point_reaching
from experiments.recipe import BASELINES
from experiments.report import PAPER, table
from trainers.checkpoints.settings import SettingsDiffer
from trainers.episodes.report import figures
from trainers.evaluation import evaluator
from trainers.models.loading import load_policy
from trainers.runtime import signals
from trainers.runtime.progress import read_metrics
from trainers.tiny import curriculum

NAIVE_RAG, BASE, IMITATION = (BASELINES[name] for name in ("naive-rag", "base", "imitation"))
SMALL = """
title = "Two of them"
question = "Which?"
questions = 4
reference = ["imitation", "rloo"]
reach = "rloo"
seeds = [0, 1]
paper = true
[env_kwargs]
entities = 100
questions = 20
max_turns = 2
[arguments]
updates = 3
questions_per_update = 2
group_size = 2
cold_start_steps = 30
eval_every = 2
eval_questions = 2
[tasks."As in training"]
[tasks."Another world"]
env_kwargs = { world_seed = 101 }
[runs.rloo]
title = "RLOO"
algorithm = "rloo"
[runs.starpo-s]
title = "StarPO-S"
algorithm = "starpo-s"
larger_groups = 2
env_kwargs = { rewards = "search_r1" }
"""


@pytest.fixture
def model_folder(make_policy, tmp_path):
    policy = make_policy("subwords", 3)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def ask(tmp_path):
    """``ask(text, *words)``: the arguments of the command for a recipe, with words of the command line."""

    def make(text, *words):
        (tmp_path / "small.toml").write_text(text, encoding="utf-8")
        words = ("--recipe", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), *words)
        return tyro.cli(compare.Args, args=words)

    return make


def never(*_, **__):
    raise AssertionError("this was run before")


@pytest.mark.slow
def test_two_runs_from_one_cold_start(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    results = compare.main(ask(SMALL))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, IMITATION, "RLOO", "StarPO-S"]
    for per_seed in results["rows"].values():
        assert [list(rows) for rows in per_seed] == [["As in training", "Another world"]] * 2
        assert all(row["episodes"] == 4 for rows in per_seed for row in rows.values())
    sources = [row["source"].split()[0] for row in results["rows"]["RLOO"][0].values()]
    assert sources == ["miniwiki:validation-0", "miniwiki:validation-101"]
    assert len(list((tmp_path / "cache" / "tiny").iterdir())) == 2  # one cold start a seed, for all and for any reward
    firsts = [read_metrics(out / f"{name}-0" / "metrics.jsonl")[0] for name in ("rloo", "starpo-s")]
    assert firsts[0]["eval/em"] == firsts[1]["eval/em"]
    for seed in (0, 1):
        rloo, starpo, more = (results["training"][name][seed] for name in ("RLOO", "StarPO-S", IMITATION))
        assert rloo["episodes"] == starpo["episodes"] == 12
        assert more["asked"] == max(rloo["seconds"], starpo["seconds"])
        assert more["steps"] > 0
        assert [point[0] for point in results["curves"]["RLOO"][seed]] == [
            0,
            8,
            12,
        ]  # the last one is the closing table's
    assert list(results["levels"]) == [NAIVE_RAG, IMITATION]
    assert json.loads((out / "results.json").read_text()) == results
    assert (out / "curves.png").stat().st_size > 10_000
    text = (out / "table.md").read_text()
    assert text.index("| StarPO-S |") < text.index("For reference only") < text.index(".4405")
    assert "Δ to More imitation | Δ to RLOO |" in text

    # Nothing is run twice; what was interrupted goes on; another experiment needs another folder.
    with monkeypatch.context() as patched:
        patched.setattr(
            agents, "ALGORITHMS", {name: (never, preset) for name, (_, preset) in agents.ALGORITHMS.items()}
        )
        patched.setattr(evaluator, "run_policy", never)
        patched.setattr(agents.imitation, "fit", never)
        assert compare.main(ask(SMALL)) == results
    (out / "rloo-1" / "summary.json").unlink()
    assert compare.main(ask(SMALL))["rows"]["RLOO"] == results["rows"]["RLOO"]
    with pytest.raises(ValueError, match=r"rloo-0 holds a run with other settings \(updates=3, not 4\)"):
        compare.main(ask(SMALL, "--updates", "4"))
    with pytest.raises(ValueError, match=r"other settings \(lr=0.0005, not 0.1\)"):
        compare.main(ask(SMALL, "--arguments", '{"lr": 0.1}'))


@pytest.mark.slow
def test_rejection_sampling_from_a_cold_start(tmp_path, monkeypatch, ask):
    """It starts from the policy that the runs start from."""
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    text = SMALL.partition("[runs.starpo-s]")[0].replace(
        "seeds = [0, 1]", 'seeds = [0]\nbaselines = ["rejection-sampling"]'
    )
    text = text.replace('["imitation", "rloo"]', '["rejection-sampling"]') + (
        "[rejection_sampling]\nonly_solved = false\nlr = 0.001\nheld_out = 0.0\n"
    )
    results = compare.main(ask(text))
    (spent,) = results["training"][BASELINES["rejection-sampling"]]
    assert spent["sampled"] > 0 and spent["kept"] > 0
    assert spent["seconds"] >= results["training"]["RLOO"][0]["seconds"]  # that of two batches and fits, at least
    start = load_policy(tmp_path / "out" / "start-0")
    (cached,) = (tmp_path / "cache" / "tiny").iterdir()
    assert start.model.state_dict().keys() == load_policy(cached).model.state_dict().keys()
    same = zip(start.model.parameters(), load_policy(cached).model.parameters(), strict=True)
    assert all((a == b).all() for a, b in same)
    with pytest.raises(ValueError, match=r"\[rejection_sampling\].*unknown keys \['lrr'\]"):
        compare.main(ask(text.replace("lr =", "lrr =")))


def test_seconds_of_a_run_are_of_all_its_updates(tmp_path, monkeypatch, ask):
    """Also of those after its last evaluation, where that is sampled: what trains for as long has them too."""
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 16)
    text = SMALL.replace("eval_every = 2\n", "eval_every = 2\neval_temperature = 1.0\nmax_new_tokens = 8\n").replace(
        "= 30", "= 2"
    )
    comparison = agents.Comparison(compare.read_recipe(ask(text)), tmp_path / "out", True, read_only=False)
    run, lines = comparison.train_run("rloo", 0), read_metrics(tmp_path / "out" / "rloo-0" / "metrics.jsonl")
    spent = [line.get("time/rollout", 0) + line.get("time/update", 0) for line in lines]
    assert run["seconds"] == pytest.approx(sum(spent))
    assert run["curve"][-1].seconds < run["seconds"]


def test_a_run_that_stops_by_itself_leaves_the_others(tmp_path, monkeypatch, ask, model_folder):
    def diverge(args):
        raise signals.TrainingStopped("the gradient is not finite")

    monkeypatch.setitem(agents.ALGORITHMS, "rloo", (diverge, agents.ALGORITHMS["rloo"][1]))
    words = ("--arguments", json.dumps({"model": model_folder, "max_new_tokens": 6, "updates": 1}), "--seeds", "3")
    with pytest.raises(signals.TrainingStopped, match=r"not all came.*RLOO, seed 3: the gradient is not finite"):
        compare.main(ask(SMALL, *words, "--runs", "rloo", "starpo-s"))
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(kept["rows"]) == ["StarPO-S"] and "RLOO, seed 3" in kept["missing"]


def test_a_start_of_other_settings_is_no_start(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 16)
    text = SMALL.replace("= 30", "= 2")
    for own, differs in ((text, False), (text.replace("= 2\neval", "= 3\neval"), True)):
        comparison = agents.Comparison(compare.read_recipe(ask(own)), tmp_path / "out", True, read_only=False)
        with pytest.raises(SettingsDiffer, match="came from another start") if differs else nullcontext():
            comparison._save_start(0)


def test_seeds_that_are_asked_for(ask):
    """The table keeps those of the recipe; a run that has none of them is no silence."""
    text = SMALL.replace("paper = true", "[own_seeds]\nrloo = [1]")
    assert compare.read_recipe(ask(text, "--seeds", "7"), whole=True).seeds == [0, 1, 7]
    assert compare.read_recipe(ask(text, "--runs", "rloo", "--seeds", "1")).seeds == [1]
    with pytest.raises(ValueError, match="rloo has seeds of its own in this recipe, and none of those asked for: 1"):
        compare.read_recipe(ask(text, "--runs", "rloo", "--seeds", "0"))


def test_any_score_can_be_pooled():
    episodes = [{"id": i, "success": float(i % 2), "turns": 3} for i in range(4)]
    row = {"A": columns._summarize("PPO", {"measure": "success", "source": "games"}, episodes)}
    recipe = {"tasks": {"A": {}}, "pooled": ["A"], "reference": [], "runs": {}}
    lines = report.pooled_tables({"recipe": recipe, "rows": {"PPO": [row]}, "seeds": {"PPO": [0]}}, "success")
    assert "| PPO | 0.500 | 0.500 [" in lines[2]
    assert not any("F1" in line for line in lines)


def test_a_pretrained_model(tmp_path, monkeypatch, ask, model_folder, capsys):
    """No cold start, so no more imitation; a run of an earlier version, which lacks an option, is found again."""
    words = ("--arguments", json.dumps({"model": model_folder, "max_new_tokens": 6, "updates": 1}), "--seeds", "3")
    results = compare.main(ask(SMALL, *words))
    assert list(results["rows"]) == [NAIVE_RAG, BASE, "RLOO", "StarPO-S"]
    assert list(results["left_out"]) == ["imitation"]
    assert "left out: More imitation" in capsys.readouterr().out
    summary_file = tmp_path / "out" / "rloo-3" / "summary.json"
    summary = json.loads(summary_file.read_text())
    for name in ("kl", "algorithm", "temperature"):
        del summary["settings"][name]
    summary_file.write_text(json.dumps(summary))
    monkeypatch.setattr(
        agents, "ALGORITHMS", {name: (never, preset) for name, (_, preset) in agents.ALGORITHMS.items()}
    )
    monkeypatch.setattr(agents, "load_policy", never)
    assert compare.main(ask(SMALL, *words)) == results
    for name, value in {"eval_every": 1, "eval_questions": 3, "eval_temperature": 1.0}.items():
        arguments = {"model": model_folder, "max_new_tokens": 6, "final_questions": 2, name: value}
        with pytest.raises(ValueError, match=rf"rloo-3 holds a run with other settings \({name}=.*, not {value}\)"):
            compare.main(ask(SMALL, "--arguments", json.dumps(arguments), "--updates", "1", "--seeds", "3"))
    del summary["evaluation"]  # of an earlier version still
    summary_file.write_text(json.dumps(summary))
    only = compare.main(ask(SMALL, *words, "--runs", "rloo"))
    assert list(only["rows"]) == list(results["rows"])  # the table shows what is there, whatever was asked for
    # Other columns are played, with a policy that is loaded once; those that are known are not.
    monkeypatch.undo()
    others = '[tasks."3 hops"]\nenv_kwargs = { hops = 3 }\n[tasks."2 hops"]\nenv_kwargs = { hops = 2 }\n'
    more = SMALL.replace("[runs.rloo]", others + "[runs.rloo]")
    loaded, load = [], agents.load_policy
    monkeypatch.setattr(agents, "load_policy", lambda folder, **kw: loaded.append(folder) or load(folder, **kw))
    played = []
    whole = evaluator.run_policy
    monkeypatch.setattr(evaluator, "run_policy", lambda *args: played.append(args[3]) or whole(*args))
    wider = compare.main(ask(more, *words))
    assert played == [[0, 1, 2, 3]] * 2 * 3  # two columns, of the start and two runs
    assert len(loaded) == len(set(loaded)) == 2
    assert list(wider["rows"]["RLOO"][0]) == ["As in training", "Another world", "3 hops", "2 hops"]


def test_a_game(tmp_path, ask, model_folder):
    text = """
    title = "A game"
    env = "AgentR1/Sokoban-v0"
    questions = 3
    seeds = [0]
    symptoms = true
    reference = "base"
    [arguments]
    updates = 1
    questions_per_update = 2
    group_size = 2
    max_new_tokens = 6
    eval_questions = 2
    [tasks."Short"]
    env_kwargs = { max_turns = 2 }
    [runs.gigpo]
    algorithm = "gigpo"
    """
    results = compare.main(ask(text, "--arguments", json.dumps({"model": model_folder})))
    assert list(results["rows"]) == [BASE, "gigpo"]
    assert list(results["left_out"]) == ["naive-rag", "imitation"]
    told = (tmp_path / "out" / "table.md").read_text()
    assert "| Success | Short | Avg | Δ to Base Tool Call |" in told
    assert "First symptom |" in told
    assert "For reference only" not in told


def hotpot(id, number):
    film, name = f"Film{number}", f"Director{number}"
    return {
        "_id": id, "question": f"Where was the director of {film} born?", "answer": f"Town{number}", "type": "bridge",
        "level": "hard", "supporting_facts": [[film, 0], [name, 0]], "evidences": [], "answer_id": "Q1",
        "context": [[film, [f"{film} is by {name}."]], [name, [f"{name} was born in Town{number}."]]],
    }  # fmt: skip


def musique(id, number):
    record = hotpot(id, number)
    paragraphs = [
        {"idx": i, "title": title, "paragraph_text": lines[0], "is_supporting": True}
        for i, (title, lines) in enumerate(record["context"])
    ]
    hops = [{"id": i, "question": "?", "answer": "x", "paragraph_support_idx": i} for i in (0, 1)]
    return {
        "id": id, "question": record["question"], "answer": record["answer"], "answer_aliases": [], "answerable": True,
        "question_decomposition": hops, "paragraphs": paragraphs,
    }  # fmt: skip


@pytest.fixture
def papers_data(tmp_path, monkeypatch):
    """The files of the paper's three benchmarks with made-up questions, and an index over their passages."""
    two_wiki = tmp_path / "data" / "2wikimultihopqa"
    two_wiki.mkdir(parents=True)
    files = {
        "hotpot_train_v1.1.json": range(4), "hotpot_dev_distractor_v1.json": range(4, 7),
        "2wikimultihopqa/train.json": range(7, 11), "2wikimultihopqa/dev.json": range(11, 14),
    }  # fmt: skip
    for file, numbers in files.items():
        records = [hotpot(f"q{number}", number) for number in numbers]
        (tmp_path / "data" / file).write_text(json.dumps(records))
    records = [musique(f"2hop__{number}", number) for number in range(14, 17)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "data" / "musique_ans_v1.0_dev.jsonl").write_text(lines)
    passages = [
        {"id": f"{number}-{i}", "title": title, "text": lines[0]}
        for number in range(17)
        for i, (title, lines) in enumerate(hotpot("", number)["context"])
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    retrieval_index.build_folder(corpus, tmp_path / "wiki-18")
    monkeypatch.setenv("AGENT_ENVS_DATA", str(tmp_path / "data"))
    return tmp_path / "wiki-18"


def test_the_papers_experiment_in_miniature(tmp_path, papers_data, model_folder):
    """The recipe as it ships, but for the model, the index and the sizes; half of its runs, for one update."""
    runs = "ppo", "grpo", "ppo-no-masks", "grpo-no-loss-mask"
    sizes = {"questions_per_update": 2, "group_size": 2, "max_new_tokens": 4, "eval_questions": 2}
    words = [
        "--recipe", "agent-r1", "--updates", "1", "--questions", "2", "--out", str(tmp_path / "out"),
        "--runs", "naive-rag", "base", *runs, "--arguments", json.dumps({"model": model_folder, **sizes}),
        "--env-kwargs", json.dumps({"index": str(papers_data), "max_turns": 2}),
    ]  # fmt: skip
    results = compare.main(tyro.cli(compare.Args, args=words))
    assert list(results["rows"]) == [
        NAIVE_RAG, BASE, "PPO", "GRPO", "PPO without both masks", "GRPO without loss mask",
    ]  # fmt: skip
    row = results["rows"]["GRPO"][0]
    assert {column: row[column]["source"].split(",")[0].split("/")[-1] for column in row} == {
        "HotpotQA": "hotpot_dev_distractor_v1.json", "2Wiki": "dev.json (without aliases)",
        "MuSiQue": "musique_ans_v1.0_dev.jsonl",
    }  # fmt: skip
    summary = json.loads((tmp_path / "out" / "ppo-0" / "summary.json").read_text())
    assert (summary["env"], summary["score"]) == ("AgentR1/Mixture-v0", "score")
    assert summary["settings"]["dtype"] == "bfloat16"
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| EM | HotpotQA | 2Wiki | MuSiQue | Avg | Δ to Base Tool Call | Δ to PPO | Δ to GRPO |" in text
    assert text.index("| GRPO |") < text.index("For reference only") < text.index(".4405")
    page = (tmp_path / "out" / "failures.md").read_text()
    assert page.startswith("# Wrong episodes of ")
    assert "| Cause | The agent … | HotpotQA | 2Wiki | MuSiQue | Near |" in page


def test_what_the_command_line_gets_wrong(ask):
    with pytest.raises(ValueError, match="arguments is not valid JSON"):
        compare.Args(arguments="{lr: 1}")
    with pytest.raises(ValueError, match="env_kwargs must be a JSON object"):
        compare.Args(env_kwargs="[1]")
    with pytest.raises(ValueError, match=r"unknown keys.*learning.*known"):
        compare.read_recipe(ask(SMALL, "--arguments", '{"learning": 1}'))


def test_nothing_is_trained_where_data_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("AGENT_ENVS_DATA", raising=False)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    monkeypatch.setattr(agents.Comparison, "train_run", never)
    with pytest.raises(FileNotFoundError, match=r"HotpotQA was found nowhere(.|\n)*hotpot_train_v1.1.json"):
        compare.main(compare.Args(recipe="agent-r1", out=tmp_path / "out"))


def invented(**changes):
    def row(score, **also):
        return {
            "score": score, "measure": "em", "f1": score + 0.1, "turns": 3.0, "calls": 2.0, "source": "somewhere", **also
        }  # fmt: skip

    columns = ["Bridge", "Another world", "Other questions"]
    ours = [dict.fromkeys(columns, row(0.2 + 0.1 * seed, substring_em=0.5)) for seed in range(3)]
    ours = [{**rows, columns[2]: row(0.0, substring_em=0.2)} for rows in ours]
    grpo = [dict.fromkeys(columns, row(0.1 + 0.05 * seed)) for seed in range(3)]
    worlds = {"Bridge": {}, "Another world": {"world_seed": 101}, "Other questions": {"types": ["inference"]}}
    recipe = {
        "title": "An experiment", "question": "What?", "env": "E", "env_kwargs": {}, "seeds": [0, 1, 2], "paper": True,
        "tasks": {name: {"env": "E", "env_kwargs": kwargs} for name, kwargs in worlds.items()}, "symptoms": False,
        "runs": {"g": {"title": "GRPO"}, "d": {"title": "Dense"}}, "reference": ["g"], "reach": "g",
        "pooled": [],
    }  # fmt: skip
    trained = {"seconds": 100.0, "episodes": 60, "symptoms": []}
    return {
        "recipe": recipe | changes,
        "left_out": {"imitation": "no cold start"},
        "missing": ["More SFT, seed 2"],
        "rows": {"Naive RAG": [dict.fromkeys(columns, row(0.1))] * 3, "GRPO": grpo, "Dense": ours},
        "seeds": {name: [0, 1, 2] for name in ("Naive RAG", "GRPO", "Dense")},
        "process": {},
        "training": {"GRPO": [trained] * 3, "Dense": [trained] * 3},
        "curves": {
            "GRPO": [[Point(0, 0.0, 0.1), Point(30, 50.0, 0.3), Point(60, 100.0, 0.25)]] * 3,
            "Dense": [[Point(0, 0.0, 0.1), Point(30, 40.0 + seed, 0.24 + 0.02 * seed)] for seed in range(3)],
        },
        "levels": {"Naive RAG": [0.1] * 3},
    }  # fmt: skip


def test_the_table_is_the_papers_and_its_figures_stay_apart():
    text = table(invented())
    assert text.startswith("# An experiment\n\nWhat?\n\nE, 3 seeds, 60 training episodes each.")
    assert "| EM | Bridge | Another world | Other questions | Avg | Δ to GRPO |" in text
    # .2, .3, .4 on two columns and 0 on the third: the mean of the averages is .2, their deviation two thirds of .1.
    # Less GRPO's .1, .15, .2, seed by seed: .0333, .05, .0667, whose deviation is .0167.
    assert "| Dense | 0.300 ± 0.248 | 0.300 ± 0.248 | 0.000 ± 0.000 | 0.200 ± 0.166 | +0.050 ± 0.041 |" in text
    assert "0.150 ± 0.124 | – |" in text
    assert "| Dense | 0.300 ± 0.166 | 0.400 ± 0.000 | 3.00 ± 0.00 | 2.00 ± 0.00 | 100 ± 0 | 30 (41 s) |" in text
    assert "| GRPO | 0.250 ± 0.124 | – | 3.00 ± 0.00 | 2.00 ± 0.00 | 100 ± 0 | 30 (50 s) |" in text
    assert "| Naive RAG | 0.200 ± 0.000 | – | 3.00 ± 0.00 | 2.00 ± 0.00 | – | – |" in text
    assert "Episodes to reach GRPO's end (0.250)" in text
    assert "- Bridge: somewhere; as in training\n" in text
    assert '- Another world: somewhere; "world_seed": 101\n' in text
    assert "- left out: More imitation; no cold start\n" in text
    assert "First symptom" not in text
    ours, reference = text.split("## For reference only")
    assert PAPER.rstrip() in reference
    assert ".4405" not in ours
    assert ".4405" not in table(invented(paper=False, reference=[], reach=""))
    assert "Δ" not in table(invented(reference=[]))


def test_symptoms_are_shown():
    results = invented(symptoms=True)
    assert "| Dense |" in table(results)
    assert table(results).count(" none |") == 2
    found = [{"update": 14, "name": "entropy collapsed"}, {"update": 20, "name": "no success"}]
    results["training"]["Dense"] = [{"seconds": 1.0, "episodes": 60, "symptoms": s} for s in ([], found, found[1:])]
    said = "entropy collapsed (update 14, seed 1); no success (update 20, seed 2) |"
    assert said in table(results)
    assert said in table({**results, "recipe": results["recipe"] | {"symptoms": False}})


def test_a_level_is_reached_by_the_mean_and_never_between_two_evaluations():
    runs = [[Point(0, 0.0, 0.0), Point(8, 1.0, 0.2), Point(16, 2.0, 0.6)], [Point(0, 0.0, 0.0), Point(8, 3.0, 0.4)]]
    mean = mean_curve(runs)
    assert mean.episodes.tolist() == [0, 8]
    assert mean.score == pytest.approx([0.0, 0.3])
    assert mean.scores.tolist() == [[0.0, 0.2], [0.0, 0.4]]
    assert point_reaching(runs, 0.3) == (8, 2.0)
    assert point_reaching(runs, 0.2) == (8, 2.0)
    assert point_reaching(runs, 0.31) is None
    refilled = [[Point(0, 0.0, 0.0), Point(12, 1.0, 0.5)], [Point(0, 0.0, 0.0), Point(8, 1.0, 0.3)]]  # batches differ
    assert mean_curve(refilled).episodes.tolist() == [0, 10]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn."""
    kept, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, out: (kept.append(figure), save(figure, out))[1])
    return kept


def test_few_agents_share_a_panel_and_are_named_where_they_end(tmp_path, drawn):
    runs = [[Point(0, 0.0, 0.1), Point(8, 1.0, 0.2)], [Point(0, 0.0, 0.1), Point(8, 3.0, 0.4)]]
    draw({"GRPO": runs, "PPO": runs[:1]}, {"Base": 0.05}, tmp_path / "c.png", "EM", "An experiment")
    (axes,) = drawn[0].axes
    thick = [line for line in axes.get_lines() if line.get_linewidth() > 2]
    assert [line.get_ydata().tolist() for line in thick] == [pytest.approx([0.1, 0.3]), [0.1, 0.2]]
    assert {line.get_color() for line in thick} == {look[0] for look in figures.LOOKS[:2]}
    assert len(axes.collections) == 1  # the band: of GRPO, as PPO has one seed
    assert {text.get_text() for text in axes.texts} == {"GRPO  0.30", "PPO  0.20", "Base  0.05"}
    assert axes.get_xlim() == (0, 8) and axes.get_legend() is None
    assert {text.get_text() for text in drawn[0].texts} == {
        "An experiment",
        "EM on held-out instances; mean and 95 % interval of 1 to 2 seeds",
    }


def test_of_many_agents_each_has_a_panel_with_the_others_in_grey(tmp_path, drawn):
    runs = [[Point(0, 0.0, 0.1), Point(8, 1.0, 0.2)], [Point(0, 0.0, 0.1), Point(8, 3.0, 0.4)]]
    draw({f"Run {i}": runs for i in range(7)}, {"Base": 0.05}, tmp_path / "c.png", "EM", "An experiment")
    *panels, key = drawn[0].axes
    assert [axes.get_title(loc="left") for axes in panels] == [f"Run {i}" for i in range(7)]
    for axes in panels:
        colors = [line.get_color() for line in axes.get_lines()]
        assert (
            colors.count(figures.FAINT) == 6 and colors.count(figures.LOOKS[0][0]) == 1 and len(axes.collections) == 1
        )
    assert "dashed: Base  0.05" in key.texts[0].get_text() and not key.axison


def test_scores_are_drawn_with_their_intervals(tmp_path, drawn):
    draw_scores(
        {"A": {"x": (0.5, 0.2), "y": (0.1, None)}, "B": {"x": (0.7, 0.1)}}, tmp_path / "s.png", "EM", "An experiment"
    )
    left, right = drawn[0].axes
    drawn_x = [x for line in left.get_lines() for x in line.get_xdata()]
    assert drawn_x == pytest.approx([0.3, 0.7, 0.5, 0.6, 0.8, 0.7])
    assert [text.get_text() for text in left.texts] == ["0.50", "0.70"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["A", "B"]
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("x", "y")


def test_intervals_are_over_questions_where_columns_are_pooled():
    """A column without scores of its questions has no dot."""
    scored = lambda *em: {"measure": "em", "questions": {"id": [*range(len(em))], "em": [*em]}}  # noqa: E731
    rows = {
        "A": [
            {"x": scored(*[0.0, 1.0] * 50), "y": scored(*[1.0] * 100), "z": {"measure": "em", "questions": {"id": [0]}}}
        ]
    }
    results = {
        "recipe": {"tasks": {"x": {}, "y": {}, "z": {}}, "pooled": ["x", "y"]},
        "rows": rows,
        "seeds": {"A": [0]},
    }
    found = report.mean_scores(results)["A"]
    assert list(found) == ["x", "y", "x + y"]
    assert found["x"] == (0.5, pytest.approx(1.96 * 0.05, abs=0.01)) and found["y"] == pytest.approx((1.0, 0.0))
    assert found["x + y"][0] == 0.75 and 0 < found["x + y"][1] < found["x"][1]


@pytest.mark.parametrize(("agents", "panels"), [(2, 2), (5, 10)])
def test_the_process_is_drawn_measure_by_measure(tmp_path, drawn, agents, panels):
    run = {metric: [] for metric in curves.PROCESS} | {
        "eval/f1": [(0, 0.1), (8, 0.3)],
        "train/calls": [(8, 1.0), (16, 2.0)],
    }
    assert curves.draw_process({f"Run {i}": [run, run] for i in range(agents)}, tmp_path / "p.png", "An experiment")
    assert len(drawn[0].axes) == panels
    assert [axes.get_xlabel() for axes in drawn[0].axes][-agents:] == ["Training episodes"] * agents
    assert not curves.draw_process({"Run": [{metric: [] for metric in curves.PROCESS}]}, tmp_path / "p.png", "")


@pytest.mark.parametrize("count", range(1, 13))
def test_a_grid_has_room_for_all_and_no_empty_row(count):
    rows, columns = figures.grid(count)
    assert rows * columns >= count > (rows - 1) * columns and columns <= 4


def test_a_curve_ends_with_the_run():
    lines = [
        {"episodes": 0, "eval/em": 0.1}, {"episodes": 8, "time/rollout": 1.0, "time/update": 0.5},
        {"episodes": 16, "time/rollout": 2.0, "time/update": 0.5, "eval/em": 0.3},
    ]  # fmt: skip
    summary = {"score": "em", "em_trained": 0.4, "episodes": 16}
    assert agents.read_curve(lines, summary) == [(0, 0.0, 0.1), (16, 4.0, 0.3)]
    assert agents.read_curve(lines[:2], summary | {"episodes": 8}) == [(0, 0.0, 0.1), (8, 1.5, 0.4)]
    assert agents.read_curve(lines[:2], summary, greedy=False) == [(0, 0.0, 0.1)]
    few = summary | {"evaluation": {"eval_questions": 153, "final_questions": 8}}
    assert agents.read_curve(lines[:2], few) == [(0, 0.0, 0.1)]
