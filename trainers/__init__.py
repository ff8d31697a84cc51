"""The trainer: policy, rollouts, trajectories, advantages, losses. ``python -m trainers`` lists its commands."""
