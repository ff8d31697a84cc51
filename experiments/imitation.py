"""The baseline that reinforcement learning must beat: the same seconds, spent on more imitation."""

import copy
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_envs.vector import ToolVectorEnv
from trainers.checkpoints import checkpoint
from trainers.config import DEMONSTRATOR, Demonstrator
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime.progress import Progress
from trainers.tiny import curriculum
from trainers.tiny.cold_start import fit


def is_done(folder: Path, seconds: float) -> bool:
    """Whether ``folder`` holds the result of as many ``seconds``."""
    return checkpoint.is_checkpoint(folder) and checkpoint.read_extra(folder)["asked"] == seconds


def continue_imitation(
    base: Policy,
    envs: ToolVectorEnv,
    seed: int,
    seconds: float,
    folder: Path,
    demonstrator: Demonstrator = DEMONSTRATOR,
    described: Mapping[str, Any] | None = None,
) -> tuple[Policy, dict]:
    """Train ``base``, as its cold start left it, on demonstrations of whole episodes for ``seconds``, over which the learning
    rate falls to zero.

    Args:
        envs: training environments.
        folder: where the result is kept, and found by a second call for as many seconds.
        demonstrator: the one that the cold start imitated.
        described: kept with the result.

    Returns:
        The policy; and the seconds ``asked`` for, the ``seconds`` that it took and its ``steps``.
    """
    if is_done(folder, seconds):
        return load_policy(folder), checkpoint.read_extra(folder)
    policy, rng = copy.deepcopy(base), random.Random(f"more imitation:{seed}")
    teacher = curriculum.Teacher(policy, envs, rng, demonstrator)
    # The cold start's last stage, with other draws.
    tokens, steps = curriculum.choose_curriculum(envs).tokens_per_step, 0
    batches = (("episodes", batch) for batch in curriculum.batch_by_length(teacher.episodes, rng, tokens))
    begin = time.monotonic()
    with Progress(seconds, "s", "more imitation") as progress:

        def report(step: int, kind: str, loss: float) -> None:
            nonlocal steps
            steps = step
            progress.update(min(seconds, time.monotonic() - begin), loss=loss)

        # At least one step, however short the time.
        fit(policy, batches, lambda step: (time.monotonic() - begin) / seconds if step else 0.0, report)
    spent = {**(described or {}), "asked": seconds, "seconds": time.monotonic() - begin, "steps": steps}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=steps, extra=spent)
    return policy, spent
