"""The arguments of the surrogate: what each has by default, and what is none of its own."""

import dataclasses

import pytest

from trainers import evaluate, grpo, ppo, reinforce, rloo


def test_each_surrogate_has_its_own_range_and_mean():
    assert (grpo.Args().clip_range, grpo.Args().mean_over) == ((0.2, 0.28), "tokens")
    gspo = grpo.Args(loss="gspo")
    assert (gspo.clip_range, gspo.mean_over) == ((3e-4, 4e-4), "sequences")
    assert grpo.Args(loss="gspo", clip_high=1e-3).clip_range == (3e-4, 1e-3)
    assert dataclasses.replace(grpo.Args(), loss="gspo").clip_range == gspo.clip_range
    assert grpo.Args(normalize="sequences").mean_over == "sequences"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(loss="gspo", normalize="tokens"), "mean over sequences"),
        (dict(loss="cispo", dual_clip=3.0), "dual_clip is for loss 'clip'"),
        (dict(dual_clip=0.5), "dual_clip must be above 1"),
        (dict(loss="gspo", engine="vllm"), "give importance 'tis' too"),
        (dict(loss="gspo", model="some/model", dtype="bfloat16"), "give importance 'tis' too"),
        (dict(clip_low=1.5), "clip_low must be in"),
        (dict(warmup=2.0), "warmup must be in"),
        (dict(schedule="poly"), "schedule must be one of"),
    ],
)
def test_what_is_none_of_a_surrogate_s_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        grpo.Args(**arguments)


@pytest.mark.parametrize(
    "arguments", [dict(bi_level=True, turn_level=True), dict(turn_level=True, advantage_mask=False)]
)
def test_two_ways_to_see_turns_are_refused(arguments):
    with pytest.raises(ValueError, match="turn_level"):
        ppo.Args(**arguments)


@pytest.mark.parametrize(
    ("make", "unused", "used"),
    [
        (grpo.Args, dict(kl="k1"), dict(kl_coef=0.1)),
        (grpo.Args, dict(selection_eps=0.1), dict(filter="signal")),
        (grpo.Args, dict(turn_gamma=0.5), dict(turn_credit=True)),
        (rloo.Args, dict(turn_gamma=0.5), dict(turn_credit=True)),
        (reinforce.Args, dict(turn_gamma=0.5), dict(turn_credit=True, baseline="group")),
        (ppo.Args, dict(turn_gamma=0.5), dict(turn_level=True)),
        (ppo.Args, dict(turn_lam=0.5), dict(bi_level=True)),
        (ppo.Args, dict(turn_level=True, lam=0.5), dict(turn_level=False)),
        (grpo.Args, dict(model="some/model", cold_start_steps=7), dict(model="tiny")),
        (grpo.Args, dict(model="some/model", cold_start_skill=0.1), dict(model="tiny")),
        (grpo.Args, dict(model="some/model", cold_start_env_kwargs='{"k": 2}'), dict(model="tiny")),
        (evaluate.Args, dict(concurrency=3), dict(api="http://127.0.0.1:9/v1", model="small")),
    ],
)
def test_what_makes_no_difference_is_refused(make, unused, used):
    """Who asks for the k1 estimator without a coefficient believes that there is a penalty."""
    *_, name = unused
    with pytest.raises(ValueError, match=f"{name} makes no difference"):
        make(**unused)
    make(**unused | used)
