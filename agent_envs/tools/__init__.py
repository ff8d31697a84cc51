"""Tools: they act and report what happened. The environment decides what that means for the task."""

from agent_envs.tools.function import FunctionTool, ToolError
from agent_envs.tools.running import Tool, run_calls
from agent_envs.tools.search import ReadTool, SearchTool

__all__ = ["FunctionTool", "ReadTool", "SearchTool", "Tool", "ToolError", "run_calls"]
