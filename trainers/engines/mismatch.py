"""The difference between an engine's probabilities and the trainer's, for the same weights."""

import torch

from trainers.engines.engine import Engine, generate
from trainers.models.policy import Policy
from trainers.runtime.errors import UserError
from trainers.trajectory import Step, Trajectory, collate

TOLERANCE = 0.1  # nats a token, on average; bfloat16 makes 0.01 to 0.05


@torch.no_grad()
def measure_mismatch(trainer: torch.Tensor, sampler: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Compare log-probabilities [B, T] of the trainer's own pass with those that the engine reported, over the action mask.

    Returns:
        The mean |Δ log-probability|; KL(sampler ‖ trainer) per token by k1; and the largest ratio π_trainer / π_sampler, to
        compare with the cap of `trainers.algorithms.importance.truncated_importance`.
    """
    difference = (trainer - sampler)[mask].double()
    if not len(difference):
        return {"mismatch/logprob": 0.0, "mismatch/kl": 0.0, "mismatch/max_ratio": 1.0}
    return {
        "mismatch/logprob": difference.abs().mean().item(),
        "mismatch/kl": -difference.mean().item(),
        "mismatch/max_ratio": difference.max().exp().item(),
    }


def check_engine(engine: Engine, policy: Policy) -> None:
    """Sample a turn and compare its log-probabilities with the policy's own. Leaves the random state as it was.

    Raises:
        ValueError: they differ, because of other weights, another vocabulary, or another distribution than that sampled from.
    """
    prompt, temperature = policy.prompt_ids("", "hello"), 2.0
    with torch.random.fork_rng():
        completion = generate(engine, {0: prompt}, 16, temperature)[0]
    step = Step(prompt=prompt, tokens=completion.tokens, logprobs=completion.logprobs)
    batch = collate([Trajectory(steps=[step])], policy.pad_id).to(policy.device)
    with torch.no_grad():
        own, _ = policy.logprobs(batch, temperature)
    found = measure_mismatch(own, batch.old_logprobs, batch.mask)["mismatch/logprob"]
    if not found <= TOLERANCE:  # also if NaN
        raise UserError(
            f"the engine's log-probabilities at temperature {temperature} are {found:.3f} nats a token away from the "
            "policy's own: it must run the same model, and report those of the distribution that it samples from "
            "(vLLM: --logprobs-mode processed_logprobs)"
        )
