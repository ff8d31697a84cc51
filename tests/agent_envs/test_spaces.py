"""AnyText: membership by type and length, samples that a seed fixes."""

import copy
import pickle

import numpy as np
from gymnasium.vector.utils import batch_space

from agent_envs.spaces import AnyText


def test_any_string_up_to_the_length_belongs():
    space = AnyText(5)
    assert all(text in space for text in ("", "abc", "Zürich"[:5], "\x00\ud800", "日本", np.str_("a")))
    assert all(thing not in space for thing in ("abcdef", b"abc", 3, None, ["a"]))


def test_samples_belong_and_repeat_with_the_seed():
    phrases = ("<answer>x</answer>",)
    space, twin = AnyText(phrases=phrases, seed=3), AnyText(phrases=phrases, seed=3)
    samples = [space.sample() for _ in range(200)]
    assert samples == [twin.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert phrases[0] in samples and any(phrases[0] not in sample for sample in samples)


def test_it_survives_copies_pickling_and_batching():
    space = AnyText(9, ("a",))
    assert copy.deepcopy(space) == space == pickle.loads(pickle.dumps(space))
    assert space != AnyText(10, ("a",)) and space != AnyText(9)
    batch = batch_space(space, 3)
    batch.seed(1)
    assert batch.sample() in batch and len(batch.sample()) == 3
