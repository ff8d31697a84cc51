"""PPO of RLlib in a game of this suite.

pip install 'ray[rllib]==2.60.*'
python examples/plug/rllib.py --env AgentR1/Sokoban-v0 --steps 100000 --seed 1
"""

import gymnasium
import torch
from held_out import Agent, arguments, report
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from agent_envs.integrations import Menu


def train(id: str, steps: int, seed: int, **env_kwargs) -> Agent:
    register_env("game", lambda _: Menu(gymnasium.make(id, **env_kwargs)))
    config = (
        PPOConfig()
        .environment("game")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16, rollout_fragment_length=64)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[128, 128], vf_share_layers=False))
        .training(
            train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=6, lr=1e-3, gamma=0.98, lambda_=0.95,
            clip_param=0.2, vf_clip_param=100.0, entropy_coeff=0.01, use_kl_loss=False, grad_clip=0.5,
        )
        .debugging(seed=seed)
    )  # fmt: skip
    algorithm = config.build_algo()
    while algorithm.train()["num_env_steps_sampled_lifetime"] < steps:
        pass
    module = algorithm.get_module()
    algorithm.stop()

    def agent(observation, _):
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.as_tensor(observation)[None]})["action_dist_inputs"]
        return int(logits.argmax())

    return agent


if __name__ == "__main__":
    args = arguments(__doc__)
    report(train(args.env, args.steps, args.seed, **args.env_kwargs), args.env, **args.env_kwargs)
