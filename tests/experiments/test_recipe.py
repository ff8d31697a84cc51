import json

import pytest

from experiments import recipe_file
from experiments.recipes import list_shipped
from trainers import ppo
from trainers.checkpoints.settings import find_differences, settings

SMALL = """
title = "T"
seeds = [0, 1]
reference = ["a"]
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
max_seconds = 100.0
lr = 1
questions_per_update = 4
group_size = 32
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


@pytest.mark.parametrize("name", list_shipped())
def test_all_runs_of_a_recipe_play_as_many_episodes(name):
    recipe = recipe_file.read(name)
    made = [recipe.run_arguments(run, 7) for run in recipe.runs]
    assert len({args.updates * args.questions_per_update * args.group_size for args in made}) == 1
    assert {args.seed for args in made} == {7}
    assert recipe.question.endswith("?")


def test_arguments_of_a_run(small):
    recipe = recipe_file.read(small())
    a, b = (recipe.run_arguments(name, 1) for name in "ab")
    assert (a.updates, a.eval_questions, a.final_questions, a.seed) == (4, 7, 7, 1)
    assert (a.questions_per_update, a.group_size) == (16, 8)
    assert json.loads(a.env_kwargs) == {"hops": [2, 3], "entities": 300}
    assert isinstance(b, ppo.Args)
    assert (b.updates, b.lr, b.critic_lr) == (6, 1.0, 1e-4)
    assert (b.questions_per_update, b.group_size) == (4, 32)
    assert json.loads(b.env_kwargs) == {"hops": [2, 3], "entities": 300, "rewards": "search_r1"}
    assert (recipe.runs["a"].title, recipe.title_of("b"), recipe.reference) == ("a", "B", ["a"])
    assert recipe.base(3).seed == 3
    assert recipe.tasks["4 hops"].env_kwargs == {"hops": 4, "entities": 300}


def test_the_command_line_goes_over_the_recipe_and_under_a_run(small):
    changes = {"env_kwargs": {"entities": 90, "hops": 2}, "arguments": {"lr": 0.1, "eval_every": 3}}
    recipe = recipe_file.read(small(), seeds=(5,), updates=9, seconds=7, questions=3, **changes)
    assert (recipe.seeds, recipe.questions) == ([0, 1, 5], 3)
    a, b = (recipe.run_arguments(name, 5) for name in "ab")
    assert (a.lr, a.eval_every, a.updates, a.max_seconds) == (0.1, 3, 9, 7.0)
    assert (b.lr, b.eval_every, b.updates, b.max_seconds) == (1.0, 3, 9, 7.0)
    assert recipe.tasks["4 hops"].env_kwargs == {"hops": 4, "entities": 90}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "T"', 'titel = "T"', "unknown keys.*titel.*known.*title"),
        ('title = "T"', "", "needs a title"),
        ("updates = 4", "updatez = 4", "unknown keys.*updatez.*known.*updates"),
        ("updates = 4", "seed = 4", "unknown keys.*seed"),
        ("updates = 4", 'updates = "4"', "updates must be an integer, got '4'"),
        ("updates = 4", "updates = 0", "run 'a' of the recipe 'small': updates must be at least 1"),
        ("\nlr = 1", "\nlearning = 1", "run 'b'.*unknown keys.*learning.*known.*critic_lr"),
        ('algorithm = "ppo"', 'algorithm = "dpo"', "algorithm must be one of.*got 'dpo'"),
        ('env_kwargs = { rewards = "search_r1" }', 'env_kwargs = "{}"', "env_kwargs must be dict"),
        ('title = "T"', "title = 3", "title must be a string, got 3"),
        ("[runs.b]", "[runs]\nb = 3\n[tasks.c]", "run 'b' of the recipe 'small' must be dict"),
        ("seeds = [0, 1]", "seeds = [0, -1]", "seeds must be different integers of at least 0"),
        ("seeds = [0, 1]", 'baselines = ["base", "base"]', "baselines names one twice"),
        ("\nlr = 1", '\nmodel = "my/folder"', "run 'b'.*model.*one start for each seed"),
        ("\nlr = 1", "\neval_questions = 9", "run 'b'.*eval_questions.*the same for all runs"),
        ("seeds = [0, 1]", "seeds = 3", "seeds must be list, got 3"),
        ("seeds = [0, 1]", 'naive_rag_of = ["base"]', "naive_rag_of must be of .*got .*base"),
        ("seeds = [0, 1]", 'baselines = ["oracle"]', "baselines must be of .*naive-rag.*got .*oracle"),
        ("seeds = [0, 1]", 'baselines = ["imitation"]', r"\['imitation'\] train at equal compute: name a run"),
        ('reference = ["a"]', 'reference = ["c"]', "reference must be of"),
        ('title = "B"', 'title = "Naive RAG"', "same title"),
        ("[runs.a]", '[runs."../a"]', "names a folder"),
        ("env_kwargs = { hops = 4 }", "hops = 4", "unknown keys.*hops.*known.*env_kwargs"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe(small, old, new, said):
    assert old in SMALL
    with pytest.raises(ValueError, match=said):
        recipe_file.read(small(SMALL.replace(old, new)))


AFTER_SFT = """
title = "T"
baselines = ["constant", "naive-rag", "zero-shot", "sft", "more-sft"]
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
[tasks."As in training"]
[runs.a]
algorithm = "grpo"
[arguments]
model = "some/model"
dtype = "bfloat16"
lora_rank = 8
lora_alpha = 16
"""


def test_arguments_of_fine_tuning_and_of_rejection_sampling(small):
    args = recipe_file.read(small(AFTER_SFT)).sft_arguments(2)
    assert (args.model, args.dtype, args.lora_rank, args.lora_alpha, args.seed) == ("some/model", "bfloat16", 4, 16, 2)
    assert (args.script, args.lr) == (("oracle",), 1.0)
    more = "lr = 1\n[rejection_sampling]\nlr = 0.5\n"
    recipe = recipe_file.read(small(AFTER_SFT.replace("lr = 1\n", more) + "temperature = 0.6\n"))
    parts = [recipe.sft_arguments(2), recipe.sft_arguments(2, sampled=True)]
    assert [args.lr for args in parts] == [1.0, 0.5]
    assert recipe.run_arguments("a", 0).temperature == parts[1].temperature == 0.6  # it samples as the runs do


def test_a_comparison_may_be_moved_with_its_start(small, tmp_path):
    recipe = recipe_file.read(small(AFTER_SFT))
    start = tmp_path / "here" / "sft-0" / "best"
    start.mkdir(parents=True)
    saved = settings(recipe.run_arguments("a", 0, model=str(start)))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = recipe.run_arguments("a", 0, model=str(tmp_path / "there" / "sft-0" / "best"))
    assert not find_differences(saved, moved)
    other = tmp_path / "there" / "sft-1" / "best"
    other.mkdir(parents=True)
    assert list(find_differences(saved, recipe.run_arguments("a", 0, model=str(other)))) == ["model"]
    start.mkdir(parents=True)  # what is there still is another one
    assert list(find_differences(saved, moved)) == ["model"]


def test_seeds_of_their_own(small):
    recipe = recipe_file.read(small(AFTER_SFT))
    assert {name: recipe.seeds_of(name) for name in ("a", *recipe.baselines)} == {
        "a": [0, 2], "constant": [None], "naive-rag": [None], "zero-shot": [None], "sft": [0, 1, 2], "more-sft": [2]
    }  # fmt: skip
    assert recipe_file.read(small()).seeds_of("naive-rag") == [0, 1]  # after the cold start of a seed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('[sft]\nscript = "oracle"\nlora_rank = 4\nlr = 1\n', "", r"baselines \['zero-shot', 'sft', 'more-sft'\] need \[sft\]"),
        ('script = "oracle"', 'skript = "oracle"', r"\[sft\].*unknown keys.*skript.*known.*script"),
        ("lr = 1\n", "lr = 0\n", r"\[sft\] of the recipe 'small': lr must be above 0"),
        ("[arguments]", "[rejection_sampling]\nlrr = 1\n[arguments]", r"\[rejection_sampling\].*unknown keys \['lrr'\]"),
        ('["constant", ', '["base", ', r"with \[sft\] the baselines are .* instead of \['base'\]"),
        ('model = "some/model"\ndtype = "bfloat16"\nlora_rank = 8\n', "", "lora_rank makes no difference without a pretrained"),
        ("a = [0, 2]", "b = [0, 2]", "own_seeds must be of.*got .*'b'"),
        ("a = [0, 2]", "a = [7]", r"own_seeds of a must be among the seeds, \[0, 1, 2\], got \[7\]"),
        ('pooled = ["As in training"]', 'pooled = ["Elsewhere"]', "pooled must be of.*got.*Elsewhere"),
        ('budget = "a"', 'budget = "sft"', "budget must be of"),
        ('budget = "a"', "", r"\['more-sft'\] train at equal compute: name a run as budget"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe_of_sft(small, old, new, said):
    assert old in AFTER_SFT
    with pytest.raises(ValueError, match=said):
        recipe_file.read(small(AFTER_SFT.replace(old, new)))
