from types import SimpleNamespace

import pytest
import torch

from trainers.algorithms.losses import entropy
from trainers.models import logits


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("kept", [0, 99])  # 9 · 11 logits: kept, or computed again in the backward pass
def test_log_probabilities_in_parts_are_those_at_once(monkeypatch, entropy_gradient, kept):
    monkeypatch.setattr(logits, "ROWS_IN_CACHE", 2)
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(4, 11), torch.randn(9, 4, requires_grad=True)
    drawn_from, targets = torch.randint(9, (30,)), torch.randint(11, (30,))
    rows = []
    head.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))

    def run():
        chosen, uncertainty = logits.token_logprobs(
            head, hidden, drawn_from, targets, entropy_gradient=entropy_gradient
        )
        loss = (chosen * torch.arange(30)).sum() + (uncertainty.sum() if entropy_gradient else 0)
        return [chosen, uncertainty, *torch.autograd.grad(loss, [hidden, *head.parameters()])]

    at_once = run()
    logp = head(hidden).log_softmax(-1)
    torch.testing.assert_close(at_once[0], logp[drawn_from, targets])
    torch.testing.assert_close(at_once[1], entropy(head(hidden).log_softmax(-1)), check_layout=False)
    rows.clear()
    monkeypatch.setattr(logits, "MAX_LOGITS", 22)  # two rows of eleven
    monkeypatch.setattr(logits, "memory_share", lambda: 32 * 4 * kept)
    for a, b in zip(run(), at_once, strict=True):
        torch.testing.assert_close(a, b)
    assert max(rows) == 2 and sum(rows) - 1 == (
        9 if kept and not entropy_gradient else 18
    )  # a first row tells the size of the vocabulary


def test_an_entropy_without_a_gradient_is_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(logits, "entropy", lambda logprobs: calls.append(1) or entropy(logprobs))
    monkeypatch.setattr(logits, "MAX_LOGITS", 22)  # two rows of eleven
    monkeypatch.setattr(logits, "memory_share", lambda: 0)
    hidden = torch.randn(4, 3, requires_grad=True)
    chosen, _ = logits.token_logprobs(torch.nn.Linear(3, 11), hidden, torch.arange(4), torch.arange(4))
    chosen.sum().backward()
    assert len(calls) == 2  # in each part, and not again where the parts are recomputed


def test_parts_are_small_beside_the_memory(monkeypatch):
    gib = 2**30
    for memory, expected in ((8 * gib, 32), (24 * gib, 96), (141 * gib, 256)):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device, memory=memory: SimpleNamespace(total_memory=memory)
        )
        assert 4 * logits.max_logits(torch.device("cuda")) == expected * 2**20
    assert 4 * logits.max_logits(torch.device("cpu")) == 64 * 2**20
