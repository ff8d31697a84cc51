"""Environments of this suite by GEM's own functions: a vector with random actions.

pip install gem-llm
python examples/plug/in_gem.py --env AgentR1/Sokoban-v0
"""

import argparse

import gem

from agent_envs.integrations.gem import register

register()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/MiniWiki-v0")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    vector = gem.make_vec([args.env] * args.num_envs, seed=0)
    observations, _ = vector.reset()
    print(observations[0])
    paid, ended = 0.0, 0
    for _ in range(args.steps):
        turns = [env.sample_random_action() for env in vector.envs]
        observations, rewards, terminated, truncated, _ = vector.step(turns)
        paid, ended = paid + float(sum(rewards)), ended + int((terminated | truncated).sum())
    print(f"{args.num_envs * args.steps} turns, {ended} episodes, {paid:.2f} reward in all")


if __name__ == "__main__":
    main()
