"""Where a recipe comes from: one that is shipped, or a file. Nothing here imports torch."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

_RENAMED_RECIPES = {"ahead": "one-step-off-policy"}  # since the release before this one


def read_source(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """The name of a recipe, and what its file holds.

    Raises:
        ValueError: there is no such recipe, or the file is no TOML.
    """
    shipped = {f.name.removesuffix(".toml"): f for f in resources.files("experiments").joinpath("recipes").iterdir()}
    file = shipped.get(name_or_path, Path(name_or_path))
    if not file.is_file() and name_or_path in _RENAMED_RECIPES:
        raise ValueError(f"the recipe {name_or_path!r} is now called {_RENAMED_RECIPES[name_or_path]!r}")
    if not file.is_file():
        raise ValueError(f"there is no recipe {name_or_path!r}: give a file, or one of {sorted(shipped)}")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name_or_path} is not valid TOML: {error}") from error
    return file.name.removesuffix(".toml"), content
