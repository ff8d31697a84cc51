"""Where the estimators and losses here differ from those of other trainers, and by how much.

    python -m benchmarks.training.conventions

Each row re-implements a convention of another code, from the file that it names, beside ours, on one batch of random episodes:
16 groups of 8, of one to four turns of 1 to 20 tokens with 5 to 30 observation tokens between them; an episode's return is 0 or
1. Prints the table of docs/algorithms.md. "Apart by x %" is |theirs − ours| / |ours| over the policy's own tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro

from trainers.algorithms.advantages import group_advantage, to_tokens, whiten
from trainers.algorithms.gae import bi_level_gae, gae, turn_level_gae
from trainers.algorithms.group_filters import most_signal, most_uncertain
from trainers.algorithms.losses import clipped_policy_loss, gspo_loss, kl_k2, kl_k3, sequence_log_ratio, sequence_mean
from trainers.algorithms.process_rewards import prime_norm
from trainers.algorithms.turn_advantages import gigpo
from trainers.engines.sampling import truncate

GROUPS, SIZE = 16, 8
CODES = {
    "verl": "verl-project/verl: verl/trainer/ppo/core_algos.py, verl/utils/torch_functional.py",
    "verl-agent": "gigpo/core_gigpo.py, as in the fork zhangyun04/verl-agent",
    "RAGEN": "mll-lab-nu/RAGEN: ragen/trainer/core_algos.py, ragen/trainer/rollout_filter.py",
    "Agent-R1": "0russwest0/Agent-R1: agent_r1/trainer/ppo/core_algos.py",
    "Agent-R1, first version": "agent_r1/src/agent_ray_trainer.py, core_algos.py and agent_reward_manager.py, as in the fork "
    "samee99/Agent-R1",
    "OpenRLHF": "OpenRLHF/OpenRLHF: openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/models/loss.py",
    "TRL": "huggingface/trl: trl/trainer/grpo_trainer.py",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row of the table."""

    what: str
    elsewhere: str
    here: str
    measured: str


@dataclass(kw_only=True)
class Episodes:
    """[N, T] with observations in between, and [N]; float64. ``final``: rewards at the last own token of the last turn;
    ``rewards``: with process rewards too; ``old``, ``new``: log-probabilities."""

    mask: torch.Tensor
    turns: torch.Tensor
    final: torch.Tensor
    rewards: torch.Tensor
    values: torch.Tensor
    old: torch.Tensor
    new: torch.Tensor
    returns: torch.Tensor
    groups: torch.Tensor


def make_episodes(seed: int = 0) -> Episodes:
    """The batch that all rows are measured on."""
    generator = torch.Generator().manual_seed(seed)

    def between(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    rows = []
    for _ in range(GROUPS * SIZE):
        turns: list[int] = []
        for turn in range(between(1, 4)):
            turns += [-1] * (between(5, 30) if turn else 0) + [turn] * between(1, 20)
        rows.append(turns)
    width = max(map(len, rows))
    turns = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    mask, shape = turns >= 0, turns.shape
    returns = (uniform(GROUPS * SIZE) < uniform(GROUPS).repeat_interleave(SIZE)).double()
    ends = mask & (turns != turns.roll(-1, 1))
    is_last = ends & (turns == turns.amax(1, keepdim=True))
    final = torch.where(is_last, returns[:, None], 0.0)
    paid = ends & ~is_last & (uniform(*shape) < 0.4)
    old = torch.where(mask, -uniform(*shape), 0.0)
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    return Episodes(
        mask=mask,
        turns=turns,
        final=final,
        rewards=final + 0.25 * paid.double(),
        values=uniform(*shape),
        old=old,
        new=torch.where(mask, old + 0.3 * noise, 0.0),
        returns=returns,
        groups=torch.arange(GROUPS).repeat_interleave(SIZE),
    )


def apart(theirs: torch.Tensor, ours: torch.Tensor, mask: torch.Tensor) -> str:
    """How far apart two tensors are where ``mask`` is true."""
    share = float((theirs - ours)[mask].norm() / ours[mask].norm())
    return "equal to rounding" if share < 1e-9 else f"apart by {100 * share:.2g} %"


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0))


# -- advantages --------------------------------------------------------------------------------------------------------


def divided_by_deviation(e: Episodes) -> Difference:
    one_right = torch.zeros(8, dtype=torch.float64)
    one_right[0] = 1.0
    theirs = (one_right - one_right.mean()) / (one_right.std() + 1e-6)
    ours = group_advantage(one_right, torch.zeros(8, dtype=torch.long))
    half = (torch.arange(8) < 4).double()
    even = (half - half.mean()) / (half.std() + 1e-6)
    return Difference(
        what="GRPO's division by the group's deviation",
        elsewhere="verl, Agent-R1 and TRL by default; OpenRLHF's `group_norm`",
        here="none (Dr. GRPO); `--scale-by-std`",
        measured=f"the right one of eight weighs {theirs[0] / even[0]:.2f} times one of four right ones; here "
        f"{ours[0] / 0.5:.2f} times",
    )


def epsilon_of_deviation(e: Episodes) -> Difference:
    ours = group_advantage(e.returns, e.groups, scale_by_std=True)
    by_group = e.returns.view(GROUPS, SIZE)
    centred, deviation = by_group - by_group.mean(1, keepdim=True), by_group.std(1, keepdim=True)
    every = torch.ones(GROUPS * SIZE, dtype=torch.bool)
    found = {name: apart((centred / (deviation + eps)).flatten(), ours, every)
             for name, eps in (("verl", 1e-6), ("OpenRLHF", 1e-9), ("TRL", 1e-4))}  # fmt: skip
    return Difference(
        what="ε beside that deviation, which has n − 1 everywhere",
        elsewhere="verl 1e-6, OpenRLHF 1e-9, TRL 1e-4",
        here="1e-6",
        measured="; ".join(f"{name}: {value}" for name, value in found.items()),
    )


def group_of_one(e: Episodes) -> Difference:
    theirs, ours = 1.0, group_advantage(torch.ones(1), torch.zeros(1, dtype=torch.long)).item()
    return Difference(
        what="a group of which one episode is left",
        elsewhere="verl, RAGEN and Agent-R1: mean 0, deviation 1",
        here="no advantage",
        measured=f"a return of 1 has the advantage {theirs:g}; here {ours:g}",
    )


def whitening(e: Episodes) -> Difference:
    ours = whiten(e.values, e.mask)
    chosen = e.values[e.mask]
    centred = e.values - chosen.mean()
    verl = centred * torch.rsqrt(chosen.var() + 1e-8)
    openrlhf = centred * chosen.var(unbiased=False).clamp(min=1e-8).rsqrt()
    return Difference(
        what="whitening over the mask",
        elsewhere="verl: n − 1, ε = 1e-8 under the root; OpenRLHF: n, no ε",
        here="n − 1, σ + 1e-6",
        measured=f"verl {apart(verl, ours, e.mask)}, OpenRLHF {apart(openrlhf, ours, e.mask)} of {len(chosen)} tokens",
    )


def whitening_over_turns(e: Episodes) -> Difference:
    advantages, _ = turn_level_gae(e.rewards, e.values, e.turns, e.mask, 0.95, 1.0)
    starts = e.mask & (e.turns != e.turns.roll(1, 1))
    of_turns = advantages[starts]
    theirs = (advantages - of_turns.mean()) / (of_turns.std() + 1e-8)
    return Difference(
        what="whitening of step-level GAE",
        elsewhere="Agent-R1: each turn counts once",
        here="each token counts once (`ppo --turn-level`)",
        measured=apart(theirs, whiten(advantages, e.mask), e.mask),
    )


def gae_over_observations(e: Episodes) -> Difference:
    theirs = torch.zeros_like(e.values)
    values = torch.where(e.mask, e.values, 0.0)
    skipping, following, later, carried = torch.zeros_like(theirs), 0.0, torch.zeros(2, len(values)).double(), 0.0
    for t in reversed(range(values.shape[1])):
        carried = e.rewards[:, t] + following - values[:, t] + 0.95 * carried
        theirs[:, t], following = carried, values[:, t]
        step = e.rewards[:, t] + later[0] - e.values[:, t] + 0.95 * later[1]
        later = torch.where(e.mask[:, t], torch.stack((e.values[:, t], step)), later)
        skipping[:, t] = later[1]
    ours, _ = gae(e.rewards, e.values, e.mask, 1.0, 0.95)
    return Difference(
        what="GAE at γ = 1, λ = .95 where tools spoke",
        elsewhere="OpenRLHF: over all positions, V = 0 at a tool's; verl and Agent-R1 skip them",
        here="skipped",
        measured=f"OpenRLHF {apart(theirs, ours, e.mask)}, verl {apart(skipping, ours, e.mask)}",
    )


def ends_by_rewards(e: Episodes) -> Difference:
    ends = e.rewards != 0
    merged = torch.zeros_like(e.turns)
    for t in range(1, e.turns.shape[1]):
        merged[:, t] = merged[:, t - 1] + ends[:, t - 1].long()
    how = (1.0, 1.0, 0.95, 1.0)
    # Behind its last reward an episode has no end in RAGEN's code; it is left out here.
    before = e.mask & (ends.long().flip(1).cumsum(1).flip(1) > 0)
    theirs, _ = bi_level_gae(torch.where(before, e.rewards, 0.0), e.values, merged, before, *how)
    ours, _ = bi_level_gae(e.rewards, e.values, e.turns, e.mask, *how)
    same = (theirs - ours).abs() < 1e-9
    return Difference(
        what="bi-level GAE: where a turn ends",
        elsewhere="RAGEN: at a reward that is not 0",
        here="at its last token (`ppo --bi-level`)",
        measured=f"{100 * float((~same)[before].double().mean()):.0f} % of the tokens have another advantage, "
        f"{apart(theirs, ours, before)}",
    )


def reward_on_the_last_token(e: Episodes) -> Difference:
    """A quarter of the episodes is cut off behind an observation: the last token of the response is a tool's."""
    cut_off = torch.arange(len(e.returns)) % 4 == 0
    lost = float(e.returns[cut_off].sum() / e.returns.sum())
    return Difference(
        what="the reward of an episode that a tool's answer ends",
        elsewhere="Agent-R1, first version: at the last token, which the mask leaves out",
        here="at the last token that was sampled",
        measured=f"with a quarter of the episodes so, {100 * lost:.0f} % of the reward is lost; here none",
    )


def episode_mean_over_steps(e: Episodes) -> Difference:
    steps = e.turns.amax(1) + 1
    theirs = torch.empty_like(e.returns)
    for group in range(GROUPS):
        own = e.groups == group
        theirs[own] = e.returns[own] - (e.returns[own] * steps[own]).sum() / steps[own].sum()
    ours = group_advantage(e.returns, e.groups)
    anchors = [[None] * int(k) for k in steps]
    alone = gigpo(e.final, e.turns, e.mask, e.groups, anchors, 1.0)
    assert torch.allclose(alone, to_tokens(ours, e.mask))  # where every state is alone, GiGPO is the episodes' part
    return Difference(
        what="GiGPO's mean over a group's episodes",
        elsewhere="verl-agent: each counts as often as it has steps; Agent-R1: once",
        here="once",
        measured=f"verl-agent {apart(theirs, ours, torch.ones_like(ours).bool())}",
    )


def process_rewards(e: Episodes) -> Difference:
    process = e.rewards - e.final
    theirs = process / (process.flip(1).cumsum(1).flip(1).abs().max() + 1e-6)  # over all tokens
    turns = int(e.turns.max()) + 1
    paid = torch.zeros(len(process), turns, dtype=torch.float64).scatter_add(1, e.turns.clamp(min=0), process)
    ours = prime_norm(paid).gather(1, e.turns.clamp(min=0)) * (process != 0)
    return Difference(
        what="the size of process rewards",
        elsewhere="Agent-R1, first version: `prime_norm`, after PRIME in verl; its main branch: as they are",
        here="as they are; `--prime-norm`, over the turns before the last",
        measured=f"`prime_norm` {apart(theirs, ours, process != 0)}",
    )


def uncertain_groups(e: Episodes) -> Difference:
    returns, groups = torch.zeros(64), torch.arange(8).repeat_interleave(8)
    returns[:4] = 1.0
    theirs = len(returns.view(8, 8).std(1).topk(2).indices)
    ours = len(groups[most_uncertain(returns, groups)].unique())
    return Difference(
        what="StarPO-S's uncertain groups",
        elsewhere="RAGEN: the best quarter, whatever their deviation",
        here="the same without flat ones",
        measured=f"of 8 groups of which one differs, RAGEN keeps {theirs} and we keep {ours}",
    )


def groups_with_signal(e: Episodes) -> Difference:
    generator, equal = torch.Generator().manual_seed(3), 0
    for _ in range(1000):
        spread = torch.randint(3, (16, 1), generator=generator).double()  # a third of the groups is flat
        returns = spread * torch.rand(16, 8, dtype=torch.float64, generator=generator) ** 3
        deviation, order = returns.std(1).sort(descending=True, stable=True)
        wanted, total, kept = 0.9 * float(deviation.sum()) - 0.01, 0.0, []
        for value, group in zip(deviation.tolist(), order.tolist(), strict=True):
            if total >= wanted or value <= 1e-10:
                break
            total, kept = total + value, [*kept, group]
        groups = torch.arange(16).repeat_interleave(8)
        equal += sorted(kept) == groups[most_signal(returns.flatten(), groups)].unique().tolist()
    return Difference(
        what="RAGEN-2's groups with signal",
        elsewhere="RAGEN: linear top-p of .9, `selection_eps` .01, no flat ones",
        here="the same",
        measured=f"the same groups in {equal} of 1000 random batches",
    )


# -- losses ------------------------------------------------------------------------------------------------------------


def token_or_sequence_mean(e: Episodes) -> Difference:
    advantages = to_tokens(group_advantage(e.returns, e.groups), e.mask)
    tokens = e.mask.sum(1, keepdim=True)
    by_token, by_sequence = advantages / e.mask.sum(), advantages / tokens / len(advantages)
    long = (tokens[:, 0] >= tokens.double().quantile(0.75)) & (advantages.abs().sum(1) > 0)
    share = [float(weights[long].abs().sum() / weights.abs().sum()) for weights in (by_token, by_sequence)]
    return Difference(
        what="mean over tokens, or over sequences first",
        elsewhere="verl, OpenRLHF and DAPO: tokens; GRPO's paper: sequences",
        here="tokens; `--normalize sequences`",
        measured=f"the longest quarter has {100 * share[0]:.0f} % of the gradient's weight, or {100 * share[1]:.0f} %; "
        f"the two weightings have the cosine {cosine(by_token, by_sequence):.2f}",
    )


def mean_of_micro_batches(e: Episodes) -> Difference:
    advantages = to_tokens(group_advantage(e.returns, e.groups), e.mask)
    parts = torch.arange(len(advantages)).view(-1, SIZE)
    theirs = torch.cat([advantages[rows] / e.mask[rows].sum() / len(parts) for rows in parts])
    return Difference(
        what="a token mean in micro-batches",
        elsewhere="OpenRLHF, TRL (`bnpo`): of each; verl, Agent-R1: over the step",
        here="over the step",
        measured=f"in 16 micro-batches the weights are {apart(theirs, advantages / e.mask.sum(), e.mask)}",
    )


def dual_clip(e: Episodes) -> Difference:
    ratio, minus = torch.tensor([[2.0, 5.0, 20.0]], dtype=torch.float64), -torch.ones(1, 3, dtype=torch.float64)
    pair = [
        clipped_policy_loss(ratio.log(), torch.zeros_like(ratio), minus, 0.2, 0.28, c).tolist()[0] for c in (3.0, 0.0)
    ]
    return Difference(
        what="dual clip",
        elsewhere="verl and Agent-R1: at 3, always; OpenRLHF: an option",
        here="an option (`--dual-clip`)",
        measured="bad tokens of ratio 2, 5 and 20 weigh "
        + " and ".join(", ".join(f"{x:g}" for x in row) for row in pair),
    )


def ratio_of_rows(e: Episodes) -> Difference:
    """Each turn is a row, as in Agent-R1; here an episode is a sequence."""
    ours = sequence_log_ratio(e.new, e.old, e.mask).expand_as(e.new)
    theirs = torch.zeros_like(e.new)
    for turn in range(int(e.turns.max()) + 1):
        own = e.turns == turn
        theirs = torch.where(own, sequence_log_ratio(e.new, e.old, own).expand_as(e.new), theirs)
    outside = [float((x[e.mask].exp() - 1).abs().gt(0.05).double().mean()) for x in (theirs, ours)]
    return Difference(
        what="GSPO's sequence, where a context is rewritten in each turn",
        elsewhere="Agent-R1: a turn",
        here="the episode",
        measured=f"the log-ratios vary {float(theirs[e.mask].std() / ours[e.mask].std()):.1f} times as much; outside ±5 % are "
        f"{100 * outside[0]:.0f} % of the tokens, here {100 * outside[1]:.0f} %",
    )


def gradient_of_the_sequence(e: Episodes) -> Difference:
    advantages, found = to_tokens(group_advantage(e.returns, e.groups), e.mask), []
    for form in ("sequence", "token"):
        new = e.new.clone().requires_grad_()
        if form == "sequence":
            s = (torch.where(e.mask, new - e.old, 0.0).sum(1) / e.mask.sum(1)).exp()[:, None]
            per_token = -torch.minimum(s * advantages, s.clamp(0.97, 1.04) * advantages)
        else:
            per_token = gspo_loss(new, e.old, advantages, e.mask, 0.03, 0.04)
        found.append(torch.autograd.grad(sequence_mean(per_token, e.mask, len(new)), new)[0])
    return Difference(
        what="GSPO's gradient",
        elsewhere="OpenRLHF and TRL: through the sequence's ratio; verl, Agent-R1: token by token",
        here="token by token",
        measured=f"{apart(*found, e.mask)} while an episode has one advantage",
    )


def gradients_of_the_kl(e: Episodes) -> Difference:
    generator = torch.Generator().manual_seed(1)
    logits, other = (1.5 * torch.randn(2, 50, dtype=torch.float64, generator=generator)).unbind()
    logits.requires_grad_()
    p, q = logits.log_softmax(0), other.log_softmax(0)

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    kl, drawn = gradient((p.exp() * (p - q)).sum()), p.detach().exp()
    k1, k2, k3 = (gradient((drawn * estimate).sum()) for estimate in (p - q, kl_k2(p, q), kl_k3(p, q)))
    return Difference(
        what="the KL penalty in the loss",
        elsewhere="TRL: k3; OpenRLHF: k1, k2 or k3",
        here="k3; `--kl k2`; `k1` goes into the reward",
        measured=f"expected gradients beside the KL's own: k2 has the cosine {cosine(k2, kl):.2f}, k3 {cosine(k3, kl):.2f} and "
        f"{k3.norm() / kl.norm():.1f} times the length, k1 {k1.norm() / kl.norm():.1f} times",
    )


def truncated_sampling(e: Episodes) -> Difference:
    generator = torch.Generator().manual_seed(2)
    logp = (2 * torch.randn(200, 1000, dtype=torch.float64, generator=generator)).log_softmax(-1)
    left = truncate(logp, top_p=0.9)
    share = torch.where(left > -math.inf, logp, -math.inf).exp().sum(-1)
    weights = torch.where(left > -math.inf, (logp - left).exp(), 0.0)
    kept = left > -math.inf
    assert torch.allclose(
        weights[kept], share[:, None].expand_as(weights)[kept]
    )  # π / q is the same for all that is kept
    return Difference(
        what="sampling at top-p .9",
        elsewhere="verl: trains as if all tokens had been sampled from, but for its rollout correction",
        here="with `--importance`, each token is weighted by π / q",
        measured=f"π / q is the share that was left, {share.mean():.3f} on average: "
        f"without it steps are {100 * (1 / share.mean() - 1):.0f} % longer",
    )


DIFFERENCES: tuple[Callable[[Episodes], Difference], ...] = (
    divided_by_deviation,
    epsilon_of_deviation,
    group_of_one,
    whitening,
    whitening_over_turns,
    gae_over_observations,
    ends_by_rewards,
    reward_on_the_last_token,
    episode_mean_over_steps,
    process_rewards,
    uncertain_groups,
    groups_with_signal,
    token_or_sequence_mean,
    mean_of_micro_batches,
    dual_clip,
    ratio_of_rows,
    gradient_of_the_sequence,
    gradients_of_the_kl,
    truncated_sampling,
)


def table() -> list[str]:
    """The lines of the table, in Markdown."""
    episodes = make_episodes()
    rows = [difference(episodes) for difference in DIFFERENCES]
    lines = [f"| {row.what} | {row.elsewhere} | {row.here} | {row.measured} |" for row in rows]
    return ["| what | elsewhere | here | measured |", "|---|---|---|---|", *lines]


def main() -> None:
    print(*table(), "", *(f"- {name}: `{path}`" for name, path in CODES.items()), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
