"""The policy that training starts from."""

import math
from pathlib import Path

from agent_envs.vector import ToolVectorEnv
from trainers.checkpoints import checkpoint
from trainers.config import ModelArgs
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime import distributed, retry
from trainers.runtime.errors import UserError
from trainers.runtime.progress import Progress
from trainers.runtime.signals import TrainingStopped
from trainers.tiny import curriculum

START = "start"  # the folder in that of a run with its cold start


def start_run(args, envs: ToolVectorEnv, run: Path) -> tuple[Policy, float]:
    """The policy that a run starts from, as `start_policy` gives it.

    The folder of the run keeps a cold start, and a run that is resumed starts from that: the cache may not have it any more,
    and another version, or another machine, would teach another one.
    """
    if args.resume and (kept := curriculum.read(run / START)) is not None:
        return kept
    policy, seconds = start_policy(args, envs, args.seed, args.tool_outage_minutes)
    if args.model == "tiny" and not distributed.rank():
        curriculum.save(run / START, policy, seconds)
    return policy, seconds


def start_policy(
    args: ModelArgs, envs: ToolVectorEnv, seed: int, outage_minutes: float = retry.MINUTES
) -> tuple[Policy, float]:
    """The policy that training starts from: a given model, or the tiny one after its cold start; and the seconds that its
    cold start took.

    Raises:
        ValueError: as `trainers.models.loading.load_policy`; the model is a checkpoint of ours, and damaged; or the tiny
            policy has nobody to learn from there, or an argument says how well somebody else plays.
        TrainingStopped: the loss of the cold start is not finite, or a tool that its demonstrators need breaks for
            ``outage_minutes``.
    """
    if args.model != "tiny":
        if checkpoint.is_written_here(args.model):
            checkpoint.verify(args.model)
        policy = load_policy(args.model, None, args.dtype, args.lora_rank, args.lora_alpha, args.base_model or None)
        if args.gradient_checkpointing:
            recompute_activations(policy.model)
        return policy, 0.0
    if envs.spec is None:
        raise UserError(
            "the tiny policy is taught by the task's own scripted agents, which a hosted environment does not have: give a "
            "model, a folder or a hub id"
        )
    task = envs.envs[0]
    if task.questions is None and (missing := {"random", "scripted"} - set(task.SCRIPTS)):
        raise UserError(
            f"the tiny policy is taught by a task's own scripted agents, and {type(task).__name__}.SCRIPTS lacks "
            f"{' and '.join(map(repr, sorted(missing)))}: add them, or give a model, a folder or a hub id"
        )
    whom = args.demonstrator()
    curriculum.choose_script(envs, whom)  # what is wrong with it is said before minutes are spent
    with curriculum.demonstration_envs(envs, whom):
        pass
    steps = args.cold_start_steps or curriculum.default_steps(envs)
    with Progress(steps, description="cold start") as progress:

        def report(step: int, kind: str, loss: float) -> None:
            if not math.isfinite(loss):
                raise TrainingStopped(f"the loss of the cold start is {loss} at step {step}: try another --seed")
            progress.update(step, loss=loss)

        return curriculum.cold_start(envs, seed, steps, report, whom, outage_minutes)
