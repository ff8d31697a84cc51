"""Make the environments, the policy and the engine that the command line asks for."""

import json

import gymnasium

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.vector import ToolVectorEnv
from trainers import distributed
from trainers.engines.engine import Engine
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.policy import Policy


def make_envs(id: str, kwargs: str, split: str, num_envs: int) -> ToolVectorEnv:
    """A vector of environments from command-line values; ``kwargs`` is a JSON object."""
    try:
        arguments = json.loads(kwargs)
    except json.JSONDecodeError as error:
        raise ValueError(f"the environment arguments are not valid JSON: {error}; got {kwargs!r}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the environment arguments must be a JSON object, got {kwargs!r}")
    if taken := {"split", "num_envs"} & set(arguments):
        raise ValueError(f"{sorted(taken)} cannot be among the environment arguments: the command sets them itself")
    return gymnasium.make_vec(id, num_envs=num_envs, split=split, **arguments)


def make_engine(
    name: str, policy: Policy, stop: tuple[str, ...], vllm_url: tuple[str, ...] = (), vllm_kv_gib: float = 2.0
) -> Engine:
    """What samples: "transformers", or "vllm" in this process or, where there are addresses, on servers, one for each
    process.

    Raises:
        ValueError: there are not as many servers as processes.
    """
    if name == "transformers":
        return TransformersEngine(policy, stop)
    if not vllm_url:
        from trainers.engines.vllm_engine import VLLMEngine

        return VLLMEngine(policy, stop, vllm_kv_gib)
    from trainers.engines.vllm_client import VLLMClient

    if len(vllm_url) != distributed.ranks():
        raise ValueError(f"vllm_url must name {distributed.ranks()} servers, one for each process, got {vllm_url}")
    return VLLMClient(policy, stop, vllm_url[distributed.rank()])
