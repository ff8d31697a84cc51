import pytest
import torch

from trainers.engines.sampling import sample


def test_samples_follow_the_distribution():
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    tokens, logprobs = sample(p.log()[None] * 2, torch.zeros(20_000, dtype=torch.long), temperature=2.0)
    torch.testing.assert_close(tokens.bincount(minlength=4) / 20_000, p, rtol=0, atol=0.015)
    torch.testing.assert_close(logprobs, p.log()[tokens])


def test_impossible_tokens_are_never_sampled():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]]).expand(1000, 3)
    tokens, logprobs = sample(logits, torch.arange(len(logits)), 1.0)
    assert not (tokens == 1).any()
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("size", [3, 512, 1300])
def test_tokens_of_large_vocabularies_follow_the_distribution(size):
    torch.manual_seed(0)
    logits = torch.randn(2, size) * 2
    logits[:, torch.randperm(size)[: size // 3]] = -torch.inf
    tokens, logprobs = sample(logits, torch.arange(2).repeat(100_000), 1.0)
    for row in range(2):
        p = logits[row].softmax(-1)
        found = tokens[row::2].bincount(minlength=size) / 100_000
        assert not found[p == 0].any()
        assert ((found - p).abs() <= 5 * (p * (1 - p) / 100_000).sqrt() + 1e-9).all()
        torch.testing.assert_close(logprobs[row::2], p.log()[tokens[row::2]])
