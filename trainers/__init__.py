"""The trainer: policy, rollouts, trajectories, advantages, losses. ``python -m trainers`` lists its commands."""

import sys
from importlib.util import find_spec

if sys.version_info < (3, 11) or find_spec("tyro") is None:
    import retrieval_index  # noqa: F401  (its error names what is missing)
