"""LoRA on one GPU: a 7B model with an adapter of rank 32, in settings for 24 to 80 GB, or a toy instead.

    python examples/lora_one_gpu.py                                     # Qwen2.5-7B-Instruct on HotpotQA
    python examples/lora_one_gpu.py --quick                             # a random tiny model, on a CPU, in seconds

The example prints the rank and the layers of the adapter, and the files of the checkpoint: the adapter in peft's format, which
transformers and vLLM load too. Needs pip install -e '.[lora]'. The large settings have not been run on a GPU here.
"""

import json
import sys
from pathlib import Path

from trainers import grpo

LARGE = dict(
    env="AgentR1/HotpotQA-v0",
    model="Qwen/Qwen2.5-7B-Instruct",
    lora_rank=32,
    lr=1e-5,
    dtype="bfloat16",  # frozen layers; the adapter stays float32
    gradient_checkpointing=True,  # takes a third more time and far less memory
    max_new_tokens=512,
    max_tokens_per_micro_batch=16_384,  # lower this first if memory runs out
    questions_per_update=32,
    updates=200,
    eval_every=20,
)  # fmt: skip
TOY = dict(
    env_kwargs=json.dumps({"entities": 150, "questions": 100}), lora_rank=4, lr=1e-4, dtype="bfloat16",
    gradient_checkpointing=True, max_new_tokens=8, questions_per_update=2, group_size=2, updates=2, eval_questions=2,
    final_questions=2,
)  # fmt: skip


def make_toy(folder: Path) -> str:
    """Save a random tiny model of the large one's family in a folder that transformers loads; returns its path."""
    from trainers.tiny import model as tiny

    tokenizer = tiny.make_tokenizer(["who was born in the town by the river"])
    tokenizer.save_pretrained(folder)
    tiny.make_model(len(tokenizer), hidden_size=32, layers=2).save_pretrained(folder)
    return str(folder)


def main(out: str = "runs/lora", quick: bool = False) -> None:
    settings = TOY | {"model": make_toy(Path(out) / "toy")} if quick else LARGE
    args = grpo.Args(out=Path(out) / "run", **settings)
    grpo.main(args)
    last = Path(out) / "run" / f"checkpoint-{args.updates}"
    adapter = json.loads((last / "adapter_config.json").read_text())
    kinds = sorted({name.rpartition(".")[2] for name in adapter["target_modules"]})
    print(f"rank {adapter['r']} on {len(kinds)} kinds of layers: {', '.join(kinds)}")
    print(f"{last} holds", {path.name: f"{path.stat().st_size:,} bytes" for path in sorted(last.glob("adapter*"))})


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
