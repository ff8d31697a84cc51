import json
from importlib import resources

import pytest

from experiments import agents, recipe_file
from experiments.agents import Comparison
from experiments.columns import NotThere
from experiments.recipe import ALGORITHMS
from trainers import ppo
from trainers.checkpoints.settings import find_differences, settings

SHIPPED = sorted(f.name.removesuffix(".toml") for f in resources.files("experiments").joinpath("recipes").iterdir())
SMALL = """
title = "T"
seeds = [0, 1]
reference = "a"
reach = "a"
[env_kwargs]
hops = [2, 3]
entities = 300
[arguments]
updates = 4
eval_questions = 7
critic_lr = 1e-4
[tasks."4 hops"]
env_kwargs = { hops = 4 }
[runs.a]
algorithm = "grpo"
[runs.b]
title = "B"
algorithm = "ppo"
updates = 6
lr = 1
larger_groups = 4
env_kwargs = { rewards = "search_r1" }
"""


@pytest.fixture
def small(tmp_path):
    """``small(text)``: the path of a recipe."""

    def write(text=SMALL):
        path = tmp_path / "small.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_shipped_recipes():
    assert SHIPPED == [
        "agent-r1", "algorithms", "echo-trap", "masks", "one-step-off-policy", "real", "reward-hacking", "rewards",
        "rollout-shaping",
    ]  # fmt: skip
    assert set(ALGORITHMS) >= {"grpo", "ppo", "reinforce", "rloo", "gigpo", "starpo", "starpo-s", "ragen-2"}


@pytest.mark.parametrize("name", SHIPPED)
def test_all_runs_of_a_recipe_play_as_many_episodes(name):
    recipe = recipe_file.read(name)
    made = [recipe.run_arguments(run, 7) for run in recipe.runs]
    assert len({args.updates * args.questions_per_update * args.group_size for args in made}) == 1
    assert {args.seed for args in made} == {7}
    assert recipe.question.endswith("?")


def test_masks():
    recipe = recipe_file.read("masks")
    made = {name: recipe.run_arguments(name, 0) for name in recipe.runs}
    assert {name: (getattr(args, "advantage_mask", None), args.loss_mask) for name, args in made.items()} == {
        "ppo": (True, True), "ppo-no-advantage-mask": (False, True), "ppo-no-masks": (False, False),
        "ppo-short": (True, True), "ppo-short-no-advantage-mask": (False, True),
        "grpo": (None, True), "grpo-no-loss-mask": (None, False),
    }  # fmt: skip
    assert {name for name, args in made.items() if getattr(args, "lam", 1.0) == 0.95} == {
        "ppo-short", "ppo-short-no-advantage-mask"
    }  # fmt: skip


def test_the_echo_trap_takes_gradient_steps_of_one_size_or_as_many():
    recipe = recipe_file.read("echo-trap")
    made = {name: recipe.run_arguments(name, 0) for name in recipe.runs}
    assert {name: (args.filter, args.epochs, args.minibatches) for name, args in made.items()} == {
        "starpo": ("none", 8, 4), "starpo-s": ("uncertain", 8, 1), "starpo-two-passes": ("none", 2, 4),
        "starpo-large-steps": ("none", 8, 1), "starpo-one-pass": ("none", 1, 4),
    }  # fmt: skip


def test_the_shapes_of_rollouts_take_as_many_steps_of_one_size():
    recipe = recipe_file.read("rollout-shaping")
    made = {name: recipe.run_arguments(name, 0) for name in recipe.runs}
    assert {args.updates * args.minibatches for args in made.values()} == {160}
    assert {args.questions_per_update * args.group_size // args.minibatches for args in made.values()} == {64}
    boards = [n for n in made if n.startswith("boards")]
    assert {made[n].eval_every * 64 * 4 for n in boards} == {2560}, "each is looked at after as many episodes"
    assert {made[n].eval_every * made[n].questions_per_update * 4 for n in ("fresh", "stale")} == {2560}
    shapes = [(args.questions_per_update, args.minibatches, args.env_kwargs) for args in made.values()]
    assert len(set(shapes)) == len(shapes)


def test_the_rewards_differ_in_one_thing_each():
    recipe = recipe_file.read("rewards")
    made = {name: recipe.run_arguments(name, 0) for name in recipe.runs}
    assert {args.cold_start_continue_probability for args in made.values()} == {0.01}
    assert {name for name, args in made.items() if not getattr(args, "process_weight", 0.0)} == {
        "outcome", "gigpo", "whole"
    }  # fmt: skip
    rewards = {name: json.loads(args.env_kwargs).get("rewards") for name, args in made.items()}
    dense = {"progress": 0.0, "evidence": 0.3}
    assert rewards == {
        "outcome": "search_r1", "gigpo": "search_r1", "dense": dense, "whole": dense,
        "no-evidence": {"progress": 0.0}, "shaped": None,
    }  # fmt: skip


def test_algorithms():
    recipe = recipe_file.read("algorithms")
    starpo = recipe.run_arguments("starpo-s", 0)
    assert (starpo.questions_per_update, starpo.group_size, starpo.filter) == (8, 16, "uncertain")
    assert recipe.run_arguments("reinforce++-baseline", 0).baseline == "group"
    paper = recipe.run_arguments("grpo-paper", 0)
    assert (paper.scale_by_std, paper.normalize, paper.clip_high) == (True, "sequences", 0.2)
    assert recipe.budget == "grpo"
    assert recipe.tasks["3 hops"].env_kwargs == {"types": ["chain"], "hops": 3}


@pytest.mark.parametrize("name", ["masks", "one-step-off-policy", "echo-trap", "rewards"])
def test_embedded_comparisons_have_the_task_and_columns_of_the_algorithms(name):
    """So a finished run of one is a run of the other, where its arguments are the same."""
    algorithms, recipe = recipe_file.read("algorithms"), recipe_file.read(name)
    assert (recipe.env, recipe.tasks, recipe.questions) == (algorithms.env, algorithms.tasks, algorithms.questions)
    if name in ("masks", "one-step-off-policy"):
        assert recipe.run_arguments("grpo", 1) == algorithms.run_arguments("grpo", 1)


def test_columns_after_a_mixture_have_what_its_tasks_share():
    recipe = recipe_file.read("agent-r1", env_kwargs={"index": "elsewhere"})
    assert recipe.tasks["MuSiQue"].env == "AgentR1/MuSiQue-v0"
    assert recipe.tasks["MuSiQue"].env_kwargs["index"] == "elsewhere"
    assert "tasks" in recipe.env_kwargs
    assert not any("tasks" in task.env_kwargs for task in recipe.tasks.values())


def test_arguments_of_a_run(small):
    recipe = recipe_file.read(small())
    a, b = (recipe.run_arguments(name, 1) for name in "ab")
    assert (a.updates, a.eval_questions, a.final_questions, a.seed) == (4, 7, 7, 1)
    assert (a.questions_per_update, a.group_size) == (16, 8)
    assert json.loads(a.env_kwargs) == {"hops": [2, 3], "entities": 300}
    assert isinstance(b, ppo.Args)
    assert (b.updates, b.lr, b.critic_lr) == (6, 1.0, 1e-4)
    assert isinstance(b.lr, float)
    assert (b.questions_per_update, b.group_size) == (4, 32)
    assert json.loads(b.env_kwargs) == {"hops": [2, 3], "entities": 300, "rewards": "search_r1"}
    assert (recipe.runs["a"].title, recipe.title_of("b"), recipe.reference) == ("a", "B", ["a"])
    assert recipe.base(3).seed == 3
    assert recipe.tasks["4 hops"].env_kwargs == {"hops": 4, "entities": 300}


def test_the_command_line_goes_over_the_recipe_and_under_a_run(small):
    changes = {"env_kwargs": {"entities": 90, "hops": 2}, "arguments": {"lr": 0.1, "eval_every": 3}}
    recipe = recipe_file.read(small(), seeds=(5,), updates=9, questions=3, **changes)
    assert (recipe.seeds, recipe.questions) == ([5], 3)
    a, b = (recipe.run_arguments(name, 5) for name in "ab")
    assert (a.lr, a.eval_every, a.updates) == (0.1, 3, 9)
    assert (b.lr, b.eval_every, b.updates) == (1.0, 3, 9)
    assert recipe.tasks["4 hops"].env_kwargs == {"hops": 4, "entities": 90}
    fewer = recipe_file.read(small(), runs=("b",))
    assert (list(fewer.runs), fewer.reference, fewer.reach) == (["b"], [], "")
    assert list(recipe_file.read(small(), runs=("a",)).runs) == ["a"]  # though no other run has a critic_lr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "T"', 'titel = "T"', "unknown keys.*titel.*known.*title"),
        ('title = "T"', "", "needs a title"),
        ("updates = 4", "updatez = 4", "unknown keys.*updatez.*known.*updates"),
        ("updates = 4", "seed = 4", "unknown keys.*seed"),
        ("updates = 4", 'updates = "4"', "updates must be of type int, got '4'"),
        ("updates = 4", "updates = 0", "run 'a' of the recipe 'small': updates must be at least 1"),
        ("\nlr = 1", "\nlearning = 1", "run 'b'.*unknown keys.*learning.*known.*critic_lr"),
        ("\nlr = 1", '\nout = "x"', "unknown keys.*out"),
        ('algorithm = "ppo"', 'algorithm = "dpo"', "algorithm must be one of.*got 'dpo'"),
        ("larger_groups = 4", "larger_groups = 5", "can't be cut to 1/5"),
        ("larger_groups = 4", "larger_groups = 0", "larger_groups must be at least 1"),
        ("larger_groups = 4", "larger_groups = 1.5", "run 'b'.*larger_groups must be a whole number, got 1.5"),
        ("larger_groups = 4", "title = 3", "not valid TOML"),
        ('env_kwargs = { rewards = "search_r1" }', 'env_kwargs = "{}"', "env_kwargs must be a table"),
        ('title = "T"', "title = 3", "title must be a text, got 3"),
        ("[runs.b]", "[runs]\nb = 3\n[tasks.c]", "run 'b' of the recipe 'small' must be a table"),
        ("[runs.b]", "[[runs.b]]", "run 'b' of the recipe 'small' must be a table"),
        ("seeds = [0, 1]", "seeds = []", "seeds must be different whole numbers"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "seeds must be different whole numbers"),
        ("seeds = [0, 1]", "seeds = [true, 1]", "seeds must be different whole numbers"),
        ("seeds = [0, 1]", "seeds = [0, -1]", "seeds must be different whole numbers from 0 on"),
        ("seeds = [0, 1]", 'baselines = ["base", "base"]', "baselines names one twice"),
        ('reference = "a"', 'reference = ["a", "a"]', "reference names one twice"),
        ("updates = 4", 'log = ["nowhere"]', "unknown log sinks.*nowhere"),
        ('title = "B"', 'title = "B | C"', r"must fit a cell of a table.*B \| C"),
        ('[tasks."4 hops"]', '[tasks."4 | hops"]', r"must fit a cell of a table.*4 \| hops"),
        ("\nlr = 1", '\nmodel = "my/folder"', "run 'b'.*model.*one start for each seed"),
        ("\nlr = 1", '\ndtype = "bfloat16"', "run 'b'.*dtype.*one start for each seed"),
        ("\nlr = 1", "\ncold_start_steps = 9", "run 'b'.*cold_start_steps.*one start for each seed"),
        ("\nlr = 1", "\neval_questions = 9", "run 'b'.*eval_questions.*the same for all runs"),
        ("\nlr = 1", "\nfinal_questions = 9", "run 'b'.*final_questions.*the same for all runs"),
        ("seeds = [0, 1]", "seeds = 3", "seeds must be a list, got 3"),
        ("seeds = [0, 1]", 'baselines = ["oracle"]', "unknown baselines.*known.*naive-rag"),
        ('reference = "a"', 'reference = "c"', "reference must be one of"),
        ('reach = "a"', 'reach = "base"', "reach must be one of"),
        ('title = "B"', 'title = "a"', "same title"),
        ('title = "B"', 'title = "Naive RAG"', "same title"),
        ("[runs.a]", '[runs."../a"]', "names a folder"),
        ("[runs.a]", "[runs.base]", "names a folder"),
        ("env_kwargs = { hops = 4 }", "hops = 4", "unknown keys.*hops.*known.*env_kwargs"),
        ("[tasks.", "[[tasks.", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe(small, old, new, said):
    assert old in SMALL
    with pytest.raises(ValueError, match=said):
        recipe_file.read(small(SMALL.replace(old, new)))


def test_a_preset_keeps_the_shape_of_its_batch(small):
    """StarPO's 8 x 16, but for what the recipe names."""
    text = SMALL.replace('"ppo"', '"starpo-s"').replace("larger_groups = 4\n", "")

    def shape(text, **arguments):
        args = recipe_file.read(small(text), arguments=arguments).run_arguments("b", 0)
        return args.questions_per_update, args.group_size

    assert shape(text) == (8, 16)
    assert shape(text, group_size=4) == (8, 4)
    assert shape(text, questions_per_update=16, group_size=8) == (16, 8)
    assert shape(text.replace("lr = 1\n", "lr = 1\nlarger_groups = 2\n")) == (4, 32)
    assert recipe_file.read(small(text)).run_arguments("a", 0).group_size == 8


def test_no_such_recipe_or_run(small):
    with pytest.raises(ValueError, match=r"no recipe 'best'.*'algorithms'"):
        recipe_file.read("best")
    with pytest.raises(ValueError, match=r"no runs \['z'\].*\['a', 'b', 'naive-rag', 'base', 'imitation'\]"):
        recipe_file.read(small(), runs=("z",))


def test_two_spellings_of_the_same_settings_are_no_difference(small):
    args = recipe_file.read(small()).run_arguments("b", 0)
    saved = settings(args)
    assert find_differences(saved, args) == {}
    assert (
        find_differences(saved | {"env_kwargs": '{"rewards": "search_r1","hops":[2,3], "entities": 300}'}, args) == {}
    )
    args.value_clip = 0.3
    assert find_differences(saved, args) == {"value_clip": (0.2, 0.3)}


def test_settings_of_another_algorithm(small):
    """They may lack each other's options, which must not count as having their defaults then."""
    recipe = recipe_file.read(
        small(SMALL.replace('algorithm = "ppo"', 'algorithm = "rloo"').replace("critic_lr", "lr"))
    )
    grpo, rloo = recipe.run_arguments("a", 0), recipe.run_arguments("b", 0)
    assert find_differences(settings(rloo), grpo)["algorithm"] == ("rloo", "grpo")
    assert find_differences(settings(grpo), rloo)["algorithm"] == ("grpo", "rloo")


AFTER_SFT = """
title = "T"
baselines = ["yes", "naive-rag", "zero-shot", "sft", "more-sft"]
seeds = [0, 1, 2]
budget = "a"
pooled = ["As in training"]
[own_seeds]
a = [0, 2]
more-sft = [2]
[sft]
script = "oracle"
lora_rank = 4
lr = 1
[arguments]
model = "some/model"
dtype = "bfloat16"
lora_rank = 8
lora_alpha = 16
[tasks."As in training"]
[runs.a]
algorithm = "grpo"
"""


def test_runs_after_sft_train_its_adapter_further(small):
    recipe = recipe_file.read(small(AFTER_SFT))
    args = recipe.sft_arguments(2)
    assert (args.model, args.dtype, args.lora_rank, args.lora_alpha, args.seed) == ("some/model", "bfloat16", 4, 16, 2)
    assert (args.script, args.lr) == (("oracle",), 1.0)
    assert recipe.sft_arguments(2, max_seconds=3.0).max_seconds == 3.0
    demonstrated = AFTER_SFT.replace(
        "lr = 1\n", "lr = 1\nenv_kwargs = { part = '1/2' }\n[rejection_sampling]\nlr = 0.5\n"
    )
    other = recipe_file.read(small(demonstrated))
    parts = [other.sft_arguments(2), other.sft_arguments(2, sampled=True)]
    assert [(args.lr, json.loads(args.env_kwargs).get("part")) for args in parts] == [(1.0, "1/2"), (0.5, None)]
    with pytest.raises(ValueError, match=r"\[sft\].*env_kwargs must be a table, got 'x'"):
        recipe_file.read(small(AFTER_SFT.replace("lr = 1\n", "env_kwargs = 'x'\n")))
    warm = recipe_file.read(small(AFTER_SFT.replace("lora_rank = 8\n", "lora_rank = 8\ntemperature = 0.6\n")))
    temperatures = [warm.run_arguments("a", 0).temperature, warm.sft_arguments(0, sampled=True).temperature]
    assert temperatures == [0.6, 0.6]  # rejection sampling samples as the runs do
    assert (recipe.rounds, recipe_file.read(small(AFTER_SFT + "[rejection_sampling]\nrounds = 3\n")).rounds) == (2, 3)
    for wrong, said in {"0": "must be at least 1, got 0", "2.5": "must be a whole number, got 2.5"}.items():
        with pytest.raises(ValueError, match=rf"rejection_sampling.*{said}"):
            recipe_file.read(small(AFTER_SFT + f"[rejection_sampling]\nrounds = {wrong}\n"))
    assert recipe_file.read(small(AFTER_SFT + "[rejection_sampling]\nsampling = 0.8\n")).sampling == 0.8
    with pytest.raises(ValueError, match=r"sampling of .* must be between 0 and 1"):
        recipe_file.read(small(AFTER_SFT + "[rejection_sampling]\nsampling = 1.0\n"))
    run = recipe.run_arguments("a", 2, "out/sft-2/checkpoint-9")
    assert (run.model, run.lora_rank, run.dtype) == ("out/sft-2/checkpoint-9", 0, "bfloat16")
    whole = recipe_file.read(small(AFTER_SFT.replace("lora_rank = 4", "lora_rank = 0")))
    assert whole.run_arguments("a", 2, "out/sft-2/checkpoint-9").lora_rank == 8


def test_a_comparison_may_be_moved_with_its_start(small, tmp_path):
    recipe = recipe_file.read(small(AFTER_SFT))
    start = tmp_path / "here" / "sft-0" / "best"
    start.mkdir(parents=True)
    saved = settings(recipe.run_arguments("a", 0, str(start)))
    (tmp_path / "here").rename(tmp_path / "there")
    assert not find_differences(saved, recipe.run_arguments("a", 0, str(tmp_path / "there" / "sft-0" / "best")))
    other = tmp_path / "there" / "sft-1" / "best"
    other.mkdir(parents=True)
    assert list(find_differences(saved, recipe.run_arguments("a", 0, str(other)))) == ["model"]
    start.mkdir(parents=True)  # what is there still is another one
    moved = recipe.run_arguments("a", 0, str(tmp_path / "there" / "sft-0" / "best"))
    assert list(find_differences(saved, moved)) == ["model"]


def test_baselines_train_as_long_whatever_runs_come_later(small, tmp_path, monkeypatch):
    recipe = recipe_file.read(small(AFTER_SFT.replace('budget = "a"', "") + '[runs.b]\nalgorithm = "ppo"\n'))
    took = {"a": 6.0, "b": 9.0}
    monkeypatch.setattr(Comparison, "train_run", lambda self, name, seed: {"seconds": took[name]})
    (looking, making) = (Comparison(recipe, tmp_path / "out", True, read_only) for read_only in (True, False))
    with pytest.raises(NotThere):
        making.budget(0)

    def finish(name):
        (tmp_path / "out" / f"{name}-0").mkdir(parents=True)
        (tmp_path / "out" / f"{name}-0" / "summary.json").touch()

    finish("a")
    assert (looking.budget(0), making.budget(0)) == (6.0, 6.0)
    finish("b")
    assert (looking.budget(0), making.budget(0)) == (6.0, 6.0)


def test_the_base_that_a_recipe_names_is_that_of_its_runs(small, tmp_path, monkeypatch):
    recipe = recipe_file.read(
        small(SMALL.replace("updates = 4", 'updates = 4\nmodel = "adapter"\nbase_model = "base.gguf"'))
    )

    class Trained(Exception):
        pass

    def train(args):
        raise Trained(args.model, args.base_model)

    monkeypatch.setitem(agents.ALGORITHMS, "grpo", (train, agents.ALGORITHMS["grpo"][1]))
    with pytest.raises(Trained, match=r"adapter.*base\.gguf"):
        Comparison(recipe, tmp_path / "out", True, False).train_run("a", 0)


def test_seeds_of_their_own(small):
    recipe = recipe_file.read(small(AFTER_SFT))
    assert {name: recipe.seeds_of(name) for name in ("a", *recipe.baselines)} == {
        "a": [0, 2], "yes": [None], "naive-rag": [None], "zero-shot": [None], "sft": [0, 1, 2], "more-sft": [2]
    }  # fmt: skip
    part = recipe_file.read(small(AFTER_SFT), seeds=(0, 1), runs=("a", "more-sft", "yes"))
    assert (list(part.runs), part.baselines) == (["a"], ["yes", "more-sft"])
    assert [part.seeds_of(name) for name in ("a", "more-sft", "yes")] == [[0], [], [None]]
    assert recipe_file.read(small()).seeds_of("naive-rag") == [0, 1]  # after the cold start of a seed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('[sft]\nscript = "oracle"\nlora_rank = 4\nlr = 1\n', "", r"baselines \['zero-shot', 'sft', 'more-sft'\] need \[sft\]"),
        ('script = "oracle"', 'skript = "oracle"', r"\[sft\].*unknown keys.*skript.*known.*script"),
        ('script = "oracle"', 'out = "x"', r"\[sft\].*unknown keys.*out"),
        ("lr = 1\n", "lr = 0\n", r"\[sft\] of the recipe 'small': lr must be above 0"),
        ('["yes", ', '["base", ', r"with \[sft\] the baselines are .* in place of \['base'\]"),
        ('model = "some/model"\ndtype = "bfloat16"\nlora_rank = 8\n', "", r"lora_rank are for pretrained"),
        ("a = [0, 2]", "b = [0, 2]", "own_seeds must be of.*got 'b'"),
        ("a = [0, 2]", "a = [0, 0]", "own_seeds of a must be a list of different"),
        ("a = [0, 2]", "a = [7]", r"own_seeds of a must be among the seeds, \[0, 1, 2\], got \[7\]"),
        ('pooled = ["As in training"]', 'pooled = ["Elsewhere"]', "pooled must be columns.*got.*Elsewhere"),
        ('budget = "a"', 'budget = "sft"', "budget must be one of"),
        ('budget = "a"', 'budget = "a"\nbudget_seconds = 60', "give budget, or budget_seconds"),
        ('budget = "a"', "budget_seconds = -1", "give budget, or budget_seconds of at least 1"),
        ('budget = "a"', "budget_seconds = 0.5", "budget_seconds must be a whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe_of_sft(small, old, new, said):
    assert old in AFTER_SFT
    with pytest.raises(ValueError, match=said):
        recipe_file.read(small(AFTER_SFT.replace(old, new)))


def test_rejection_sampling_of_a_pretrained_model_needs_sft(small):
    text = AFTER_SFT.replace('[sft]\nscript = "oracle"\nlora_rank = 4\nlr = 1\n', "").replace("more-sft = [2]\n", "")
    text = text.replace('"zero-shot", "sft", "more-sft"', '"rejection-sampling"')
    with pytest.raises(ValueError, match=r"baselines \['rejection-sampling'\] need \[sft\]"):
        recipe_file.read(small(text))
    pretrained = 'model = "some/model"\ndtype = "bfloat16"\nlora_rank = 8\nlora_alpha = 16\n'
    tiny = small(text.replace(pretrained, ""))
    assert recipe_file.read(tiny).baselines == ["yes", "naive-rag", "rejection-sampling"]
    with pytest.warns(UserWarning, match=r"needs \[sft\] in the recipe: it is left out"):
        assert recipe_file.read(tiny, arguments={"model": "some/model"}).baselines == ["yes", "naive-rag"]
