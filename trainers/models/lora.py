"""LoRA (Hu et al. 2021): the model is frozen, and beside each of its linear layers two low-rank matrices are trained.

The adapter is put into the model in place, so the model keeps its class and is saved as peft's adapter of its base.
"""

import copy
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from transformers import PreTrainedModel
from transformers.utils import find_adapter_config_file

from trainers.models.hidden_states import round_frozen
from trainers.models.policy import Policy, check_finite
from trainers.runtime.errors import UserError

T = TypeVar("T")
_PREFIX = "base_model.model."  # before every name in a saved adapter
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # in the name of a layer


def add_lora(model: PreTrainedModel, rank: int, alpha: int) -> None:
    """Freeze the model and put a new adapter beside all its linear layers except the head. Raises ImportError without peft.

    Warns if experts, which are not linear layers, stay frozen.
    """
    peft, uncalled = _peft(), _find_uncalled(model)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    config.exclude_modules = uncalled or None
    _inject(model, config)
    weights = [(name, p) for name, p in model.named_parameters() if p.ndim == 3 and "experts" in name]
    experts = sum(p.numel() for name, p in weights if ".base_layer." not in name)  # peft adapts those of some types
    if experts:
        share = experts / sum(p.numel() for p in model.parameters())
        kind = type(model).__name__
        warnings.warn(f"an adapter of {kind} leaves its experts frozen, {share:.0%} of all weights", stacklevel=2)


@torch.no_grad()
def _find_uncalled(model: PreTrainedModel) -> str:
    """Find linear layers that are never called, or return no tensor: an adapter there would have no effect. Returns a regular
    expression of their names, "" if there are none.

    Text goes through no layers for pictures. Other weights are read directly, as state-space kernels read those of the output
    layer. Such layers have a matrix D. Of layers whose names differ only in numbers, such as experts, one call is enough.
    """
    linear: dict[torch.nn.Module, str] = {
        module: _NUMBER.sub("#", name)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
    }
    called: set[str] = set()

    def mark(module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.is_tensor(output):  # a router returns two
            called.add(linear[module])

    hooks = [module.register_forward_hook(mark) for module in linear]
    try:
        model(torch.arange(8, device=model.device)[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if any(hasattr(module, "D") and hasattr(module, "out_proj") for module in model.modules()):
        called = {name for name in called if not name.endswith("out_proj")}
    uncalled = sorted({*linear.values()} - called)
    return "|".join(re.escape(name).replace(r"\#", r"\d+") for name in uncalled)


def add_saved_lora(model: PreTrainedModel, path_or_id: str | Path) -> None:
    """Freeze the model and put a saved adapter into it. Raises ImportError without peft."""
    _inject(model, _peft().PeftConfig.from_pretrained(str(path_or_id)))
    load_lora_weights(model, path_or_id)


def load_lora_weights(model: PreTrainedModel, path_or_id: str | Path) -> None:
    """Load a saved adapter's weights into the model's adapter. Raises ValueError for other layers, NaN or infinity."""
    peft = _peft()
    saved = peft.utils.load_peft_weights(str(path_or_id), device="cpu")
    check_finite(saved.items(), path_or_id)
    loaded = peft.set_peft_model_state_dict(model, {n.removeprefix(_PREFIX): w for n, w in saved.items()})
    own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if wrong := sorted(own & set(loaded.missing_keys)) + sorted(loaded.unexpected_keys):
        raise UserError(f"the adapter in {path_or_id} is for other layers than the model's: {wrong[:3]} and so on")


def has_lora(model: PreTrainedModel) -> bool:
    """Whether there is an adapter in the model."""
    return hasattr(model, "peft_config")


def name_base_model(model: PreTrainedModel, name: str) -> None:
    """Set the base model that the model's adapter names when it is saved: a folder or a hub id."""
    for config in cast(Any, model).peft_config.values():
        config.base_model_name_or_path = name
    model.name_or_path = name


def find_base_model(path_or_id: str | Path) -> str | None:
    """Return the base model that a saved adapter names, "" if it names none, or None for a model that is not an adapter."""
    if find_adapter_config_file(str(path_or_id)) is None:
        return None
    return _peft().PeftConfig.from_pretrained(str(path_or_id)).base_model_name_or_path or ""


def trainable_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters with a gradient: all of a model, or its adapter."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def copy_trainable(obj: T, model: torch.nn.Module) -> T:
    """Make a deep copy to train separately. It shares the frozen weights of ``model`` instead of copying them."""
    return copy.deepcopy(obj, {id(p): p for p in model.parameters() if not p.requires_grad})


def make_reference(policy: Policy) -> Policy:
    """Copy the policy as it is now, frozen, for a KL penalty; with LoRA only the adapter is copied."""
    reference = copy_trainable(policy, policy.model)
    reference.model.requires_grad_(False)
    if policy.dtype == torch.bfloat16:
        round_frozen(reference.model)
    return reference


def merged_weight(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return a linear layer's weight with its active adapters added in float32, and its bias if it has one. The list
    is empty for a layer of another kind, or an adapter that is not plain LoRA."""
    if type(module) is torch.nn.Linear or not (known := base_weight(module)):
        return base_weight(module)
    adapted, (weight, *bias) = cast(Any, module), known
    weight = weight.float()
    with torch.autocast(weight.device.type, enabled=False):
        for name in () if adapted.merged or adapted.disable_adapters else _active(adapted):
            weight = weight + adapted.get_delta_weight(name)
    return [weight, *bias]


def base_weight(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return a linear layer's weight without adapters, and its bias if it has one; [] as `merged_weight` does."""
    adapted, base = cast(Any, module), getattr(module, "base_layer", module)
    if type(base) is not torch.nn.Linear or (base is not module and not hasattr(module, "get_delta_weight")):
        return []
    if any(adapted.use_dora.get(name) or adapted.lora_bias.get(name) for name in _active(adapted)):
        return []
    return [base.weight, *([] if base.bias is None else [base.bias])]


def joined_adapters(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Return A [r, in] and B [out, r] of all adapters of layers with a common input x, so that B A x is what these add to the
    layers' joined outputs. [] if there is none, one that is not plain LoRA, or one that trains biases too."""
    known = [base_weight(module) for module in modules]
    if not all(known) or any(own.requires_grad for one in known for own in one):
        return []
    down, up = list[torch.Tensor](), list[torch.Tensor]()
    for module in cast("Sequence[Any]", modules):
        names = _active(module)
        scale = 0.0 if names and (module.merged or module.disable_adapters) else 1.0
        own = [module.lora_B[name].weight * (scale * module.scaling[name]) for name in names]
        down += [module.lora_A[name].weight for name in names]
        up.append(torch.cat([torch.zeros((module.out_features, 0), device=base_weight(module)[0].device), *own], 1))
    return [torch.cat(down), torch.block_diag(*up)] if down else []


def _active(module: Any) -> list[str]:
    return [name for name in dict.fromkeys(getattr(module, "active_adapters", ())) if name in module.lora_A]


def _inject(model: PreTrainedModel, config: Any) -> None:
    model.add_adapter(config)
    for module in cast(Any, model).modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False  # it would cast its input to float32, which autocast rounds again
    base = config.base_model_name_or_path
    if base and Path(base).exists():  # a saved adapter must find its base from any folder
        config.base_model_name_or_path = str(Path(base).absolute())
    if isinstance(config.target_modules, set):  # its order differs from run to run
        config.target_modules = sorted(config.target_modules)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError("a LoRA adapter needs peft: pip install -e '.[lora]' in the clone") from error
    return peft
