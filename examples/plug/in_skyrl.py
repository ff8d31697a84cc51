"""An environment of this suite in SkyRL: writes the dataset, and rolls out one question as SkyRL does.

pip install skyrl-gym
python examples/plug/in_skyrl.py --env AgentR1/MiniWiki-v0 --out train.parquet
"""

import argparse

import skyrl_gym

from agent_envs.integrations.skyrl import dataset, register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/MiniWiki-v0")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--out", default="train.parquet", help="for data.train_data of SkyRL's trainer")
    args = parser.parse_args()

    register(args.env)  # in SkyRL: at the top of the entry point that its workers run
    rows = dataset(args.env, args.questions)
    rows.to_parquet(args.out)

    row = rows[0]
    env = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
    messages, _ = env.init(row["prompt"])
    print(messages[-1]["content"])
    done = False
    while not done:
        said = env.step("<answer>I do not know</answer>")
        done = said["done"]
        print(said["reward"], [message["content"] for message in said["observations"]])
    print(env.get_metrics())


if __name__ == "__main__":
    main()
