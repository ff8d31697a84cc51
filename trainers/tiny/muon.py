"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum with all singular values set to about 1."""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch

from trainers.models.hidden_states import has_bfloat16_products

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the polynomial that pulls singular values towards 1
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and without weight decay, as in ``torch.optim.Muon``; it updates all matrices of one shape
    together. ``lr`` is the step of a square or wide matrix; a tall matrix takes √(rows / columns) times that.

    ``torch.optim.Muon`` always computes in bfloat16, which takes more than half of a cold start on a CPU without bfloat16 matmul.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        for group in self.param_groups:
            alike: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                alike[matrix.shape].append(matrix)
            for (rows, columns), matrices in alike.items():
                moved = orthogonalize(torch.stack([self._add_momentum(m, group["momentum"]) for m in matrices]))
                step = -group["lr"] * math.sqrt(max(1, rows / columns))
                for matrix, update in zip(matrices, moved, strict=True):
                    matrix.add_(update, alpha=step)

    def _add_momentum(self, matrix: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        assert matrix.grad is not None
        if matrix not in self.state:
            self.state[matrix]["mean"] = torch.zeros_like(matrix)
        mean = self.state[matrix]["mean"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Set the singular values of matrices [n, A, B] to between about 0.7 and 1.2, and keep their singular vectors, by
    Newton-Schulz iteration; in bfloat16 if the device has bfloat16 matmul."""
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if has_bfloat16_products(matrices.device) else torch.float32)
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)
