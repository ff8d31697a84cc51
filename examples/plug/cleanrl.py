"""PPO in one file, in the style of CleanRL, in a game of this suite.

python examples/plug/cleanrl.py --env AgentR1/Sokoban-v0 --steps 100000 --seed 1
"""

import gymnasium
import torch
from held_out import Agent, arguments, report
from torch import nn
from torch.distributions import Categorical

from agent_envs.integrations import Menu

ENVS, LENGTH, EPOCHS, MINIBATCH, GAMMA, LAMBDA = 16, 64, 6, 256, 0.98, 0.95


def train(id: str, steps: int, seed: int, **env_kwargs) -> Agent:
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: Menu(gymnasium.make(id, **env_kwargs))] * ENVS, autoreset_mode="SameStep"
    )
    inputs, choices = envs.single_observation_space.shape[0], envs.single_action_space.n
    actor = nn.Sequential(nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, choices))
    critic = nn.Sequential(nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3, eps=1e-5)
    seen = torch.as_tensor(envs.reset(seed=seed)[0])
    for _ in range(0, steps, ENVS * LENGTH):
        batch = []  # of (observation, action, log-probability, value, reward, 1 if the episode continues)
        for _ in range(LENGTH):
            with torch.no_grad():
                policy, value = Categorical(logits=actor(seen)), critic(seen)[:, 0]
            action = policy.sample()
            after, reward, terminated, truncated, _ = envs.step(action.numpy())
            goes_on = torch.as_tensor(~(terminated | truncated)).float()
            batch.append((seen, action, policy.log_prob(action), value, torch.as_tensor(reward).float(), goes_on))
            seen = torch.as_tensor(after)
        x, actions, old, values, rewards, goes_on = map(torch.stack, zip(*batch, strict=True))
        with torch.no_grad():
            following = torch.cat([values[1:], critic(seen)[None, :, 0]])
        advantages, ahead = torch.zeros_like(values), torch.zeros(ENVS)
        for t in reversed(range(LENGTH)):  # observations show the turns left: truncation is an end too
            advantages[t] = ahead = rewards[t] + goes_on[t] * GAMMA * (following[t] + LAMBDA * ahead) - values[t]
        flat = [column.flatten(0, 1) for column in (x, actions, old, advantages, advantages + values)]
        for i in (i for _ in range(EPOCHS) for i in torch.randperm(ENVS * LENGTH).split(MINIBATCH)):
            x, action, old, advantage, target = (column[i] for column in flat)
            policy = Categorical(logits=actor(x))
            ratio = (policy.log_prob(action) - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * (critic(x)[:, 0] - target).square().mean() - surrogate - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
    return lambda observation, _: int(actor(torch.as_tensor(observation)).argmax())


if __name__ == "__main__":
    args = arguments(__doc__)
    report(train(args.env, args.steps, args.seed, **args.env_kwargs), args.env, **args.env_kwargs)
