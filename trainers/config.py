"""What can be set: the arguments that every algorithm takes. Those of one algorithm are in its own file.

The docstring under an argument is its ``--help``, and the class that it stands in names its ``GROUP`` there. Nothing here imports
torch, so that ``--help`` and mistakes answer at once.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

# Gradient steps of the tiny policy's cold start; the second number in MiniWiki's varied worlds, of twice as many tokens each
STEPS, STEPS_OF_DECISIONS = 2800, 1900


@dataclass(frozen=True)
class Demonstrator:
    """How well the demonstrator of the cold start acts, and where.

    Attributes:
        continue_probability: that it searches on after an article, where there is a corpus to search.
        skill: elsewhere, the share of its episodes in which it acts as the task's scripted agent, not at random.
        env_kwargs: elsewhere, arguments that its environment has instead of the task's own, as JSON.
    """

    continue_probability: float = 0.25
    skill: float = 0.75
    env_kwargs: str = "{}"


DEMONSTRATOR = Demonstrator()

# By their names in the release before this one, which says so on the command line and in recipes, and reads them in
# checkpoints.
RENAMED = {"ahead": "one_step_off_policy", "cold_start_patience": "cold_start_continue_probability"}


@dataclass(kw_only=True)
class EnvironmentArgs:
    """What is played."""

    GROUP: ClassVar = "environment"
    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id, of this suite ("MiniWiki" for "AgentR1/MiniWiki-v0") or any whose actions and observations
    are text; "my_module:Mine/Task-v0" imports my_module first."""
    env_kwargs: str = "{}"
    """Arguments of the environment as JSON, for example '{"data": "my/folder"}'."""
    tool_outage_minutes: float = 10.0
    """Where tools break in more than half of the episodes of a batch or an evaluation, it is played again after growing
    pauses, for so many minutes; then the run stops with an error, and a checkpoint."""


@dataclass(kw_only=True)
class ModelArgs:
    """What is trained."""

    GROUP: ClassVar = "model"
    model: str = "tiny"
    """A causal language model with a chat template: a local folder, a GGUF file or a hub id; or a LoRA adapter of one.
    "tiny" makes a small one here and teaches it the tools by imitation first."""
    base_model: str = ""
    """Where the base of an adapter in --model is, if not where the adapter says: a folder, a GGUF file or a hub id."""
    cold_start_steps: int | None = None
    """Gradient steps of imitation for the tiny policy: by default 1,900 in MiniWiki's varied worlds, and 2,800 of half as many
    tokens elsewhere."""
    cold_start_continue_probability: float = Demonstrator.continue_probability
    """How often the early-stopping demonstrator that it imitates searches on after an article. The less, the rarer the
    right answers that reinforcement learning has to start from."""
    cold_start_skill: float = Demonstrator.skill
    """In tasks without a corpus: the share of episodes in which the noisy expert that it imitates plays as the task's scripted
    agent; in the others it plays at random. The less, the more reinforcement learning has to explore with, where an imitation
    of the scripted agent hardly tries anything else."""
    cold_start_env_kwargs: str = Demonstrator.env_kwargs
    """In tasks without a corpus: arguments of the environment that it imitates in, as JSON, in place of those of --env-kwargs.
    With Sokoban's '{"moves": [2, 4]}' it is shown easy boards alone, and the others are left for reinforcement learning."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the layers run in, when sampling and when training. Weights that are trained, and the logits, stay float32. On a
    processor without products in bfloat16 it is float32 all the same."""
    lora_rank: int = 0
    """Train a LoRA adapter of this rank on all linear layers, in place of the weights themselves; 0 trains those. For
    pretrained models, as are dtype and gradient checkpointing."""
    lora_alpha: int = 32
    """Scale of the adapter: it is multiplied by alpha / rank, so that one learning rate does for all ranks."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass and run the layer again: less memory for a third more
    time, and the same gradient."""

    def demonstrator(self) -> Demonstrator:
        """The one that the cold start imitates."""
        return Demonstrator(self.cold_start_continue_probability, self.cold_start_skill, self.cold_start_env_kwargs)


@dataclass(kw_only=True)
class SamplingArgs:
    """How episodes are sampled."""

    GROUP: ClassVar = "sampling"
    questions_per_update: int = 16
    """Questions (groups) in a batch."""
    group_size: int = 8
    """Episodes per question. 1 will do where attempts are not compared with each other: in PPO, and in REINFORCE++ against
    the batch, without a filter of groups."""
    temperature: float = 1.0
    """Sampling temperature of the rollouts."""
    top_p: float = 1.0
    """Sample from the most probable tokens alone, as few as hold this share of the probability. What is sampled from is then
    another distribution than the policy's, so this needs --importance. Evaluations sample from all tokens."""
    min_p: float = 0.0
    """Sample from those tokens alone that are at least this share as probable as the most probable one; the same holds."""
    max_new_tokens: int = 64
    """Longest turn, in tokens; a pretrained model that thinks needs several hundred."""
    one_step_off_policy: bool = False
    """Play the next batch while this one is learned from, with a copy of the policy as it was before: batches are one
    update old. Consider --importance tis. Where there are cores and memory to spare, a step takes as long as the slower
    half. A resumed run begins with a batch that is not old."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples. vLLM needs pip install 'agent-r1-envs[vllm]'; a forward pass more in each update measures how far its
    probabilities are from the trainer's own (mismatch/). Consider --importance tis with it."""
    vllm_url: tuple[str, ...] = ()
    """With --engine vllm: addresses of vLLM servers, one for each process, in place of vLLM in this process."""
    vllm_kv_gib: float = 2.0
    """With --engine vllm in this process: GiB for keys and values."""


@dataclass(kw_only=True)
class OptimisationArgs:
    """Gradient steps."""

    GROUP: ClassVar = "optimisation"
    updates: int = 80
    """Policy updates."""
    max_seconds: float = 0.0
    """End after so many seconds of rollouts and updates, evaluations left out, and at the latest after --updates; 0 sets no
    limit."""
    lr: float = 5e-4
    """Learning rate of AdamW. The default is for the tiny policy; start at 1e-6 for a pretrained model, and at 1e-5 with
    --lora-rank."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How all learning rates fall to 0 after the warm-up: over --updates, or over --max-seconds where those end first."""
    warmup: float = 0.0
    """Share of --updates, or of --max-seconds, over which all learning rates rise from 0 to full."""
    epochs: int = 1
    """Passes over each batch of episodes; with one, and one minibatch, every ratio is 1 and nothing is clipped, unless the
    sampler is another program or one step behind."""
    minibatches: int = 1
    """Gradient steps in each pass."""
    max_grad_norm: float = 1.0
    """Gradient clipping."""
    max_tokens_per_micro_batch: int = 8192
    """Tokens (padding included) in one forward and backward pass. A gradient step on more than that adds up the gradients
    of its parts (gradient accumulation): memory, not results, depends on it."""
    stop_on_collapse: bool = False
    """End the training, with its report, where the monitor names a symptom of collapse that the papers stop at. By
    default symptoms are only reported."""


@dataclass(kw_only=True)
class AlgorithmArgs:
    """Objective, episodes that count, and penalties."""

    GROUP: ClassVar = "algorithm"
    loss: Literal["clip", "gspo", "cispo"] = "clip"
    """The surrogate: PPO's clipped ratio, GSPO's ratio of whole sequences, or CISPO's clipped weight."""
    normalize: Literal["auto", "tokens", "sequences"] = "auto"
    """Mean over all tokens of the batch (DAPO), or over each sequence's tokens first (GRPO's paper). By default over tokens,
    and over sequences with --loss gspo, which is defined that way."""
    clip_low: float | None = None
    """ε_low of the clipped ratio: .2 by default, and .0003 with --loss gspo."""
    clip_high: float | None = None
    """ε_high of the clipped ratio; above ε_low it leaves room for unlikely tokens to grow (DAPO). .28 by default, and .0004
    with --loss gspo."""
    dual_clip: float = 0.0
    """With --loss clip, the most that the ratio counts where the advantage is negative (dual-clip PPO, which has 3); 0 leaves
    it unbounded. For many steps on one batch."""
    kl_coef: float = 0.0
    """β of the KL penalty to the starting policy."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Its estimator: k3 in the loss, as in GRPO's paper; k2 in the loss, whose gradient is that of the KL; or k1 in the
    reward of each token, as in PPO and REINFORCE++."""
    kl_target: float = 0.0
    """Steer β so that the KL per token stays at this (nats; Ziegler et al. 2019); 0 leaves β fixed."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus in the loss."""
    importance: Literal["none", "tis", "icepop", "sequence"] = "none"
    """Correction for a sampler whose probabilities are not quite the trainer's (bfloat16, another engine): weights cut
    at 2 (TIS), token weights outside .5 to 5 dropped (IcePop), or sequences of a weight above 2 dropped. Costs one
    more forward pass."""
    filter: Literal["none", "mixed", "uncertain", "signal"] = "none"
    """Groups to learn from: all; those whose returns differ (DAPO); the 25 % with the largest deviation (StarPO-S); or
    those that hold 90 % of the deviation (RAGEN-2). An update without a group is skipped."""
    selection_eps: float = 0.01
    """With --filter signal, how much less than 90 % of the sum of all deviations will do, in the unit of the returns; where
    there is no more than that in all, no group is kept."""
    prime_norm: bool = False
    """Divide process rewards, those of the turns before an episode's last, by the largest that any turn of the batch has
    still to come of them, so that they never outweigh an outcome of 1 (Agent-R1's first version, after PRIME)."""
    refill: int = 0
    """With --filter mixed, how many more batches may be played to replace the groups that it drops: DAPO's dynamic
    sampling allows 10. With 0 they are only dropped."""
    overlong_buffer: int = 0
    """Tokens before the longest turn over which a penalty grows to -1 (DAPO); 0 turns it off."""
    loss_mask: bool = True
    """Turning it off trains on what tools returned as well: the paper's ablation."""


@dataclass(kw_only=True)
class EvaluationArgs:
    """Held-out questions."""

    GROUP: ClassVar = "evaluation"
    eval_every: int = 5
    """Updates between evaluations on held-out questions."""
    eval_questions: int = 200
    """Held-out questions at each evaluation; the last one takes --final-questions."""
    eval_temperature: float = 0.0
    """Sampling temperature at these evaluations; 0 is greedy, as the closing table always is. A greedy policy changes its
    mind all at once: sampled as in training, at 1, the curve shows how it got there."""
    final_questions: int = 500
    """Held-out questions for the closing table."""


@dataclass(kw_only=True)
class OutputArgs:
    """The run and what it leaves behind."""

    GROUP: ClassVar = "output"
    seed: int = 0
    """Seeds the model, the questions and the sampling."""
    out: Path | None = None
    """Folder of the run; by default runs/<algorithm>-<env>-<seed>, with a number after it where that is taken."""
    resume: Path | None = None
    """Folder of an earlier run to go on with, under its own arguments: nothing else need be given. What may be given anew
    changes no gradient step: --updates, --max-seconds, --save-every, --save-every-minutes, --keep, --keep-episodes,
    --eval-every, --eval-questions, --eval-temperature, --final-questions, --log, --log-project, --log-name, --log-group,
    --push-to-hub, --stop-on-collapse, --tool-outage-minutes, --max-tokens-per-micro-batch, --gradient-checkpointing,
    --vllm-url and --vllm-kv-gib; with a --schedule or a --warmup, not --updates and --max-seconds; in sft, not --updates,
    --max-seconds, --eval-every and --keep. A run may be given more updates after its end."""
    save_every: int = 25
    """Updates between checkpoints."""
    save_every_minutes: float = 0.0
    """Minutes between checkpoints, besides those by updates; 0 saves by updates alone."""
    log: tuple[str, ...] = ()
    """Where else metrics go besides metrics.jsonl, with a table of the first episodes of each evaluation: tensorboard, trackio,
    wandb."""
    log_project: str = "agent-r1"
    """The project of the run in Trackio and W&B."""
    log_name: str = ""
    """The name of the run there; by default that of its folder."""
    log_group: str = ""
    """The group of runs there that it belongs to, such as the seeds of one experiment."""
    push_to_hub: str = ""
    """A model repository of the Hugging Face hub, "NAME" or "USER/NAME", to which the trained weights go with their model
    card when the run has ended. It is made, private, where there is none. The token is taken from HF_TOKEN or from hf auth
    login. Where it fails, the run has ended well all the same, and a warning says how to try again."""


@dataclass(kw_only=True)
class KeepArgs:
    """What stays of the checkpoints."""

    GROUP: ClassVar = "output"
    keep: int = 2
    """Checkpoints that stay, the newest ones. The weights of the best evaluation are kept besides, in "best"."""
    keep_episodes: int = 8
    """Training episodes of each update that episodes.jsonl holds, with their tokens and advantages: whole groups first. 0 keeps
    none. Those of evaluations are all kept."""


TOKEN_CLIP = 0.2, 0.28  # ε_low and ε_high of a token's ratio (DAPO's clip-higher)
GSPO_CLIP = 3e-4, 4e-4  # of a sequence's (Zheng et al. 2025)


def read_json_object(name: str, text: str) -> dict[str, Any]:
    """The object that an argument holds as JSON.

    Raises:
        ValueError: it is not valid, or no object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not valid JSON: {error}; got {text!r}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object, such as '{{\"k\": 2}}', got {text!r}")
    return value


def convert(kind: Any, value: Any) -> Any:
    """A value as an argument of this type holds it: a text is a path, a mapping is JSON, one text or a list is a tuple. Callers
    from Python write the former, and saved arguments hold the latter."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(value, Mapping):
        return json.dumps(value)
    if get_origin(kind) is tuple:
        one = get_args(kind)[0]
        return tuple(convert(one, item) for item in ([value] if isinstance(value, str | Path) else value))
    if isinstance(value, str) and (kind is Path or Path in get_args(kind)):
        return Path(value)
    return str(value) if isinstance(value, Path) and kind is str else value


class Checks:
    """What dataclasses of arguments check their values with. An error names the argument and what it got."""

    def __post_init__(self: Any):
        self.tidy()

    def tidy(self: Any) -> None:
        """Convert what Python callers write (`convert`), and write an environment of this suite by its whole id.

        Raises:
            ValueError: an argument is not the JSON that it has to be.
        """
        for field in fields(self):
            setattr(self, field.name, convert(field.type, getattr(self, field.name)))
            if isinstance(value := getattr(self, field.name), float) and math.isinf(value):  # JSON has no such number
                raise ValueError(
                    f"{field.name} must be finite, got {value}: where no limit is wanted, 1e9 sets none either"
                )
            if field.name in ("env_kwargs", "cold_start_env_kwargs", "arguments"):
                read_json_object(field.name, getattr(self, field.name))
        if "/" not in getattr(self, "env", "/"):
            from agent_envs.registration import full_id  # imports Gymnasium, which --help need not wait for

            self.env = full_id(self.env)

    def check_least(self, **least: float) -> None:
        """Raise a ValueError where an argument is below its least value."""
        for name, value in least.items():
            if not getattr(self, name) >= value:  # NaN is not
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")

    def check_positive(self, *names: str) -> None:
        """Raise a ValueError where an argument is not above 0."""
        for name in names:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    def check_share(self, *names: str) -> None:
        """Raise a ValueError where an argument is not in [0, 1]."""
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")

    def check_unused(self, used: object, where: str, *names: str) -> None:
        """Raise a ValueError where an argument is given that makes no difference, unless it is ``used``."""
        for field in () if used else fields(self):  # type: ignore[arg-type]  # a dataclass mixes this in
            if field.name in names and getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name} makes no difference {where}: leave it out")

    def check_choices(self) -> None:
        """Raise a ValueError where an argument is none of the values that its type lists."""
        for field in fields(self):  # type: ignore[arg-type]  # a dataclass mixes this in
            value = getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in get_args(field.type):
                raise ValueError(f"{field.name} must be one of {get_args(field.type)}, got {value!r}")

    def check_model(self: Any) -> None:
        """Raise a ValueError where `ModelArgs` contradict each other."""
        self.check_least(lora_rank=0)
        if self.cold_start_steps is not None:
            self.check_least(cold_start_steps=1)
        self.check_share("cold_start_continue_probability")
        self.check_share("cold_start_skill")
        self.check_positive("lora_alpha")
        if self.model == "tiny" and (self.gradient_checkpointing or self.dtype != "float32" or self.lora_rank):
            raise ValueError("gradient_checkpointing, dtype and lora_rank are for pretrained models: give a model too")
        cold_start = [field.name for field in fields(self) if field.name.startswith("cold_start_")]
        self.check_unused(
            self.model == "tiny", "to another model than the tiny one, which alone has a cold start", *cold_start
        )
        if self.model == "tiny" and self.base_model:
            raise ValueError("base_model is for a LoRA adapter: give it as model too")


# Dataclasses collect fields from the last base to the first: this is the order of `--help` from its end.
@dataclass(kw_only=True)
class TrainArgs(
    KeepArgs, OutputArgs, EvaluationArgs, AlgorithmArgs, OptimisationArgs, SamplingArgs, ModelArgs, EnvironmentArgs, Checks
):  # fmt: skip
    """What every algorithm takes."""

    def compares_attempts(self) -> bool:
        """Whether attempts at one question are compared with each other, so that there must be two at least."""
        return True

    def __post_init__(self):
        super().__post_init__()
        least = dict.fromkeys(("updates", "questions_per_update", "max_new_tokens", "epochs", "minibatches"), 1)
        least |= dict.fromkeys(("eval_every", "eval_questions", "final_questions", "save_every", "keep"), 1)
        group_size = 2 if self.compares_attempts() else 1
        self.check_least(**least, group_size=group_size, seed=0, max_tokens_per_micro_batch=1)
        self._check_loss()
        self.check_least(eval_temperature=0, kl_coef=0, kl_target=0, overlong_buffer=0, selection_eps=0)
        self.check_least(entropy_coef=0, refill=0, save_every_minutes=0, tool_outage_minutes=0, keep_episodes=0)
        self.check_least(max_seconds=0)
        self.check_share("warmup")
        self.check_positive("lr", "temperature", "max_grad_norm", "vllm_kv_gib")
        self.check_model()
        self.check_choices()
        self._check_sampling()
        self.check_unused(self.kl_coef, "without kl_coef", "kl")
        self.check_unused(self.filter == "signal", "without filter 'signal'", "selection_eps")
        if self.vllm_url and self.engine != "vllm":
            raise ValueError(f"vllm_url is for engine 'vllm', got engine {self.engine!r}")
        if self.kl_target and not self.kl_coef:
            raise ValueError("kl_target steers kl_coef, which must be above 0 to start from")
        if self.refill and self.filter != "mixed":
            raise ValueError(f"refill replaces the groups that filter 'mixed' drops, got filter {self.filter!r}")
        if self.overlong_buffer > self.max_new_tokens:
            raise ValueError(
                f"overlong_buffer must be at most max_new_tokens ({self.max_new_tokens}), got {self.overlong_buffer}"
            )

    @property
    def clip_range(self) -> tuple[float, float]:
        """ε_low and ε_high: those that were given, else those of the surrogate."""
        low, high = GSPO_CLIP if self.loss == "gspo" else TOKEN_CLIP
        return (low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high)

    @property
    def mean_over(self) -> Literal["tokens", "sequences"]:
        """What the loss is a mean over: what was asked for, else what the surrogate is defined by."""
        default: Literal["tokens", "sequences"] = "sequences" if self.loss == "gspo" else "tokens"
        return default if self.normalize == "auto" else self.normalize

    def _check_sampling(self) -> None:
        """Raise a ValueError where tokens are cut off and the loss is not told."""
        self.check_positive("top_p")
        self.check_share("top_p", "min_p")
        if (self.top_p < 1 or self.min_p) and self.importance == "none":
            raise ValueError(
                "top_p and min_p sample from another distribution than the policy: give importance 'tis' too"
            )
        if (self.top_p < 1 or self.min_p) and self.importance == "sequence":
            raise ValueError(
                "with top_p or min_p the weight of a whole sequence, a product over its tokens, goes to 0: give importance 'tis'"
            )

    def _check_loss(self) -> None:
        """Raise a ValueError where an argument is none of the surrogate's."""
        if not (0 <= self.clip_range[0] <= 1 and self.clip_range[1] >= 0):
            raise ValueError(
                f"clip_low must be in [0, 1] and clip_high at least 0, got {self.clip_low} and {self.clip_high}"
            )
        if self.loss == "gspo" and self.normalize == "tokens":
            raise ValueError("loss 'gspo' is a mean over sequences: leave out normalize 'tokens'")
        differs = self.dtype != "float32" or self.engine == "vllm"
        if self.loss == "gspo" and self.importance == "none" and differs and self.clip_range[0] < 0.01:
            raise ValueError(
                f"loss 'gspo' clips at {self.clip_range[0]:g}, and a sampler in bfloat16 or of another engine is off by more: "
                "give importance 'tis' too, or a wider clip_low and clip_high"
            )
        if self.dual_clip and self.loss != "clip":
            raise ValueError(f"dual_clip is for loss 'clip', got loss {self.loss!r}")
        if self.dual_clip and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1, or 0 for none, got {self.dual_clip}")
