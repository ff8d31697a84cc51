"""What one update should be: a plain loop over episodes, rows and tokens, written from the papers.

Nothing of the trainers is imported here. The model is called as transformers has it, one row at a time and in float64;
estimators and losses are loops over tokens. It is slow and has no padding, no packing, no
micro-batches and no masks, which is what it is for.
"""

import copy
import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

DEFAULTS = dict(
    lr=5e-4, temperature=1.0, max_grad_norm=1.0, max_new_tokens=32, questions_per_update=16, group_size=8, epochs=1,
    minibatches=1, loss="clip", normalize="tokens", clip_low=0.2, clip_high=0.28, kl_coef=0.0, kl="k3", kl_target=0.0,
    entropy_coef=0.0, importance="none", filter="none", overlong_buffer=0, loss_mask=True,
    advantage_mask=True,
    # of single algorithms
    scale_by_std=False, turn_credit=False, turn_gamma=1.0, process_weight=0.0, baseline="batch", step_gamma=0.95,
    step_weight=1.0,
)  # fmt: skip
PPO_DEFAULTS = dict(
    gamma=1.0, lam=1.0, gae="tokens", turn_gamma=0.95, turn_lam=1.0, critic_lr=1e-3, value_clip=0.2,
    value_coef=0.5, share_layers=False, whiten_advantages=True,
)  # fmt: skip
GSPO_CLIP = 3e-4, 4e-4


@dataclass
class Turn:
    """``prompt``: all ids before the turn; ``tokens``: those that were sampled, with ``logprobs``."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    reward: float = 0.0


@dataclass
class Episode:
    """``anchors``: a label of the state before each turn. ``failed``: a tool broke."""

    turns: list[Turn]
    group: int = 0
    anchors: list[Any] = field(default_factory=list)
    failed: bool = False


@dataclass
class Token:
    """A sampled token, at place ``at`` of its row. ``old``: the log-probability that the ratio is taken to."""

    at: int
    turn: int
    old: float
    reward: float = 0.0
    weight: float = 1.0
    reference: float = 0.0
    value: float = 0.0
    advantage: float = 0.0
    target: float = 0.0


@dataclass
class Row:
    """One sequence for the model."""

    ids: list[int]
    tokens: list[Token]


@dataclass
class Played:
    """An episode as rows, and its sampled tokens in the order they were sampled."""

    rows: list[Row]
    group: int
    anchors: list[Any]
    failed: bool

    @property
    def tokens(self) -> list[Token]:
        return [token for row in self.rows for token in row.tokens]


def strip_padding(episode: Episode) -> list[Row]:
    """A turn goes on with the row before it where its prompt begins with all of that row, else it begins a new one."""
    rows: list[Row] = []
    for number, turn in enumerate(episode.turns):
        if not rows or turn.prompt[: len(rows[-1].ids)] != rows[-1].ids:
            rows.append(Row([], []))
        row = rows[-1]
        row.ids = turn.prompt + turn.tokens
        row.tokens += [Token(len(turn.prompt) + i, number, logprob) for i, logprob in enumerate(turn.logprobs)]
        row.tokens[-1].reward = turn.reward
    return rows


def logprobs(model: torch.nn.Module, row: Row, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each sampled token of a row, float64."""
    logits = model(torch.tensor([row.ids])).logits[0].double() / temperature
    chosen, entropies = [], []
    for token in row.tokens:
        every = torch.log_softmax(logits[token.at - 1], 0)
        chosen.append(every[row.ids[token.at]])
        entropies.append(-(every.exp() * every).sum())
    return torch.stack(chosen), torch.stack(entropies)


def values_of(backbone: torch.nn.Module, head: torch.nn.Module, row: Row) -> torch.Tensor:
    """The critic's value of each sampled token of a row, from what stands before it."""
    hidden = backbone(torch.tensor([row.ids])).last_hidden_state[0]
    return torch.stack([head(hidden[token.at - 1])[0] for token in row.tokens])


# -- advantages ----------------------------------------------------------------------------------------------------


def compare(values: list[float], labels: list, scale: bool = False, leave_out: bool = False) -> list[float]:
    """Each value less the mean of those with its label, or of the others with its label; 0 for one that is alone."""
    compared = []
    for i, (value, label) in enumerate(zip(values, labels, strict=True)):
        group = [v for v, other in zip(values, labels, strict=True) if other == label]
        others = [v for j, (v, other) in enumerate(zip(values, labels, strict=True)) if other == label and j != i]
        if not others:
            compared.append(0.0)
        elif leave_out:
            compared.append(value - mean(others))
        else:
            compared.append((value - mean(group)) / (stdev(group) + 1e-6 if scale else 1.0))
    return compared


def add_by_episode(played: list[Played], scale: bool = False, leave_out: bool = False) -> None:
    returns = [sum(token.reward for token in p.tokens) for p in played]
    for p, advantage in zip(played, compare(returns, [p.group for p in played], scale, leave_out), strict=True):
        for token in p.tokens:
            token.advantage += advantage


def add_by_turn(
    played: list[Played], gamma: float, *, scale: bool = False, leave_out: bool = False, weight: float = 1.0,
    by_anchor: bool = False,
) -> None:  # fmt: skip
    """Returns from each turn on, compared with those of the same turn, or of the same anchor, in the group."""
    turns, returns, labels = [], [], []
    for i, p in enumerate(played):
        total = 0.0
        for number in sorted({token.turn for token in p.tokens}, reverse=True):
            own = [token for token in p.tokens if token.turn == number]
            total = sum(token.reward for token in own) + gamma * total
            state = p.anchors[number] if by_anchor else number
            turns.append(own)
            returns.append(total)
            labels.append((p.group, "alone", i, number) if state is None else (p.group, state))
    for own, advantage in zip(turns, compare(returns, labels, scale, leave_out), strict=True):
        for token in own:
            token.advantage += weight * advantage


def whiten(played: list[Played]) -> None:
    tokens = [token for p in played for token in p.tokens]
    centre, deviation = mean(t.advantage for t in tokens), stdev(t.advantage for t in tokens)
    for token in tokens:
        token.advantage = (token.advantage - centre) / (deviation + 1e-6)


def add_returns_to_go(played: list[Played]) -> None:
    for p in played:
        total = 0.0
        for token in reversed(p.tokens):
            total += token.reward
            token.advantage = total


def add_gae(tokens: list[Token], gamma: float, lam: float) -> None:
    value = advantage = 0.0
    for token in reversed(tokens):
        advantage = token.reward + gamma * value - token.value + gamma * lam * advantage
        token.advantage, value = advantage, token.value


def add_bi_level_gae(tokens: list[Token], gamma: float, lam: float, turn_gamma: float, turn_lam: float) -> None:
    by_turn: dict[int, list[Token]] = defaultdict(list)
    for token in tokens:
        by_turn[token.turn].append(token)
    add_gae([own[-1] for own in by_turn.values()], turn_gamma, turn_lam)
    for *inside, last in by_turn.values():
        value, advantage = last.value, last.advantage
        for token in reversed(inside):
            advantage = token.reward + gamma * value - token.value + gamma * lam * advantage
            token.advantage, value = advantage, token.value


def add_turn_level_gae(tokens: list[Token], turn_gamma: float, turn_lam: float) -> None:
    """A turn is one action: what its tokens earned, the value before its first token, one advantage and target for all."""
    by_turn: dict[int, list[Token]] = defaultdict(list)
    for token in tokens:
        by_turn[token.turn].append(token)
    value = advantage = 0.0
    for own in reversed(by_turn.values()):
        earned = sum(token.reward for token in own)
        advantage = earned + turn_gamma * value - own[0].value + turn_gamma * turn_lam * advantage
        value = own[0].value
        for token in own:
            token.advantage, token.target = advantage, advantage + value


def add_advantages(algorithm: str, o: SimpleNamespace, played: list[Played]) -> None:
    """Of the episodes that did not fail; to the others nothing is ever added."""
    if algorithm == "grpo" and o.turn_credit:
        add_by_turn(played, o.turn_gamma, scale=o.scale_by_std)
    elif algorithm == "grpo":
        add_by_episode(played, o.scale_by_std)
        if o.process_weight:
            add_by_turn(played, 0.0, scale=o.scale_by_std, weight=o.process_weight)
    elif algorithm == "rloo":
        add_by_episode(played, leave_out=True)
    elif algorithm == "gigpo":
        add_by_episode(played, o.scale_by_std)
        add_by_turn(played, o.step_gamma, scale=o.scale_by_std, weight=o.step_weight, by_anchor=True)
    elif algorithm == "reinforce":
        if o.baseline == "group":
            add_by_episode(played)
        else:
            add_returns_to_go(played)
        whiten(played)
    else:
        for p in played:
            if o.gae == "bi-level":
                add_bi_level_gae(p.tokens, o.gamma, o.lam, o.turn_gamma, o.turn_lam)
            elif o.gae == "turns":
                add_turn_level_gae(p.tokens, o.turn_gamma, o.turn_lam)
            else:
                add_gae(p.tokens, o.gamma, o.lam)
            for token in p.tokens if o.gae != "turns" else []:
                token.target = token.advantage + token.value
        if o.whiten_advantages:
            whiten(played)


# -- losses --------------------------------------------------------------------------------------------------------


def surrogate(o: SimpleNamespace, row: Row, new: torch.Tensor, mean_log_ratio: float) -> list[torch.Tensor]:
    """The policy's loss at each token. ``mean_log_ratio``: of all tokens of the episode, whatever row they are in."""
    losses = []
    for x, token in zip(new, row.tokens, strict=True):
        ratio, (low, high) = torch.exp(x - token.old), (o.clip_low, o.clip_high)
        if o.loss == "gspo":  # the sequence's ratio, with the gradient of the token's own probability
            ratio, (low, high) = math.exp(mean_log_ratio) * torch.exp(x - x.detach()), GSPO_CLIP
        clipped = torch.clamp(ratio, 1 - low, 1 + high)
        if o.loss == "cispo":
            losses.append(-clipped.detach() * token.advantage * x)
        else:
            losses.append(-torch.minimum(ratio * token.advantage, clipped * token.advantage))
    return losses


def kl_in_loss(kind: str, new: torch.Tensor, reference: float) -> torch.Tensor | float:
    if kind == "k2":
        return (new - reference) ** 2 / 2
    if kind == "k3":
        return torch.exp(reference - new) - (reference - new) - 1
    return 0.0


def clipped_value_loss(o: SimpleNamespace, value: torch.Tensor, token: Token) -> torch.Tensor:
    near = torch.clamp(value, token.value - o.value_clip, token.value + o.value_clip)
    return torch.maximum((value - token.target) ** 2, (near - token.target) ** 2) / 2


# -- the update ----------------------------------------------------------------------------------------------------


def make_adamw(module: torch.nn.Module, lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


class Reference:
    """An algorithm at work on a copy of a model.

    Args:
        algorithm: grpo, rloo, reinforce, gigpo or ppo.
        options: as the command line has them; those that are not given have the documented defaults.
        critic_head: weight [1, H] and bias [1] that PPO's critic starts with, in place of zeros.
        follow: gradients of each step to go on with, once the own ones are known. AdamW takes a full step where the
            gradient is nothing but rounding; two loops that go their own ways would see two policies after that.

    Attributes:
        gradients: of each step by name, clipped; those of the critic under "critic.".
    """

    def __init__(
        self, algorithm: str, options: dict[str, Any], model: torch.nn.Module, critic_head=None,
        follow: list[dict[str, torch.Tensor]] | None = None,
    ):  # fmt: skip
        known = DEFAULTS | (PPO_DEFAULTS if algorithm == "ppo" else {})
        self.algorithm, self.o = algorithm, SimpleNamespace(**(known | options))
        self.model, self.start = copy.deepcopy(model).double(), copy.deepcopy(model).double()
        self.optimizers = [make_adamw(self.model, self.o.lr)]
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.follow = follow
        self.critic = None
        if algorithm == "ppo":
            self.critic = torch.nn.Module()
            self.critic.backbone = None if self.o.share_layers else copy.deepcopy(self.model.base_model)
            self.critic.head = torch.nn.Linear(model.config.hidden_size, 1).double()
            with torch.no_grad():
                for own, given in zip(self.critic.head.parameters(), critic_head, strict=True):
                    own.copy_(given)
            self.optimizers.append(make_adamw(self.critic, self.o.critic_lr))

    def weights(self) -> dict[str, torch.Tensor]:
        named = dict(self.model.named_parameters())
        if self.critic is not None:
            named |= {f"critic.{name}": p for name, p in self.critic.named_parameters()}
        return named

    def values(self, row: Row) -> torch.Tensor:
        return values_of(self.critic.backbone or self.model.base_model, self.critic.head, row)

    def update(self, episodes: list[Episode], rng: np.random.Generator) -> None:
        """Gradient steps on one batch."""
        o = self.o
        played = [Played(strip_padding(e), e.group, e.anchors, e.failed) for e in episodes]
        if o.filter == "mixed":
            played = [p for p in played if self.is_mixed(played, p.group) and not p.failed]
        if o.overlong_buffer:
            for p in played:
                self.punish_long_turns(p)
        if not o.loss_mask:
            played = [self.unmask(p) for p in played]
        seen = played if o.advantage_mask else [self.unmask(p) for p in played]
        self.prepare(seen)
        add_advantages(self.algorithm, o, [p for p in seen if not p.failed])
        rows = [(row, p) for p in played for row in p.rows]
        # For a mean over sequences all rows of an episode are in one step.
        units = [[(row, p) for row in p.rows] for p in played] if o.normalize == "sequences" else [[x] for x in rows]
        for _ in range(o.epochs):
            for chosen in np.array_split(rng.permutation(len(units)), min(o.minibatches, len(units))):
                self.step([row for i in chosen for row in units[i]])
        if o.kl_target:
            kl = mean(kl_of(t.old, t.reference) for p in played if not p.failed for t in p.tokens)
            o.kl_coef *= 1 + 0.1 * min(max(kl / o.kl_target - 1, -0.2), 0.2)

    def is_mixed(self, played: list[Played], group: int) -> bool:
        returns = [sum(t.reward for t in p.tokens) for p in played if p.group == group and not p.failed]
        return len(returns) > 1 and max(returns) - min(returns) > 1e-6

    def punish_long_turns(self, p: Played) -> None:
        """DAPO, eq. 13: none up to the longest turn less the buffer, from there down to -1."""
        for number in {token.turn for token in p.tokens}:
            own = [token for token in p.tokens if token.turn == number]
            over = len(own) - (self.o.max_new_tokens - self.o.overlong_buffer)
            own[-1].reward -= min(max(over / self.o.overlong_buffer, 0.0), 1.0)

    @torch.no_grad()
    def unmask(self, p: Played) -> Played:
        """The ablation: behind the first sampled token of a row, those of a tool are as good as sampled, by the policy as it
        is and in the turn before them. The sampled ones are the same objects as before."""
        rows = []
        for row in p.rows:
            own, tokens = {token.at: token for token in row.tokens}, []
            for at in range(row.tokens[0].at, len(row.ids)):
                tokens.append(own.get(at) or Token(at, tokens[-1].turn, 0.0))
            rows.append(Row(row.ids, tokens))
            for x, token in zip(logprobs(self.model, rows[-1], self.o.temperature)[0].tolist(), tokens, strict=True):
                token.old = token.old if token.at in own else x
        return Played(rows, p.group, p.anchors, p.failed)

    @torch.no_grad()
    def prepare(self, played: list[Played]) -> None:
        """What is known before the first step: importance weights, the KL's reference, values."""
        o = self.o
        for p in played if o.importance != "none" else []:
            own = [x for row in p.rows for x in logprobs(self.model, row, o.temperature)[0].tolist()]
            ratios = [math.exp(x - token.old) for x, token in zip(own, p.tokens, strict=True)]
            for x, ratio, token in zip(own, ratios, p.tokens, strict=True):
                token.old, token.weight = x, {
                    "tis": min(ratio, 2.0),
                    "icepop": ratio if 0.5 <= ratio <= 5.0 else 0.0,
                }[o.importance]  # fmt: skip
        for row in (row for p in played for row in p.rows):
            if o.kl_coef:
                for x, token in zip(logprobs(self.start, row, o.temperature)[0].tolist(), row.tokens, strict=True):
                    token.reference = x
                    if o.kl == "k1":
                        token.reward -= o.kl_coef * (token.old - x)
            if self.critic is not None:
                for x, token in zip(self.values(row).tolist(), row.tokens, strict=True):
                    token.value = x

    def learns(self, row: Row, episode: Played) -> bool:
        """Whether there is anything to learn from a row."""
        terms = self.critic is not None or self.o.entropy_coef or (self.o.kl_coef and self.o.kl != "k1")
        return not episode.failed and bool(terms or any(abs(token.advantage) > 1e-6 for token in row.tokens))

    @torch.no_grad()
    def mean_log_ratio(self, episode: Played) -> float:
        new = [x for row in episode.rows for x in logprobs(self.model, row, self.o.temperature)[0].tolist()]
        return mean(x - token.old for x, token in zip(new, episode.tokens, strict=True))

    def step(self, rows: list[tuple[Row, Played]]) -> None:
        """One gradient step on some rows, with the episode of each. All that did not fail count in the mean."""
        o, named = self.o, self.weights()
        for p in named.values():
            p.grad = torch.zeros_like(p)
        rows = [(row, episode) for row, episode in rows if not episode.failed]
        tokens_of_batch, episodes_of_batch = sum(len(row.tokens) for row, _ in rows), len({id(e) for _, e in rows})
        for row, episode in rows:
            new, entropies = logprobs(self.model, row, o.temperature)
            ratio = self.mean_log_ratio(episode) if o.loss == "gspo" else 0.0
            losses = [loss * t.weight for loss, t in zip(surrogate(o, row, new, ratio), row.tokens, strict=True)]
            values = self.values(row) if self.critic is not None else None
            total = torch.zeros((), dtype=torch.float64)
            for i, token in enumerate(row.tokens):
                loss = losses[i] - o.entropy_coef * entropies[i]
                if o.kl_coef:
                    loss = loss + o.kl_coef * kl_in_loss(o.kl, new[i], token.reference)
                if values is not None:
                    loss = loss + o.value_coef * clipped_value_loss(o, values[i], token)
                total = total + loss
            of_sequences = len(episode.tokens) * episodes_of_batch
            (total / (tokens_of_batch if o.normalize == "tokens" else of_sequences)).backward()
        for parameters in (optimizer.param_groups[0]["params"] for optimizer in self.optimizers):
            norm = math.sqrt(sum(float((p.grad**2).sum()) for p in parameters))
            for p in parameters:
                p.grad *= min(1.0, o.max_grad_norm / (norm + 1e-6))
        self.gradients.append({name: p.grad.clone() for name, p in named.items()})
        if self.follow is not None:
            for name, p in named.items():
                p.grad.copy_(self.follow[len(self.gradients) - 1][name])
        if not any(self.learns(row, episode) for row, episode in rows):
            return  # AdamW is not asked, whose momentum would move the weights
        for optimizer in self.optimizers:
            optimizer.step()


def kl_of(old: float, reference: float) -> float:
    return math.exp(reference - old) - (reference - old) - 1
