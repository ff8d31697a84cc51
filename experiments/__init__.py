"""Comparisons of runs: check a recipe, train its runs, evaluate them, write the report."""

import trainers  # noqa: F401  (names a Python or package that is missing)
