"""The tiny policy's cold start. Its defaults are here, where `--help` finds them without importing torch."""

STEPS = 2800  # gradient steps
STEPS_OF_DECISIONS = 1650  # in MiniWiki's varied worlds, of twice as many tokens each
CONTINUE_PROBABILITY = 0.25  # how often the demonstrator searches on after an article
