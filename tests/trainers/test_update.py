"""What an update does where there is nothing to learn, and what it measures; `test_reference_update` has its gradients."""

import copy

import numpy as np
import pytest
import torch

from trainers import gigpo, grpo, ppo, reinforce, rloo
from trainers.algorithms.losses import kl_k3
from trainers.models.kl_reference import KLPenalty
from trainers.trajectory import collate


@pytest.fixture
def played(make_policy, roll_out):
    """Six episodes in three groups; the middle group has nothing to choose between."""
    policy, texts = make_policy("bytes"), [["a", "b"], ["a"], ["c", "d"], ["c"], ["e"], ["e", "f", "g"]]
    return policy, roll_out(policy, texts, [[1.0, 0.0], [0.0], [0.5, 0.5], [1.0], [0.0], [0.0, 1.0, 1.0]])


def update(policy, episodes, module=grpo, penalty=None, **arguments):
    """How far an update by plain gradient descent moves the weights of the policy and the critic, and its metrics."""
    args, policy = module.Args(**{"max_grad_norm": 1e9, "lr": 0.1, **arguments}), copy.deepcopy(policy)
    critic = ppo.Critic(policy) if module is ppo else None
    parameters = [p for model in (policy.model, critic) if model for p in model.parameters()]
    before = flatten(parameters)
    optimizer, rng = torch.optim.SGD(parameters, lr=args.lr), np.random.default_rng(0)
    if critic:
        metrics = ppo.update(args, policy, critic, optimizer, penalty, episodes, rng)
    else:
        metrics = grpo.update(args, policy, optimizer, penalty, module.compute_advantages, episodes, rng)
    assert all(p.grad is None for p in parameters), "gradients leave their memory to rollouts"
    return flatten(parameters) - before, metrics


def flatten(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


def pay(episodes, reward):
    for step in (step for episode in episodes for step in episode.steps):
        step.reward = reward


@pytest.mark.parametrize("module", [grpo, rloo, reinforce, gigpo, ppo])
def test_a_batch_that_failed_altogether(played, module):
    policy, episodes = played
    for episode in episodes:
        episode.failed = True
    moved, metrics = update(policy, episodes, module)
    assert not moved.any() and metrics["policy/grad_norm"] == 0


@pytest.mark.parametrize("name", ["none", "mixed", "uncertain", "signal"])
def test_equal_returns_move_nothing(played, name):
    policy, episodes = played
    pay(episodes, 0.0)
    moved, metrics = update(policy, episodes, filter=name)
    assert not moved.any()
    if name == "none":
        assert metrics["policy/grad_norm"] == 0
    else:
        assert metrics["filter/kept"] == 0 and "policy/grad_norm" not in metrics


def test_a_filter_goes_by_the_raw_returns(played):
    """Punished for their length alone, the attempts differ; but there is nothing to learn about the task."""
    policy, episodes = played
    pay(episodes, 0.0)
    _, metrics = update(policy, episodes, filter="mixed", overlong_buffer=4, max_new_tokens=6)
    assert metrics["filter/kept"] == 0
    assert not any(step.reward for episode in episodes for step in episode.steps)  # the record of what was paid


def test_a_filter_by_outcome_ignores_what_shaping_adds(played):
    policy, episodes = played
    for number, episode in enumerate(episodes):
        episode.score = 0.0
        episode.steps[-1].reward += 0.01 * number
    assert update(policy, episodes, filter="outcome")[1]["filter/kept"] == 0
    first = [episode for episode in episodes if episode.group == episodes[0].group]
    first[0].score = 1.0
    assert update(policy, episodes, filter="outcome")[1]["filter/kept"] == len(first) / len(episodes)


def test_a_gradient_that_is_not_finite_is_reported_and_not_followed(played):
    policy, episodes = played
    episodes[1].steps[0].reward = -1e30  # finite, and the square of its gradient is not
    moved, metrics = update(policy, episodes)
    assert not moved.any() and not np.isfinite(metrics["policy/grad_norm"])


@pytest.mark.parametrize("filter", ["none", "mixed"])
def test_a_reward_that_is_no_finite_number_is_an_error(played, filter):
    policy, episodes = played
    episodes[0].steps[0].reward = None
    with pytest.raises(ValueError, match="must be a number, got None"):
        update(policy, episodes, filter=filter)
    episodes[0].steps[0].reward = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        update(policy, episodes, filter=filter)
    episodes[0].failed = True
    update(policy, episodes, filter=filter)


@pytest.mark.parametrize("parts", [{}, {"minibatches": 50}, {"max_tokens_per_micro_batch": 1}])
def test_metrics_are_means_over_what_was_trained_on(played, parts):
    """However it is cut, and also into more parts than there are; entropy must not seem to fall because groups are flat."""
    policy, episodes = played
    moved, metrics = update(policy, episodes, lr=1e-6, **parts)
    batch = collate(episodes, policy.pad_id)
    kept = torch.isin(batch.trajectory, torch.tensor([0, 1, 4, 5]))
    with torch.no_grad():
        _, entropy = policy.logprobs(batch)
    assert metrics["policy/entropy"] == pytest.approx(entropy[kept][batch.mask[kept]].mean().item(), abs=1e-4)
    assert metrics["policy/sampler_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["policy/clip_fraction"] == 0
    if "minibatches" not in parts:
        moved, metrics = update(policy, episodes, **parts)
        assert metrics["policy/grad_norm"] == pytest.approx(moved.norm().item() / 0.1, rel=1e-3)


@pytest.mark.parametrize("module", [grpo, ppo])
def test_what_is_measured_of_a_sampler_that_disagrees(played, module):
    """Against the policy at the temperature of the rollouts; corrected for, nothing is clipped."""
    policy, episodes = played
    episodes[3].steps[0].reward = 2.0
    for step in (step for episode in episodes for step in episode.steps):
        step.logprobs = [value + 0.5 * (-1) ** t for t, value in enumerate(step.logprobs)]
    _, metrics = update(policy, episodes, module)
    assert metrics["policy/clip_fraction"] == 1.0  # e**-.5 and e**.5 lie outside .8 and 1.28
    assert "policy/importance" not in metrics
    _, metrics = update(policy, episodes, module, importance="tis", temperature=0.7)
    batch = collate(episodes, policy.pad_id)
    own = policy.logprobs(batch, 0.7)[0].detach()
    weights = torch.exp(own - batch.old_logprobs).clamp(max=2.0)[batch.mask]
    assert metrics["policy/importance"] == pytest.approx(weights.mean().item(), rel=1e-4)
    kl = kl_k3(batch.old_logprobs, own)[batch.mask].mean().item()
    assert metrics["policy/sampler_kl"] == pytest.approx(kl, rel=1e-4)
    assert metrics["policy/clip_fraction"] == 0


def test_the_kl_is_measured_on_valid_episodes_at_the_temperature_of_the_rollouts(played, make_policy):
    policy, episodes = played
    reference, args = make_policy("bytes", 1), dict(kl_coef=0.1, temperature=0.7)
    episodes[1].failed = episodes[2].failed = True
    _, metrics = update(policy, episodes, penalty=KLPenalty(reference, grpo.Args(**args)), **args)
    batch = collate([episodes[0], *episodes[3:]], policy.pad_id)
    of_reference = reference.logprobs(batch, 0.7)[0].detach()
    expected = kl_k3(batch.old_logprobs, of_reference)[batch.mask].mean().item()
    assert metrics["policy/kl"] == pytest.approx(expected, rel=1e-4)
