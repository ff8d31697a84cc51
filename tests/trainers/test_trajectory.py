import pytest
import torch

from trainers.trajectory import (
    Sequence,
    Step,
    Trajectory,
    collate,
    collate_sequences,
    pack,
    to_sequences,
    unpack,
)


def step(prompt, tokens, reward=0.0):
    return Step(prompt=prompt, tokens=tokens, logprobs=[-0.5 * t for t in tokens], reward=reward)


def test_a_growing_context_is_one_sequence():
    steps = [step([1, 2], [3, 4], 0.5), step([1, 2, 3, 4, 9, 9, 9], [5], -1.0)]
    (sequence,) = to_sequences(steps)
    assert sequence.ids == [1, 2, 3, 4, 9, 9, 9, 5]
    assert sequence.mask == [False, False, True, True, False, False, False, True]
    assert sequence.logprobs == [0, 0, -1.5, -2.0, 0, 0, 0, -2.5]
    assert sequence.rewards == [0, 0, 0, 0.5, 0, 0, 0, -1.0]


def test_a_rewritten_context_starts_another_sequence_and_growth_goes_on_from_there():
    steps = [step([1, 2], [3]), step([1, 7], [4], 1.0), step([1, 7, 4, 8], [5], 2.0)]
    first, second = to_sequences(steps)
    assert first.ids == [1, 2, 3]
    assert second.ids == [1, 7, 4, 8, 5]
    assert second.rewards == [0, 0, 1.0, 0, 2.0]


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 3], [1, 2, 4]], ids=["no turn", "half a turn", "another turn"])
def test_a_prompt_that_lost_part_of_the_sampled_turn_is_not_an_extension(prompt):
    assert [s.ids for s in to_sequences([step([1, 2], [3, 4]), step(prompt, [5])])] == [[1, 2, 3, 4], [*prompt, 5]]


def test_an_empty_observation_adds_nothing_between_two_turns():
    (sequence,) = to_sequences([step([1], [2], 1.0), step([1, 2], [3], 2.0)])
    assert (sequence.mask, sequence.rewards) == ([False, True, True], [0, 1.0, 2.0])


def test_a_turn_without_reward_stays_a_turn():
    (sequence,) = to_sequences([step([1], [2], 0.0), step([1, 2, 3], [4], 0.0)])
    assert sequence.mask == [False, True, False, True]


@pytest.mark.parametrize(
    "bad",
    [step([1], []), step([], [1]), Step(prompt=[1], tokens=[2, 3], logprobs=[0.0])],
    ids=["no tokens", "no prompt", "too few log-probabilities"],
)
def test_a_step_that_cannot_be_trained_on_is_refused(bad):
    with pytest.raises(ValueError, match="step with"):
        to_sequences([bad])


def test_the_steps_are_left_as_they_were():
    steps = [step([1], [2]), step([1, 2, 3], [4])]
    to_sequences(steps)
    assert [(s.prompt, s.tokens) for s in steps] == [([1], [2]), ([1, 2, 3], [4])]


def episodes():
    rewritten = Trajectory(steps=[step([1, 2], [3]), step([5], [6], 1.0)])
    return [Trajectory(steps=[step([1] * n, [2] * m, 0.5)]) for n, m in ((3, 4), (1, 1), (9, 2))] + [rewritten]


def test_collate_pads_on_the_right_and_knows_the_owners():
    batch = collate(episodes(), pad_id=2)
    assert batch.ids.shape == (5, 11)
    assert batch.lengths.tolist() == [7, 2, 11, 3, 2]
    assert batch.trajectory.tolist() == [0, 1, 2, 3, 3]
    assert batch.mask.sum(1).tolist() == [4, 1, 2, 1, 1]
    assert not batch.mask[:, 0].any()
    padding = torch.arange(11) >= batch.lengths[:, None]
    assert (batch.ids[padding] == 2).all()
    assert not batch.mask[padding].any()
    assert batch.rewards.sum().item() == pytest.approx(2.5)


def test_episode_return_adds_the_turns():
    assert Trajectory(steps=[step([1], [2], 0.5), step([1], [2], -2.0)]).episode_return == -1.5


def test_turns_are_numbered_over_all_rows_and_zero_reward_turns_count():
    steps = [step([1, 2], [3, 4]), step([1, 2, 3, 4], [5]), step([7], [6, 6]), step([7, 6, 6, 8], [9])]
    first, second = to_sequences(steps)
    assert first.turns == [-1, -1, 0, 0, 1]  # an empty observation between two turns does not merge them
    assert second.turns == [-1, 2, 2, -1, 3]
    batch = collate([Trajectory(steps=steps), Trajectory(steps=[step([1], [2])])], pad_id=0)
    assert batch.turns.tolist() == [[-1, -1, 0, 0, 1], [-1, 2, 2, -1, 3], [-1, 0, -1, -1, -1]]
    assert torch.equal(batch.turns >= 0, batch.mask)
    part = batch[torch.tensor([2, 1])].to("cpu")
    assert part.turns.tolist() == [[-1, 0, -1, -1, -1], [-1, 2, 2, -1, 3]]


def test_a_sequence_made_by_hand_is_one_turn():
    sequence = Sequence(ids=[1, 2, 3], mask=[False, True, True], logprobs=[0.0] * 3, rewards=[0.0] * 3)
    assert collate_sequences([sequence], [0], 0).turns.tolist() == [[-1, 0, 0]]


def rewritten():
    """Trajectory 0 has three rows and trajectory 2 has two."""
    contexts = [step([1], [10]), step([1, 10, 2, 2], [11, 12]), step([5], [13]), step([6], [14])]
    return [
        Trajectory(steps=contexts),
        Trajectory(steps=[step([1, 1, 1], [20, 21])]),
        Trajectory(steps=[step([1], [30]), step([4, 4], [31])]),
    ]


def test_packing_puts_a_trajectorys_own_tokens_side_by_side():
    batch = collate(rewritten(), pad_id=0)
    assert len(batch.ids) == 6
    packed = pack(batch.ids, batch)
    assert packed.tolist() == [[10, 11, 12, 13, 14], [20, 21, 0, 0, 0], [30, 31, 0, 0, 0]]
    assert pack(batch.mask, batch).dtype == torch.bool
    assert pack(batch.mask, batch).sum(1).tolist() == [5, 2, 2]
    assert pack(batch.turns, batch, fill=-1).tolist() == [[0, 1, 1, 2, 3], [0, 0, -1, -1, -1], [0, 1, -1, -1, -1]]


def test_packing_is_undone_in_any_order_of_the_rows_and_lets_gradients_through():
    whole = collate(rewritten(), pad_id=0)
    expected = pack(whole.ids, whole)
    for seed in range(5):
        batch = whole[torch.randperm(6, generator=torch.Generator().manual_seed(seed))]
        assert torch.equal(pack(batch.ids, batch), expected)
        assert torch.equal(unpack(expected, batch), batch.ids * batch.mask)
        values = torch.rand(batch.mask.shape, requires_grad=True)
        unpack(pack(values, batch) * 3, batch).sum().backward()
        assert torch.equal(values.grad, 3.0 * batch.mask)


def test_trajectories_that_have_no_row_get_an_empty_one():
    batch = collate(rewritten(), pad_id=0)
    part = batch[batch.trajectory != 1]
    assert pack(part.mask, part, trajectories=5).sum(1).tolist() == [5, 0, 2, 0, 0]
    with pytest.raises(ValueError, match="rows of trajectory 2, but there are 2"):
        pack(part.mask, part, trajectories=2)


def test_what_lies_outside_the_mask_does_not_enter():
    batch = collate(rewritten(), pad_id=0)
    values = torch.where(batch.mask, 1.0, torch.nan).requires_grad_()
    packed = pack(values, batch)
    assert packed.sum() == 9
    packed.sum().backward()
    assert torch.equal(values.grad, batch.mask.float())
