"""Evaluate agents side by side on the same questions: checkpoints, models behind an API, baselines.

    python -m trainers.evaluate --env AgentR1/MiniWiki-v0 --checkpoint runs/…/checkpoint-50
    python -m trainers.evaluate --env AgentR1/HotpotQA-v0 --api http://HOST/v1 --model NAME --model OTHER
    python -m trainers.evaluate --env AgentR1/Calculator-v0 --checkpoint runs/…/best --samples 8 --temperature 0.7

prints and writes a table: the task's score with its 95 % interval over questions, the paired difference to the first model,
F1, support recall, turns and calls, and of an API the tokens. Scripted agents stand beside them, and Naive RAG (one
retrieval, one answer) of each model here. All episodes lie in episodes.jsonl.

A model behind an API calls the environment's tools as functions; with --format it writes text as models here do. Its answers
are kept as they come: after a crash or Ctrl-C the same command goes on. The key is read from OPENAI_API_KEY.
"""

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

if not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

import tyro

from agent_envs.formats import FORMATS
from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks
from trainers.evaluation import api_agent
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(Checks):
    """Evaluate agents on the same questions; writes evaluation.md, evaluation.json and episodes.jsonl."""

    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Arguments of the environment as JSON, for example '{"data": "my/folder"}'."""
    split: str = "validation"
    """Which questions: validation or train."""
    model: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A model without further training: a folder, a GGUF file or a hub id; with --api the name that the server knows it by.
    Repeat the option to compare several. With --checkpoint and without --api, what LoRA adapters are put on in place of the
    base model that they name."""
    checkpoint: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """A trained model or LoRA adapter (a folder in the Hugging Face format). Repeat the option to compare several."""
    api: str = ""
    """Ask an OpenAI-compatible server, such as http://127.0.0.1:8000/v1 (pip install 'agent-r1-envs[api]'): each --model is
    one of its models."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key of --api."""
    format: str = ""
    """How models of --api act: native (function calls), or one of our formats of text: tags, hermes, react, ragen. By default
    native, or the format of --env-kwargs; where a task cannot be played by function calls, its own format."""
    concurrency: int = 16
    """Episodes at once with --api."""
    requests_per_minute: float = 0
    """Requests to --api in a minute; 0 for no limit. Where the server asks for a pause, all requests wait in any case."""
    timeout: float = 600
    """Seconds that --api may take for an answer, before it is asked again."""
    price_in: Annotated[tuple[float, ...], tyro.conf.UseAppendAction] = ()
    """What --api costs for a million tokens in: one price, or one for each --model. With --price-out the table has the cost."""
    price_out: Annotated[tuple[float, ...], tyro.conf.UseAppendAction] = ()
    """What it costs for a million tokens out."""
    samples: int = 1
    """Attempts at each question. The score is then the average over them, and pass@k says how likely one of k is right."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy. By default 0, and 1 with --samples; with --api what the server has of itself."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples from models here. vLLM needs pip install 'agent-r1-envs[vllm]'."""
    vllm_url: tuple[str, ...] = ()
    """With --engine vllm: the address of a vLLM server, in place of vLLM in this process."""
    vllm_kv_gib: float = 2.0
    """With --engine vllm in this process: GiB for keys and values."""
    questions: int = 500
    """How many questions, the same for all that is evaluated; 0 means all of them (500 where they are made from seeds)."""
    max_new_tokens: int | None = None
    """Longest turn, in tokens; by default what the checkpoint was trained with, and 512 for other models; with --api what
    the server has of itself."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """What the layers run in; by default what the checkpoint was trained in, and float32 for other models."""
    num_envs: int = 64
    """Episodes at once of models here."""
    max_failed: float = 0.05
    """The share of failed episodes, those in which a tool failed or --api gave no answer, above which the command ends with
    status 1. They count as they came out, mostly as wrong; the table says how many there are."""
    out: Path = Path("runs/evaluation")
    """Folder for the results."""

    def __post_init__(self):
        super().__post_init__()
        self.model = (self.model,) * bool(self.model) if isinstance(self.model, str) else tuple(self.model)
        self.check_least(questions=0, num_envs=1, concurrency=1, requests_per_minute=0, samples=1, max_failed=0)
        given = {"temperature": 0, "max_new_tokens": 1}
        self.check_least(**{name: least for name, least in given.items() if getattr(self, name) is not None})
        self.check_positive("timeout", "vllm_kv_gib")
        self.check_choices()
        self.check_unused(self.api, "without api", "concurrency", "requests_per_minute", "timeout")
        self.check_unused(self.here, "without a model that runs here", "dtype", "engine")
        in_process = self.engine == "vllm" and not self.vllm_url
        self.check_unused(in_process, "but to vLLM in this process", "vllm_kv_gib")
        if len({*self.model, *map(str, self.checkpoint)}) < len(self.model) + len(self.checkpoint):
            raise UserError("each model and each checkpoint can be named once")
        if self.vllm_url and self.engine != "vllm":
            raise UserError(f"vllm_url is for engine 'vllm', got engine {self.engine!r}")
        if self.engine == "vllm" and not self.vllm_url and len(self.here) > 1:
            raise UserError(f"vLLM in this process takes one model, not {len(self.here)}: give a server with vllm_url")
        if len(self.vllm_url) > 1:
            raise UserError(
                f"vllm_url takes one server here, which serves one model after the other, got {self.vllm_url}"
            )
        if self.api:
            self._check_api()
        elif self.format or self.price_in or self.price_out:
            raise UserError("format, price_in and price_out are for api; a model here has its format in env_kwargs")
        elif self.checkpoint and len(self.model) > 1:
            raise UserError("with checkpoint, model is what its adapter is put on: one, or none")
        if self.samples > 1 and self.temperature == 0 and not self.api:
            raise UserError("samples at temperature 0 are all the same: leave out one of the two")

    def check_inputs(self) -> None:
        inputs.check_out(self.out)
        if inputs.is_used(self.out):
            raise UserError(f"{self.out} is the folder of a run, whose episodes would be lost: give another --out")
        for model in self.here:
            inputs.check_model(model, "".join(self.model) * bool(self.checkpoint and not self.api))
        inputs.check_environment(self.env, self.env_kwargs, self.split)

    @property
    def here(self) -> tuple[str, ...]:
        """Models and checkpoints that are loaded here."""
        return tuple(map(str, self.checkpoint)) or (() if self.api else tuple(self.model))

    def _check_api(self):
        api_agent.check(self.api)
        if not self.model:
            raise UserError("api asks models by their names on the server: give --model")
        if self.format not in ("", api_agent.NATIVE, *FORMATS):
            raise UserError(f"format must be one of {(api_agent.NATIVE, *FORMATS)}, got {self.format!r}")
        if len(self.price_in) != len(self.price_out) or len(self.price_in) not in (0, 1, len(self.model)):
            raise UserError("give price_in and price_out together: one of each, or one of each for every model")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "evaluate")  # before torch is imported: --help and mistakes answer at once

import numpy as np
import torch

from agent_envs.integrations import Episode
from agent_envs.tasks.qa import name_kind
from trainers.checkpoints import checkpoint
from trainers.checkpoints.lock import hold_folder
from trainers.episodes.records import EpisodeWriter, Origin, Recorder, make_pieces
from trainers.episodes.report import page as html_report
from trainers.episodes.report import tables as report
from trainers.episodes.report.intervals import bootstrap
from trainers.evaluation import folder as evaluation_folder
from trainers.evaluation.evaluator import (
    Row,
    can_be_searched_for,
    data_digest,
    instances,
    load_agent,
    play_naive_rag,
    play_policy,
    play_script,
    source_of,
    summarize,
)
from trainers.factory import make_engine, make_envs
from trainers.models.policy import Policy
from trainers.runtime import signals
from trainers.runtime.progress import Progress
from trainers.trajectory import Trajectory

_SCRIPTS = {
    "oracle": "Oracle (knows the answer)",
    "scripted": "Scripted agent",
    "yes": 'Always "yes"',
    "random": "Random agent",
}


def _updates_of(folder: Path) -> int:
    """The updates that a checkpoint of a run has had; 0 for any other model."""
    if folder.name == "best" and checkpoint.is_written_here(folder):
        return checkpoint.read_extra(folder).get("best", {}).get("update", 0)
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number != folder.name and number.isdecimal() else 0


class _Evaluation:
    """Agents on the same questions, one after the other: the rows of a table, and what it is made of."""

    def __init__(self, args: Args):
        self.args, self.rows = args, list[Row]()
        self.envs = make_envs(args.env, args.env_kwargs, args.split, max(args.num_envs, args.samples))
        self.task, self.source = self.envs.envs[0], source_of(self.envs)
        self.score, self.questions = self.task.PRIMARY_METRIC, instances(self.envs, args.questions)
        self.header = f"{args.env}, {args.split} · source: {self.source}"
        self._scores: dict[str, np.ndarray] = {}  # of each agent, by question: means over the attempts
        self._settings = self._choose_settings() if args.api else {}
        self._answers, self._unanswered = evaluation_folder.take_up(args.out, self._settings)
        # An evaluation that does not come to its end leaves the earlier one of its folder whole: table and episodes.
        self._beside = not args.api and evaluation_folder.has_table(args.out)
        if args.api and not self._answers:  # its answers are kept as they come, where they are looked for again
            evaluation_folder.set_aside(args.out)
        records = evaluation_folder.unfinished(args.out) if self._beside else args.out
        self._writer = EpisodeWriter(records, math.inf if self._answers else None)
        if args.api and not self._answers:  # what its answers hold for, before the first of them
            self.write()

    def write(self) -> None:
        """Write the table as far as it is."""
        shared = {"env": self.args.env, "source": self.source, "split": self.args.split, "api": self._settings}
        shared["command"] = html_report.typed_command()
        evaluation_folder.write(self.args.out, self.header, {**shared, "rows": self.rows})

    def close(self) -> None:
        """Close the records, which take the place of those of an earlier evaluation."""
        self._writer.close()
        if self._beside:
            evaluation_folder.publish_records(self.args.out)

    def compare(self, first: str) -> None:
        """Add to each row what its score is above that of the agent ``first``, question by question."""
        for row in self.rows:
            if (name := str(row["name"])) != first:
                mean, *interval = bootstrap((self._scores[name] - self._scores[first])[None])
                row |= {"difference": mean, "difference_interval": tuple(interval), "difference_to": first}

    def play_script(self, script: str, name: str) -> None:
        """A scripted agent; it plays each question once."""
        recorder = self._recorder(name)
        self._add(name, play_script(self.envs, self.questions, self.task.SCRIPTS[script], recorder), 1)
        self._writer.write_recorded(recorder)

    def play_here(self, name: str, base_model: str) -> None:
        """A model or checkpoint in this process, after Naive RAG with it where there are questions to search for."""
        args, count = self.args, len(self.questions) * self.args.samples
        policy, longest = load_agent(name, base_model, args.dtype, args.max_new_tokens, args.env, args.env_kwargs)
        engine = make_engine(args.engine, policy, self.task.stop, args.vllm_url, args.vllm_kv_gib)
        if can_be_searched_for(self.task):
            print(f"{name} answers {len(self.questions)} questions from one search each (Naive RAG)", file=sys.stderr)
            recorder = self._recorder(f"Naive RAG ({name})")
            played = play_naive_rag(self.envs, policy, engine, self.questions, longest, recorder)
            self._add(recorder.origin.agent, played, 1)
            self._writer.write_recorded(recorder)
        torch.manual_seed(0)  # whatever was sampled for others
        recorder = self._recorder(name, policy, _updates_of(Path(name)))
        with _Meter(name, count) as meter:
            played, _ = play_policy(
                self.envs, policy, engine, self.questions, longest, self._temperature(), recorder, args.samples,
                lambda some: meter.add(len(some), *map(sum, zip(*map(_count_tokens, some), strict=True))),
            )  # fmt: skip
        self._add(name, played, args.samples)
        self._writer.write_recorded(recorder)

    def play_api(self, model: str) -> None:
        """A model behind the API. What it has answered before is not asked again."""
        args, name = self.args, f"{evaluation_folder.API_NAME}{model.replace('/', '-')}"
        jobs = [(number, sample) for number in self.questions for sample in range(args.samples)]
        records = {(r["instance"], r["sample"]): r for r in self._answers if r["agent"] == model}
        asked = [job for job in jobs if job not in records]
        failed = {(r["instance"], r["sample"]) for r in self._unanswered if r["agent"] == model}
        known_to_fail = len(failed.intersection(asked)) if records else 0  # it has answered others
        agent = api_agent.ApiAgent(self._endpoint(), model, self._origin(model, name), known_to_fail)
        episodes = [self._make_episode() for _ in range(min(args.concurrency, len(asked)))]

        def keep(record: dict) -> None:
            self._writer.write([record])
            records[record["instance"], record["sample"]] = record
            meter.add(1, record["prompt_tokens"], record["completion_tokens"])

        try:
            with _Meter(model, len(jobs), len(jobs) - len(asked)) as meter:
                if asked:
                    agent.play(episodes, asked, keep)
        except BaseException as error:
            done = sum(job in records and not records[job]["failed"] for job in jobs)
            rest = (
                f"{done} of {len(jobs)} episodes of {model} are kept in {args.out}; the same command goes on from there"
            )
            if isinstance(error, signals.TrainingStopped):
                raise type(error)(f"{error}. {rest}") from None
            print(f"\n{rest}", file=sys.stderr)
            raise
        finally:
            for episode in episodes:
                episode.close()
        for problem, times in agent.problems.most_common():
            print(f"Warning: {times} episodes of {model} could not be played: {problem}", file=sys.stderr)
        self._add(model, _infos_of([records[job] for job in jobs], self.score), args.samples)
        used = {name: sum(records[job][name] for job in jobs) for name in ("prompt_tokens", "completion_tokens")}
        if any(used.values()):  # not every server counts them
            self.rows[-1] |= used | self._cost(model, **used)
        self.rows[-1]["problems"] = dict(agent.problems)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _add(self, name: str, episodes: list[dict], samples: int) -> None:
        self.rows.append(summarize(name, episodes, self.score, samples))
        self._scores[name] = np.array([float(e[self.score]) for e in episodes]).reshape(-1, samples).mean(axis=1)

    def _origin(self, agent: str, name: str, step: int = 0) -> Origin:
        return Origin(
            phase="evaluation", agent=agent, name=name, env=self.args.env, split=self.args.split, source=self.source,
            score=self.score, step=step, in_table=True,
        )  # fmt: skip

    def _recorder(self, agent: str, policy: Policy | None = None, step: int = 0) -> Recorder:
        origin = self._origin(agent, str(len(self.rows)), step)
        return Recorder(origin, make_pieces(policy.tokenizer) if policy else None)

    def _temperature(self) -> float:
        return self.args.temperature if self.args.temperature is not None else float(self.args.samples > 1)

    def _choose_settings(self) -> dict[str, object]:
        """What decides about the episodes of an API; the format is chosen here, and the header says which it is."""
        args, kwargs = self.args, json.loads(self.args.env_kwargs)
        format = api_agent.choose_format(args.env, args.format, {**kwargs, "split": args.split})
        shown = "function calls" if format == api_agent.NATIVE else f"text, format {format or self.task.format.name}"
        at = "its own temperature" if args.temperature is None else f"temperature {args.temperature:g}"
        self.header += f"\n\n{', '.join(args.model)} behind {args.api}: {shown}, {at}"
        return {
            "api": args.api, "env": args.env, "env_kwargs": kwargs, "split": args.split, "source": self.source,
            "format": format, "temperature": args.temperature, "max_new_tokens": args.max_new_tokens,
            "data": data_digest(self.task),
        }  # fmt: skip

    def _make_episode(self) -> Episode:
        settings = cast(dict, self._settings)
        return api_agent.make_episode(
            self.args.env, settings["format"], **settings["env_kwargs"], split=self.args.split
        )  # fmt: skip

    def _endpoint(self) -> api_agent.Endpoint:
        args = self.args
        return api_agent.Endpoint(
            url=args.api, key_variable=args.api_key_env, temperature=args.temperature, timeout=args.timeout,
            max_new_tokens=args.max_new_tokens, requests_per_minute=args.requests_per_minute,
        )  # fmt: skip

    def _cost(self, model: str, prompt_tokens: int, completion_tokens: int) -> Row:
        if not self.args.price_in:
            return {}
        place = self.args.model.index(model) % len(self.args.price_in)
        prices = self.args.price_in[place], self.args.price_out[place]
        return {"cost": (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6}


class _Meter(Progress):
    """Progress in episodes, with their rate and tokens."""

    def __init__(self, name: str, total: int, done: int = 0):
        super().__init__(total, "episodes", name, done)
        self._begun, self._first, self._tokens_in, self._tokens_out = time.monotonic(), done, 0, 0

    def add(self, episodes: int, tokens_in: int, tokens_out: int) -> None:
        """Count what was played."""
        self._tokens_in, self._tokens_out = self._tokens_in + tokens_in, self._tokens_out + tokens_out
        completed, seconds = self._completed + episodes, time.monotonic() - self._begun
        self.update(
            completed, episodes_per_min=60 * (completed - self._first) / seconds, tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
        )  # fmt: skip


def _count_tokens(trajectory: Trajectory) -> tuple[int, int]:
    """Of an episode, those that were read and those that were written."""
    return sum(len(step.prompt) for step in trajectory.steps), sum(len(step.tokens) for step in trajectory.steps)


def _infos_of(records: list[dict], score: str) -> list[dict]:
    """Records as `summarize` wants them. An episode that could not be played to its end lacks metrics, and has 0 for them."""
    played = [set(record["metrics"]) for record in records if not record["failed"]]
    common = set.intersection(*played) if played else set()
    others = {name: 0.0 for name in sorted(common)}
    return [
        others
        | r["metrics"]
        | {
            score: r["score"],
            "failed": r["failed"],
            "tool_faults": r["tool_faults"],
            "kind": name_kind(r.get("kind") or {}),
        }
        for r in records
    ]


def main(args: Args) -> list[Row]:
    """Evaluate, print and write the table; returns its rows.

    Raises:
        TrainingStopped: more than ``max_failed`` of an agent's episodes failed. All is written before. Or the API is not
            there, or refuses everything.
        SystemExit: SIGTERM or SIGINT came; no table is written, that of an earlier evaluation stays. The answers of an API
            are kept.
    """
    with signals.handle_signals():
        return _evaluate(args)


def _evaluate(args: Args) -> list[Row]:
    with hold_folder(args.out):
        try:
            rows = _play_all(_Evaluation(args))
        finally:
            evaluation_folder.clear_unfinished(args.out)
    for row in rows:
        if (failed := cast(float, row["failed"])) > args.max_failed:
            advice = f"its scores are not what it can do. More than --max-failed {args.max_failed:g} is an error"
            what = "a tool failed, or the API gave no answer," if "problems" in row else "a tool failed"
            raise signals.TrainingStopped(f"{what} in {failed:.1%} of the episodes of {row['name']}: {advice}")
    return rows


def _play_all(evaluation: _Evaluation) -> list[Row]:
    args = evaluation.args
    asked = args.model if args.api else ()
    base_model = "".join(args.model) if args.checkpoint and not args.api else ""
    for script, name in _SCRIPTS.items():
        if script in evaluation.task.SCRIPTS:
            evaluation.play_script(script, name)
    for name in args.here:
        evaluation.play_here(name, base_model)
    for model in asked:
        evaluation.play_api(model)
        evaluation.write()
    if agents := (*args.here, *asked):
        evaluation.compare(agents[0])
    print(evaluation.header.replace(f"{args.env}, {args.split} · ", ""))
    report.print_table(evaluation.rows)  # first: a disk may be full by now
    evaluation.close()
    evaluation.write()
    html_report.write_beside(args.out)
    return evaluation.rows


if __name__ == "__main__":
    main(ARGS)
