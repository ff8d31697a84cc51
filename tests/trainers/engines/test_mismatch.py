import math
from types import SimpleNamespace

import pytest
import torch

from trainers.engines.engine import Completion
from trainers.engines.mismatch import check_engine, measure_mismatch
from trainers.engines.transformers_engine import TransformersEngine


def test_metrics_by_hand():
    trainer = torch.tensor([[9.0, -1.0, -2.0], [-3.0, -1.5, 9.0]])
    sampler = torch.tensor([[0.0, -1.25, -1.5], [-3.0, -1.5, 0.0]])
    mask = torch.tensor([[False, True, True], [True, True, False]])
    found = measure_mismatch(trainer, sampler, mask)  # differences .25, -.5, 0, 0
    assert found["mismatch/logprob"] == pytest.approx(0.75 / 4)
    assert found["mismatch/kl"] == pytest.approx(0.25 / 4)
    assert found["mismatch/max_ratio"] == pytest.approx(math.exp(0.25))
    assert all(type(value) is float for value in found.values())


def test_without_tokens_nothing_differs():
    zeros = torch.zeros(2, 3)
    nothing = measure_mismatch(zeros + 1, zeros, zeros.bool())
    assert nothing == {"mismatch/logprob": 0.0, "mismatch/kl": 0.0, "mismatch/max_ratio": 1.0}
    assert measure_mismatch(zeros, zeros, ~zeros.bool()) == nothing


def reporting(policy, change) -> SimpleNamespace:
    """An engine whose log-probabilities are changed."""
    inner = TransformersEngine(policy, ())

    def wait():
        done = inner.wait()
        return {k: Completion(tokens=c.tokens, logprobs=[change(x) for x in c.logprobs]) for k, c in done.items()}

    return SimpleNamespace(submit=inner.submit, wait=wait)


def test_an_engine_with_other_probabilities_is_refused(make_policy):
    policy = make_policy("bytes")
    state = torch.get_rng_state()
    check_engine(TransformersEngine(policy, ("</search>",)), policy)
    check_engine(reporting(policy, lambda x: x + 0.01), policy)
    assert torch.equal(torch.get_rng_state(), state)
    for change in (lambda x: 2 * x, lambda x: x - 0.2, lambda x: math.nan):
        with pytest.raises(ValueError, match="processed_logprobs"):
            check_engine(reporting(policy, change), policy)
    with pytest.raises(ValueError, match="same model"):
        check_engine(TransformersEngine(make_policy("bytes", 1), ()), policy)
