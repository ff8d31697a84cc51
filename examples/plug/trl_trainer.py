"""TRL's GRPOTrainer in an environment of this suite.

pip install -e '.[trl]'
python examples/plug/trl_trainer.py --model trainers/tiny/miniwiki    # the tiny policy, without a download
python examples/plug/trl_trainer.py --model PATH_OR_ID
python examples/plug/trl_trainer.py --model PATH_OR_ID --native    # TRL's loop, calls by the chat template
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from agent_envs.integrations.trl import dataset, environment_factory, episode_return, rollout_func


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--env", default="AgentR1/MiniWiki-v0")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument(
        "--new-tokens", type=int, default=256, help="longest turn, in tokens; with --native, longest episode"
    )
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--out", default="runs/trl")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model)

    how = {"train_dataset": dataset(args.env, args.questions, native=args.native), "reward_funcs": episode_return}
    if args.native:
        how["environment_factory"] = environment_factory(args.env)
    else:
        how["rollout_func"] = rollout_func(args.env, tokenizer)

    config = GRPOConfig(
        output_dir=args.out, max_steps=args.steps, learning_rate=args.lr, num_generations=8,
        per_device_train_batch_size=16, max_completion_length=args.new_tokens, beta=0.0, loss_type="dapo",
        scale_rewards="none", logging_steps=1, report_to="none", save_strategy="no",
        bf16=torch.cuda.is_available(),  # TRL's default is True, which fails on a CPU
    )  # fmt: skip
    GRPOTrainer(model, args=config, processing_class=tokenizer, **how).train()


if __name__ == "__main__":
    main()
