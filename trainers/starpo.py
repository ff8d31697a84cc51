"""StarPO: trajectories of state, thinking, action and reward, optimised whole (RAGEN, Wang et al. 2025, arXiv 2504.20073).

Presets over PPO, and over GRPO by the names that end in -grpo; every option can be given beside the preset:

- starpo: 8 prompts x 16 rollouts, γ = λ = 1, a symmetric clip and a KL penalty of .001; nothing is filtered.
- starpo-s: stabilised. The 25 % of the prompts whose raw returns differ most, no KL, clip at .2/.28, and (over PPO)
  a critic.
- ragen-2: prompts in descending deviation until they hold 90 % of it, less .01 (arXiv 2604.06268); an update without any
  is skipped.

RAGEN's own configuration also has an entropy bonus: --entropy-coef .001.

    python -m trainers.starpo starpo-s
    python -m trainers.starpo ragen-2-grpo --updates 100
    python -m trainers.starpo starpo-s --help     # its options
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "starpo": ("Plain StarPO", {"kl_coef": 0.001, "clip_high": 0.2}),
    "starpo-s": ("Stabilised: uncertain prompts, no KL, clip-higher", {"filter": "uncertain"}),
    "ragen-2": ("Prompts that hold 90 % of the signal", {"filter": "signal"}),
}
_BATCH = {"questions_per_update": 8, "group_size": 16}


def choose_preset(words: list[str]) -> str:
    """The preset that the command line begins with. Where there is none, or help is asked for, the process ends with what
    there is to choose from, before torch is imported."""
    names = [f"{name}{over}" for over in ("", "-grpo") for name in _CHANGES]
    name = words[0] if words and words[0] in names else ""
    asks_help = bool({"-h", "--help"} & set(words))
    if name and not asks_help:
        return name
    print(
        f"usage: python -m trainers.starpo {{{','.join(names)}}} [OPTIONS]",
        file=sys.stdout if asks_help else sys.stderr,
    )
    if asks_help:
        title, changes = _CHANGES.get(name.removesuffix("-grpo"), (__doc__, {}))
        algorithm = "grpo" if name.endswith("-grpo") else "ppo"
        options = " ".join(f"--{n.replace('_', '-')} {v}" for n, v in (_BATCH | changes).items())
        options += " --scale-by-std" if algorithm == "grpo" else ""
        print(f"\n{title}", *([f"{name} is trainers.{algorithm} with {options}"] if name else []), sep="\n\n")
        print(f"\nOPTIONS are those of python -m trainers.{algorithm} --help, and are put over the preset's.")
    raise SystemExit(0 if asks_help else 2)


if __name__ == "__main__":
    NAME = choose_preset(sys.argv[1:])
    if not __package__:  # run as a file: the packages lie beside its folder
        sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

from trainers import grpo, ppo
from trainers.cli import parse

PRESETS: dict[str, tuple[str, ppo.Args | grpo.Args]] = {}
for _name, (_title, _changes) in _CHANGES.items():
    _changes = _BATCH | _changes
    PRESETS[_name] = _title, ppo.Args(**_changes)
    # GRPO as RAGEN has it, advantages in units of the group's deviation
    PRESETS[f"{_name}-grpo"] = f"{_title}; over GRPO", grpo.Args(**_changes, scale_by_std=True)


def main(name: str, args: ppo.Args | grpo.Args) -> dict:
    """A whole run of a preset, or of what became of it; returns its summary."""
    if args.loss == "gspo" and args.clip_high == PRESETS[name][1].clip_high:
        args = replace(args, clip_high=None)  # the preset's is one of token ratios
    return grpo.main(args, name) if isinstance(args, grpo.Args) else ppo.main(args, name)


if __name__ == "__main__":
    del sys.argv[1]
    main(NAME, parse(PRESETS[NAME][1], __doc__, f"starpo {NAME}"))
