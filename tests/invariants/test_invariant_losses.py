"""Our losses, run through the invariant suite."""

import math

import loss_checks as checks
import pytest
import torch

from trainers.algorithms import losses


def grpo(logprobs, old, advantages, mask, tokens, sequences):
    return losses.sequence_mean(losses.clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2), mask, sequences)


def dapo(logprobs, old, advantages, mask, tokens, sequences):
    return losses.aggregate(losses.clipped_policy_loss(logprobs, old, advantages, 0.2, 0.28), mask, tokens)


def dr_grpo(logprobs, old, advantages, mask, tokens, sequences):
    return losses.aggregate(losses.clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2), mask, sequences * 32)


def gspo(logprobs, old, advantages, mask, tokens, sequences):
    return losses.sequence_mean(losses.gspo_loss(logprobs, old, advantages, mask, 0.1, 0.1), mask, sequences)


def cispo(logprobs, old, advantages, mask, tokens, sequences):
    return losses.aggregate(losses.cispo_loss(logprobs, old, advantages, 1.0, 0.2), mask, tokens)


def with_kl(estimate):
    def loss(logprobs, old, advantages, mask, tokens, sequences):
        penalised = losses.clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2) + 0.1 * estimate(logprobs, old)
        return losses.aggregate(penalised, mask, tokens)

    return loss


LOSSES = {"GRPO": grpo, "DAPO": dapo, "Dr. GRPO": dr_grpo, "GSPO": gspo, "CISPO": cispo}
LOSSES |= {"k2 in the loss": with_kl(losses.kl_k2), "k3 in the loss": with_kl(losses.kl_k3)}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@every_loss
def test_layouts_and_micro_batches_and_empty_rows_change_nothing(loss):
    checks.check_empty_rows_change_nothing(loss)
    for seed in range(5):
        checks.check_layout_changes_nothing(loss, checks.Data(seed=seed))
        checks.check_micro_batches_change_nothing(loss, checks.Data(seed=seed))


def test_on_policy_every_loss_is_reinforce():
    for loss in (dapo, cispo, with_kl(losses.kl_k2), with_kl(losses.kl_k3)):
        checks.check_on_policy_is_reinforce(loss, checks.Data(), checks.token_weights)
    for loss in (grpo, gspo):
        checks.check_on_policy_is_reinforce(loss, checks.Data(), checks.sequence_weights)
    checks.check_on_policy_is_reinforce(dr_grpo, checks.Data(), lambda mask: mask / (32 * len(mask)))


def test_on_policy_gspo_is_grpo_with_a_mean_over_sequences():
    data = checks.Data()
    data.old = data.logprobs
    mask = data.layout()
    for a, b in zip(data.run(gspo, mask), data.run(grpo, mask), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_without_a_clip_cispo_and_ppo_have_one_gradient():
    """Off-policy too: the gradient of r A is r A grad log pi."""

    def unclipped(make):
        return lambda logprobs, old, advantages, mask, tokens, sequences: losses.aggregate(
            make(logprobs, old, advantages, math.inf, math.inf), mask, tokens
        )

    data = checks.Data()
    makers = losses.cispo_loss, losses.clipped_policy_loss
    gradients = [data.run(unclipped(make), data.layout())[1] for make in makers]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)
