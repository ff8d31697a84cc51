"""The tiny policy's cold start. Its defaults are here, where `--help` finds them without importing torch."""

STEPS = 2800  # gradient steps
CONTINUE_PROBABILITY = 0.3  # how often the demonstrator searches on after an article
