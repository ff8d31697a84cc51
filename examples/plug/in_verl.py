"""An environment of this suite as verl's agent loop: this script writes the data, verl's command trains.

pip install verl[vllm]
python examples/plug/in_verl.py --out data
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_files=data/train.parquet data.val_files=data/validation.parquet data.return_raw_chat=True \
    actor_rollout_ref.rollout.agent.agent_loop_config_path=examples/plug/in_verl.yaml \
    actor_rollout_ref.rollout.calculate_log_probs=True …
"""

import argparse
from pathlib import Path

from agent_envs.integrations.verl import dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/MiniWiki-v0", help="the id in in_verl.yaml")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("data"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", args.questions), ("validation", 100)):
        dataset(args.env, count, split=split).to_parquet(args.out / f"{split}.parquet")


if __name__ == "__main__":
    main()
