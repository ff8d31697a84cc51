"""Choose the format that a policy acts in."""

import contextlib
import json
import sys
from pathlib import Path

from agent_envs.vector import ToolVectorEnv
from trainers.checkpoints.settings import ARGUMENTS_FILE
from trainers.models.policy import Policy
from trainers.runtime import distributed
from trainers.runtime.errors import UserError


def choose_format(policy: Policy, model: str, env_kwargs: str, *vectors: ToolVectorEnv) -> None:
    """Set the format of environments.

    The first that applies: the format in ``env_kwargs``; the one that the policy was trained with; function calls, if the chat
    template and the tasks support them; the environments' own format.

    Args:
        model: the policy's path or hub id.

    Raises:
        ValueError: function calls are asked for, but the chat template does not support them.
    """
    envs = [env for vector in vectors for env in vector.envs]
    reason = ""
    if "format" not in json.loads(env_kwargs) and "plain" not in _names(vectors):
        try:
            for env in envs:
                env.use_format(_trained_format(model) or ("native" if policy.dialect else None))
        except ValueError as problem:  # the task does not support the format
            reason = str(problem)
            for env in envs:
                env.use_format(None)
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
    """Return the format that one of our checkpoints was trained with, if its arguments name one."""
    with contextlib.suppress(OSError, ValueError):
        arguments = json.loads((Path(model) / ARGUMENTS_FILE).read_text(encoding="utf-8"))
        return json.loads(arguments["env_kwargs"]).get("format")
    return None
