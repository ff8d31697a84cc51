"""The environments of this suite in other RL libraries.

`Episode` is what adapters of chat models are made of, and `Menu` is for agents that choose by a number; a module for each
library holds what that library wants, and is imported by name: ``from agent_envs.integrations import trl``. Nothing here
imports torch.
"""

from agent_envs.integrations.episode import Episode, Reply, step_all, take_message
from agent_envs.integrations.menu import Menu

__all__ = ["Episode", "Menu", "Reply", "step_all", "take_message"]
