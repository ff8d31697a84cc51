"""PPO of Tianshou in a game of this suite.

pip install 'tianshou==2.0.*'
python examples/plug/tianshou_ppo.py --env AgentR1/Sokoban-v0 --steps 100000 --seed 1
"""

import gymnasium
import torch
from held_out import Agent, arguments, report
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Categorical

from agent_envs.integrations import Menu


def train(id: str, steps: int, seed: int, **env_kwargs) -> Agent:
    torch.manual_seed(seed)
    envs = DummyVectorEnv([lambda: Menu(gymnasium.make(id, **env_kwargs))] * 16)
    one = Menu(gymnasium.make(id, **env_kwargs))  # `envs` has the spaces of the unwrapped environment: text
    envs.seed(seed)
    inputs, choices = one.observation_space.shape, one.action_space
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=inputs, hidden_sizes=[128, 128]), action_shape=choices.n, softmax_output=False
    )
    policy = ProbabilisticActorPolicy(
        actor=actor, dist_fn=lambda logits: Categorical(logits=logits), action_space=choices, action_scaling=False
    )
    algorithm = PPO(
        policy=policy, critic=DiscreteCritic(preprocess_net=Net(state_shape=inputs, hidden_sizes=[128, 128])),
        optim=AdamOptimizerFactory(lr=1e-3), gamma=0.98, gae_lambda=0.95, ent_coef=0.01, max_grad_norm=0.5,
    )  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(1024, 16))
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector, max_epochs=1, epoch_num_steps=steps, batch_size=256,
            collection_step_num_env_steps=1024, update_step_num_repetitions=6,
        )
    )  # fmt: skip
    return lambda observation, _: int(policy.actor(torch.as_tensor(observation)[None])[0].argmax())


if __name__ == "__main__":
    args = arguments(__doc__)
    report(train(args.env, args.steps, args.seed, **args.env_kwargs), args.env, **args.env_kwargs)
