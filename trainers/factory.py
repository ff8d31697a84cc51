"""Make the environments and the engine that the command line asks for. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.integrations import hosting
from agent_envs.vector import ToolVectorEnv
from trainers.config import TrainArgs, read_json_object
from trainers.runtime.errors import UserError

if TYPE_CHECKING:
    from trainers.engines.engine import Engine
    from trainers.models.policy import Policy


def make_envs(id: str, kwargs: str, split: str, num_envs: int) -> ToolVectorEnv:
    """Make a vector of environments from command-line values. `hosting.make` adapts an environment that is no `ToolEnv`. An id
    that ends in .jsonl is a file of tasks for the user's program."""
    arguments = read_json_object("env_kwargs", kwargs)
    if taken := {"split", "num_envs"} & set(arguments):
        raise UserError(f"{sorted(taken)} cannot be among the environment arguments: the command sets them itself")
    if id.endswith(".jsonl"):
        from trainers.agents.task_file import TaskEnv

        return ToolVectorEnv(lambda: TaskEnv(id, split, **arguments), num_envs)
    spec = hosting.find_spec(id)
    if not hosting.has_vector(spec):  # any environment that speaks text
        return ToolVectorEnv(lambda: hosting.make(id, split=split, **arguments), num_envs)
    hosting.check_arguments(id, spec, arguments)
    advice = "register it without, or with agent_envs.vector.vector_entry_point"
    try:
        with hosting.explaining(spec):
            envs = gymnasium.make_vec(spec, num_envs=num_envs, split=split, **arguments)
    except TypeError as error:
        unknown = [name for name in ("split", *arguments) if f"unexpected keyword argument '{name}'" in str(error)]
        if not unknown:
            raise
        if unknown != ["split"]:
            raise UserError(f"{id}: {error}") from error
        raise UserError(f"{id} has a vector of its own, which knows no split: {advice}") from error
    if not isinstance(envs, ToolVectorEnv):
        raise UserError(f"{id} has a vector of its own, {type(envs).__name__}: {advice}")
    return envs


def make_engine(
    name: str, policy: Policy, stop: tuple[str, ...], vllm_url: tuple[str, ...] = (), vllm_kv_gib: float = 2.0
) -> Engine:
    """Make the engine "transformers", or "vllm" in this process or at ``vllm_url``.

    Raises:
        ValueError: the number of servers is not that of the processes, or vLLM should keep thoughts to a budget.
    """
    if name == "transformers":
        from trainers.engines.transformers_engine import TransformersEngine

        return TransformersEngine(policy, stop)
    if policy.thought_tokens:
        raise UserError(
            f"engine 'vllm' cannot close a thought after {policy.thought_tokens} tokens: give thinking 'on', or leave out engine"
        )
    if not vllm_url:
        from trainers.engines.vllm_engine import VLLMEngine

        return VLLMEngine(policy, stop, vllm_kv_gib)
    from trainers.engines.vllm_client import VLLMClient
    from trainers.runtime import distributed

    if len(vllm_url) != distributed.world_size():
        raise UserError(f"vllm_url must name {distributed.world_size()} servers, one for each process, got {vllm_url}")
    return VLLMClient(policy, stop, vllm_url[distributed.rank()])


def check_world_size(args: TrainArgs) -> None:
    """Raise a ValueError if several processes cannot share the work of these arguments."""
    from trainers.runtime import distributed

    world_size = distributed.world_size()
    if args.one_step_off_policy and world_size > 1:
        raise UserError("one_step_off_policy is for one process: several would have to agree during an update")
    if args.questions_per_update % world_size:
        raise UserError(
            f"questions_per_update must be a multiple of the number of processes, {world_size}, as each rolls out whole "
            f"groups; got {args.questions_per_update}"
        )
    if world_size > 1 and getattr(args, "share_layers", False):
        raise UserError("share_layers is for one process: with several the critic needs layers of its own")


def check_splits(envs: ToolVectorEnv, held_out: ToolVectorEnv) -> None:
    """Raise a ValueError if held-out questions are training questions too."""
    ours, theirs = envs.envs[0].questions, held_out.envs[0].questions
    if ours is None or theirs is None:
        return  # made from seeds; the environment keeps its splits apart
    # Questions of a user's own class may have no ids.
    train = {question.id for question in ours if hasattr(question, "id")}
    if shared := sum(getattr(question, "id", None) in train for question in theirs):
        raise UserError(f"{shared} held-out questions are training questions too: give data with a split of each")
