"""Write a trained agent for others: its weights in bfloat16, without the state of the optimizer.

    python -m trainers.export --checkpoint runs/grpo-…/checkpoint-60 --out my-agent
    python -m trainers.evaluate --checkpoint my-agent --env HotpotQA

Of a model with a LoRA adapter, only the adapter is written, a few MB. Give the hub id of its base with --base-model: others do
not have your folders. peft, transformers and vLLM load it. evaluate and play keep its precision, thoughts and longest turn, and
warn if the environment's arguments (k, max_chars) are not those of the training. Your paths and other settings are left out.
"""

from dataclasses import dataclass
from pathlib import Path

from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import CARD_FILE, is_written_here


@dataclass(kw_only=True)
class Args(Checks):
    """Write a trained agent for others, in bfloat16."""

    checkpoint: Path | None = None
    """Checkpoint of a trainer: the folder checkpoint-<step> or best of a run."""
    out: Path = Path("exported")
    """Folder to write, new or empty."""
    base_model: str = ""
    """Hub id or folder that a LoRA adapter names as its base, instead of the one that it was trained on."""
    push_to_hub: str = ""
    """Repository of the Hugging Face hub to upload to, "NAME" or "USER/NAME", created private. Needs HF_TOKEN or
    hf auth login."""

    def find_base(self, checkpoint: Path) -> str:
        """Return the base model to load instead of the one that the adapter names, if that is not here; else ""."""
        return self.base_model if inputs.find_missing_base(checkpoint) else ""

    def check_inputs(self) -> None:
        if self.checkpoint is None:
            raise UserError("give --checkpoint: the folder of a run named checkpoint-<step> or best")
        inputs.check_model(self.checkpoint, self.find_base(self.checkpoint))
        if not is_written_here(self.checkpoint):
            raise FileNotFoundError(f"{self.checkpoint} is not a checkpoint of a trainer: it needs no export")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise UserError(f"{self.out} exists already: give another --out")
        inputs.check_out(self.out)
        if self.push_to_hub:
            inputs.check_push(self.push_to_hub)


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "export")  # before torch is imported, so that --help and errors appear at once

import json

import torch
from transformers import AutoTokenizer

from trainers.checkpoints import card, checkpoint
from trainers.checkpoints.settings import ARGUMENTS_FILE, select_interface
from trainers.models import lora
from trainers.models.loading import load_policy, load_tokenizer

# Settings to keep, beside the agent's interface in env_kwargs.
KEPT = ("algorithm", "env", "dtype", "max_new_tokens", "longest_turn", "thinking", "format", "stop", "agent_calls")


def main(args: Args) -> Path:
    """Write the folder; return it.

    Raises:
        ValueError: ``out`` exists; the checkpoint or the base model is not here; or a base is given for a whole model.
        FileNotFoundError: the checkpoint was not written by a trainer.
    """
    args.check_inputs()
    assert args.checkpoint is not None, "`check_inputs` asks for it"
    saved, base = checkpoint.read_extra(args.checkpoint), args.find_base(args.checkpoint)
    policy = load_policy(args.checkpoint, device="cpu", base_model=base or None)
    model, has_lora = policy.model, lora.has_lora(policy.model)
    if args.base_model and not has_lora:
        raise UserError(f"{args.checkpoint} is no LoRA adapter, so it has no base model: leave out {args.base_model}")
    for parameter in lora.trainable_parameters(model):
        parameter.data = parameter.data.to(torch.bfloat16)
    if args.base_model:
        lora.name_base_model(model, args.base_model)
    kept = {name: saved[name] for name in KEPT if name in saved}
    kept |= {"env": Path(saved["env"]).name} if saved.get("env", "").endswith(".jsonl") else {}
    if "env_kwargs" in saved:
        tasks = json.loads(saved["env_kwargs"]).get("tasks")  # of a mixture: which ones, not where their data is
        named = {"tasks": dict.fromkeys(tasks, 1)} if isinstance(tasks, dict) else {}
        kept["env_kwargs"] = json.dumps(named | select_interface(saved["env_kwargs"]))
    of_run = (args.checkpoint / ARGUMENTS_FILE).is_file()
    texts = {CARD_FILE: card.make_card_of(args.checkpoint, base_model=args.base_model)} if of_run else {}
    # An adapter's tokenizer is that of its base, unless it was trained with another chat template.
    base = base or lora.find_base_model(args.checkpoint) or ""
    templates = [load_tokenizer(base).chat_template, _template_of(args.base_model)] if has_lora else []
    own = not has_lora or any(template not in (None, policy.tokenizer.chat_template) for template in templates)
    tokenizer = policy.tokenizer if own else None
    model.generation_config.eos_token_id = sorted(policy.end_ids)  # chat templates may end turns by another token
    path = checkpoint.save(args.out, model=model, tokenizer=tokenizer, optimizers=[], step=0, extra=kept, texts=texts)
    task = f" --env {saved['env']}" if "env" in saved else ""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"{path}: {size / 2**20:.1f} MiB. python -m trainers.evaluate --checkpoint {args.out}{task}")
    if args.push_to_hub and not card.push(path, args.push_to_hub):
        raise SystemExit(1)
    return path


def _template_of(model: str) -> str | None:
    """The chat template of a model; None if it has none, or is not on this machine."""
    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True).chat_template
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main(ARGS)
