"""The arguments of every algorithm; an algorithm's own arguments are in its file.

The docstring under an argument is its help; `option` holds its metadata. Nothing here imports torch, so that ``--help`` is fast.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from trainers.runtime.errors import UserError
from trainers.runtime.integrity import find_best

CONFIGS = Path(__file__).parent / "configs"  # those that are shipped
EngineName = Literal["transformers", "vllm"]  # samplers that `trainers.factory.make_engine` makes
TOKEN_CLIP, GSPO_CLIP = (0.2, 0.28), (3e-4, 4e-4)  # ε_low, ε_high of a ratio of tokens (DAPO), of sequences (GSPO)

# Gradient steps of the tiny policy's cold start; the second number is for MiniWiki's varied worlds, in steps of twice the tokens
STEPS, STEPS_OF_DECISIONS = 2800, 1900


@dataclass(frozen=True)
class Range:
    """The allowed numbers of an argument, for `typing.Annotated`."""

    has: Callable[[float], bool]  # a comparison, which NaN fails
    words: str


Positive = Annotated[float, Range(lambda x: x > 0, "above 0")]
NotNegative = Annotated[float, Range(lambda x: x >= 0, "at least 0")]
Share = Annotated[float, Range(lambda x: 0 <= x <= 1, "in [0, 1]")]
Count = Annotated[int, Range(lambda x: x >= 1, "at least 1")]
Natural = Annotated[int, Range(lambda x: x >= 0, "at least 0")]


def option(default: Any, *, advanced: bool = False, config_only: bool = False, mutable_on_resume: bool = False) -> Any:
    """Declare an argument of a dataclass: ``advanced`` is shown by ``--help-all`` only, ``config_only`` is set in a
    ``--config`` file or from Python, and ``mutable_on_resume`` may change on ``--resume``."""
    kind = "config" if config_only else "advanced" if advanced else "shown"
    return field(default=default, metadata={"kind": kind, "mutable_on_resume": mutable_on_resume})


def select_options(args: Any, kind: str) -> list[str]:
    """List the names of a dataclass's arguments of one kind: "shown", "advanced" or "config"."""
    return [f.name for f in fields(args) if f.metadata.get("kind", "shown") == kind]


def mutable_on_resume(args: Any) -> set[str]:
    """The names of the arguments that a resumed run may change."""
    scheduled = getattr(args, "schedule", "constant") != "constant" or getattr(args, "warmup", 0.0)
    lengths = {"updates", "max_seconds"} if scheduled else set()  # the learning rate depends on them
    return {f.name for f in fields(args) if f.metadata.get("mutable_on_resume")} - lengths


@dataclass(frozen=True)
class Demonstrator:
    """The agent that the cold start imitates: its skill and its environment; see `ModelArgs.cold_start_skill`."""

    continue_probability: float = 0.25
    skill: float = 0.75
    env_kwargs: str = "{}"


DEMONSTRATOR = Demonstrator()


@dataclass(kw_only=True)
class EnvironmentArgs:
    """Environment."""

    env: str = "AgentR1/MiniWiki-v0"
    """Registered id of an environment that speaks text; "MiniWiki" is short for "AgentR1/MiniWiki-v0".
    "my_module:Mine/Task-v0" imports my_module first."""
    env_kwargs: str = "{}"
    """Arguments of the environment as JSON, for example '{"data": "my/folder"}'."""
    tool_outage_minutes: NotNegative = option(10.0, config_only=True, mutable_on_resume=True)
    """Minutes of retrying if tools fail in more than half of the episodes. Then the run is saved and stops."""


@dataclass(kw_only=True)
class ModelArgs:
    """Model."""

    model: str = "tiny"
    """A chat model: a folder, GGUF file, hub id or LoRA adapter. "tiny" (1 M parameters) is shipped for MiniWiki, made by SFT
    elsewhere."""
    base_model: str = option("", advanced=True)
    """Base model of the adapter in --model, instead of the one that the adapter names: a folder, GGUF file or hub id."""
    chat_template: str = option("", advanced=True)
    """A file with a chat template (Jinja), instead of the model's own. Checkpoints keep it."""
    thinking: str = option("auto", advanced=True)
    """Thoughts before actions: on, off, or auto (the chat template's default). A number, such as 512, is a budget in tokens per
    turn."""
    cold_start_steps: Count | None = option(None, config_only=True)
    """Gradient steps of SFT that make the tiny policy from scratch. Default: 2,800, and none for MiniWiki's shipped policy
    (1,900 with --config from-scratch)."""
    cold_start_continue_probability: Share = option(Demonstrator.continue_probability, config_only=True)
    """How often the imitated agent continues to search after an article. Lower values make right answers rarer at the start."""
    cold_start_skill: Share = option(Demonstrator.skill, config_only=True)
    """Share of episodes in which the imitated agent is the scripted agent instead of a random one, in tasks without a corpus."""
    cold_start_env_kwargs: str = option(Demonstrator.env_kwargs, config_only=True)
    """Arguments of the cold start's environment as JSON, instead of --env-kwargs, in tasks without a corpus. Example, for easier
    boards: '{"moves": [2, 4]}'."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the layers; trained weights and logits stay float32. Falls back to float32 on CPUs without bfloat16 matmul."""
    lora_rank: Natural = 0
    """Rank of a LoRA adapter on all linear layers, trained instead of the weights; 0 trains the weights."""
    lora_alpha: Count = option(32, config_only=True)
    """Scale of the adapter, alpha / rank: one learning rate serves all ranks."""
    gradient_checkpointing: bool = option(False, advanced=True, mutable_on_resume=True)
    """Run each layer again in the backward pass: less memory, a third more time, the same gradient."""

    def demonstrator(self) -> Demonstrator:
        """The agent that the cold start imitates."""
        return Demonstrator(self.cold_start_continue_probability, self.cold_start_skill, self.cold_start_env_kwargs)


@dataclass(kw_only=True)
class SamplingArgs:
    """Sampling of episodes."""

    agent: str = ""
    """Your program over an OpenAI-compatible endpoint of the policy: a function, "my_agent:solve", or a command, "node agent.js".
    --env may be a file of tasks, tasks.jsonl."""
    agent_timeout: Positive = option(300.0, config_only=True, mutable_on_resume=True)
    """Longest time between two calls of the agent's program, in seconds."""
    agent_calls: Count = option(50, config_only=True)
    """Most calls of the policy in an episode of the agent's program."""
    questions_per_update: Count = 16
    """Questions (groups) in a batch."""
    group_size: Count = 8
    """Episodes per question. 1 is enough in PPO and REINFORCE++ without a filter of groups."""
    temperature: Positive = 1.0
    """Sampling temperature of the rollouts."""
    top_p: Annotated[float, Range(lambda x: 0 < x <= 1, "above 0 and at most 1")] = option(1.0, config_only=True)
    """Nucleus sampling in rollouts: the most probable tokens that together hold this share of the probability; needs
    --importance."""
    min_p: Share = option(0.0, config_only=True)
    """Lowest probability of a sampled token in rollouts, as a share of the most probable token's; needs --importance."""
    max_new_tokens: Count = 64
    """Longest turn, in tokens. A model that thinks needs several hundred."""
    one_step_off_policy: bool = option(False, advanced=True)
    """Sample the next batch during the update: batches are one update old, except the first after --resume. Consider
    --importance tis."""
    engine: EngineName = "transformers"
    """Sampler. vLLM needs pip install -e '.[vllm]' and runs one more forward pass to measure its mismatch. Consider
    --importance tis."""
    vllm_url: tuple[str, ...] = option((), advanced=True, mutable_on_resume=True)
    """Addresses of vLLM servers, one for each process, instead of vLLM in this process; with --engine vllm."""
    vllm_kv_gib: Positive = option(2.0, config_only=True, mutable_on_resume=True)
    """Memory for keys and values of vLLM in this process, in GiB."""


@dataclass(kw_only=True)
class OptimisationArgs:
    """Gradient steps."""

    updates: Count = option(50, mutable_on_resume=True)
    """Policy updates."""
    max_seconds: NotNegative = option(0.0, advanced=True, mutable_on_resume=True)
    """Limit on the time of rollouts and updates, without evaluations, in seconds; 0 for no limit."""
    lr: Positive | None = None
    """Learning rate of AdamW. Default: 5e-4 for the tiny policy, 1e-6 for a pretrained model, 1e-5 for its adapter (2e-4 at
    135 M)."""
    schedule: Literal["constant", "linear", "cosine"] = option("constant", advanced=True)
    """Decay of all learning rates to 0, over --updates or --max-seconds, whichever ends first."""
    warmup: Share = option(0.0, config_only=True)
    """Share of --updates or --max-seconds in which all learning rates rise from 0."""
    epochs: Count = 1
    """Passes over each batch of episodes. With 1 pass and 1 minibatch, no ratio is clipped."""
    minibatches: Count = 1
    """Gradient steps in each pass."""
    max_grad_norm: Positive = option(1.0, config_only=True)
    """Largest norm of the gradient; longer ones are scaled down."""
    max_tokens_per_micro_batch: Count = option(8192, mutable_on_resume=True)
    """Tokens in one forward and backward pass, padding included (gradient accumulation): changes memory, not results."""
    stop_on_collapse: bool = option(False, config_only=True, mutable_on_resume=True)
    """End the run, with its report, at a symptom of collapse that ends runs in the RAGEN papers."""


@dataclass(kw_only=True)
class AlgorithmArgs:
    """Objective, filters and penalties."""

    loss: Literal["clip", "gspo", "cispo"] = "clip"
    """Surrogate: PPO's clipped ratio, GSPO's ratio of whole sequences, or CISPO's clipped weight."""
    normalize: Literal["auto", "tokens", "sequences"] = option("auto", config_only=True)
    """Mean of the loss over all tokens of the batch (DAPO, default), or over each sequence first (GRPO's paper, GSPO)."""
    clip_low: Share | None = option(None, advanced=True)
    """ε_low of the clipped ratio. Default: 0.2, and 0.0003 with --loss gspo."""
    clip_high: NotNegative | None = option(None, advanced=True)
    """ε_high of the clipped ratio; above ε_low, unlikely tokens can grow (DAPO). Default: 0.28, and 0.0004 with --loss gspo."""
    dual_clip: Annotated[float, Range(lambda x: x == 0 or x > 1, "above 1, or 0 for none")] = option(
        0.0, config_only=True
    )
    """Bound of the ratio at negative advantages, with --loss clip (dual-clip PPO uses 3); 0 for none."""
    kl_coef: NotNegative = 0.0
    """β, the weight of the KL penalty to the starting policy."""
    kl: Literal["k1", "k2", "k3"] = option("k3", advanced=True)
    """KL estimator: k3 (GRPO's paper) or k2 (the KL's gradient) in the loss, or k1 in the reward (PPO, REINFORCE++)."""
    kl_target: NotNegative = option(0.0, config_only=True)
    """KL per token, in nats, to which β is adapted (Ziegler et al. 2019); 0 keeps β fixed."""
    entropy_coef: NotNegative = option(0.0, advanced=True)
    """Weight of an entropy bonus in the loss."""
    importance: Literal["none", "tis", "icepop"] = option("none", advanced=True)
    """Importance weights for a sampler with other probabilities: cut at 2 (TIS), or dropped outside 0.5 to 5 (IcePop). Costs one
    more forward pass."""
    filter: Literal["none", "mixed", "outcome", "uncertain", "signal"] = "none"
    """Groups to learn from. none: all; mixed: returns differ (DAPO); outcome: task scores differ; uncertain: largest 25% by
    deviation (StarPO-S); signal: 90% of deviation (RAGEN-2)."""
    dynamic_sampling: Natural = option(0, advanced=True)
    """Largest number of further batches, to replace groups that --filter mixed or outcome drops; 0 for none. DAPO uses 10."""
    overlong_buffer: Natural = option(0, config_only=True)
    """Number of tokens before --max-new-tokens over which a penalty falls from 0 to -1 (DAPO); 0 for no penalty."""
    loss_mask: bool = option(True, config_only=True)
    """Train on sampled tokens only. False trains on tool output too: the ablation of Agent-R1's paper."""


@dataclass(kw_only=True)
class EvaluationArgs:
    """Evaluation on held-out questions."""

    eval_every: Count = option(10, mutable_on_resume=True)
    """Updates between evaluations on held-out questions."""
    eval_questions: Count = 200
    """Held-out questions of each evaluation; the last one uses --final-questions."""
    eval_temperature: NotNegative = option(0.0, config_only=True)
    """Sampling temperature of evaluations during the run; 0 is greedy decoding, which the closing table always uses."""
    final_questions: Count = option(500, advanced=True, mutable_on_resume=True)
    """Held-out questions of the closing table."""
    keep_episodes: Natural = option(8, config_only=True, mutable_on_resume=True)
    """Training episodes of each update to keep in episodes.jsonl, group by group. All episodes of evaluations are kept."""


@dataclass(kw_only=True)
class OutputArgs:
    """Run and files."""

    config: str = ""
    """A TOML file of arguments, or a name in trainers/configs, such as from-scratch or dapo (GRPO). Options override it."""
    seed: Natural = 0
    """Seed of the model, the questions and the sampling."""
    out: Path | None = option(None, mutable_on_resume=True)
    """Folder of the run. Default: runs/<algorithm>-<env>-<seed>, numbered if it exists."""
    resume: Path | None = option(None, mutable_on_resume=True)
    """Folder of a run to continue with its arguments; --help-all lists those that may change, such as --save-every."""
    save_every: Count = option(25, advanced=True, mutable_on_resume=True)
    """Updates between checkpoints."""
    save_total_limit: Count = option(2, config_only=True, mutable_on_resume=True)
    """Number of newest checkpoints to keep, besides "best", which has the weights of the best evaluation."""
    report_to: tuple[str, ...] = option((), mutable_on_resume=True)
    """Further loggers: tensorboard, trackio, wandb. TRACKIO_PROJECT, WANDB_PROJECT, WANDB_NAME and WANDB_RUN_GROUP apply."""
    push_to_hub: str = option("", advanced=True, mutable_on_resume=True)
    """Repository of the Hugging Face hub for the trained weights, "NAME" or "USER/NAME", created private. Needs HF_TOKEN or
    hf auth login."""


def read_json_object(name: str, text: str) -> dict[str, Any]:
    """Read an argument that holds a JSON object. Raises UserError if the text is not valid JSON, or no object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{name} is not valid JSON: {error}; got {text!r}") from error
    if not isinstance(value, dict):
        raise UserError(f"{name} must be a JSON object, such as '{{\"k\": 2}}', got {text!r}")
    return value


def convert(kind: Any, value: Any) -> Any:
    """Convert a value to the type of its argument: a string to a path, a mapping to JSON, a list to a tuple."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(value, Mapping):
        return json.dumps({name: _to_json(argument) for name, argument in value.items()})
    if get_origin(kind) is tuple:
        one = get_args(kind)[0]
        return tuple(convert(one, item) for item in (value if isinstance(value, list | tuple) else [value]))
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if isinstance(value, str) and (kind is Path or Path in get_args(kind)):
        value = Path(value)
    if isinstance(value, Path):
        value = value.expanduser()  # shells do not in --out=~/run
    return str(value) if isinstance(value, Path | int) and kind in (str, str | None) else value


def _to_json(value: Any) -> Any:
    """Convert an argument of an environment that JSON cannot hold: a class to "module:Class", a data set to a file."""
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    parts = value.values() if isinstance(value, Mapping) else (value,)
    if any(hasattr(part, "to_parquet") for part in parts):
        from agent_envs.data.local import keep_dataset  # imports Gymnasium, which --help need not wait for

        return keep_dataset(value)
    return value


def check_value(name: str, kind: Any, value: Any) -> None:
    """Raise a UserError if a value is not of the annotated type ``kind``, or is out of its range."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        check_value(name, parts[0], value)
        if wrong := [mark.words for mark in parts[1:] if isinstance(mark, Range) and not mark.has(value)]:
            raise UserError(f"{name} must be {wrong[0]}, got {value}")
    elif origin in (Union, UnionType):  # with None
        if value is not None:
            check_value(name, parts[0], value)
    elif origin is Literal:
        if value not in parts:
            raise UserError(f"{name} must be one of {parts}, got {value!r}")
    elif origin is tuple and isinstance(value, tuple):
        for item in value:
            check_value(name, parts[0], item)
    elif not isinstance(value, (int, float) if kind is float else kind) or (
        isinstance(value, bool) and kind is not bool
    ):
        raise UserError(f"{name} must be {_KINDS.get(kind, kind.__name__)}, got {value!r}")


_KINDS = {int: "an integer", float: "a number", str: "a string", bool: "True or False", Path: "a path"}


def _find_best(value: Any) -> Any:
    """Apply `integrity.find_best` to a path, a name or a tuple of them, and keep the types."""
    if isinstance(value, tuple):
        return tuple(map(_find_best, value))
    return type(value)(find_best(value))


def find_config(name: str) -> Path:
    """Find the file of a configuration. ``name``: a path, or the name of a shipped one. Raises UserError if there is none."""
    shipped = {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}
    if name in shipped:
        return shipped[name]
    if not Path(name).is_file():
        raise UserError(f"there is no configuration {name}: give a TOML file or one of {', '.join(shipped)}")
    return Path(name)


def read_config(name: str, args: Any, algorithm: str) -> dict[str, Any]:
    """Read the arguments that a configuration sets. A table, such as ``[env_kwargs]``, becomes a JSON string.

    Raises a UserError if the file is not valid TOML, has keys that ``args`` lacks, or is for another trainer than ``algorithm``.
    """
    path = find_config(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    wanted = values.pop("algorithm", algorithm)
    if wanted != algorithm:
        raise UserError(f"{name} is a configuration of {wanted}: python -m trainers.{wanted} --config {name}")
    kinds = {f.name: f.type for f in fields(args) if f.name not in ("config", "resume")}
    if unknown := sorted(set(values) - set(kinds)):
        raise UserError(f"{path} has unknown keys: {', '.join(unknown)}; trainers.{algorithm} --help-all lists all")
    return {key: convert(kinds[key], value) for key, value in values.items()}


class Checks:
    """Checks for dataclasses of arguments. An error names the argument and its value."""

    def __post_init__(self: Any):
        """Convert and check all arguments, and complete a short id of an environment. Raises UserError."""
        for argument in fields(self):
            name, value = argument.name, convert(argument.type, getattr(self, argument.name))
            check_value(name, argument.type, value)
            setattr(self, name, value)
            if name in ("model", "checkpoint") and value:
                setattr(self, name, _find_best(value))
            if isinstance(value, float) and math.isinf(value):  # JSON has no such number
                raise UserError(f"{name} must be finite, got {value}: for no limit, give 1e9")
            if name in ("env_kwargs", "cold_start_env_kwargs", "arguments"):
                read_json_object(name, value)
        if "/" not in getattr(self, "env", "/") and not self.env.endswith(".jsonl"):
            from agent_envs.registration import full_id  # imports Gymnasium, which --help need not wait for

            self.env = full_id(self.env)

    def check_unused(self, used: object, where: str, *names: str) -> None:
        """Raise a UserError if an argument of ``names`` is set but not ``used``; ``where`` is the end of the message."""
        if used or getattr(self, "resume", None):  # a resumed run may have had a use for it
            return
        for argument in fields(self):  # type: ignore[arg-type]  # a dataclass mixes this in
            if argument.name in names and getattr(self, argument.name) != argument.default:
                raise UserError(f"{argument.name} makes no difference {where}: remove it")

    def check_thinking(self: Any, longest: int | None) -> None:
        """Raise a UserError if thinking has an invalid value, or leaves no token of the ``longest`` turn for the action."""
        value = self.thinking
        if value in (None, "auto", "on", "off"):
            return
        if not (value.isascii() and value.isdecimal() and int(value) > 0):
            raise UserError(f"thinking must be auto, on, off or a number of tokens above 0, got {value!r}")
        if longest is not None and int(value) >= longest:
            raise UserError(
                f"thinking must be below max_new_tokens ({longest}), or no action fits in a turn, got {value}"
            )

    def check_model(self: Any) -> None:
        """Raise a UserError if `ModelArgs` contradict each other."""
        others = "base_model", "chat_template", "thinking", "dtype", "lora_rank", "gradient_checkpointing"
        self.check_unused(self.model != "tiny", "without a pretrained model", *others)
        cold_start = [field.name for field in fields(self) if field.name.startswith("cold_start_")]
        self.check_unused(self.model == "tiny", "to a pretrained model", *cold_start)


# Dataclasses collect fields from the last base to the first: this is the order of `--help` from its end.
@dataclass(kw_only=True)
class TrainArgs(
    OutputArgs, EvaluationArgs, AlgorithmArgs, OptimisationArgs, SamplingArgs, ModelArgs, EnvironmentArgs, Checks
):  # fmt: skip
    """Arguments of every algorithm."""

    def compares_attempts(self) -> bool:
        """Whether rollouts of one question are compared with each other, so a group needs two."""
        return True

    def __post_init__(self):
        super().__post_init__()
        if self.group_size < 2 and self.compares_attempts():
            raise UserError(f"group_size must be at least 2, got {self.group_size}")
        self._check_loss()
        self.check_model()
        self.check_thinking(self.max_new_tokens)
        self.check_unused(self.kl_coef, "without kl_coef", "kl", "kl_target")
        self.check_unused(self.engine == "vllm", "without engine 'vllm'", "vllm_url")
        self.check_unused(self.engine == "vllm" and not self.vllm_url, "without vLLM in this process", "vllm_kv_gib")
        self.check_unused(self.agent, "without agent", "agent_timeout", "agent_calls")
        refilled = self.filter in ("mixed", "outcome")
        self.check_unused(refilled, "without filter 'mixed' or 'outcome'", "dynamic_sampling")
        if self.overlong_buffer > self.max_new_tokens:
            most = f"max_new_tokens ({self.max_new_tokens})"
            raise UserError(f"overlong_buffer must be at most {most}, got {self.overlong_buffer}")

    @property
    def clip_range(self) -> tuple[float, float]:
        """ε_low and ε_high: the given values, else the defaults of the surrogate."""
        low, high = GSPO_CLIP if self.loss == "gspo" else TOKEN_CLIP
        return (low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high)

    @property
    def mean_over(self) -> Literal["tokens", "sequences"]:
        """What the loss is averaged over: `normalize`, or the default of the surrogate for "auto"."""
        default: Literal["tokens", "sequences"] = "sequences" if self.loss == "gspo" else "tokens"
        return default if self.normalize == "auto" else self.normalize

    def _check_loss(self) -> None:
        """Raise a UserError if loss and sampler do not fit together."""
        if (self.top_p < 1 or self.min_p) and self.importance == "none":
            raise UserError(
                "top_p and min_p sample from another distribution than the policy: give importance 'tis' too"
            )
        differs = self.dtype != "float32" or self.engine == "vllm" or self.one_step_off_policy
        if self.loss == "gspo" and self.importance == "none" and differs and self.clip_range[0] < 0.01:
            raise UserError(
                f"loss 'gspo' clips at {self.clip_range[0]:g}, and a sampler in bfloat16, of another engine or one step behind "
                "is off by more: give importance 'tis' too, or a wider clip_low and clip_high"
            )
        self.check_unused(self.loss == "clip", f"with loss {self.loss!r}", "dual_clip")
