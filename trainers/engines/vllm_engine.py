"""vLLM as the engine of rollouts, in the trainer's own process and on its device.

vLLM gets no tokenizer; the end of a turn is decided here. `trainers.engines.vllm_client` is the same over HTTP.
"""

import collections
import contextlib
import copy
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion

from agent_envs.stopping import StopChecker
from trainers.engines.engine import Completion, SamplingParams, turn_lengths
from trainers.engines.mismatch import check_engine
from trainers.engines.turns import OpenTurn
from trainers.models import lora
from trainers.models.policy import Policy
from trainers.runtime.errors import UserError

_NOT_LORA = re.compile(r"lora_magnitude_vector|lora_B\.\w+\.bias|modules_to_save")
BLOCK_SIZE = 32  # tokens that the prefix cache keeps or recomputes together on a CPU, where vLLM would take 128


class VLLMEngine:
    """An `Engine` for a single training process. Takes a minute to start, most of it for compilation.

    Turns also end when a conversation fills the memory for keys and values, ``kv_gib`` GiB beside the weights.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: vLLM does not give the policy's probabilities, as with an architecture that it runs differently.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...], kv_gib: float = 2.0):
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise ValueError("vLLM in the trainer's process is for one process; with several, use a vLLM server")
        if getattr(policy.model.config, "vision_config", None):
            raise UserError(
                "vLLM in the trainer's process runs no model that also reads pictures: give a server, --vllm-url"
            )
        self._vllm = _import_vllm()
        self.processed: collections.Counter[str] = collections.Counter()  # vLLM does not tell
        self._is_complete, self._end_ids = StopChecker(policy, stop), sorted(policy.end_ids)
        self._request_numbers = itertools.count()
        self._open: dict[str, tuple[int, OpenTurn]] = {}  # by request
        # vLLM seeds the process that it starts in, which the trainer has seeded already.
        with torch.random.fork_rng(), _hide_module("llvmlite.binding.ffi"):
            precision = torch.get_float32_matmul_precision()  # vLLM sets another one on a GPU
            self._engine = self._start(policy, kv_gib)
        torch.set_float32_matmul_precision(precision)
        self.max_length = min(policy.max_length, self._engine.model_config.max_model_len)  # which fits into kv_gib
        self._sync_weights = WeightSync(policy.model, self._load)
        self.reset()
        check_engine(self, policy)

    def _start(self, policy: Policy, kv_gib: float) -> Any:
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-")
        config = copy.deepcopy(policy.model.config)
        config.architectures = [type(policy.model).__name__]
        config.save_pretrained(self._folder.name)
        arguments = self._vllm.EngineArgs(
            model=self._folder.name, skip_tokenizer_init=True, load_format="dummy", generation_config="vllm",
            dtype=str(policy.dtype).removeprefix("torch."), logprobs_mode="processed_logprobs",
            max_model_len=-1,  # as long as fits
            kv_cache_memory_bytes=int(kv_gib * 2**30), gpu_memory_utilization=0.01,  # the first one takes precedence
            block_size=BLOCK_SIZE if policy.device.type == "cpu" else None, enable_prefix_caching=True,
            async_scheduling=False,  # no token is being sampled when weights change
            seed=torch.initial_seed() % 2**31, disable_log_stats=True,
        )  # fmt: skip
        return self._vllm.LLMEngine.from_engine_args(arguments)

    def submit(
        self, prompts: dict[int, list[int]], params: SamplingParams, seeds: Mapping[int, int] | None = None
    ) -> None:
        """See `Engine.submit`."""
        open_keys = {key for key, _ in self._open.values()}
        lengths = turn_lengths(prompts, params.max_new_tokens, self.max_length, open_keys)
        for key, prompt in prompts.items():
            of_vllm = self._vllm.SamplingParams(
                temperature=params.temperature, top_p=params.top_p, min_p=params.min_p, max_tokens=lengths[key], logprobs=0,
                stop_token_ids=self._end_ids, ignore_eos=True, detokenize=False, seed=(seeds or {}).get(key),
                output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
            )  # fmt: skip
            request = str(next(self._request_numbers))
            self._engine.add_request(request, self._vllm.inputs.tokens_input(prompt), of_vllm)
            self._open[request] = key, OpenTurn(longest=lengths[key], is_complete=self._is_complete)

    def wait(self) -> dict[int, Completion]:
        """See `Engine.wait`."""
        done: dict[int, Completion] = {}
        enough = len(self._open) // 8  # return several at a time, or prefills would be small
        while self._open and len(done) <= enough:
            for output in self._engine.step():
                done |= self._append_output(output)
        return done

    def _append_output(self, output: Any) -> dict[int, Completion]:
        """Append the new tokens of an open turn; return the turn if they complete it."""
        key, turn = self._open[output.request_id]
        (new,) = output.outputs
        if new.finish_reason not in (None, "stop", "length"):
            raise RuntimeError(f"vLLM gave up on a turn: {new.finish_reason}")
        for token, logprobs in zip(new.token_ids, new.logprobs, strict=True):
            if not turn.ended:
                turn.append(token, logprobs[token].logprob)
        if not (turn.ended or output.finished):
            return {}
        del self._open[output.request_id]
        if not output.finished:
            self._engine.abort_request([output.request_id])
        return {key: turn.completion}

    def reset(self) -> None:
        """See `Engine.reset`. Loads the weights if they have changed."""
        self._engine.abort_request(list(self._open))
        self._open.clear()
        self._sync_weights()
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not give up its prefix cache: keys and values would be those of old weights")

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})


class WeightSync:
    """Pass the model's weights to ``load`` if they changed since the last call: the rollouts of an evaluation share them."""

    def __init__(self, model: PreTrainedModel, load: Callable[[Iterable[tuple[str, torch.Tensor]]], None]):
        self._model, self._load = model, load
        self._loaded: list[int] = []  # checksums of the weights

    def __call__(self) -> None:
        """Load the weights if they have changed."""
        now = torch.stack([_sum_bits(parameter.detach()) for parameter in self._model.parameters()]).tolist()
        if now != self._loaded:
            self._load(checkpoint_weights(self._model))
            self._loaded = now


def _sum_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Add up the bits of a tensor as integers, in parts that take little memory. Floats would round small updates away."""
    parts = tensor.flatten().view(torch.int16).split(2**24)
    return torch.stack([part.sum(dtype=torch.int64) for part in parts]).sum()


def checkpoint_weights(model: PreTrainedModel) -> Iterable[tuple[str, torch.Tensor]]:
    """Return `merged_weights` by their names in a checkpoint, where the experts of a layer, for example, are not stacked."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:
        conversions = get_model_conversion_mapping(model, add_legacy=False)
    weights = merged_weights(model)
    if not conversions:  # one after the other, as merged weights take memory
        return weights
    if lora.has_lora(model):
        weights = ((name, weight.cpu()) for name, weight in weights)
    return revert_weight_conversion(model, dict(weights)).items()


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's weights with LoRA adapters merged, and a tied head by its own name too.

    Raises:
        ValueError: an adapter is more than plain LoRA.
    """
    if more := next(filter(None, map(_NOT_LORA.search, model.state_dict())), None):
        raise UserError(
            f"vLLM gets merged weights, and an adapter with {more[0]} has others too: take --engine transformers"
        )
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    for name, weight in model.state_dict().items():
        if ".lora_" in name:
            continue
        name = name.replace(".base_layer.", ".")
        layer, _, kind = name.rpartition(".")
        if layer in adapted:
            known = lora.merged_weight(adapted[layer])
            if not known:
                raise UserError(
                    f"vLLM gets merged weights, and the adapter of {layer} is not of a linear layer: take --engine transformers"
                )
            weight = known[0] if kind == "weight" else weight
        yield name, weight


@contextlib.contextmanager
def _hide_module(name: str) -> Iterator[None]:
    """Take a module out of `sys.modules` for a while: vLLM's CPU build inspects all and fails on one of numba's (0.32)."""
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module


def _import_vllm() -> Any:
    # In one process, the weights are at hand and the trainer's seed is that of the sampling.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
        import vllm.inputs
        import vllm.sampling_params
    except ImportError as error:
        raise ImportError("this engine needs vLLM: pip install -e '.[vllm]' in the clone") from error
    return vllm
