"""The policy that training starts from."""

from agent_envs.vector import ToolVectorEnv
from trainers.cold_start import curriculum
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs.arguments import ModelArgs
from trainers.runs.logger import Progress


def start_policy(args: ModelArgs, envs: ToolVectorEnv, seed: int) -> tuple[Policy, float]:
    """The policy that training starts from: a given model, or the tiny one after its cold start; and the seconds that its
    cold start took.

    Raises:
        ValueError: the tiny policy has nobody to learn from there.
    """
    if args.model != "tiny":
        policy = load_policy(args.model, None, args.dtype, args.lora_rank, args.lora_alpha, args.base_model or None)
        if args.gradient_checkpointing:
            recompute_activations(policy.model)
        return policy, 0.0
    if envs.spec is None:
        raise ValueError(
            "the tiny policy is taught by the task's own scripted agents, which a hosted environment does not have: give a "
            "model, a folder or a hub id"
        )
    with Progress(args.cold_start_steps, description="cold start") as progress:
        return curriculum.cold_start(
            envs, seed, args.cold_start_steps, lambda step, kind, loss: progress.update(step, loss=loss),
            args.cold_start_continue_probability,
        )  # fmt: skip
