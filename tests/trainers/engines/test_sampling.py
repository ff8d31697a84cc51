import pytest
import torch
from test_update import update

from trainers.engines.sampling import sample, truncate
from trainers.trajectory import collate


@pytest.mark.parametrize("size", [3, 1300])
def test_tokens_of_large_vocabularies_follow_the_distribution(size):
    torch.manual_seed(0)
    logits = torch.randn(2, size) * 2
    logits[:, torch.randperm(size)[: size // 3]] = -torch.inf
    tokens, logprobs = sample(logits, torch.arange(2).repeat(50_000), 1.0)
    for row in range(2):
        p = logits[row].softmax(-1)
        found = tokens[row::2].bincount(minlength=size) / 50_000
        assert not found[p == 0].any()
        assert ((found - p).abs() <= 5 * (p * (1 - p) / 50_000).sqrt() + 1e-9).all()
        torch.testing.assert_close(logprobs[row::2], p.log()[tokens[row::2]])


def random_logp(size):
    """Peaked and flat ones, with ties and with tokens that are impossible already."""
    logits = torch.randn(40, size) * torch.linspace(0, 8, 40)[:, None]
    logits[:, 1::7] = logits[:, :1]
    logits[1:, 2::5] = -torch.inf
    return logits.log_softmax(-1)


@pytest.mark.parametrize("size", [3, 700])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5, 1.0])
def test_what_is_kept_is_the_smallest_set_and_sums_to_one(size, top_p, min_p):
    torch.manual_seed(size)
    logp = random_logp(size)
    got = truncate(logp, top_p, min_p)
    kept = got > -torch.inf
    torch.testing.assert_close(got.exp().sum(-1), torch.ones(len(logp)))
    # Proportions stay, and what was cut off is not above what was kept.
    shift = torch.where(kept, got - logp, 0.0)
    torch.testing.assert_close(shift, torch.where(kept, shift.amax(-1, keepdim=True), 0.0), rtol=1e-4, atol=1e-4)
    least = torch.where(kept, logp, torch.inf).amin(-1)
    assert (torch.where(kept, -torch.inf, logp).amax(-1) <= least + 1e-6).all()
    # By min-p alone, then the fewest of these that hold top_p of them.
    p = logp.exp().double()
    allowed = p >= min_p * p.amax(-1, keepdim=True) * (1 - 1e-5)
    assert not (kept & ~allowed).any()
    mass = (p * kept).sum(-1) / (p * allowed).sum(-1)
    without_least = mass - least.exp().double() / (p * allowed).sum(-1)
    assert (mass >= top_p - 1e-4).all()
    assert (without_least < top_p + 1e-6).all()


def test_an_impossible_token_is_not_drawn_by_rounding(monkeypatch):
    """Where a point lies on the border of two chunks, and (a + b) − b is above a."""
    traps = 0
    for seed in range(60):
        torch.manual_seed(seed)
        logits = 8 * torch.randn(1, 1024)
        logits[0, 512:520] = -torch.inf
        a, b = logits.log_softmax(-1).exp().view(2, 512).sum(-1, dtype=torch.float64).tolist()
        if not (a + b) - b > a:
            continue
        for neighbour in range(-6, 7):
            point = a / (a + b) / (1 - 2**-32) * (1 + neighbour * 2**-53)
            traps += point * (1 - 2**-32) * (a + b) == a
            monkeypatch.setattr(torch, "rand", lambda *size, _at=point, **how: torch.full((1,), _at, **how))
            _, logprobs = sample(logits, torch.zeros(1, dtype=torch.long), 1.0)
            assert logprobs.isfinite().all()
    assert traps


def test_greedy_turns_are_not_cut_off():
    logits, rows = torch.randn(3, 900), torch.arange(3).repeat(50)
    tokens, logprobs = sample(logits, rows, 0.0, 0.5, 0.5)
    assert torch.equal(tokens, logits.argmax(-1)[rows])
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[rows, tokens])


def test_each_token_weighs_what_was_left_of_the_distribution(make_policy, roll_out):
    """With --importance the ratio is to the policy's own probability, so nothing is clipped, and the weight makes up for the
    sampler's: π / q is the share that was left."""
    policy, cuts = make_policy("bytes"), dict(top_p=0.6, min_p=0.05)
    texts, rewards = [["a", "b"], ["a"], ["c", "d"], ["c"]], [[1.0, 0.0], [0.0], [0.5, 0.75], [1.0]]
    torch.manual_seed(0)
    episodes = roll_out(policy, texts, rewards, max_new_tokens=8, temperature=1.5, **cuts)
    batch, mass = collate(episodes, policy.pad_id), []
    for row, at in batch.mask.nonzero().tolist():
        with torch.no_grad():
            logp = (policy.model(batch.ids[row : row + 1, :at]).logits[0, -1] / 1.5).log_softmax(-1)
        left = truncate(logp, **cuts)
        mass.append(logp[left > -torch.inf].exp().sum())
        torch.testing.assert_close(batch.old_logprobs[row, at], left[batch.ids[row, at]], rtol=0, atol=1e-3)
    assert 0.55 <= min(mass) < 0.95
    _, metrics = update(policy, episodes, importance="tis", temperature=1.5, **cuts)
    assert metrics["policy/importance"] == pytest.approx(torch.stack(mass).mean().item(), rel=1e-3)
    assert metrics["policy/clip_fraction"] == 0
