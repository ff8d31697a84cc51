"""StarPO: trajectories of state, thinking, action and reward, optimised whole (RAGEN, Wang et al. 2025, arXiv 2504.20073).

Presets over PPO, and over GRPO by the names that end in ``-grpo``; every option can be given beside the preset:

- ``starpo``: 8 prompts x 16 rollouts, γ = λ = 1, a symmetric clip and a KL penalty of .001; nothing is filtered.
- ``starpo-s``: stabilised. The 25 % of the prompts whose raw returns differ most, no KL, clip at .2/.28, and (over PPO)
  a critic.
- ``ragen-2``: prompts in descending deviation until they hold 90 % of it (arXiv 2604.06268); an update without any is
  skipped.

RAGEN's own configuration also has an entropy bonus: ``--entropy-coef .001``.

    python -m trainers.starpo starpo-s
    python -m trainers.starpo starpo-s --env AgentR1/Bandit-v0 --updates 30
    python -m trainers.starpo ragen-2-grpo
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # run as a file, it finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import tyro

from trainers import grpo, ppo

_BATCH = {"questions_per_update": 8, "group_size": 16}
_CHANGES = {
    "starpo": ("Plain StarPO", {"kl_coef": 0.001, "clip_high": 0.2}),
    "starpo-s": ("Stabilised: uncertain prompts, no KL, clip-higher", {"filter": "uncertain"}),
    "ragen-2": ("Prompts that hold 90 % of the signal", {"filter": "signal"}),
}
PRESETS = {name: (title, ppo.Args(**_BATCH, **changes)) for name, (title, changes) in _CHANGES.items()} | {
    # GRPO as RAGEN has it, advantages in units of the group's deviation
    f"{name}-grpo": (f"{title}; over GRPO", grpo.Args(**_BATCH, **changes, scale_by_std=True))
    for name, (title, changes) in _CHANGES.items()
}


def main(name: str, args: ppo.Args | grpo.Args) -> dict:
    return (grpo if isinstance(args, grpo.Args) else ppo).main(args, name)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", tyro.extras.overridable_config_cli(PRESETS, description=__doc__))
