"""Environments of this suite in TorchRL: with strings, and as a chat environment for a language model.

pip install torchrl transformers
python examples/plug/in_torchrl.py --env AgentR1/Sokoban-v0
python examples/plug/in_torchrl.py --model trainers/tiny/miniwiki    # the tiny policy, without a download
python examples/plug/in_torchrl.py --model PATH_OR_ID
"""

import argparse

from torchrl.envs import GymEnv
from torchrl.modules.llm.policies import TransformersWrapper

from agent_envs.integrations.torchrl import chat_env


def strings(id: str) -> None:
    env = GymEnv(id, instructions_in_observation=True)
    state = env.reset(seed=0)
    print(state["observation"])
    state["action"] = "<answer>Up</answer>"
    state = env.step(state)["next"]
    print(state["observation"], state["reward"].item())


def chat(id: str, path: str, new_tokens: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    env = chat_env(id, tokenizer, num_envs=8, group_size=4)
    env.set_seed(0)
    model.generation_config.stop_strings = list(env.stop)  # TorchRL's wrapper would drop them
    policy = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="tokens", generate=True, pad_output=False, return_log_probs=True,
        generate_kwargs={"max_new_tokens": new_tokens, "do_sample": True},
    )  # fmt: skip
    played = env.rollout(env.max_turns, policy, break_when_any_done=False)
    print(played["next", "reward"].squeeze(-1))
    print(env.metrics[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/MiniWiki-v0")
    parser.add_argument("--model")
    parser.add_argument("--new-tokens", type=int, default=256)
    args = parser.parse_args()
    if args.model:
        chat(args.env, args.model, args.new_tokens)
    else:
        strings(args.env)


if __name__ == "__main__":
    main()
