"""Task instances made from a seed: pure functions of a `random.Random`, which know nothing of environments."""
