import pytest
import torch

from trainers.algorithms.process_rewards import prime_norm
from trainers.reinforce import Args
from trainers.rollouts.batching import normalize_process_rewards, select_episodes
from trainers.trajectory import Step, Trajectory


def test_by_hand():
    # Still to come: .5, .5, 2 and -3, -4, 1: at most 4 away from 0.
    rewards = torch.tensor([[0.0, -1.5, 2.0], [1.0, -5.0, 1.0]])
    torch.testing.assert_close(prime_norm(rewards), rewards / 4)


def test_nothing_has_no_size():
    for shape in ((0, 3), (3, 0), (2, 2)):
        assert prime_norm(torch.zeros(shape)).shape == shape
        assert not prime_norm(torch.zeros(shape)).any()


def episode(*rewards, failed=False):
    steps = [Step(prompt=[1], tokens=[2], logprobs=[0.0], reward=value) for value in rewards]
    return Trajectory(steps=steps, failed=failed)


def test_all_turns_but_the_last_are_scaled():
    # .5 + 1.5 is the most that is still to come; the last turns are paid the outcome, and stay.
    played = [episode(0.5, 1.5, 3.0), episode(-1.0, 0.25), episode(7.0), episode(50.0, 1.0, failed=True)]
    got = [[step.reward for step in t.steps] for t in normalize_process_rewards(played)]
    assert got[0] == pytest.approx([0.25, 0.75, 3.0], abs=1e-6)
    assert got[1] == pytest.approx([-0.5, 0.25], abs=1e-6)
    assert got[2] == [7.0]
    assert [step.reward for step in played[0].steps] == [0.5, 1.5, 3.0]


def test_it_is_an_option():
    played = [episode(0.5, 1.0), episode(2.0, 0.0)]
    kept, _ = select_episodes(played, Args(prime_norm=True))
    assert [t.episode_return for t in kept] == pytest.approx([1.25, 1.0], abs=1e-6)
    assert select_episodes(played, Args())[0] == played
