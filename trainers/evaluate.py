"""Evaluate agents side by side on the same questions: checkpoints, models of an API, baselines.

    python -m trainers.evaluate --env AgentR1/MiniWiki-v0 --checkpoint runs/…/checkpoint-50
    python -m trainers.evaluate --env AgentR1/HotpotQA-v0 --api http://HOST/v1 --model NAME --model OTHER
    python -m trainers.evaluate --env AgentR1/Calculator-v0 --checkpoint runs/…/best --samples 8 --temperature 0.7

prints and writes a table with scripted agents and Naive RAG (one retrieval, one answer) for comparison. Its columns are the
task's score with its 95% CI over questions, the paired difference to the first model, turns, calls, and tokens of an API. All
episodes are in episodes.jsonl. Answers of an API are kept at once: after a crash or Ctrl-C the same command continues.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import tyro

from agent_envs.formats import find_format
from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, Count, EngineName, Natural, NotNegative, Positive
from trainers.evaluation import api_agent
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(Checks):
    """Evaluate agents on the same questions."""

    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Arguments of the environment as JSON, for example '{"data": "my/folder"}'."""
    split: str = "validation"
    """Split of the questions: validation or train."""
    agent: str = ""
    """Your program, "my_agent:solve" or a command, which calls the models as in training; --env may be a file of tasks."""
    agent_timeout: Positive = 300.0
    """Longest time between two calls of the agent's program, in seconds."""
    model: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A model: a folder, GGUF file or hub id; with --api, its name; with --checkpoint, the base of adapters. Repeat the option
    for several."""
    checkpoint: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """A trained model or LoRA adapter, a folder in the Hugging Face format. Repeat the option for several."""
    chat_template: str = ""
    """A file with a chat template (Jinja) for models in this process, instead of their own."""
    thinking: str | None = None
    """Thoughts before actions: on, off, auto (the chat template's default), or a budget in tokens. Default: as trained, else
    auto."""
    api: str = ""
    """Address of an OpenAI-compatible server with the models of --model, such as http://127.0.0.1:8000/v1. Needs pip install
    -e '.[api]'."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of --api."""
    format: str = ""
    """Syntax of actions with --api: native (function calls), tags, hermes, react, ragen, or your "module:Class". Default: that
    of --env-kwargs, else native if possible."""
    concurrency: Count = 16
    """Parallel episodes with --api."""
    timeout: Positive = 600
    """Longest wait for an answer of --api before the request is repeated, in seconds."""
    samples: Count = 1
    """Rollouts of each question. The score is their mean; pass@k is the probability that one of k is right."""
    temperature: NotNegative | None = None
    """Sampling temperature; 0 is greedy decoding. Default: 0, and 1 with --samples; with --api the server's own."""
    engine: EngineName = "transformers"
    """Sampler of models in this process. vLLM needs pip install -e '.[vllm]'."""
    vllm_url: tuple[str, ...] = ()
    """Address of a vLLM server, instead of vLLM in this process; with --engine vllm."""
    vllm_kv_gib: Positive = 2.0
    """Memory for keys and values of vLLM in this process, in GiB."""
    questions: Natural = 500
    """Number of questions, the same for all agents; 0 for all of them (500 if they are made from seeds)."""
    max_new_tokens: Count | None = None
    """Longest turn, in tokens. Default: as the checkpoint was trained, else 512; with --api the server's own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the layers. Default: as the checkpoint was trained, else float32."""
    num_envs: Count = 64
    """Parallel episodes of models in this process."""
    max_failed: NotNegative = 0.05
    """Largest share of failed episodes (a tool or --api failed); above it the command exits with status 1."""
    out: Path = Path("runs/evaluation")
    """Folder of the results."""

    def __post_init__(self):
        super().__post_init__()
        self.model = (self.model,) * bool(self.model) if isinstance(self.model, str) else tuple(self.model)
        self.check_thinking(self.max_new_tokens)
        self.check_unused(self.api, "without api", "concurrency", "timeout")
        self.check_unused(self.here, "without a model that runs here", "dtype", "engine", "chat_template", "thinking")
        self.check_unused(self.here or self.api, "without a model or an api", "agent")
        self.check_unused(self.agent, "without agent", "agent_timeout")
        self.check_unused(not self.agent, "with an agent, which asks as it likes", "format")
        if len({*self.model, *map(str, self.checkpoint)}) < len(self.model) + len(self.checkpoint):
            raise UserError("each model and each checkpoint can be named once")
        if self.vllm_url and self.engine != "vllm":
            raise UserError(f"vllm_url is for engine 'vllm', got engine {self.engine!r}")
        if self.engine == "vllm" and not self.vllm_url and len(self.here) > 1:
            raise UserError(f"vLLM in this process takes one model, not {len(self.here)}: give a server with vllm_url")
        if self.api:
            self._check_api()
        elif self.format:
            raise UserError("format is for api; a model here has its format in env_kwargs")
        elif self.checkpoint and len(self.model) > 1:
            raise UserError("with checkpoint, model is the base of its adapter: give one, or none")
        if self.samples > 1 and self.temperature == 0 and not self.api:
            raise UserError("samples at temperature 0 are all the same: leave out one of the two")

    def check_inputs(self) -> None:
        inputs.check_out(self.out)
        if inputs.is_used(self.out):
            raise UserError(f"{self.out} is the folder of a run, whose episodes would be lost: give another --out")
        for model in self.here:
            inputs.check_model(model, "".join(self.model) * bool(self.checkpoint and not self.api))
        inputs.check_chat_template(self.chat_template)
        inputs.check_agent(self.agent, self.env)
        inputs.check_environment(self.env, self.env_kwargs, self.split)

    @property
    def here(self) -> tuple[str, ...]:
        """Models and checkpoints that are loaded in this process."""
        return tuple(map(str, self.checkpoint)) or (() if self.api else tuple(self.model))

    def _check_api(self):
        parts = urlsplit(self.api)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"api must be an address such as http://127.0.0.1:8000/v1, got {self.api!r}")
        if parts.username or parts.password or parts.query:
            raise UserError("api must be an address without a key in it: put the key into an environment variable")
        inputs.check_package("openai", "api", "api")
        if not self.model:
            raise UserError("api asks models by their names on the server: give --model")
        if self.format:
            find_format(self.format)


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "evaluate")  # before torch is imported, so that --help and errors appear at once

import numpy as np
import torch

from agent_envs.tasks.qa import name_kind
from agent_envs.utils.scripts import sample_instances
from retrieval_index import durable
from trainers.agents import programs
from trainers.checkpoints import checkpoint
from trainers.checkpoints.lock import hold_folder
from trainers.episodes.records import EPISODES_FILE, TOKENS_FILE, EpisodeWriter, Origin, Recorder, make_pieces
from trainers.episodes.report import page as html_report
from trainers.episodes.report import tables
from trainers.episodes.report.intervals import bootstrap
from trainers.evaluation import evaluator, naive_rag
from trainers.evaluation.answers import Answers
from trainers.evaluation.evaluator import Row, load_agent
from trainers.factory import make_engine, make_envs
from trainers.models.policy import Policy
from trainers.rollouts.agent_rollout import AgentRollout
from trainers.rollouts.formats import choose_format
from trainers.runtime import integrity, signals
from trainers.runtime.progress import Progress, to_json_types
from trainers.runtime.provenance import describe_process

SCRIPTS = {
    "oracle": "Oracle (knows the answer)",
    "scripted": "Scripted agent",
    "constant": "Best constant answer",
    "random": "Random agent",
}


class _Evaluation:
    """The evaluation of agents on the same questions, one after the other: table rows and episodes."""

    def __init__(self, args: Args):
        self.args, self.rows = args, list[Row]()
        self.envs = make_envs(args.env, args.env_kwargs, args.split, max(args.num_envs, args.samples))
        self.task, self.source = self.envs.envs[0], self.envs.envs[0].describe_source()
        self.score, self.questions = self.task.PRIMARY_METRIC, sample_instances(self.envs.envs[0], args.questions)
        self.header = f"{args.env}, {args.split} · source: {self.source}"
        self.header += f" · program: {args.agent}" * bool(args.agent)
        self._scores: dict[str, np.ndarray] = {}  # by agent, of each question: means over its rollouts
        saved = [checkpoint.read_extra(path) for path in args.here if args.agent and integrity.is_written_here(path)]
        # The most calls of a program's episode: as in training, and the same for all agents.
        self.agent_calls: int = max((extra["agent_calls"] for extra in saved if "agent_calls" in extra), default=50)
        self.settings = self._choose_settings() if args.api else {}  # for which the answers of an API are valid
        self._unfinished = args.out / ".unfinished"  # if this evaluation is aborted, an earlier one stays whole
        self._writer = EpisodeWriter(self._unfinished)

    def publish(self) -> None:
        """Write table and episodes to the folder, over those of an earlier evaluation."""
        args = self.args
        self._writer.close()
        for name in (EPISODES_FILE, TOKENS_FILE):
            if not self._writer.failed:  # else earlier ones stay whole
                durable.publish(self._unfinished / name, args.out / name)
        result: Row = {"env": args.env, "source": self.source, "split": args.split, "api": self.settings}
        result["settings"] = {"env_kwargs": args.env_kwargs}  # for `agent_envs replay`
        result |= {**describe_process(), "rows": self.rows}
        durable.write_text(args.out / "evaluation.md", f"{self.header}\n\n{tables.table(self.rows)}")
        text = json.dumps(to_json_types(result), indent=2, ensure_ascii=False)
        durable.write_text(args.out / "evaluation.json", f"{text}\n")
        html_report.write_beside(args.out)

    def close(self) -> None:
        """Remove what was not published."""
        self._writer.close()
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def compare(self, first: str) -> None:
        """Add to the other rows their score minus that of the agent ``first``, paired by question, with its 95% CI."""
        for row in self.rows:
            if (name := str(row["name"])) != first:
                mean, *interval = bootstrap((self._scores[name] - self._scores[first])[None])
                row |= {"difference": mean, "difference_interval": tuple(interval), "difference_to": first}

    def evaluate_script(self, script: str, name: str) -> None:
        """Evaluate a scripted agent, once on each question."""
        recorder = self._make_recorder(name)
        self._add(name, evaluator.run_script(self.envs, self.questions, self.task.SCRIPTS[script], recorder), 1)
        self._writer.write_recorded(recorder)

    def evaluate_model(self, name: str, base_model: str) -> None:
        """Evaluate a model or checkpoint in this process, after Naive RAG with it if the questions can be searched for."""
        args = self.args
        policy, longest = load_agent(
            name, base_model, args.dtype, args.max_new_tokens, args.env, args.env_kwargs, args.chat_template,
            args.thinking,
        )  # fmt: skip
        choose_format(policy, name, args.env_kwargs, self.envs)
        engine = make_engine(args.engine, policy, self.task.stop, args.vllm_url, args.vllm_kv_gib)
        if naive_rag.can_be_searched_for(self.task):
            print(f"{name} answers {len(self.questions)} questions from one search each (Naive RAG)", file=sys.stderr)
            recorder = self._make_recorder(f"Naive RAG ({name})")
            infos = naive_rag.run_naive_rag(self.envs, policy, engine, self.questions, longest, recorder)
            self._add(recorder.origin.agent, infos, 1)
            self._writer.write_recorded(recorder)
        torch.manual_seed(0)  # the same samples, whichever agents came before
        temperature = float(args.samples > 1) if args.temperature is None else args.temperature
        recorder, done = self._make_recorder(name, policy), 0
        program = AgentRollout(args.agent, args.agent_timeout, self.agent_calls) if args.agent else None
        agent = contextlib.closing(program) if program else contextlib.nullcontext()
        with Progress(len(self.questions) * args.samples, "episodes", name) as progress, agent as roll_out:

            def show(episodes: list) -> None:
                nonlocal done
                done += len(episodes)
                progress.update(done)

            infos, _ = evaluator.run_policy(
                self.envs, policy, engine, self.questions, longest, temperature, recorder, args.samples, show, roll_out
            )
        self._add(name, infos, args.samples)
        self._writer.write_recorded(recorder)

    def evaluate_api(self, model: str, answers: Answers) -> None:
        """Evaluate a model of the API. Its earlier answers are reused, except failed ones."""
        args = self.args
        jobs = [(number, sample) for number in self.questions for sample in range(args.samples)]
        before = {job: answers.records[model, *job] for job in jobs if (model, *job) in answers.records}
        failed = {job for job, record in before.items() if record["failed"]}
        requested = [job for job in jobs if job not in before or job in failed]
        known_to_fail = len(failed) if len(before) > len(failed) else 0  # if it has answered others
        agent = api_agent.ApiAgent(
            args.api, model, self._make_origin(model, f"api-{model.replace('/', '-')}"), key_variable=args.api_key_env,
            temperature=args.temperature, max_new_tokens=args.max_new_tokens, timeout=args.timeout,
            known_to_fail=known_to_fail,
        )  # fmt: skip
        if done := len(jobs) - len(requested):
            print(f"{model}: {done} episodes of an earlier call are kept; another --out asks again", file=sys.stderr)
        if args.max_new_tokens is None:
            told = "the longest turn is the server's, and some servers have none: --max-new-tokens 1024 bounds it"
            print(f"{model}: {told}", file=sys.stderr)

        def keep(record: dict) -> None:
            nonlocal done
            answers.add(record)
            done += not record["failed"]
            progress.update(done)

        try:
            with Progress(len(jobs), "episodes", model, done) as progress:
                agent.tell = progress.note
                if requested:
                    self._run_jobs(agent, requested, keep)
        except BaseException as error:
            done = sum(not answers.records.get((model, *job), {"failed": True})["failed"] for job in jobs)
            rest = f"{done} of {len(jobs)} episodes of {model} are kept in {args.out}; the same command continues from there"
            if isinstance(error, signals.TrainingStopped):
                raise type(error)(f"{error}. {rest}") from None
            print(f"\n{rest}", file=sys.stderr)
            raise
        for problem, times in agent.problems.most_common():
            print(f"Warning: {times} episodes of {model} could not be finished: {problem}", file=sys.stderr)
        records = [answers.records[model, *job] for job in jobs]
        for warning in agent.find_oddities(records):
            print(f"Warning: {warning}", file=sys.stderr)
        self._writer.write(records)
        self._add(model, _infos_of(records, self.score), args.samples)
        used = {name: sum(record[name] for record in records) for name in ("prompt_tokens", "completion_tokens")}
        if any(used.values()):  # not every server counts them
            self.rows[-1] |= used
        self.rows[-1]["problems"] = dict(agent.problems)

    def _run_jobs(self, agent: api_agent.ApiAgent, jobs: list[api_agent.Job], keep: Callable[[dict], None]) -> None:
        args, at_once = self.args, min(self.args.concurrency, len(jobs))
        kwargs = {**json.loads(args.env_kwargs), "split": args.split}
        make: Callable[[], Any] = partial(api_agent.make_episode, args.env, str(self.settings["format"]), **kwargs)
        run: Callable[..., dict] = agent.run_episode
        with contextlib.ExitStack() as stack:
            if args.agent:
                from trainers.evaluation.api_program import ApiProgram  # imports FastAPI, for this case only

                make = partial(make_envs, args.env, args.env_kwargs, args.split, 1)
                run = stack.enter_context(
                    contextlib.closing(ApiProgram(args.agent, agent, args.agent_timeout, self.agent_calls))
                ).run_episode
            episodes = [stack.enter_context(contextlib.closing(make())) for _ in range(at_once)]
            agent.run(run, episodes, jobs, keep)

    def _add(self, name: str, infos: list[dict], samples: int) -> None:
        self.rows.append(evaluator.summarize(name, infos, self.score, samples))
        self._scores[name] = np.array([float(info[self.score]) for info in infos]).reshape(-1, samples).mean(axis=1)

    def _make_origin(self, agent: str, name: str) -> Origin:
        return Origin(
            phase="evaluation", agent=agent, name=name, env=self.args.env, split=self.args.split, source=self.source,
            score=self.score, in_table=True,
        )  # fmt: skip

    def _make_recorder(self, agent: str, policy: Policy | None = None) -> Recorder:
        origin = self._make_origin(agent, str(len(self.rows)))
        return Recorder(origin, make_pieces(policy.tokenizer) if policy else None)

    def _choose_settings(self) -> dict[str, object]:
        """Return the settings that determine the episodes of an API. Also chooses the format and completes the header."""
        args, kwargs = self.args, json.loads(self.args.env_kwargs)
        if args.agent:
            format, shown = "", "as the program asks"
        else:
            format = api_agent.choose_format(args.env, args.format, {**kwargs, "split": args.split})
            shown = (
                "function calls" if format == api_agent.NATIVE else f"text, format {format or self.task.format.name}"
            )
        at = "its own temperature" if args.temperature is None else f"temperature {args.temperature:g}"
        self.header += f"\n\n{', '.join(args.model)} behind {args.api}: {shown}, {at}"
        return {
            "api": args.api, "env": args.env, "env_kwargs": kwargs, "split": args.split, "source": self.source,
            "format": format, "temperature": args.temperature, "max_new_tokens": args.max_new_tokens,
            "data": evaluator.data_digest(self.task), "agent": args.agent,
            "program": programs.fingerprint(args.agent) if args.agent else "",
            "agent_calls": self.agent_calls if args.agent else None,
        }  # fmt: skip


def _infos_of(records: list[dict], score: str) -> list[dict]:
    """Convert records for `summarize`."""
    found = evaluator.complete([record["metrics"] for record in records], [not record["failed"] for record in records])
    infos = []
    for metrics, record in zip(found, records, strict=True):
        info = {"failed": record["failed"], "tool_faults": record["tool_faults"]}
        info |= {score: record["score"], "kind": name_kind(record.get("kind") or {})}
        info |= evaluator.count_invalid([turn["invalid"] for turn in record["turns"]])
        infos.append(evaluator.drop_recall(metrics | info, record))
    return infos


def main(args: Args) -> list[Row]:
    """Evaluate, print and write the table; returns its rows.

    Raises:
        TrainingStopped: more than ``max_failed`` of an agent's episodes failed, or the API is unreachable or refuses all.
        SystemExit: SIGTERM, SIGINT or SIGHUP came. The table of an earlier evaluation and the answers of an API are kept.
    """
    with signals.handle_signals(), hold_folder(args.out):
        evaluation = _Evaluation(args)
        try:
            _evaluate_all(evaluation)
        finally:
            evaluation.close()
    for row in evaluation.rows:
        if (failed := cast(float, row["failed"])) > args.max_failed:
            advice = f"its scores are not what it can do. More than --max-failed {args.max_failed:g} is an error"
            what = "a tool failed, or the API gave no answer," if "problems" in row else "a tool failed"
            what = f"the program, or {what}" if args.agent else what
            raise signals.TrainingStopped(f"{what} in {failed:.1%} of the episodes of {row['name']}: {advice}")
    return evaluation.rows


def _evaluate_all(evaluation: _Evaluation) -> None:
    args = evaluation.args
    remote = args.model if args.api else ()
    answers = Answers(args.out, evaluation.settings) if args.api else None  # first: it refuses other settings
    base_model = "".join(args.model) if args.checkpoint and not args.api else ""
    for script, name in SCRIPTS.items():
        if script in evaluation.task.SCRIPTS:
            evaluation.evaluate_script(script, name)
    for name in args.here:
        evaluation.evaluate_model(name, base_model)
    if answers:
        with contextlib.closing(answers):
            for model in remote:
                evaluation.evaluate_api(model, answers)
    if agents := (*args.here, *remote):
        evaluation.compare(agents[0])
    print(evaluation.header.replace(f"{args.env}, {args.split} · ", ""))
    tables.print_table(evaluation.rows)  # before writing: the disk may be full
    evaluation.publish()
    print(f"Everything is in {args.out}: report.html, evaluation.md, evaluation.json, episodes.jsonl.")


if __name__ == "__main__":
    main(ARGS)
