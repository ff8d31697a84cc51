"""The start of an RL run: environments, policy, engine, evaluations, and the rows of its baselines."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_envs.utils.scripts import sample_instances
from retrieval_index import durable
from trainers import factory
from trainers.config import TrainArgs
from trainers.episodes.records import Origin, Recorder, make_pieces
from trainers.evaluation import evaluator, naive_rag
from trainers.lifecycle.run import open_run_dir
from trainers.models.fsdp import ShardedPolicy
from trainers.models.loading import episodes_at_once
from trainers.models.policy import Policy
from trainers.rollouts.agent_rollout import AgentRollout
from trainers.rollouts.collector import Collector
from trainers.rollouts.formats import choose_format
from trainers.rollouts.rollout import rollout
from trainers.runtime import distributed, retry
from trainers.runtime.progress import Progress
from trainers.tiny.cold_start import start_policy
from trainers.trajectory import Trajectory

BASELINES_FILE = "baselines.json"
BEFORE, BEFORE_SAMPLED = "Base Tool Call (before RL)", "Base Tool Call, sampled"  # names of rows


class Setup:
    """Environments, policy and engine of a run, in its folder. Under torchrun, all processes share one run, and each samples its
    share of the questions.

    Attributes:
        sources: of the held-out and of the training questions.
        policy: the policy to train; with several processes it is sharded.
        sampler: the policy that rolls out and is saved; with several processes, ``policy`` is a sharded copy of it.
        rows, recorded: table rows of the baselines; and their episodes, or none if a resumed run had the rows already.
    """

    def __init__(self, args: TrainArgs, algorithm: str, title: str, folder: Path):
        self.args, self.algorithm, self.title, self.folder = args, algorithm, title, folder
        factory.check_world_size(args)
        count = args.questions_per_update // distributed.world_size() * args.group_size
        self.envs = factory.make_envs(args.env, args.env_kwargs, "train", count)
        self.held_out = factory.make_envs(args.env, args.env_kwargs, "validation", episodes_at_once())
        self.score: str = self.held_out.envs[0].PRIMARY_METRIC
        factory.check_splits(self.envs, self.held_out)
        # Before any rollout, as this call may reset the environment.
        self.sources = self.held_out.envs[0].describe_source(), self.envs.envs[0].describe_source()
        self.sampler, self.seconds_cold_start = start_policy(args, self.envs, folder)
        choose_format(self.sampler, args.model, args.env_kwargs, self.envs, self.held_out)
        self.pieces = make_pieces(self.sampler.tokenizer)
        self._agent = AgentRollout(args.agent, args.agent_timeout, args.agent_calls) if args.agent else None
        self.collector = Collector(args, self.sampler, self._agent)
        stop = self.envs.envs[0].stop
        self.engine = factory.make_engine(args.engine, self.collector.sampler, stop, args.vllm_url, args.vllm_kv_gib)
        self.recorded: list[Recorder] = []
        self._greedy_at, self._greedy = 0, dict[int, Trajectory]()  # of the newest evaluated weights, by question
        self.rows = self._find_baselines()
        # After the baselines, which need memory for their keys and values: with several processes the policy is a copy.
        self.policy: Policy = ShardedPolicy(self.sampler) if distributed.world_size() > 1 else self.sampler

    def make_recorder(
        self, agent: str, name: str, step: int, *, training: bool = False, tokens: bool = False, in_table: bool = False
    ) -> Recorder:
        """Make the recorder of an agent's episodes. ``name``: the name of the agent in the keys of its records."""
        origin = Origin(
            phase="training" if training else "evaluation", step=step, agent=agent, name=name, in_table=in_table,
            env=self.args.env, split="train" if training else "validation", source=self.sources[training],
            score=self.score,
        )  # fmt: skip
        return Recorder(origin, self.pieces if tokens else None)

    def evaluate(self, questions: int, name: str, temperature: float, recorder: Recorder) -> dict:
        """Evaluate the newest weights on held-out questions; return the row of a table.

        ``questions``: their number. ``recorder`` records the episodes; the step of its origin is that of the weights.

        Raises:
            ToolsFailed: tools failed in more than half of the episodes, for ``tool_outage_minutes``.
        """
        self.collector.update_weights()
        if self._greedy_at != recorder.origin.step:
            self._greedy_at, self._greedy = recorder.origin.step, {}
        run = partial(
            evaluator.run_policy, self.held_out, self.collector.sampler, self.engine,
            sample_instances(self.held_out.envs[0], questions), self.args.max_new_tokens, temperature, recorder,
            roll_out=self._agent if temperature else self._roll_out_greedily,
        )  # fmt: skip
        return self._make_row(name, lambda: run()[0])

    def _roll_out_greedily(
        self, *args: Any, questions: list[int], temperature: float, **options: Any
    ) -> list[Trajectory]:
        """Roll out one episode of each question, and reuse episodes that the same weights have rolled out already.

        The questions of an evaluation are a subset of the closing table's, which shows the first and the last weights.
        """
        known = self._greedy
        if new := [number for number in questions if number not in known or known[number].tool_faults]:
            episodes = (self._agent or rollout)(*args, questions=new, temperature=temperature, **options)
            known.update(zip(new, episodes, strict=True))
        return [known[number] for number in questions]

    def close(self) -> None:
        """Stop the collector and the endpoint of the user's program."""
        self.collector.close()
        if self._agent:
            self._agent.close()

    def _make_row(self, name: str, run: Callable[[], list[dict]]) -> dict:
        """Make the row of the episodes that ``run`` returns; it is called again while tools fail."""

        def failed(infos: list[dict]) -> float:
            return sum(info["tool_faults"] > 0 for info in infos) / len(infos)

        infos = retry.retry_on_tool_failure(run, failed, self.args.tool_outage_minutes)
        return evaluator.summarize(name, infos, self.score)

    def _find_baselines(self) -> list[dict]:
        """Return the rows of the baselines; a resumed run reads them from its folder, unless other questions are requested."""
        digest = evaluator.data_digest(self.held_out.envs[0])
        requested = {"questions": self.args.final_questions, "source": self.sources[0], "data": digest}
        file, kept = self.folder / BASELINES_FILE, dict[str, Any]()
        if self.args.resume:
            with suppress(OSError, ValueError):  # without a valid file, they are rolled out again
                kept = json.loads(file.read_text(encoding="utf-8"))
        kept = distributed.broadcast(kept)
        if kept.get("requested") == requested:
            return kept["rows"]
        rows = self._evaluate_baselines()
        if not distributed.rank():
            durable.write_text(file, json.dumps({"requested": requested, "rows": rows}, indent=2))
        return rows

    def _evaluate_baselines(self) -> list[dict]:
        """Evaluate the baselines: Naive RAG if the questions can be searched for, the policy before training (by greedy decoding,
        then sampled at the temperature of training) and the task's scripted agent."""
        held_out, args, rows = self.held_out, self.args, list[dict]()
        questions, count = sample_instances(held_out.envs[0], args.final_questions), args.final_questions
        searches, scripted = naive_rag.can_be_searched_for(held_out.envs[0]), held_out.envs[0].SCRIPTS.get("scripted")
        with Progress((2 + searches + bool(scripted)) * len(questions), "episodes", "baselines") as progress:

            def add(run: Callable[[Recorder], dict], agent: str, name: str, tokens: bool = False) -> None:
                recorder = self.make_recorder(agent, name, 0, tokens=tokens, in_table=True)
                rows.append(run(recorder))
                self.recorded.append(recorder)
                progress.update(len(rows) * len(questions))

            progress.update(0)  # shown at once, as a large model takes minutes
            if searches:
                agent = self.collector.sampler, self.engine
                rag = partial(naive_rag.run_naive_rag, held_out, *agent, questions, args.max_new_tokens)
                add(lambda recorder: self._make_row("Naive RAG", lambda: rag(recorder)), "Naive RAG", "naive-rag")
            add(lambda recorder: self.evaluate(count, BEFORE, 0.0, recorder), BEFORE, "before", True)
            sampled = partial(self.evaluate, count, BEFORE_SAMPLED, args.temperature)
            add(sampled, BEFORE_SAMPLED, "before-sampled", True)
            if scripted:
                script, name = partial(evaluator.run_script, held_out, questions, scripted), "Scripted agent"
                add(lambda recorder: self._make_row(name, lambda: script(recorder)), name, "scripted")
                self.recorded.insert(0, self.recorded.pop())  # first: it fills every field, see `episodes.records`
        return rows


@contextmanager
def open_setup(args: TrainArgs, algorithm: str, title: str) -> Iterator[Setup]:
    """Yield the setup of a run, in its own folder with the name of the ``algorithm``. ``title``: the name of the trained policy
    in the table."""
    with open_run_dir(args, algorithm) as folder:
        setup = Setup(args, algorithm, title, folder)
        try:
            yield setup
        finally:
            setup.close()
