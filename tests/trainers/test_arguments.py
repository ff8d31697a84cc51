"""Arguments: what the surrogates have by default, what makes no sense, and what makes no difference."""

import dataclasses

import pytest

from trainers import evaluate, gigpo, grpo, play, ppo, reinforce, rloo, serve, sft
from trainers.runtime.errors import UserError


def test_each_surrogate_has_its_own_range_and_mean():
    assert (grpo.Args().clip_range, grpo.Args().mean_over) == ((0.2, 0.28), "tokens")
    gspo = grpo.Args(loss="gspo")
    assert (gspo.clip_range, gspo.mean_over) == ((3e-4, 4e-4), "sequences")
    assert grpo.Args(loss="gspo", clip_high=1e-3).clip_range == (3e-4, 1e-3)
    assert dataclasses.replace(grpo.Args(), loss="gspo").clip_range == gspo.clip_range
    assert grpo.Args(normalize="sequences").mean_over == "sequences"


OUT_OF_RANGE = [
    (grpo, dict(updates=0, epochs=0, temperature=0.0, lr=-1.0, kl_coef=-1.0, entropy_coef=-1.0)),
    (grpo, dict(warmup=2.0, clip_low=1.5, dual_clip=0.5, top_p=0.0, min_p=-0.1)),
    (grpo, dict(loss="ppo", kl="k4", filter="best", normalize="words", importance="vtrace", schedule="poly")),
    (reinforce, dict(baseline="critic")),
    (gigpo, dict(step_gamma=1.1, step_weight=-1.0)),
    (ppo, dict(lam=2.0, gamma=1.5, turn_lam=-0.1, critic_lr=0.0, value_clip=0.0, value_coef=-1.0)),
    (sft, dict(warmup=1.5, epochs=0)),
]


@pytest.mark.parametrize(
    ("module", "name", "value"), [(module, *one) for module, values in OUT_OF_RANGE for one in values.items()]
)
def test_a_value_out_of_its_range_is_named(module, name, value):
    with pytest.raises(UserError, match=f"{name} must be .*got .*{value}"):
        module.Args(**{name: value})


WRONG = [  # what is given, and a word of what is said
    (grpo, dict(kl_target=0.1), "kl_target makes no difference without kl_coef"),
    (grpo, dict(overlong_buffer=65), "overlong_buffer must be at most max_new_tokens"),
    (grpo, dict(loss="cispo", dual_clip=3.0), "dual_clip makes no difference with loss 'cispo'"),
    (grpo, dict(loss="gspo", engine="vllm"), "give importance 'tis' too"),
    (grpo, dict(loss="gspo", model="some/model", dtype="bfloat16"), "give importance 'tis' too"),
    (grpo, dict(loss="gspo", one_step_off_policy=True), "give importance 'tis' too"),
    (
        grpo,
        dict(dynamic_sampling=3, filter="uncertain"),
        "dynamic_sampling makes no difference without filter 'mixed'",
    ),
    (grpo, dict(group_size=1), "group_size must be at least 2, got 1"),
    (rloo, dict(group_size=1), "group_size must be at least 2, got 1"),
    (gigpo, dict(group_size=1), "group_size must be at least 2, got 1"),
    (reinforce, dict(group_size=1, baseline="group"), "group_size must be at least 2, got 1"),
    (reinforce, dict(group_size=1, filter="signal"), "group_size must be at least 2, got 1"),
    (grpo, dict(top_p=0.9), "give importance"),
    (grpo, dict(process_weight=0.5, turn_credit=True), "leave out process_weight"),
    (ppo, dict(loss_mask=False), "set advantage_mask = false too"),
    (ppo, dict(gae="turns", advantage_mask=False), "finds turns by the advantage mask"),
    (sft, dict(updates=2, max_seconds=3.0), "give one"),
    (sft, dict(base_model="x"), "base_model makes no difference without a pretrained model"),
    (grpo, dict(chat_template="x"), "chat_template makes no difference without a pretrained model"),
    (grpo, dict(thinking="off"), "thinking makes no difference without a pretrained model"),
    (grpo, dict(model="some/model", thinking=64), r"thinking must be below max_new_tokens \(64\), .* got 64"),
    (sft, dict(model="some/model", thinking="128", sample=2), r"thinking must be below max_new_tokens \(128\)"),
    (evaluate, dict(model="some/model", thinking="maybe"), "auto, on, off or a number of tokens above 0, got 'maybe'"),
    (evaluate, dict(model="some/model", thinking=0), "a number of tokens above 0, got '0'"),
    (grpo, dict(updates="5"), "updates must be an integer, got '5'"),
    (grpo, dict(updates=None), "updates must be an integer, got None"),
    (grpo, dict(lr="1e-4"), "lr must be a number, got '1e-4'"),
    (grpo, dict(out=3), "out must be a path, got 3"),
    (grpo, dict(seed=True), "seed must be an integer, got True"),
    (grpo, dict(loss_mask="no"), "loss_mask must be True or False, got 'no'"),
    (evaluate, dict(env_kwargs=[1]), r"env_kwargs must be a string, got \[1\]"),
    (grpo, dict(agent_calls=5), "agent_calls makes no difference without agent"),
    (grpo, dict(vllm_kv_gib=1.0), "vllm_kv_gib makes no difference without vLLM in this process"),
    (sft, dict(lora_rank=4), "lora_rank makes no difference without a pretrained model"),
]


@pytest.mark.parametrize(("module", "arguments", "message"), WRONG)
def test_arguments_that_make_no_sense(module, arguments, message):
    with pytest.raises(UserError, match=message):
        module.Args(**arguments)


def test_a_resumed_run_may_leave_unused_what_it_used_before():
    assert grpo.Args(resume="run", engine="vllm", vllm_url="http://127.0.0.1:9", vllm_kv_gib=1.0).vllm_kv_gib == 1.0


def test_a_run_stands_for_its_best_checkpoint_or_its_latest(tmp_path, capsys):
    for folder in ("checkpoint-2", "checkpoint-10"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    assert grpo.Args(model=str(tmp_path)).model == str(tmp_path / "checkpoint-10")
    (tmp_path / "best").mkdir()
    taken = tmp_path / "best"
    assert evaluate.Args(checkpoint=tmp_path).checkpoint == (taken,)
    assert serve.Args(checkpoint=tmp_path).checkpoint == taken
    assert play.Args(checkpoint=tmp_path).checkpoint == taken
    assert f"{tmp_path} is a run: {taken} is taken, its best checkpoint" in capsys.readouterr().err
    short = tmp_path / "short"  # it ended before its first checkpoint
    (short / "best").mkdir(parents=True)
    assert evaluate.Args(checkpoint=short).checkpoint == (short,)
    (short / "best" / "SHA256SUMS").touch()
    assert evaluate.Args(checkpoint=short).checkpoint == (short / "best",)


@pytest.mark.parametrize(
    ("make", "unused", "used"),
    [
        (grpo.Args, dict(kl="k1"), dict(kl_coef=0.1)),
        (grpo.Args, dict(turn_gamma=0.5), dict(turn_credit=True)),
        (ppo.Args, dict(turn_gamma=0.5), dict(gae="turns")),
        (ppo.Args, dict(turn_lam=0.5), dict(gae="bi-level")),
        (ppo.Args, dict(gae="turns", lam=0.5), dict(gae="tokens")),
        (grpo.Args, dict(model="some/model", cold_start_steps=7), dict(model="tiny")),
        (grpo.Args, dict(model="some/model", cold_start_skill=0.1), dict(model="tiny")),
        (grpo.Args, dict(model="some/model", cold_start_env_kwargs='{"k": 2}'), dict(model="tiny")),
        (evaluate.Args, dict(concurrency=3), dict(api="http://127.0.0.1:9/v1", model="small")),
        (evaluate.Args, dict(model="some/model", agent_timeout=3.0), dict(agent="m:f")),
    ],
)
def test_what_makes_no_difference_is_refused(make, unused, used):
    """Who asks for the k1 estimator without a coefficient believes that there is a penalty."""
    *_, name = unused
    with pytest.raises(ValueError, match=f"{name} makes no difference"):
        make(**unused)
    make(**unused | used)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 3.0, "updates": 5}, "epochs makes no difference with updates or max_seconds"),
        ({"held_out": 0.0, "patience": 2}, "patience makes no difference where nothing is held out"),
        ({"messages": ("m",), "demonstrations": 5}, "demonstrations makes no difference without script or sample"),
        ({"messages": ("m",), "min_reward": 1.0}, "min_reward makes no difference to files of messages"),
        ({"tool_calls": "template"}, "tool_calls makes no difference without messages"),
        ({"keep": 2}, "keep makes no difference without sample"),
        ({"temperature": 0.5}, "temperature makes no difference without sample"),
    ],
)
def test_options_of_sft_that_make_no_difference(tmp_path, options, said):
    with pytest.raises(UserError, match=said):
        sft.Args(**options).check_inputs()
    with pytest.raises(UserError, match=r"no model folder|there is no"):  # those of a resumed run were not typed
        sft.Args(**options, resume=tmp_path, model="/no/such/model").check_inputs()
