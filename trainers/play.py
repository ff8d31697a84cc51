"""Roll out one episode of a trained model, and print its turns with their rewards.

python -m trainers.play --checkpoint runs/…/checkpoint-50 --env AgentR1/HotpotQA-v0
"""

from dataclasses import dataclass
from pathlib import Path

from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, Count, Natural, NotNegative
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(Checks):
    """Roll out one episode of a model, and print it."""

    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Arguments of the environment as JSON, for example '{"data": "my/folder"}'."""
    checkpoint: Path | None = None
    """A trained model or LoRA adapter."""
    model: str = ""
    """A model: a folder, GGUF file or hub id; with --checkpoint, the base of its adapter."""
    chat_template: str = ""
    """A file with a chat template (Jinja), instead of the model's own."""
    thinking: str | None = None
    """Thoughts before actions: on, off, auto (the chat template's default), or a budget in tokens. Default: as trained, else
    auto."""
    question: str = ""
    """Your question, instead of one of the split. It has no gold answer, so no scores are printed."""
    split: str = "validation"
    """Split of the questions: validation or train."""
    seed: Natural | None = None
    """Number of the episode; random by default."""
    temperature: NotNegative = 0.0
    """Sampling temperature; 0 is greedy decoding."""
    max_new_tokens: Count | None = None
    """Longest turn, in tokens. Default: as the checkpoint was trained, else 512."""

    def __post_init__(self):
        super().__post_init__()
        self.check_thinking(self.max_new_tokens)

    def check_inputs(self) -> None:
        if not (self.checkpoint or self.model):
            raise UserError("give --checkpoint, or --model")
        inputs.check_model(self.checkpoint or self.model, self.model if self.checkpoint else "")
        inputs.check_chat_template(self.chat_template)
        if self.env.endswith(".jsonl"):
            raise UserError(
                f"the tasks of {self.env} are for a program: python -m trainers.evaluate --agent plays them"
            )
        inputs.check_environment(self.env, self.env_kwargs, self.split)


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "play")  # before torch is imported, so that --help and errors appear at once

import secrets

from rich.console import Console

from agent_envs.data.question import Question
from agent_envs.tasks.qa import QAEnv
from agent_envs.utils.view import show_conversation
from agent_envs.vector import ToolVectorEnv
from retrieval_index.printable import printable
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.records import Origin, record_trajectory
from trainers.evaluation.evaluator import load_agent
from trainers.factory import make_envs
from trainers.rollouts.formats import choose_format
from trainers.rollouts.rollout import rollout


def ask(envs: ToolVectorEnv, text: str) -> None:
    """Replace the questions of the first environment with the user's question, which has no gold answer."""
    env = envs.envs[0]
    if not isinstance(env, QAEnv):
        raise UserError("--question needs an environment of questions, such as AgentR1/HotpotQA-v0")
    env.questions = (Question(id="typed", question=text, answer=""),)


def main(args: Args) -> list[dict]:
    """Roll out and print the episode; returns its turns."""
    args.check_inputs()
    name = str(args.checkpoint or args.model)
    policy, longest = load_agent(
        name, args.model if args.checkpoint else "", max_new_tokens=args.max_new_tokens, env=args.env,
        env_kwargs=args.env_kwargs, chat_template=args.chat_template, thinking=args.thinking,
    )  # fmt: skip
    envs = make_envs(args.env, args.env_kwargs, args.split, 1)
    choose_format(policy, name, args.env_kwargs, envs)
    if args.question:
        ask(envs, args.question)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    (episode,) = rollout(
        envs, policy, engine, seeds=None if args.question else [seed], questions=[0] if args.question else None,
        max_new_tokens=longest, temperature=args.temperature,
    )  # fmt: skip
    console = Console()
    origin = Origin(
        phase="evaluation", agent=name, name="agent", env=args.env, split=args.split, source="",
        score=envs.envs[0].PRIMARY_METRIC,
    )  # fmt: skip
    console.print(printable(f"{name} in {args.env}"), markup=False, highlight=False)
    console.print(show_conversation(record_trajectory(episode, origin)))
    known = {name: value for name, value in episode.info.items() if name != "instructions"}
    if args.question:
        known = {name: known[name] for name in ("prediction", "turns", "calls") if name in known}
    console.print(
        printable("\n".join(f"{name}: {value}" for name, value in known.items())), markup=False, highlight=False
    )
    return episode.turns


if __name__ == "__main__":
    main(ARGS)
