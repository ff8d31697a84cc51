"""The baseline that reinforcement learning must beat: the same seconds, spent on more imitation."""

import copy
import random
import time
from functools import partial
from pathlib import Path

from agent_envs.vector import ToolVectorEnv
from trainers.cold_start import curriculum as sft
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs import checkpoint
from trainers.runs.logger import Progress


def continued(
    base: Policy,
    envs: ToolVectorEnv,
    seed: int,
    seconds: float,
    pace: float,
    folder: Path,
    patience: float = sft.PATIENCE,
) -> tuple[Policy, dict]:
    """``base``, as its cold start left it, taught whole episodes for ``seconds``.

    The number of steps must be known before the first, as the learning rate falls to zero over them. Where ``pace``, the
    seconds that a step of the cold start took, proves a tenth off, the pace just measured is taken to start afresh.

    Args:
        envs: training environments.
        folder: where the result is kept, and found by a second call for as many seconds.
        patience: of the searcher that the cold start imitated.

    Returns:
        The policy, and the seconds ``asked`` for, those that it took, and its ``steps``.
    """
    if checkpoint.is_checkpoint(folder) and (known := checkpoint.read_extra(folder))["asked"] == seconds:
        return load_policy(folder), known
    for _ in range(2):
        policy, steps, begin = copy.deepcopy(base), max(1, round(seconds / pace)), time.monotonic()
        with Progress(steps, description="more imitation") as progress:
            rng = random.Random(f"more imitation:{seed}")
            lessons = sft.cut(
                partial(sft.episodes, policy, envs, rng, patience), rng
            )  # the cold start's last, with other draws
            batches = (("episodes", batch) for batch in lessons)
            sft.fit(policy, batches, steps, lambda step, lesson, loss: progress.update(step, loss=loss))
        took = time.monotonic() - begin
        if abs(took - seconds) <= 0.1 * seconds:
            break
        pace = took / steps
    told = {"asked": seconds, "seconds": took, "steps": steps}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=steps, extra=told)
    return policy, told
