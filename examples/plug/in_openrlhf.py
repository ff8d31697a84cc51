"""An agent file for OpenRLHF; run as a script, it writes the dataset.

pip install openrlhf[vllm]
python examples/plug/in_openrlhf.py train.jsonl
python -m openrlhf.cli.train_ppo_ray --train.agent_func_path examples/plug/in_openrlhf.py \
    --data.prompt_dataset train.jsonl --data.input_key input --data.label_key label …
"""

import sys

from agent_envs.integrations.openrlhf import dataset, executor

ENV = "AgentR1/MiniWiki-v0"

AgentExecutor = executor(ENV)

if __name__ == "__main__":
    dataset(ENV, 1000).to_json(sys.argv[1] if len(sys.argv) > 1 else "train.jsonl")
