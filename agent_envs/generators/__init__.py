"""Task instances made from a seed by pure functions of a `random.Random`, independent of any environment."""
