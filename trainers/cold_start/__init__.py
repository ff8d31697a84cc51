"""The tiny policy's cold start. Its defaults are here, where `--help` finds them without importing torch."""

from dataclasses import dataclass

STEPS = 2800  # gradient steps
STEPS_OF_DECISIONS = 1900  # in MiniWiki's varied worlds, of twice as many tokens each


@dataclass(frozen=True)
class Demonstrator:
    """How well whom the cold start imitates plays, and where.

    ``continue_probability``: that it searches on after an article, where there is a corpus to search.
    ``skill``: elsewhere, the share of its episodes in which it plays as the task's scripted agent, not at random.
    ``env_kwargs``: elsewhere, arguments that its environment has in place of the task's own, as JSON.
    """

    continue_probability: float = 0.25
    skill: float = 0.75
    env_kwargs: str = "{}"


DEMONSTRATOR = Demonstrator()
