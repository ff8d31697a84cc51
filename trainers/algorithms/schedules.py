"""Learning-rate schedules: warm-up, then a constant rate or a decay to 0."""

import math


def learning_rate_factor(schedule: str, warmup: float, done: float) -> float:
    """Compute the factor of the full learning rate, in [0, 1], when a share ``done`` of the training is over.

    It rises linearly over the share ``warmup``, then is ``"constant"`` or falls to 0 in a ``"linear"`` or ``"cosine"``
    ``schedule`` (Loshchilov & Hutter 2017, eq. 5, one cycle).
    """
    if done < warmup:
        return done / warmup
    left = min(1.0, max(0.0, (1 - done) / (1 - warmup))) if warmup < 1 else 1.0
    return {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}[schedule]
