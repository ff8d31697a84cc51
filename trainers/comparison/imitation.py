"""The baseline that reinforcement learning must beat: the same seconds, spent on more imitation."""

import copy
import random
import time
from functools import partial
from pathlib import Path

from agent_envs.vector import ToolVectorEnv
from trainers.cold_start import CONTINUE_PROBABILITY, curriculum
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs import checkpoint
from trainers.runs.logger import Progress


def is_done(folder: Path, seconds: float) -> bool:
    """Whether ``folder`` holds the result of as many ``seconds``."""
    return checkpoint.is_checkpoint(folder) and checkpoint.read_extra(folder)["asked"] == seconds


def continue_imitation(
    base: Policy,
    envs: ToolVectorEnv,
    seed: int,
    seconds: float,
    pace: float,
    folder: Path,
    continue_probability: float = CONTINUE_PROBABILITY,
) -> tuple[Policy, dict]:
    """Train ``base``, as its cold start left it, on demonstrations of whole episodes for ``seconds``.

    The number of steps must be known before the first, as the learning rate falls to zero over them. Where ``pace``, the
    seconds that a step of the cold start took, proves a tenth off, the pace just measured is taken to start afresh.

    Args:
        envs: training environments.
        folder: where the result is kept, and found by a second call for as many seconds.
        continue_probability: that of the demonstrator that the cold start imitated.

    Returns:
        The policy; and the seconds ``asked`` for, the ``seconds`` that it took and its ``steps``.
    """
    if is_done(folder, seconds):
        return load_policy(folder), checkpoint.read_extra(folder)
    for _ in range(2):
        policy, steps, begin = copy.deepcopy(base), max(1, round(seconds / pace)), time.monotonic()
        with Progress(steps, description="more imitation") as progress:
            rng = random.Random(f"more imitation:{seed}")
            # The cold start's last stage, with other draws.
            pools = partial(curriculum.episodes, policy, envs, rng, continue_probability)
            tokens = curriculum.choose_lessons(envs).tokens_per_step
            batches = (("episodes", batch) for batch in curriculum.batch_by_length(pools, rng, tokens))
            curriculum.fit(policy, batches, steps, lambda step, kind, loss: progress.update(step, loss=loss))
        took = time.monotonic() - begin
        if abs(took - seconds) <= 0.1 * seconds:
            break
        pace = took / steps
    spent = {"asked": seconds, "seconds": took, "steps": steps}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=steps, extra=spent)
    return policy, spent
