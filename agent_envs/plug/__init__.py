"""The environments of this suite in other RL libraries.

`Episode` is what all adapters are made of but `Menu`, which is for libraries whose agents act by numbers; a module for each library holds what that library wants of it, and is imported
by name: ``from agent_envs.plug import trl``. Nothing here imports torch.
"""

from agent_envs.plug.episode import Episode, Reply, step_all
from agent_envs.plug.menu import Menu

__all__ = ["Episode", "Menu", "Reply", "step_all"]
