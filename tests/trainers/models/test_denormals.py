import sys

import pytest
import torch

from trainers.models.denormals import flushing_denormals


def halve_smallest() -> float:
    return (torch.full((3,), torch.finfo(torch.float32).tiny) / 2).max().item()


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush denormal numbers")
def test_denormal_numbers_are_zero_within_and_not_behind():
    assert halve_smallest() > 0
    with flushing_denormals():
        assert halve_smallest() == 0 == sys.float_info.min / 2
        with pytest.raises(KeyError), flushing_denormals():
            raise KeyError
        assert halve_smallest() == 0  # as it was
    assert halve_smallest() > 0
