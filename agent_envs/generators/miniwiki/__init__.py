"""MiniWiki: a procedural fictional Wikipedia with multi-hop questions, made from a seed in memory."""

from agent_envs.generators.miniwiki.names import vocabulary
from agent_envs.generators.miniwiki.questions import TYPES, make_question
from agent_envs.generators.miniwiki.world import DIFFICULTIES, World

__all__ = ["DIFFICULTIES", "TYPES", "World", "make_question", "vocabulary"]
