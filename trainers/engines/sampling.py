"""Tokens from logits."""

import math

import torch
from torch.nn.functional import pad

CHUNK = 512  # neighbouring tokens of the vocabulary that are first drawn as one


def sample(
    logits: torch.Tensor, rows: torch.Tensor, temperature: float, top_p: float = 1.0, min_p: float = 0.0,
    noise: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Draw tokens from logits [N, V]; several from one distribution if ``rows`` repeats it.

    Args:
        rows: int64 [M], the row of the logits that each token is drawn from.
        temperature: 0 takes the most probable token.
        top_p, min_p: see `truncate`; nothing is cut off at temperature 0.
        noise: float64 [M] in [0, 1), the point of the cumulative distribution that draws each token; by default random.

    Returns:
        Tokens, int64 [M], and their log-probabilities under the sampling distribution (at temperature 0, the untempered one).
    """
    logp = (logits if temperature in (0, 1) else logits / temperature).log_softmax(-1)
    if temperature and (top_p < 1 or min_p):
        logp = truncate(logp, top_p, min_p)
    tokens = logp.argmax(-1)[rows] if temperature == 0 else _draw(logp, rows, noise)
    return tokens, logp[rows, tokens]


def truncate(logp: torch.Tensor, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """Keep probable tokens; return log-probabilities [..., V], renormalised, −inf for the others. Min-p comes first, as in vLLM.

    Args:
        top_p: keep the fewest tokens that hold this share, the most probable ones (Holtzman et al. 2020).
        min_p: cut off tokens less probable than this share of the most probable one (Nguyen et al. 2025).
    """
    if min_p:
        logp = logp.masked_fill(logp < logp.amax(-1, keepdim=True) + math.log(min_p), -torch.inf).log_softmax(-1)
    if top_p < 1:
        ordered, order = logp.sort(dim=-1, descending=True, stable=True)
        p = ordered.exp().double()
        before = p.cumsum(-1) - p  # the total probability of the tokens before each one
        cut = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p)
        logp = logp.masked_fill(cut, -torch.inf).log_softmax(-1)
    return logp


def _draw(logp: torch.Tensor, rows: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Draw by inversion of the cumulative distribution in double precision: a chunk of the vocabulary, then a token in it."""
    chunks = pad(logp.exp(), (0, -logp.shape[-1] % CHUNK)).unflatten(-1, (-1, CHUNK))
    mass = chunks.sum(-1, dtype=torch.float64)
    cumulative = mass.cumsum(-1)
    if noise is None:
        noise = torch.rand(len(rows), dtype=torch.float64, device=logp.device)
    points = noise * (1 - 2**-32) * cumulative[rows, -1]
    chunk = _find_interval(cumulative[rows], points)
    inside = chunks[rows, chunk].cumsum(-1, dtype=torch.float64)
    rest = points - (cumulative - mass)[rows, chunk]
    # Rounding may put the rest beyond all tokens of the chunk, or before them, where the first one would be taken even if it is
    # impossible.
    token = _find_interval(inside, torch.minimum(rest, inside[:, -1] * (1 - 2**-32)).clamp(min=0))
    return (chunk * CHUNK + token).clamp(max=logp.shape[-1] - 1)


def _find_interval(cumulative: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Find, in each row [M, K] of growing sums, the index of the first sum above the point [M]."""
    return torch.searchsorted(cumulative, points[:, None], right=True)[:, 0].clamp(max=cumulative.shape[-1] - 1)
