"""Gymnasium environments for language models that use tools over many turns.

    >>> import gymnasium, agent_envs
    >>> env = gymnasium.make("AgentR1/MiniWiki-v0")
    >>> question, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step("<search>a town</search>")

Importing the package registers the environments; ``gymnasium.make("agent_envs:AgentR1/HotpotQA-v0")`` does both.
`host` wraps any other environment whose observations and actions are text.
"""

from importlib import metadata

import retrieval_index  # noqa: F401  # isort: split
from agent_envs.integrations.hosting import host
from agent_envs.registration import IDS, register_all

try:
    __version__ = metadata.version("agent-r1-envs")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

register_all()

__all__ = ["IDS", "__version__", "host"]
