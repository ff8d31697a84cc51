"""The trainer: policy, rollouts, trajectories, advantages, losses. ``python -m trainers`` lists its commands."""

from importlib import metadata

try:
    __version__ = metadata.version("agent-r1-envs")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"
