"""What names of the last release are called now. Each old one raises an error that says the new one; for one release."""

from collections.abc import Callable, Mapping
from typing import Any

ENV_ATTRIBUTES = {"judge": "evaluate_turn", "SCORE": "PRIMARY_METRIC", "LUCK": "TAKES_NOISE_SEED"}
TOOL_ATTRIBUTES = {"lane": "batch_key", "waits": "io_bound"}
CONTEXT_ATTRIBUTES = {"facts": "metrics", "before": "previous_metrics", "past": "previous_turns"}


def module_getattr(module: str, renames: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` (PEP 562) for names that it no longer has.

    An ImportError, and not the usual AttributeError, whose message ``from module import name`` would not show.
    """

    def __getattr__(name: str) -> Any:
        if name in renames:
            raise ImportError(f"{module}.{name} is now called {renames[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def check_env_class(task: type) -> None:
    """Raise a TypeError where a class of environments defines something by its old name."""
    for old, new in ENV_ATTRIBUTES.items():
        if hasattr(task, old):
            raise TypeError(f"{task.__name__}: {old} is now called {new}")


def check_reset_options(options: Mapping[str, Any]) -> None:
    """Raise a ValueError where a reset option has its old name."""
    if "luck" in options:
        raise ValueError("the reset option 'luck' is now called 'noise_seed'")


def check_tool(tool: Any) -> None:
    """Raise a TypeError where a tool, or the searcher of one, has an attribute by its old name."""
    for old, new in TOOL_ATTRIBUTES.items():
        if hasattr(tool, old) or hasattr(getattr(tool, "searcher", None), old):
            raise TypeError(f"the tool {tool.name!r}: {old} is now called {new}")
