"""State in one line which Python or package is missing. The packages here import this module before all others."""

import sys
from importlib.util import find_spec

_PACKAGES = ("numpy", "numba", "httpx", "tyro", "rich")


def find_missing(version: tuple = sys.version_info, packages: tuple = _PACKAGES) -> str:
    """Return what is missing and how to fix it; "" if nothing is missing."""
    if version < (3, 11):
        return f"Python 3.11 or newer is needed, and {sys.executable} is {version[0]}.{version[1]}: run a newer one"
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return ""
    advice = "pip install -e . in the checkout, or its .venv/bin/python after `make train`"
    return f"{', '.join(missing)} not installed for {sys.executable}: {advice}"


if problem := find_missing():
    if sys.argv[:1] == ["-m"]:  # a command: no traceback
        sys.exit(problem)
    raise ImportError(problem)
