import pytest
import torch

from trainers.algorithms.losses import entropy
from trainers.models import logits


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_log_probabilities_in_parts_are_those_at_once(monkeypatch, entropy_gradient):
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
    for a, b in zip(run(), at_once, strict=True):
        torch.testing.assert_close(a, b)
    assert max(rows) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_head_gives_the_gradients_of_a_trained_one(monkeypatch, dtype):
    """Of tokens that are likely and unlikely, several of one node among them, in parts and at once."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(8, 11, bias=False), (3 * torch.randn(9, 8)).requires_grad_()
    drawn_from, targets = torch.randint(8, (30,)), torch.randint(11, (30,))  # none from the last

    def run():
        chosen, uncertainty = logits.token_logprobs(head, hidden, drawn_from, targets, temperature=0.7, dtype=dtype)
        assert not uncertainty.requires_grad
        return [chosen, uncertainty, *torch.autograd.grad((chosen * torch.arange(30)).sum(), hidden)]

    expected = run()
    head.requires_grad_(False)
    for size in (2**24, 22):
        monkeypatch.setattr(logits, "MAX_LOGITS", size)
        for a, b in zip(run(), expected, strict=True):
            assert (a - b).norm() < (1e-5 if dtype == torch.float32 else 0.01) * b.norm()
    with torch.no_grad():
        torch.testing.assert_close(
            logits.token_logprobs(head, hidden, drawn_from, targets, temperature=0.7)[0], expected[0]
        )


def test_a_frozen_head_in_bfloat16_keeps_the_small_gradient_of_a_token_that_is_nearly_sure():
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 11, bias=False)
    hidden = (6 * head.weight[3] / head.weight[3].norm() ** 2).detach()[None].requires_grad_()
    found = {}
    for frozen in (False, True):
        head.requires_grad_(not frozen)
        chosen, _ = logits.token_logprobs(head, hidden, torch.tensor([0]), torch.tensor([3]), dtype=torch.bfloat16)
        found[frozen] = torch.autograd.grad(chosen.sum(), hidden)[0]
    assert found[False].norm() < 0.1
    assert (found[True] - found[False]).norm() < 0.01 * found[False].norm()
