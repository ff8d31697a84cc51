"""PPO's update and its critic, against what they should be by hand."""

import copy

import numpy as np
import pytest
import torch

from trainers import ppo
from trainers.algorithms.gae import bi_level_gae
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.critic import Critic
from trainers.models.kl_reference import KLPenalty
from trainers.models.micro_batches import remove_mask
from trainers.rollouts.rollout import rollout
from trainers.trajectory import collate, pack


@pytest.fixture
def played(make_policy, recite):
    policy = make_policy("bytes")
    envs = recite([["a", "b"], ["a"], ["c", "d", "long " * 5], ["c"]], [[1.0, 0.5], [0.0], [0.0, 0.0, 2.0], [1.0]])
    engine = TransformersEngine(policy, ("</search>",))
    return policy, rollout(envs, policy, engine, seeds=[0, 1], group_size=2, max_new_tokens=5)


def lively(policy, shared=False) -> Critic:
    """A critic with an opinion; a new one says 0 everywhere."""
    torch.manual_seed(7)
    critic = Critic(policy, shared)
    torch.nn.init.normal_(critic.head.weight, std=0.5)
    torch.nn.init.constant_(critic.head.bias, 0.3)
    return critic


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def updated(policy, critic, episodes, reference=None, **arguments):
    """What one update by plain gradient descent adds to the policy and to the critic, and its metrics."""
    args = ppo.Args(**{"max_grad_norm": 1e9, "value_clip": 1e9, **arguments})
    policy, critic = copy.deepcopy((policy, critic))
    before = flat(policy.model), flat(critic)
    groups = [{"params": list(m.parameters())} for m in (policy.model, critic)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    penalty = reference and KLPenalty(reference, args)
    metrics = ppo.update(args, policy, critic, optimizer, penalty, episodes, np.random.default_rng(0))
    return flat(policy.model) - before[0], flat(critic) - before[1], metrics


def by_hand(policy, critic, episodes, value_coef=0.5, shared=False):
    """γ = λ = 1: token by token, the advantage is the reward still to come less the critic's estimate, whitened over
    the batch; each loss is a mean over sampled tokens."""
    of_tokens = []
    for episode in episodes:
        ids = torch.tensor([episode.steps[-1].prompt + episode.steps[-1].tokens])
        logits = policy.model(ids).logits[0]
        backbone = policy.model.base_model if shared else critic.backbone
        values = critic.head(backbone(ids).last_hidden_state[0])[:, 0]
        for k, step in enumerate(episode.steps):
            to_come = sum(later.reward for later in episode.steps[k:])
            for t in range(len(step.prompt), len(step.prompt) + len(step.tokens)):
                logp = logits[t - 1].log_softmax(-1)[ids[0, t]]
                of_tokens.append((logp, values[t - 1], to_come))
    advantages = torch.tensor([to_come - value.item() for _, value, to_come in of_tokens])
    advantages = (advantages - advantages.mean()) / advantages.std()
    policy_loss = -sum(a * logp for a, (logp, *_) in zip(advantages, of_tokens, strict=True)) / len(of_tokens)
    value_loss = sum(0.5 * (value - to_come) ** 2 for _, value, to_come in of_tokens) / len(of_tokens)
    return policy_loss, value_coef * value_loss


def steps_of(loss, *modules):
    """What plain gradient descent on ``loss`` adds to each module."""

    def step(module):
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        return -0.1 * torch.cat([g.flatten() for g in gradients])

    return tuple(map(step, modules))


def test_the_gradient_of_policy_and_critic(played):
    policy, episodes = played
    critic = lively(policy)
    of_policy, of_critic, metrics = updated(policy, critic, episodes)
    policy_loss, value_loss = by_hand(policy, critic, episodes)
    expected_policy, expected_critic = steps_of(policy_loss + value_loss, policy.model, critic)
    torch.testing.assert_close(of_policy, expected_policy, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(of_critic, expected_critic, rtol=1e-3, atol=1e-5)
    assert metrics["policy/value_loss"] == pytest.approx(2 * value_loss.item(), rel=1e-4)
    assert metrics["policy/loss"] == pytest.approx(value_loss.item(), abs=1e-4)  # at ratio 1, whitened: minus 0
    assert metrics["policy/grad_norm"] == pytest.approx(expected_policy.norm().item() / 0.1, rel=1e-3)


def test_shared_layers_serve_both_losses(played, monkeypatch):
    policy, episodes = played
    critic = lively(policy, shared=True)
    assert sum(p.numel() for p in critic.parameters()) == policy.model.config.hidden_size + 1
    policy, critic = copy.deepcopy((policy, critic))  # together: the critic's copy reads with the policy's
    passes, forward = [], type(policy.model.base_model).forward
    monkeypatch.setattr(
        type(policy.model.base_model),
        "forward",
        lambda *given, **named: (passes.append(1), forward(*given, **named))[1],
    )
    of_policy, of_critic, _ = updated(policy, critic, episodes, share_layers=True, value_coef=0.7)
    assert len(passes) == 2  # values before the step, and one pass for both losses
    monkeypatch.undo()
    losses = by_hand(policy, critic, episodes, value_coef=0.7, shared=True)
    expected_policy, expected_critic = steps_of(sum(losses), policy.model, critic)
    torch.testing.assert_close(of_policy, expected_policy, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(of_critic, expected_critic, rtol=1e-3, atol=1e-5)
    apart, _ = steps_of(losses[0], policy.model, critic)
    assert not torch.allclose(of_policy, apart, atol=1e-4)


def test_a_critic_that_is_far_off_does_not_still_the_policy(played):
    """Each is clipped by its own norm."""
    policy, episodes = played
    critic = lively(policy)
    torch.nn.init.constant_(critic.head.bias, 1000.0)
    of_policy, of_critic, _ = updated(policy, critic, episodes, max_grad_norm=0.5)
    assert of_policy.norm().item() == pytest.approx(0.1 * 0.5, rel=1e-3)
    assert of_critic.norm().item() == pytest.approx(0.1 * 0.5, rel=1e-3)


def test_micro_batches_are_a_matter_of_memory_alone(played):
    policy, episodes = played
    whole = updated(policy, lively(policy), episodes, epochs=2, minibatches=2)
    parts = updated(policy, lively(policy), episodes, epochs=2, minibatches=2, max_tokens_per_micro_batch=1)
    for a, b in zip(whole[:2], parts[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert whole[2] == pytest.approx(parts[2], abs=1e-4)


def test_values_do_not_see_the_token_that_they_are_for_nor_later_ones(played):
    policy, episodes = played
    critic = lively(policy)
    batch = collate(episodes[2:3], policy.pad_id)
    with torch.no_grad():
        values = critic(batch)
        for t in batch.mask[0].nonzero()[:, 0].tolist():
            changed = copy.deepcopy(batch)
            changed.ids[0, t:] = (changed.ids[0, t:] + 1) % 200
            others = critic(changed)
            assert torch.equal(values[0, : t + 1], others[0, : t + 1])
            later = torch.arange(len(values[0])) > t
            assert (values != others)[0][later & batch.mask[0]].all()
    assert not values[~batch.mask].any()


def test_values_in_parts_are_the_same_values(played):
    policy, episodes = played
    critic = lively(policy)
    batch = collate(episodes, policy.pad_id)
    with torch.no_grad():
        torch.testing.assert_close(critic.values(batch, 1), critic(batch), rtol=0, atol=1e-5)
    assert batch.values is None


def test_a_new_critic_expects_nothing(played):
    policy, episodes = played
    critic = Critic(policy)
    batch = collate(episodes, policy.pad_id)
    assert not critic.values(batch, 10**6).any()
    for own, of_policy in zip(critic.backbone.parameters(), policy.model.base_model.parameters(), strict=True):
        assert torch.equal(own, of_policy)
        assert own is not of_policy


def test_bi_level(played):
    policy, episodes = played
    critic = lively(policy)
    args = ppo.Args(bi_level=True, whiten_advantages=False, lam=0.9, gamma=0.99, turn_gamma=0.8, turn_lam=0.7)
    batch = collate(episodes, policy.pad_id)
    values = critic.values(batch, 10**6)
    valid = torch.ones(len(episodes), dtype=torch.bool)
    batch = ppo.add_advantages(args, policy, critic, batch, valid)
    packed = (pack(tensor, batch) for tensor in (batch.rewards, values))
    expected, targets = bi_level_gae(
        *packed, pack(batch.turns, batch, fill=-1), pack(batch.mask, batch), 0.99, 0.9, 0.8, 0.7
    )
    mask = pack(batch.mask, batch)
    torch.testing.assert_close(pack(batch.advantages, batch)[mask], expected[mask])
    torch.testing.assert_close(pack(batch.value_targets, batch)[mask], targets[mask])
    assert not torch.allclose(updated(policy, critic, episodes, bi_level=True)[0], updated(policy, critic, episodes)[0])


def test_a_failed_episode_teaches_neither(played):
    policy, episodes = played
    critic = lively(policy)
    episodes[2].failed = True
    expected = updated(policy, critic, episodes)
    for step in episodes[2].steps:
        step.reward, step.tokens = 50.0, [1] * len(step.tokens)
        step.prompt = step.prompt[:1] * len(step.prompt)
    got = updated(policy, critic, episodes)
    for a, b in zip(got[:2], expected[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    for episode in episodes:
        episode.failed = True
    for change in updated(policy, critic, episodes)[:2]:
        assert not change.any()


def test_credit_runs_through_rewritten_contexts(rewritten):
    """With a critic that says nothing, a token's advantage is all that its episode still earns, over its rows."""
    policy, episodes = rewritten
    batch = collate(episodes, policy.pad_id)
    assert len(batch.ids) > len(episodes)
    valid = torch.ones(len(episodes), dtype=torch.bool)
    batch = ppo.add_advantages(ppo.Args(whiten_advantages=False), policy, Critic(policy), batch, valid)
    for row, owner in enumerate(batch.trajectory.tolist()):
        for t in batch.mask[row].nonzero()[:, 0].tolist():
            steps = episodes[owner].steps[int(batch.turns[row, t]) :]
            assert batch.advantages[row, t].item() == pytest.approx(sum(s.reward for s in steps), abs=1e-5)
    of_policy, of_critic, _ = updated(policy, lively(policy), episodes)
    assert of_policy.any()
    assert of_critic.any()


@pytest.mark.parametrize("which", ["played", "rewritten"])
def test_unmasked_is_everything_behind_the_first_sampled_token(request, which):
    policy, episodes = request.getfixturevalue(which)
    batch = collate(episodes, policy.pad_id)
    wide = remove_mask(batch, policy, 1.3, 50)
    for name in ("ids", "lengths", "rewards", "trajectory"):
        assert torch.equal(getattr(wide, name), getattr(batch, name))
    for row, length in enumerate(batch.lengths.tolist()):
        own = batch.mask[row].nonzero()[:, 0].tolist()
        assert wide.mask[row].nonzero()[:, 0].tolist() == list(range(own[0], length))
        with torch.no_grad():
            logp = (policy.model(batch.ids[row : row + 1, :length]).logits[0] / 1.3).log_softmax(-1)
        turn = -1
        for t in range(length):
            turn = max(turn, int(batch.turns[row, t]))
            assert wide.turns[row, t] == turn
            if turn >= 0:
                expected = batch.logprobs[row, t] if t in own else logp[t - 1, batch.ids[row, t]]
                assert wide.logprobs[row, t].item() == pytest.approx(expected.item(), abs=1e-4)
        assert not wide.mask[row, length:].any()


def test_the_papers_ablations(played):
    """Without the advantage mask a tool's tokens come into GAE, but not into the loss; without both, into both."""
    policy, episodes = played
    critic = lively(policy)
    batch = collate(episodes, policy.pad_id)
    masked = updated(policy, critic, episodes, lam=0.9, gamma=0.95)
    no_advantage_mask = updated(policy, critic, episodes, lam=0.9, gamma=0.95, advantage_mask=False)
    neither = updated(policy, critic, episodes, lam=0.9, gamma=0.95, advantage_mask=False, loss_mask=False)
    for a, b in ((masked, no_advantage_mask), (no_advantage_mask, neither)):
        assert not torch.allclose(a[0], b[0], atol=1e-5)
        assert not torch.allclose(a[1], b[1], atol=1e-5)
    wide = remove_mask(batch, policy, 1.0, 10**6)
    valid = torch.ones(len(episodes), dtype=torch.bool)
    wide = ppo.estimate_advantages(ppo.Args(lam=0.9, gamma=0.95, whiten_advantages=False), critic, wide, valid)
    values = critic(wide)
    row = 2  # three turns: by hand, over every token from the first sampled one on
    own = wide.mask[row].nonzero()[:, 0].tolist()
    advantage = following = 0.0
    for t in reversed(own):
        delta = wide.rewards[row, t].item() + 0.95 * following - values[row, t].item()
        advantage, following = delta + 0.95 * 0.9 * advantage, values[row, t].item()
        assert wide.advantages[row, t].item() == pytest.approx(advantage, abs=1e-4)


def test_policy_and_critic_have_learning_rates_of_their_own(letters, make_policy, tmp_path, monkeypatch):
    """In every update of a run, whatever the schedule makes of them."""
    policy, rates, make = make_policy("subwords", 3), [], ppo.make_optimizer
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")

    def watched(*arguments):
        optimizer = make(*arguments)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append([group["lr"] for group in o.param_groups]))
        return optimizer

    monkeypatch.setattr(ppo, "make_optimizer", watched)
    ppo.main(
        ppo.Args(
            env=letters, env_kwargs='{"entities": 60, "questions": 20, "max_turns": 1}', model=str(tmp_path / "model"),
            updates=2, questions_per_update=2, group_size=2, max_new_tokens=4, eval_questions=1, final_questions=1,
            lr=0.02, critic_lr=0.08, schedule="linear", warmup=0.4, out=tmp_path / "run",
        )
    )  # fmt: skip
    assert rates == [pytest.approx([0.0125, 0.05]), pytest.approx([0.02 / 2.4, 0.08 / 2.4])]
