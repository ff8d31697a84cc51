"""Roll out a model on an OpenEnv server that serves an environment of this suite.

pip install -e '.[openenv]'     # in a virtual environment without the extra mcp
python -m agent_envs serve MiniWiki --port 8000
python examples/plug/openenv_client.py --model NAME --api http://localhost:8001/v1

The file is not called openenv.py: Python first looks for modules beside a script, so it would import itself.
"""

import argparse

from openai import OpenAI
from openenv import GenericEnvClient


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--model", required=True)
    parser.add_argument("--api", required=True, help="an OpenAI-compatible server; the key is $OPENAI_API_KEY")
    parser.add_argument("--new-tokens", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    api = OpenAI(base_url=args.api)

    def sample(messages: list) -> str:
        answer = api.chat.completions.create(model=args.model, messages=messages, max_tokens=args.new_tokens)
        return answer.choices[0].message.content or ""

    with GenericEnvClient(base_url=args.server).sync() as env:
        for seed in range(args.episodes):
            messages, earned = [], 0.0
            result = env.reset(seed=seed, split=args.split)
            while not result.done:
                messages.append({"role": "user", "content": result.observation["text"]})
                messages.append({"role": "assistant", "content": sample(messages)})
                result = env.step({"text": messages[-1]["content"]})
                earned += result.reward
            print(f"seed {seed}: return {earned:.2f}, score {result.metadata['score']:.2f}")


if __name__ == "__main__":
    main()
