"""PPO of Stable-Baselines3, or MaskablePPO of sb3-contrib, in a game of this suite.

pip install 'stable-baselines3==2.9.*' 'sb3-contrib==2.9.*'
python examples/plug/sb3.py --env AgentR1/Sokoban-v0 --steps 100000 --seed 1
python examples/plug/sb3.py --masks
"""

import gymnasium
from held_out import Agent, arguments, report
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from agent_envs.integrations import Menu

SETTINGS = {"n_steps": 64, "batch_size": 256, "n_epochs": 6, "learning_rate": 1e-3, "gamma": 0.98, "ent_coef": 0.01}


def train(id: str, steps: int, seed: int, masks: bool = False, **env_kwargs) -> Agent:
    envs = DummyVecEnv([lambda: Menu(gymnasium.make(id, **env_kwargs))] * 16)
    how = {**SETTINGS, "policy_kwargs": {"net_arch": [128, 128]}, "seed": seed, "device": "cpu"}
    if not masks:
        model = PPO("MlpPolicy", envs, **how).learn(steps)
        return lambda observation, _: model.predict(observation, deterministic=True)[0]

    from sb3_contrib import MaskablePPO

    model = MaskablePPO("MlpPolicy", envs, **how).learn(steps)  # calls `action_masks` of the environments
    return lambda observation, mask: model.predict(observation, action_masks=mask, deterministic=True)[0]


if __name__ == "__main__":
    args = arguments(__doc__, "--masks")
    report(train(args.env, args.steps, args.seed, args.masks, **args.env_kwargs), args.env, **args.env_kwargs)
