"""PPO's critic, and what it shares with the policy."""

import numpy as np
import pytest
import torch
from test_update import update

from trainers import ppo
from trainers.models.critic import Critic
from trainers.trajectory import collate


@pytest.fixture
def played(make_policy, roll_out):
    policy, texts = make_policy("bytes"), [["a", "b"], ["a"], ["c", "d", "long " * 5], ["c"]]
    return policy, roll_out(policy, texts, [[1.0, 0.5], [0.0], [0.0, 0.0, 2.0], [1.0]])


def test_a_new_critic_expects_nothing(played):
    policy, episodes = played
    critic, batch = Critic(policy), collate(episodes, policy.pad_id)
    assert not critic.values(batch, 10**6).any()
    for own, of_policy in zip(critic.backbone.parameters(), policy.model.base_model.parameters(), strict=True):
        assert torch.equal(own, of_policy) and own is not of_policy
    _, metrics = update(policy, episodes, ppo)
    turns = [(e.steps[k:], step.tokens) for e in episodes for k, step in enumerate(e.steps)]
    to_come = [sum(step.reward for step in rest) for rest, tokens in turns for _ in tokens]
    assert metrics["policy/value_loss"] == pytest.approx(np.square(to_come).mean() / 2, rel=1e-4)


def test_shared_layers_are_passed_once_for_both_losses(played, monkeypatch):
    policy, episodes = played
    critic, backbone = Critic(policy, shared=True), type(policy.model.base_model)
    assert sum(p.numel() for p in critic.parameters()) == policy.model.config.hidden_size + 1
    passes, forward = [], backbone.forward
    monkeypatch.setattr(backbone, "forward", lambda *given, **named: passes.append(1) or forward(*given, **named))
    optimizer = torch.optim.SGD([*policy.model.parameters(), *critic.parameters()], lr=0.1)
    ppo.update(ppo.Args(share_layers=True), policy, critic, optimizer, None, episodes, np.random.default_rng(0))
    assert len(passes) == 2  # values before the step, and one pass for both losses


def test_policy_and_critic_have_learning_rates_of_their_own(short_run, tmp_path, monkeypatch):
    rates, make = [], ppo.make_optimizer

    def watched(*arguments):
        optimizer = make(*arguments)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append([group["lr"] for group in o.param_groups]))
        return optimizer

    monkeypatch.setattr(ppo, "make_optimizer", watched)
    ppo.main(short_run(ppo, lr=0.02, critic_lr=0.08, schedule="linear", warmup=0.4, out=tmp_path / "run"))
    assert rates == [pytest.approx([0.0125, 0.05]), pytest.approx([0.02 / 2.4, 0.08 / 2.4])]
