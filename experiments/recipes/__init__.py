"""The shipped recipes, and how to find one. Nothing here imports torch."""

import tomllib
from pathlib import Path
from typing import Any


def list_shipped() -> list[str]:
    """The names of the shipped recipes."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def read_toml(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """Read the name of a recipe and the content of its file. Raises a ValueError if there is none, or it is not valid TOML."""
    is_shipped = name_or_path in list_shipped()
    file = Path(__file__).with_name(f"{name_or_path}.toml") if is_shipped else Path(name_or_path)
    if not file.is_file():
        raise ValueError(f"there is no recipe {name_or_path!r}: give a file, or one of {list_shipped()}")
    try:
        return file.name.removesuffix(".toml"), tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name_or_path} is not valid TOML: {error}") from error
