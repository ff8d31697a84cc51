"""Choose the format that a policy acts in."""

import json
import sys

from agent_envs.vector import ToolVectorEnv
from trainers.checkpoints import checkpoint
from trainers.models.policy import Policy
from trainers.runtime import distributed
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import is_checkpoint


def choose_format(policy: Policy, model: str, env_kwargs: str, *vectors: ToolVectorEnv) -> None:
    """Set the format of environments, and ``policy.format`` and ``policy.stop``, which its checkpoints keep.

    The first that applies: the format in ``env_kwargs``; the one that the policy was trained with; function calls, if the chat
    template and the tasks support them; the environments' own format.

    Args:
        model: the policy's path or hub id.

    Raises:
        ValueError: function calls are asked for, but the chat template does not support them.
    """
    envs = [env for vector in vectors for env in vector.envs]
    reason, policy.format = "", json.loads(env_kwargs).get("format")
    if policy.format is None and "plain" not in _names(vectors):
        policy.format = _trained_format(model)
        try:
            for env in envs:
                env.use_format(policy.format or ("native" if policy.dialect else None))
        except ValueError as problem:  # the task does not support the format
            reason, policy.format = str(problem), None
            for env in envs:
                env.use_format(None)
    policy.stop = vectors[0].envs[0].stop
    names = _names(vectors)
    if "native" in names and policy.dialect is None:
        raise UserError(
            f"{model} cannot call functions: {policy.refusal}; choose another format than native, such as hermes"
        )
    if policy.dialect and not distributed.rank():
        how = f"function calls, as {policy.dialect.family.name} writes them"
        text = f"text, format {', '.join(sorted(names))}" + f": {reason}" * bool(reason)
        print(f"{model} acts by {how if 'native' in names else text}", file=sys.stderr)


def _names(vectors: tuple[ToolVectorEnv, ...]) -> set[str]:
    return {format.name for vector in vectors for format in vector.envs[0].formats}


def _trained_format(model: str) -> str | None:
    """Return the format that one of our checkpoints was trained with, if it was named."""
    return checkpoint.read_extra(model, verified=True).get("format") if is_checkpoint(model) else None
