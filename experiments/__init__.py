"""What `experiments.compare` does with a recipe: read and check it, train its runs, evaluate them on its columns, write its report."""
