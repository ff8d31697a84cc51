"""Comparisons of runs: check a recipe, train its runs, evaluate them, write the report."""
