"""What `experiments.compare` does with a recipe: check it, train its runs, evaluate them, write its report."""
