"""StarPO: trajectories of state, thinking, action and reward, optimised whole (RAGEN, Wang et al. 2025, arXiv 2504.20073).

This command runs configurations in trainers/configs. Those named -grpo are for trainers.grpo, the others for trainers.ppo:

- starpo: 8 prompts x 16 rollouts, γ = λ = 1, a symmetric clip and a KL penalty of 0.001; nothing is filtered.
- starpo-s: stabilised. The 25% of the prompts whose raw returns differ most, no KL, clip at 0.2/0.28.
- ragen-2: prompts in descending deviation until they hold 90% of it (arXiv 2604.06268).

    python -m trainers.starpo starpo-s                    # python -m trainers.ppo --config starpo-s
    python -m trainers.starpo ragen-2-grpo --updates 100
    python -m trainers.starpo starpo-s --help             # its options; --help-all without a preset lists those of starpo
"""

import sys
from dataclasses import replace

NAMES = [f"{name}{over}" for over in ("", "-grpo") for name in ("starpo", "starpo-s", "ragen-2")]

if __name__ == "__main__":
    if sys.argv[1:] == ["--help-all"]:
        sys.argv.insert(1, NAMES[0])
    if sys.argv[1:2] not in [[name] for name in NAMES]:  # answers before torch is imported
        wants_help = bool({"-h", "--help", "--help-all"} & set(sys.argv))
        usage = f"usage: python -m trainers.starpo {{{','.join(NAMES)}}} [OPTIONS]"
        print(f"{usage}\n\n{__doc__}" if wants_help else usage, file=sys.stdout if wants_help else sys.stderr)
        raise SystemExit(0 if wants_help else 2)

from trainers import grpo, ppo
from trainers.cli import parse
from trainers.config import read_config


def make_args(name: str) -> "ppo.Args | grpo.Args":
    """Make the arguments of a StarPO configuration."""
    defaults = grpo.Args() if name.endswith("-grpo") else ppo.Args()
    return replace(defaults, **read_config(name, defaults, "grpo" if name.endswith("-grpo") else "ppo"))


def main(name: str, args: "ppo.Args | grpo.Args") -> dict:
    """Run a configuration, with changes from other options; return the summary of the run."""
    return grpo.main(args, name) if isinstance(args, grpo.Args) else ppo.main(args, name)


if __name__ == "__main__":
    NAME = sys.argv.pop(1)
    main(NAME, parse(make_args(NAME), __doc__, f"starpo {NAME}"))
