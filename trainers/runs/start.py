"""What a run begins with: environments, a policy, what samples from it, and what it will be compared with."""

from dataclasses import dataclass
from pathlib import Path

import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed, evaluate
from trainers.cold_start import curriculum as sft
from trainers.collector import Batches
from trainers.engines.engine import Engine
from trainers.evaluate import evaluate_policy
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.rollout import check_formats
from trainers.runs import folder as runs
from trainers.runs.arguments import TrainArgs
from trainers.runs.logger import Progress, check_sinks
from trainers.runs.setup import make_engine, make_envs

BEFORE, BEFORE_SAMPLED = "Base Tool Call (before RL)", "Base Tool Call, sampled"  # names of rows


@dataclass(slots=True, kw_only=True)
class Run:
    """What a run is made of.

    Attributes:
        folder: its own.
        envs, held_out: where it trains, and where it is evaluated.
        policy: what learns; that of ``batches`` plays.
        seconds_cold_start: what the start took.
    """

    args: TrainArgs
    folder: Path
    envs: ToolVectorEnv
    held_out: ToolVectorEnv
    policy: Policy
    batches: Batches
    engine: Engine
    seconds_cold_start: float

    @property
    def score(self) -> str:
        return self.held_out.envs[0].SCORE

    def evaluated(self, questions: int, name: str = "", temperature: float = 0.0) -> tuple[dict, list[list[dict]]]:
        """The row of a table about so many held-out questions, with the newest weights, and the episodes."""
        self.batches.catch_up()
        return evaluate_policy(
            self.held_out, self.batches.policy, self.engine, evaluate.instances(self.held_out, questions),
            self.args.max_new_tokens, name, temperature=temperature,
        )  # fmt: skip

    def validated(self) -> dict[str, float]:
        self.batches.catch_up()  # what is being played draws from the same generator
        # In a random state of its own, so that how often one looks changes nothing.
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + distributed.rank())
            row, _ = self.evaluated(self.args.eval_questions, temperature=self.args.eval_temperature)
        names = (self.score, "f1", "support_recall", "turns")
        return {f"eval/{name}": row[name] for name in names if name in row}


def prepared(args: TrainArgs, algorithm: str) -> Run:
    """Environments, the policy to start from, and what samples from it."""
    check_shares(args)
    torch.manual_seed(args.seed)
    folder = runs.choose_folder(args, algorithm)
    check_sinks(args.log)
    count = args.questions_per_update // distributed.ranks() * args.group_size
    envs = make_envs(args.env, args.env_kwargs, "train", count)
    held_out = make_envs(args.env, args.env_kwargs, "validation", 64)
    check_apart(envs, held_out)
    check_formats(envs)
    with distributed.first_before_others():
        policy, seconds = starting_policy(args, envs)
    distributed.same_weights(policy.model)
    distributed.reseed(args.seed)
    batches = Batches(args, policy)
    engine = make_engine(args.engine, batches.policy, envs.envs[0].stop, args.vllm_url, args.vllm_kv_gib)
    return Run(
        args=args, folder=folder, envs=envs, held_out=held_out, policy=policy, batches=batches, engine=engine,
        seconds_cold_start=seconds,
    )  # fmt: skip


def starting_policy(args: TrainArgs, envs: ToolVectorEnv) -> tuple[Policy, float]:
    """The policy before reinforcement learning: a given model, or the tiny one after its cold start; and the seconds
    that its cold start took."""
    if args.model != "tiny":
        policy = load_policy(args.model, None, args.dtype, args.lora_rank, args.lora_alpha)
        if args.gradient_checkpointing:
            recompute_activations(policy.model)
        return policy, 0.0
    with Progress(args.cold_start_steps, description="cold start") as progress:
        return sft.cold_start(
            envs, args.seed, args.cold_start_steps, lambda step, kind, loss: progress.update(step, loss=loss),
            args.cold_start_continue_probability,
        )  # fmt: skip


def check_shares(args: TrainArgs) -> None:
    """What several processes do not share out."""
    if args.one_step_off_policy and distributed.ranks() > 1:
        raise ValueError(
            "one_step_off_policy is for one process: several would have to agree in the middle of an update"
        )
    if args.questions_per_update % distributed.ranks():
        raise ValueError(
            f"questions_per_update must be a multiple of the number of processes, {distributed.ranks()}, as each plays "
            f"whole groups; got {args.questions_per_update}"
        )
    if distributed.ranks() > 1 and getattr(args, "share_layers", False):
        raise ValueError("share_layers is for one process: with several the critic needs layers of its own")


def check_apart(envs: ToolVectorEnv, held_out: ToolVectorEnv) -> None:
    """A score on questions that were trained on is no held-out score."""
    if not hasattr(envs.envs[0], "questions"):
        return  # made from seeds; the environment keeps its splits apart
    train = {question.id for question in envs.envs[0].questions}
    if shared := sum(question.id in train for question in held_out.envs[0].questions):
        raise ValueError(f"{shared} held-out questions are training questions too: give data with a split of each")


def baselines(run: Run) -> list[dict]:
    """What the trained policy is compared with: Naive RAG where there are questions to search for, the policy before
    training (greedy, then sampled as in training) and the task's scripted agent."""
    held_out, args = run.held_out, run.args
    questions, rows = evaluate.instances(held_out, args.final_questions), []
    if hasattr(held_out.envs[0], "questions"):
        rows.append(
            evaluate.evaluate_naive_rag(held_out, run.batches.policy, run.engine, questions, args.max_new_tokens)
        )
    before = run.evaluated(args.final_questions, BEFORE)[0]
    rows += [before, run.evaluated(args.final_questions, BEFORE_SAMPLED, args.temperature)[0]]
    if "scripted" in held_out.envs[0].SCRIPTS:
        rows.append(
            evaluate.evaluate_script(held_out, questions, held_out.envs[0].SCRIPTS["scripted"], "Scripted agent")
        )
    return rows
