import pytest
import torch

from trainers.trajectory import BatchRow, Step, Trajectory, collate, collate_rows, pack, to_rows, unpack


def step(prompt, tokens, reward=0.0):
    return Step(prompt=prompt, tokens=tokens, logprobs=[-0.5 * t for t in tokens], reward=reward)


@pytest.mark.parametrize(
    "bad",
    [step([1], []), step([], [1]), Step(prompt=[1], tokens=[2, 3], logprobs=[0.0])],
    ids=["no tokens", "no prompt", "too few log-probabilities"],
)
def test_a_step_that_cannot_be_trained_on_is_refused(bad):
    with pytest.raises(ValueError, match="step with"):
        to_rows([bad])


def test_collate_pads_on_the_right_and_knows_the_owners():
    episodes = [Trajectory(steps=[step([1] * n, [2] * m, 0.5)]) for n, m in ((3, 4), (1, 1), (9, 2))]
    episodes.append(Trajectory(steps=[step([1, 2], [3]), step([5], [6], 1.0)]))
    batch = collate(episodes, pad_id=2)
    assert batch.ids.shape == (5, 11)
    assert batch.lengths.tolist() == [7, 2, 11, 3, 2]
    assert batch.trajectory.tolist() == [0, 1, 2, 3, 3]
    assert batch.mask.sum(1).tolist() == [4, 1, 2, 1, 1]
    assert not batch.mask[:, 0].any()
    padding = torch.arange(11) >= batch.lengths[:, None]
    assert (batch.ids[padding] == 2).all()
    assert not batch.mask[padding].any()
    assert batch.rewards.sum().item() == sum(episode.episode_return for episode in episodes) == 2.5


def test_turns_are_numbered_over_all_rows_and_zero_reward_turns_count():
    steps = [step([1, 2], [3, 4]), step([1, 2, 3, 4], [5]), step([7], [6, 6]), step([7, 6, 6, 8], [9])]
    first, second = to_rows(steps)
    assert first.turns == [-1, -1, 0, 0, 1]  # an empty observation between two turns does not merge them
    assert second.turns == [-1, 2, 2, -1, 3]
    batch = collate([Trajectory(steps=steps), Trajectory(steps=[step([1], [2])])], pad_id=0)
    assert batch.turns.tolist() == [[-1, -1, 0, 0, 1], [-1, 2, 2, -1, 3], [-1, 0, -1, -1, -1]]
    assert torch.equal(batch.turns >= 0, batch.mask)
    assert batch[torch.tensor([2, 1])].to("cpu").turns.tolist() == [[-1, 0, -1, -1, -1], [-1, 2, 2, -1, 3]]
    by_hand = BatchRow(ids=[1, 2, 3], mask=[False, True, True], logprobs=[0.0] * 3, rewards=[0.0] * 3)
    assert collate_rows([by_hand], [0], 0).turns.tolist() == [[-1, 0, 0]]  # is one turn


@pytest.fixture
def rewritten():
    """Trajectory 0 has three rows and trajectory 2 has two."""
    contexts = [step([1], [10]), step([1, 10, 2, 2], [11, 12]), step([5], [13]), step([6], [14])]
    others = [step([1, 1, 1], [20, 21])], [step([1], [30]), step([4, 4], [31])]
    return collate([Trajectory(steps=steps) for steps in (contexts, *others)], pad_id=0)


def test_packing_is_undone_in_any_order_of_the_rows_and_lets_gradients_through(rewritten):
    expected = pack(rewritten.ids, rewritten)
    for seed in range(5):
        batch = rewritten[torch.randperm(6, generator=torch.Generator().manual_seed(seed))]
        assert torch.equal(pack(batch.ids, batch), expected)
        assert torch.equal(unpack(expected, batch), batch.ids * batch.mask)
        values = torch.where(batch.mask, torch.rand(batch.mask.shape), torch.nan).requires_grad_()
        unpack(pack(values, batch) * 3, batch).sum().backward()
        assert torch.equal(values.grad, 3.0 * batch.mask)


def test_the_return_of_an_episode_without_a_turn_is_what_it_was_paid():
    assert Trajectory(reward_terms={"answer": 1.0, "format": 0.05}).episode_return == 1.05


def test_trajectories_that_have_no_row_get_an_empty_one(rewritten):
    part = rewritten[rewritten.trajectory != 1]
    assert pack(part.mask, part, trajectories=5).sum(1).tolist() == [5, 0, 2, 0, 0]
    with pytest.raises(ValueError, match="rows of trajectory 2, but there are 2"):
        pack(part.mask, part, trajectories=2)
