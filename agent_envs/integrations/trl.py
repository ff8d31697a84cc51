"""Adapter for TRL's `GRPOTrainer`, and so for Unsloth's. Tested with TRL 1.16.

    from agent_envs.integrations.trl import dataset, episode_return, rollout_func

    trainer = GRPOTrainer(
        model, args=config, processing_class=tokenizer, reward_funcs=episode_return,
        rollout_func=rollout_func(id, tokenizer), train_dataset=dataset(id, 1000),
    )

`rollout_func` runs turns of text, and returns the ids as sampled. ``environment_factory=environment_factory(id)`` with
``train_dataset=dataset(id, 1000, native=True)`` leaves the loop to TRL, and the form of calls to the model's chat template.
"""

import asyncio
import inspect
import keyword
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import numpy as np

from agent_envs.integrations.episode import Episode, Message, check_question, draw_questions, make_in_split, step_all
from agent_envs.integrations.token_episode import TokenEpisode, check_one_sequence, read_thinking

ENDED = "The episode has ended."


def dataset(id: str, n: int, *, seed: int = 0, native: bool = False, **env_kwargs: Any) -> Any:
    """Make a `datasets.Dataset` of ``n`` questions with ``prompt`` (messages) and ``seed``.

    With ``native`` the rows are for `environment_factory`, otherwise for `rollout_func`. ``seed`` draws the questions.
    ``env_kwargs`` are those of that function; only ``split`` may differ, as a row names its own.
    """
    from datasets import Dataset

    rows = [
        {"prompt": [{**message, "seed": s, "split": split} for message in messages], "seed": s}
        for s, split, messages in draw_questions(id, n, seed, native=native, **env_kwargs)
    ]
    return Dataset.from_list(rows)


def episode_return(
    completions: list, turn_rewards: list | None = None, environments: list | None = None,
    env_metrics: list | None = None, log_metric: Callable[[str, float], None] | None = None, **columns: Any,
) -> list[float | None]:  # fmt: skip
    """Compute the return of each episode, None after a tool failure: the ``reward_funcs`` for both.

    Logs metrics as ``env/…``.
    """
    if environments:
        for environment, messages in zip(environments, completions, strict=True):
            environment._settle(messages)
        turn_rewards = [environment._episode.rewards for environment in environments]
        # A conversation that TRL ends before the environment does scores 0.
        env_metrics = [{"score": 0.0, **environment._episode.metrics} for environment in environments]
    if turn_rewards is None or env_metrics is None:
        raise ValueError("episode_return needs rollout_func or environment_factory of agent_envs.integrations.trl")
    if log_metric is not None:
        for name in sorted({name for metrics in env_metrics for name in metrics}):
            values = [metrics[name] for metrics in env_metrics if name in metrics]
            log_metric(f"env/{name}", float(np.mean(values)))
    paid = zip(turn_rewards, env_metrics, strict=True)
    return [None if metrics.get("tool_faults") else float(sum(rewards)) for rewards, metrics in paid]


# -- rollout_func ------------------------------------------------------------------------------------------------------


def rollout_func(id: str, tokenizer: Any, **env_kwargs: Any) -> Callable[[list, Any], dict[str, Any]]:
    """Make a ``rollout_func`` over the questions of `dataset`, with the sampled ids.

    ``env_mask`` tells sampled ids from observations; ``turn_rewards`` is an extra field for reward functions of your own.
    TRL's ``max_completion_length`` bounds a turn; the environment's ``max_turns`` and ``max_tokens`` bound an episode.

    Raises:
        ValueError: the context is rewritten during an episode.
    """
    pools: dict[str, list[Episode]] = {}

    def take_episode(split: str, place: int) -> Episode:
        pool = pools.setdefault(split, [])
        while len(pool) <= place:
            pool.append(make_in_split(id, split, **env_kwargs))
        return pool[place]

    example = take_episode(env_kwargs.get("split", ""), 0)
    check_one_sequence(example, "TRL")

    def begin(prompts: list[list[Message]], trainer: Any) -> list[TokenEpisode]:
        attempts, eos_ids = trainer.accelerator.process_index * len(prompts), tuple(trainer.eos_token_ids)
        thinking = read_thinking(trainer.chat_template_kwargs)
        rows: list[TokenEpisode] = []
        used: Counter = Counter()  # episodes by split
        begun: Counter = Counter()  # attempts by seed
        for prompt in prompts:
            seed, split = prompt[0].get("seed"), prompt[0].get("split") or ""
            row = TokenEpisode(take_episode(split, used[split]), tokenizer, eos_ids, thinking)
            check_question(row.start(_check_seed(seed), attempts + begun[seed]), prompt)
            used[split], begun[seed] = used[split] + 1, begun[seed] + 1
            rows.append(row)
        return rows

    def roll_out(prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        _check_trainer(trainer)
        rows = running = begin(prompts, trainer)
        _stop_at_ends(trainer, rows[0])
        longest = trainer.args.vllm_max_model_length or getattr(trainer.model.config, "max_position_embeddings", None)
        while running:
            sampled, logprobs = trainer._generate_single_turn([row.prompt + row.ids for row in running], None, {}, 1)
            given = logprobs or [None] * len(running)
            texts = [row.append_turn(*turn) for row, *turn in zip(running, sampled, given, strict=True)]
            if longest is not None:
                for row in running:
                    row.bound(longest - len(row.prompt))
            cut = {number for number, row in enumerate(running) if row.was_cut}
            replies = step_all([row.episode for row in running], texts, cut)
            for row, reply in zip(running, replies, strict=True):
                row.append_reply(reply)
            running = [row for row in running if not row.done]
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.ids for row in rows],
            "logprobs": [row.logprobs for row in rows] if logprobs is not None else None,
            "env_mask": [row.mask for row in rows],
            "turn_rewards": [list(row.episode.rewards) for row in rows],
            "env_metrics": [row.episode.metrics for row in rows],
        }

    return roll_out


def _check_trainer(trainer: Any) -> None:
    if not hasattr(trainer, "_generate_single_turn"):
        raise ValueError("this TRL samples in another way: rollout_func is for TRL 1.16 (pip install 'trl==1.16.*')")
    if trainer.mask_truncated_completions:
        raise ValueError("mask_truncated_completions would mask episodes that end at a closing tag: leave it off")
    is_shared = trainer.args.vllm_mode == "server" or trainer.args.vllm_tensor_parallel_size > 1
    if trainer.use_vllm and is_shared and trainer.accelerator.num_processes > 1:
        # TRL splits a shared engine's completions evenly, and processes have unequal numbers of running episodes.
        raise ValueError(
            "several processes would get each other's turns: give each its own vLLM (vllm_mode='colocate')"
        )


def _stop_at_ends(trainer: Any, row: TokenEpisode) -> None:
    """Let generation end at any of the model's ends of turn. What follows a closing tag is cut off."""
    if hasattr(trainer, "generation_config"):  # not with vLLM
        trainer.generation_config.eos_token_id = sorted({*trainer.eos_token_ids, *row.chat.end_ids})


def _check_seed(seed: int | None, native: bool = False) -> int:
    if seed is None:
        hint = ", native=True" * native
        raise ValueError(f"a prompt without a seed: train on agent_envs.integrations.trl.dataset(id, n{hint})")
    return seed


# -- environment_factory -----------------------------------------------------------------------------------------------


def environment_factory(id: str, **env_kwargs: Any) -> type:
    """Make an ``environment_factory``: a class with a method per tool, and ``answer``.

    TRL runs the loop and reads calls by the model's chat template, which must support tools. The calls of a message are one turn.
    The ``reward_funcs`` must be `episode_return`, which penalises what TRL never shows the environment: unknown tools, malformed
    messages, and calls after ``max_tool_calling_iterations``.

    Raises:
        ValueError: a tool's name is not valid for a method; the task has no native calls (see `Episode`) or rewrites the context.
    """
    example = Episode(id, native=True, **env_kwargs)
    check_one_sequence(example, "TRL")
    methods = {}
    for tool in example.tools:
        name = tool["function"]["name"]
        if not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_" or name in ("reset", "get_reward"):
            raise ValueError(f"TRL cannot have a tool {name!r}, which is no name for a public method: rename it")
        methods[name] = _method(tool["function"])
    make = staticmethod(lambda split: make_in_split(id, split, native=True, **env_kwargs))
    first = int(os.environ.get("RANK", 0)) << 20  # so that attempts in several processes differ in randomness
    return type("AgentR1Environment", (_Environment,), {**methods, "_make": make, "_count": first})


@dataclass
class _Turn:
    """The calls of one message, and their results."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    texts: list[str] | None = None


class _Environment:
    """Base of an environment for TRL, which takes every public method except `reset` for a tool."""

    _make: Callable[[str], Episode]
    _count: int

    def __init__(self):
        self._episodes: dict[str, Episode] = {}  # by split
        self._number = type(self)._count
        type(self)._count += 1

    def reset(self, prompt: list[Message], seed: int | None = None, **row: Any) -> None:
        """Begin the episode of a row of the dataset; its prompt already holds the question."""
        split = prompt[0].get("split") or ""
        if split not in self._episodes:
            self._episodes[split] = self._make(split)
        self._episode, self._seed, self._turn = self._episodes[split], seed, _Turn()
        check_question(self._episode.start(_check_seed(seed, native=True), attempt=self._number), prompt)
        self._taken: list[list] = []

    async def _take(self, name: str, arguments: dict[str, Any]) -> str:
        turn, place = self._turn, len(self._turn.calls)
        turn.calls.append((name, arguments))
        await asyncio.sleep(0)  # TRL runs the calls of a message together: the others arrive here
        if turn.texts is None:
            self._turn, turn.texts = _Turn(), self._run_turn(turn.calls)
        return turn.texts[place]

    def _run_turn(self, calls: list) -> list[str]:
        """Take a turn; return a text for each call."""
        if self._episode.done:
            return [ENDED] * len(calls)
        reply = self._episode.call(calls)
        self._taken.append(calls)
        results = reply.results or (ENDED,)
        return list(results) if len(results) == len(calls) else [*results[:1]] * len(calls)

    def _settle(self, messages: list[Message]) -> None:
        """Take the turns of a finished conversation that TRL has not passed on. If another turn follows a missing one, or all
        were taken and the episode is not over, run it again from its start. It ends truncated at its last turn, which settles
        its shaping.
        """
        turns = [self._calls(message) for message in messages if message["role"] == "assistant"]
        taken, faults = len(self._taken), self._episode.metrics.get("tool_faults", 0.0)
        if turns[:taken] != self._taken or (len(turns) == taken and not self._episode.done):
            self._episode.start(self._seed, attempt=self._number)
            self._taken = []
        rest = turns[len(self._taken) :]
        for number, calls in enumerate(rest, 1):
            if number == len(rest):
                self._episode.env.fits = lambda observation, context: False
            self._run_turn(calls)
        self._episode.env.fits = None
        if faults:  # the model has read the failure, whatever a second run gave
            self._episode.metrics["tool_faults"] = faults

    def _calls(self, message: Message) -> list[tuple[str, Any]]:
        functions = [call["function"] for call in message.get("tool_calls") or [] if "function" in call]
        calls = [(function["name"], function.get("arguments", {})) for function in functions]
        return [(name, _leave_out(getattr(type(self), name, None), arguments)) for name, arguments in calls]


def _leave_out(method: Callable | None, arguments: Any) -> Any:
    """Return the arguments of a call without those whose null means that they are left out."""
    omitted = getattr(method, "omitted", ())
    if not omitted or not isinstance(arguments, dict):
        return arguments
    return {name: value for name, value in arguments.items() if value is not None or name not in omitted}


_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict, "null": None}


def _method(function: dict[str, Any]) -> Callable:
    """Make an async method that TRL can describe, with the signature and the docstring of a function's schema."""
    schema = function["parameters"]
    required, properties = schema.get("required", []), schema.get("properties", {})

    # A chat template may show an optional argument as one that can be null: then null means that it is left out.
    omitted = {name for name, of in properties.items() if name not in required and not _takes_null(of)}

    async def method(self, **arguments):
        return await self._take(function["name"], _leave_out(method, arguments))

    method.omitted = omitted  # type: ignore[attr-defined]
    hints = {name: _hint(of) if name in required else _hint(of) | None for name, of in properties.items()}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = []
    for name in sorted(properties, key=lambda name: name not in required):
        default = inspect.Parameter.empty if name in required else None
        taken.append(own.replace(name=name, annotation=hints[name], default=default))
    lines = [f"    {name}: {' '.join(str(of.get('description') or name).split())}" for name, of in properties.items()]
    described = " ".join(function["description"].split()) or function["name"]
    method.__doc__ = "\n".join([described, *(["", "Args:", *lines] if lines else [])])
    method.__name__ = method.__qualname__ = function["name"]
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature([own, *taken], return_annotation=str)  # type: ignore[attr-defined]
    return method


def _takes_null(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type", "null" if "anyOf" not in schema and "enum" not in schema else [])
    return "null" in kinds or None in schema.get("enum", ()) or any(map(_takes_null, schema.get("anyOf", ())))


def _hint(schema: dict[str, Any]) -> Any:
    """The Python type of a schema's values, as far as a type can express it."""
    if options := schema.get("enum"):
        return Literal[tuple(options)]
    if options := schema.get("anyOf"):
        return Union[tuple(map(_hint, options))]  # noqa: UP007
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(_hint({**schema, "type": one}) for one in kind)]  # noqa: UP007
    if kind == "array":
        return list[_hint(schema.get("items") or {})]  # type: ignore[misc]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any
