"""The environments of this suite in other RL libraries.

`Episode` is the base of adapters for chat models, and `Menu` is for agents that choose by a number. Each library has a module,
imported by name: ``from agent_envs.integrations import trl``. Nothing here imports torch.
"""

from agent_envs.integrations.episode import Episode, Reply, step_all, take_message
from agent_envs.integrations.menu import Menu

__all__ = ["Episode", "Menu", "Reply", "step_all", "take_message"]
