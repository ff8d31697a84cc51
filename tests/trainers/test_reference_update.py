"""One update of every algorithm, end to end, against the plain loop of `reference`: the gradients that its optimizer got
at every step, and the weights after the last one."""

import random

import numpy as np
import pytest
import torch
from drive_update import run_update
from reference import Episode, Reference, Turn, logprobs, strip_padding

TEMPERATURE = 0.7
# Several steps a batch; a gradient that is clipped at some of them; passes in several parts.
COMMON = dict(
    temperature=TEMPERATURE, lr=2e-3, epochs=2, minibatches=2, max_grad_norm=0.5, max_tokens_per_micro_batch=60
)
ONE_STEP = dict(epochs=1, minibatches=1)
CASES = {
    "grpo": ("grpo", {}),
    "grpo, clip-higher": ("grpo", dict(clip_low=0.05, clip_high=0.5)),
    "grpo, by the paper": ("grpo", dict(scale_by_std=True, normalize="sequences")),
    "grpo, turn credit": ("grpo", dict(turn_credit=True, turn_gamma=0.6, scale_by_std=True)),
    "grpo, process weight": ("grpo", dict(process_weight=0.7, scale_by_std=True)),
    "grpo, gspo": ("grpo", dict(loss="gspo", normalize="sequences")),
    "grpo, gspo by turns": ("grpo", dict(loss="gspo", normalize="sequences", turn_credit=True, importance="tis")),
    "grpo, gspo in one step": ("grpo", dict(loss="gspo", normalize="sequences", **ONE_STEP)),
    "ppo, gspo": ("ppo", dict(loss="gspo", normalize="sequences")),
    "grpo, cispo": ("grpo", dict(loss="cispo", clip_low=0.15)),
    "grpo, entropy bonus": ("grpo", dict(entropy_coef=0.3)),
    "grpo, mixed groups": ("grpo", dict(filter="mixed")),
    "grpo, overlong turns": ("grpo", dict(overlong_buffer=3, max_new_tokens=5)),
    "grpo, tis": ("grpo", dict(importance="tis")),
    "grpo, icepop": ("grpo", dict(importance="icepop")),
    "grpo, k1": ("grpo", dict(kl_coef=0.5, kl="k1")),
    "grpo, k2": ("grpo", dict(kl_coef=0.5, kl="k2")),
    "grpo, k3": ("grpo", dict(kl_coef=0.5)),
    "grpo, k3 and its target": ("grpo", dict(kl_coef=2.0, kl_target=1e-3, entropy_coef=0.1, **ONE_STEP)),
    "grpo, k1 by turns": ("grpo", dict(kl_coef=0.5, kl="k1", turn_credit=True, importance="tis")),
    "rloo": ("rloo", {}),
    "reinforce++, k1": ("reinforce", dict(kl_coef=0.5, kl="k1")),
    "reinforce++-baseline, k2": ("reinforce", dict(baseline="group", kl_coef=0.5, kl="k2")),
    "gigpo, discounted": ("gigpo", dict(step_gamma=0.5, step_weight=0.4)),
    "gigpo, by std": ("gigpo", dict(scale_by_std=True)),
    "ppo": ("ppo", {}),
    "ppo, discounted": ("ppo", dict(gamma=0.9, lam=0.8, normalize="sequences")),
    "ppo, values that clip": ("ppo", dict(value_clip=0.02, critic_lr=2e-2, epochs=3, value_coef=0.8)),
    "ppo, advantages as they are": ("ppo", dict(whiten_advantages=False)),
    "ppo, bi-level": ("ppo", dict(gae="bi-level", gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6)),
    "ppo, turn level": ("ppo", dict(gae="turns", turn_gamma=0.7, turn_lam=0.6)),
    "ppo, turn level, k1": ("ppo", dict(gae="turns", kl_coef=0.5, kl="k1", whiten_advantages=False)),
    "ppo, shared layers": ("ppo", dict(share_layers=True, value_coef=1.5, value_clip=0.05)),
    "ppo, k1, entropy and tis": ("ppo", dict(kl_coef=0.5, kl="k1", entropy_coef=0.1, importance="tis")),
    "grpo, no loss mask": ("grpo", dict(loss_mask=False)),
    "ppo, no advantage mask": ("ppo", dict(advantage_mask=False, gamma=0.9, lam=0.8)),
    "ppo, no masks": ("ppo", dict(loss_mask=False, advantage_mask=False)),
    "ppo, k3 and bi-level": ("ppo", dict(kl_coef=0.5, gae="bi-level")),
}


def make_episodes(policy, seed: int) -> list[Episode]:
    """Three groups of four episodes, of one to three turns, from a sampler that is a little beside the policy.

    Some turns end with the policy's end token and others do not; some contexts are rewritten; one episode of each
    group failed, with a return that would be seen in any mean; the returns of the last group are equal but for that.
    """
    draw, noise, episodes = random.Random(seed), np.random.default_rng(seed), []

    def some(least: int, most: int) -> list[int]:
        return [draw.randrange(10, 200) for _ in range(draw.randint(least, most))]

    for group in range(3):
        first = some(4, 7)
        for attempt in range(4):
            turns, context = [], first
            for _ in range(3 if attempt == 1 else draw.choice([1, 2, 3])):
                tokens = some(1, 5) + [policy.eos_id] * draw.choice([0, 1])
                turns.append(Turn(context, tokens, [], 0.5 if group == 2 else draw.choice([0.0, 0.5, 1.0, -0.25])))
                rewritten = attempt == 1 or draw.random() < 0.2
                context = some(3, 6) if rewritten else context + tokens + some(2, 4)
            if group == 2:
                turns = turns[:1]
            failed = (group, attempt) in ((0, 2), (1, 1), (2, 3))
            if failed:
                turns[-1].reward = 7.0
            episodes.append(Episode(turns, group, [draw.choice(["a", "b", None]) for _ in turns], failed))
    for episode in episodes:
        sampled = []
        for row in strip_padding(_with_logprobs(episode, [[0.0] * len(t.tokens) for t in episode.turns])):
            with torch.no_grad():
                sampled += logprobs(policy.model, row, TEMPERATURE)[0].tolist()
        sampled = (np.array(sampled) + noise.normal(0, 0.2, len(sampled))).tolist()
        _with_logprobs(episode, [[sampled.pop(0) for _ in t.tokens] for t in episode.turns])
    return episodes


def _with_logprobs(episode: Episode, values: list[list[float]]) -> Episode:
    for turn, own in zip(episode.turns, values, strict=True):
        turn.logprobs = own
    return episode


@pytest.fixture(scope="module")
def policy(make_policy):
    return make_policy("bytes", 1, num_hidden_layers=1)


@pytest.fixture(scope="module")
def batches(policy):
    """Two: the second begins with weights that are not those of the start, which a KL penalty must not take for its reference."""
    return [make_episodes(policy, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def critic_head():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(1, 32, generator=generator) * 0.2, torch.tensor([0.3])


def distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest of any parameter, in units of its norm; of one that is next to nothing, in units of the others'."""
    assert ours.keys() == theirs.keys()
    floor = max(1e-3 * max(float(x.norm()) for x in theirs.values()), 1e-6)
    return max(float((ours[name] - x).norm()) / max(float(x.norm()), floor) for name, x in theirs.items())


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_weights_are_those_of_the_plain_loop(case, policy, batches, critic_head):
    algorithm, changes = CASES[case]
    options = COMMON | changes
    batches = batches if not changes or "kl_coef" in changes else batches[:1]
    got = run_update(algorithm, options, policy, batches, critic_head)
    expected = Reference(algorithm, options, policy.model, critic_head, follow=got.gradients)
    before = {name: weight.detach().clone() for name, weight in expected.weights().items()}
    for i, episodes in enumerate(batches):
        expected.update(episodes, np.random.default_rng(i))
    assert len(got.gradients) == len(expected.gradients) == len(batches) * options["epochs"] * options["minibatches"]
    for ours, theirs in zip(got.gradients, expected.gradients, strict=True):
        assert distance(ours, theirs) < 1e-4
    after = {name: weight.detach() for name, weight in expected.weights().items()}
    assert distance(got.weights, after) < 1e-6
    moved = {name: weight - before[name] for name, weight in after.items()}
    assert distance({name: got.weights[name] - before[name] for name in before}, moved) < 1e-4
