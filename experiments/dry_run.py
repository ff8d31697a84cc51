"""What a recipe would take, before anything is trained: what is missing, what it costs, how much memory it needs.

The figures are arithmetic from the arguments and the model's shape. Nothing is run on an accelerator and nothing is
measured. They are upper bounds in tokens, as if every turn were as long as it may be and every episode had all its turns;
real episodes are several times shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from agent_envs.tool_env import ToolEnv
from agent_envs.tools import SearchTool
from agent_envs.utils.scripts import sample_instances
from experiments.check import CheckedRecipe, check, unfit_baselines
from experiments.recipe import BASELINES, LENGTHENED, Recipe
from trainers import ppo
from trainers.config import TrainArgs
from trainers.models import gguf
from trainers.models.logits import MAX_LOGITS
from trainers.tiny import model as tiny

CHARACTERS_PER_TOKEN, PROMPT = 4, 400  # of English text; tokens of a system prompt with a question
PEAK = {"bfloat16": 989e12, "float32": 67e12}  # FLOP/s of an H100 SXM, dense, by its data sheet
PASSES, DECODING = 0.3, 0.03  # assumed shares of the peak: many tokens at once; a token at a time, bound by memory
MACHINE = {"flops_per_second": 0.0, "passes": PASSES, "decoding": DECODING}  # what a recipe may say of its own


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        weights: all of them.
        linear: those of linear layers, which bfloat16 halves where they are frozen.
        per_rank: the parameters that an adapter of rank 1 on all linear layers would add.
    """

    weights: int
    linear: int
    per_rank: int
    config: PretrainedConfig


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Cost of one run with one seed. Memory is in bytes: ``states`` stay, the larger of the other two comes on top."""

    episodes: int
    tokens: float
    flops: float
    hours: float
    states: float
    rollout: float
    update: float


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that training takes. ``weights``, AdamW's ``moments`` and the ``reference`` of a KL penalty stay from one update to
    the next; ``gradients`` are freed after each, and counted among the model states as is usual.

    During an update the weights as they were ``rounded`` to bfloat16 come on top, and ``activations`` and ``logits`` of a
    micro-batch; during a rollout the ``cache``, of keys and values, for each token.
    """

    weights: int
    gradients: int
    moments: int
    reference: int
    rounded: int
    activations: int
    logits: int
    cache: int

    @property
    def states(self) -> int:
        """Model states: what an update begins with, and its gradients."""
        return self.weights + self.gradients + self.moments + self.reference

    @property
    def update(self) -> int:
        """What an update takes on top of that."""
        return self.rounded + self.activations + self.logits


def report(recipe: Recipe, flops_per_second: float | None = None) -> dict:
    """Check the recipe and print what it takes; returns the estimates by run, what is missing and what is left out.

    Raises:
        ValueError: the recipe cannot run whatever data is there.
    """
    checked, model, console = check(recipe), read_model_shape(recipe), Console(soft_wrap=True)
    dtype = recipe.base(0).dtype
    machine = MACHINE | recipe.machine
    peak = flops_per_second or machine["flops_per_second"] or PEAK[dtype]
    estimates = {name: estimate(recipe, name, checked, model, peak) for name in recipe.runs}
    left_out = unfit_baselines(recipe, checked)
    say = lambda text="": console.print(text, markup=False, highlight=False)  # noqa: E731
    say(f"{recipe.title}\n{recipe.question}\n")
    seeds = {name: len(recipe.seeds_of(name)) for name in recipe.runs}
    fewer = "".join(f"; of {name} {count}" for name, count in seeds.items() if count < len(recipe.seeds))
    say(f"{len(recipe.runs)} runs x {len(recipe.seeds)} seeds{fewer}; columns: {', '.join(recipe.tasks)}.")
    kept = [BASELINES[name] for name in recipe.baselines if name not in left_out]
    say(f"Baselines: {', '.join(kept) or 'none'}.")
    for name, why in left_out.items():
        say(f"Left out: {BASELINES[name]}; {why}.")
    say("\n".join(["", *_table(recipe, estimates), ""]))
    total = sum(e.hours * len(recipe.seeds_of(name)) for name, e in estimates.items())
    speed = f"{peak / 1e12:,.0f} TFLOP/s" if peak >= 1e13 else f"{peak / 1e9:,.0f} GFLOP/s"
    say(
        f"All runs and seeds: {total:,.1f} hours at most{_extra(recipe)}. Arithmetic, not measured: forward 2 and backward 4 "
        f"FLOP a weight and token, at {machine['passes']:.0%} of {speed} ({dtype}) for many tokens at once and "
        f"{machine['decoding']:.0%} for sampling token by token; attention, searches and loading left out; every turn and "
        "episode as long as it may be. Memory: 4 bytes a float32 weight, 16 where it is trained with AdamW; the "
        "larger of rollout (keys and values of all conversations at once, full to the end; more while their buffers grow) "
        "and update (logits and activations of one micro-batch, weights rounded to bfloat16) comes on top."
    )
    for problem in checked.missing:
        say(f"\nMISSING: {problem}")
    say(f"\n{'Not ready: see MISSING' if checked.missing else 'Ready'}. Nothing was trained.")
    return {"runs": estimates, "missing": checked.missing, "left_out": left_out}


def _extra(recipe: Recipe) -> str:
    """What is trained beside the runs."""
    parts = ["fine-tuning before them"] * bool(recipe.sft)
    if lengthened := [name for name in recipe.baselines if name in LENGTHENED]:
        like = recipe.title_of(recipe.budget) if recipe.budget in recipe.runs else "the run that they are measured by"
        long = f"{recipe.budget_seconds / 3600:.1f} hours" if recipe.budget_seconds else f"as long as {like}"
        parts += [f"{BASELINES[name]}, {len(recipe.seeds_of(name))} times {long}" for name in lengthened]
    return f"; on top of that {'; '.join(parts)}" * bool(parts)


def estimate(recipe: Recipe, name: str, checked: CheckedRecipe, model: ModelShape, peak: float) -> Estimate:
    """What one run with one seed takes at most. ``peak``: FLOP/s of the accelerator at its peak."""
    args = recipe.run_arguments(name, 0)
    longest, turns = max((_longest(env, args.max_new_tokens), env.max_turns) for env in checked.training)
    sampled = turns * args.max_new_tokens / longest  # share of its tokens; the others are read many at once
    episodes = args.updates * args.questions_per_update * args.group_size
    looked_at = (1 + args.updates // args.eval_every) * args.eval_questions + 4 * args.final_questions
    evaluated = looked_at + sum(recipe.questions or _count_all(envs) for envs in checked.columns.values())
    trained = episodes * longest
    flops = passes(args)
    decoding = 2 * model.weights * (trained * (1 + args.refill) + evaluated * longest)
    machine = MACHINE | recipe.machine
    at_once = flops * model.weights * trained + (1 - sampled) * decoding
    seconds = sampled * decoding / (peak * machine["decoding"]) + at_once / (peak * machine["passes"])
    need = memory(model, args, max(args.max_tokens_per_micro_batch, longest))
    conversations = max(args.questions_per_update * args.group_size, 64)  # of a batch, or of an evaluation
    return Estimate(
        episodes=episodes, tokens=trained, flops=decoding + flops * model.weights * trained, hours=seconds / 3600,
        states=need.states, rollout=need.cache * longest * conversations, update=need.update,
    )  # fmt: skip


def _count_all(envs: Sequence[ToolEnv]) -> int:
    """How many questions a column has that asks all of them."""
    return sum(len(sample_instances(env, 0)) for env in envs)


def passes(args: TrainArgs) -> int:
    """FLOP a weight and token of an update: forward 2 and backward 4 in each of the passes that it takes."""
    backward = (2 if args.lora_rank else 4) + 2 * args.gradient_checkpointing  # without the weights' own gradients
    critic = _has_critic(args)
    unmasked = not args.loss_mask or not getattr(args, "advantage_mask", True)
    count = args.epochs * (2 + backward) * (1 + critic) + 2 * critic + 2 * unmasked
    return count + 2 * args.epochs * bool(args.kl_coef) + 2 * (args.importance != "none")


def memory(model: ModelShape, args: TrainArgs, tokens: int) -> Memory:
    """What training a model needs. ``tokens``: of a micro-batch, on all of which the policy may have drawn the next."""
    config, rank, models = model.config, args.lora_rank, 1 + _has_critic(args)
    width = 2 if args.dtype == "bfloat16" else 4
    frozen = width * model.linear + 4 * (model.weights - model.linear)
    trained = (rank * model.per_rank or model.weights) * models
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    # What a layer keeps of a token for the backward pass: around its two norms four float32 vectors; the inputs of the
    # linear layers, in bfloat16 a copy for each; queries, keys and values; gate, up, activation and product of the MLP.
    # With checkpointing its float32 input, and one layer at work.
    inputs = 6 if args.dtype == "bfloat16" else 3
    layer = 16 * config.hidden_size
    layer += width * ((inputs + 1) * config.hidden_size + 2 * heads * head + 4 * config.intermediate_size)
    kept = 4 * config.num_hidden_layers * config.hidden_size + layer
    activations = tokens * (kept if args.gradient_checkpointing else config.num_hidden_layers * layer)
    # Themselves, their log-softmax and their gradient; the gradient of their entropy needs several more at once.
    logits = (8 if args.entropy_coef else 3) * 4 * min(config.vocab_size * tokens, MAX_LOGITS)
    # The backward pass needs the weights as they were rounded; frozen ones are stored so.
    rounded = 2 * model.linear * models if args.dtype == "bfloat16" and not rank else 0
    return Memory(
        weights=(frozen if rank else 0) + 4 * trained,
        gradients=4 * trained,
        moments=8 * trained,
        reference=(4 * rank * model.per_rank if rank else frozen) * bool(args.kl_coef),
        rounded=rounded,
        activations=activations * models,
        logits=logits,
        cache=2 * width * config.num_hidden_layers * heads * head,
    )


def _has_critic(args: TrainArgs) -> bool:
    return isinstance(args, ppo.Args) and not args.share_layers


def read_model_shape(recipe: Recipe) -> ModelShape:
    """The shape of the policy, without its weights.

    Raises:
        ValueError: neither the model's configuration nor ``model_config`` of the recipe is to be had.
    """
    name = recipe.base(0).model
    if name == "tiny":
        model = tiny.make_model(8400)  # words, bytes and tags; the vocabulary is counted at the cold start
    else:
        try:
            config = gguf.read_config(name, local_files_only=bool(recipe.model_config))
        except (OSError, ValueError, ImportError) as error:
            if not recipe.model_config:
                raise ValueError(
                    f"the configuration of the model {name!r} cannot be read: give a folder or an id, or, in the "
                    f"recipe that names it, its shape as [model_config]. {error}"
                ) from error
            config = AutoConfig.for_model(**recipe.model_config)
        return shape_of(config)
    return _count(model)


def shape_of(config: PretrainedConfig) -> ModelShape:
    """The shape of a model with this configuration, whose weights are not made."""
    with torch.device("meta"):
        return _count(AutoModelForCausalLM.from_config(config))


def _count(model: PreTrainedModel) -> ModelShape:
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return ModelShape(
        weights=sum(p.numel() for p in model.parameters()),
        linear=sum(p.numel() for m in linear for p in m.parameters()),
        per_rank=sum(m.in_features + m.out_features for m in linear),
        config=model.config.get_text_config(),
    )


def _longest(env: ToolEnv, max_new_tokens: int) -> int:
    """Tokens of an episode in which every turn is as long as it may be."""
    search = env.tools.get("search")
    if isinstance(search, SearchTool):
        observation = search.k * search.max_chars / CHARACTERS_PER_TOKEN
    else:  # a board, say, with a token for each cell and what is between them
        observation = len(env.reset(seed=0)[0]) / 2
    return int(PROMPT + env.max_turns * (max_new_tokens + observation))


def _table(recipe: Recipe, estimates: dict[str, Estimate]) -> list[str]:
    header = ("run", "updates", "episodes", "tokens ≤", "FLOP ≤", "hours ≤", "GB: states", "+ rollout ≤", "or update ≤")
    rows: list[tuple[str, ...]] = [header]
    for name, e in estimates.items():
        memory = [f"{size / 1e9:,.1f}" for size in (e.states, e.rollout, e.update)]
        counts = [f"{recipe.run_arguments(name, 0).updates:,}", f"{e.episodes:,}", f"{e.tokens:.1e}", f"{e.flops:.1e}"]
        rows.append((name, *counts, f"{e.hours:,.1f}", *memory))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in rows]
