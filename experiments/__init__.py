"""What `experiments.compare` does with a recipe: read and check it, estimate its cost, play its columns, write its report."""
