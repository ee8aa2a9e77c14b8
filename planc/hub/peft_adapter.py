"""Adapters in peft's format: what their two files say, read without a library."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from planc.hub.headers import tensor_shapes
from planc.record import record
from planc.vocab import DOWN, MAGNITUDE, UP, parent_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""peft's name of the model inside of its own two."""

_MAX_CONFIG_BYTES = 2**22
_PARTS = (DOWN, UP, MAGNITUDE)
_TENSOR = re.compile(rf"{re.escape(PREFIX)}(.+)\.({'|'.join(_PARTS)})(?:\.weight)?")
_PLAIN = frozenset(
    (
        *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "bias"),
        *("exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights", "megatron_core"),
        *("runtime_config", "loftq_config", "eva_config", "corda_config", "qalora_group_size"),
        *("use_dora", "ensure_weight_tying", "modules_to_save", "target_parameters"),
    )
)
"""Keys of the config that state where adapters are and how they began: the tensors' names say the rest."""
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initializations of peft that also change the weights of the model itself."""


Sizes: TypeAlias = tuple[int, int, int]
"""The inputs and outputs of a layer, and the experts that have one each: 1 for a linear layer."""


class UnreadableAdapterError(ValueError):
    """A directory that is not one of adapters that planc can train."""


@record
class PeftAdapter:
    """The adapters of a directory."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    layers: Mapping[str, tuple[tuple[int, ...], ...]]
    """The shapes of A and B by the layer's name, and with DoRA that of the magnitudes."""
    apart: Mapping[str, tuple[int, ...]]
    """The shapes of the parameters of modules that are saved whole, by name."""


def key_of(parameter: str) -> str:
    """peft's name of an adapter's parameter in its file: a vector has no `.weight` there."""
    name = f"{PREFIX}{parameter}"
    return name.removesuffix(".weight") if name.endswith(f".{MAGNITUDE}.weight") else name


def names_of_stacks(stacks: Sequence[str]) -> dict[str, str]:
    """peft's name of the layer that adapts each stack of experts.

    It wraps a module once for each of its stacks, in their order, so the first one is innermost.
    """
    names: dict[str, str] = {}
    num_around: Counter[str] = Counter()
    for stack in reversed(stacks):
        owner = parent_of(stack)
        names[stack] = owner + ".base_layer" * num_around[owner]
        num_around[owner] += 1
    return names


def read_adapter(folder: Path) -> PeftAdapter:
    """The adapters in `folder`. UnreadableAdapterError for anything but LoRA or DoRA of linear layers, LoRA
    of stacked experts, and modules saved whole."""
    config = _config(folder / CONFIG)
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    apart: dict[str, tuple[int, ...]] = {}
    for key, shape in _shapes(folder / WEIGHTS):
        match = _TENSOR.fullmatch(key)
        if match is not None:
            layers.setdefault(match[1], {})[match[2]] = shape
        elif config.get("modules_to_save") and key.startswith(PREFIX):
            apart[key.removeprefix(PREFIX)] = shape
        else:
            raise UnreadableAdapterError(f"{WEIGHTS} has {key}, which is not of an adapter of a linear layer")
    dora = config.get("use_dora") is True
    wanted = _PARTS[: 2 + dora]
    for layer, parts in layers.items():
        if missing := [part for part in wanted if part not in parts]:
            raise UnreadableAdapterError(f"{WEIGHTS} has no {missing[0]} of {layer}")
        if len(parts) > len(wanted):
            raise UnreadableAdapterError(
                f"{WEIGHTS} has {MAGNITUDE} of {layer}, and {CONFIG} has no use_dora"
            )
    return PeftAdapter(
        rank=_number(config, "r"),
        alpha=_number(config, "lora_alpha"),
        rslora=config.get("use_rslora") is True,
        dora=dora,
        layers={layer: tuple(parts[part] for part in wanted) for layer, parts in layers.items()},
        apart=apart,
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            config = json.loads(stream.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableAdapterError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UnreadableAdapterError(f"{path.name} is not of LoRA")
    for key, value in config.items():
        if value and key not in _PLAIN:
            raise UnreadableAdapterError(f"{path.name} has {key} = {json.dumps(value)}")
    if config.get("bias") not in (None, "none"):
        raise UnreadableAdapterError(f"{path.name} has bias = {json.dumps(config['bias'])}")
    start = str(config.get("init_lora_weights")).lower()
    if start.startswith(_CHANGES_BASE):
        raise UnreadableAdapterError(
            f'{path.name} has init_lora_weights = "{start}", which changes the weights of the base'
        )
    return config


def _number(config: Mapping[str, Any], key: str) -> Any:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableAdapterError(f"{CONFIG} has no number `{key}`")
    return value


def _shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        yield from tensor_shapes(path)
    except ValueError as error:
        raise UnreadableAdapterError(str(error)) from error


def differences(
    adapter: PeftAdapter,
    *,
    rank: int,
    alpha: float,
    rslora: bool,
    dora: bool,
    layers: Mapping[str, Sizes | None],
    apart: Mapping[str, tuple[int, ...] | None],
) -> Iterator[tuple[str, str]]:
    """Yield how an adapter's directory differs from a plan: (key or `layers`, text).

    `layers` are the plan's layers by peft's names, with their sizes where these are known, and `apart` the
    shapes of what is trained next to adapters.
    """
    for key, own, planned in (
        ("rank", adapter.rank, rank),
        ("alpha", adapter.alpha, alpha),
        ("rslora", adapter.rslora, rslora),
        ("dora", adapter.dora, dora),
    ):
        if own != planned:
            yield key, f"{key} is {_text(own)} in the directory, and {_text(planned)} here"
    if absent := [layer for layer in layers if layer not in adapter.layers]:
        yield "layers", f"the directory has no adapter of {_listed(absent)}"
    if others := [layer for layer in adapter.layers if layer not in layers]:
        yield "layers", f"the directory has an adapter of {_listed(others)}, and the plan has none"
    for layer, sizes in layers.items():
        shapes = adapter.layers.get(layer)
        if shapes is None or sizes is None:
            continue
        num_inputs, num_outputs, num_experts = sizes
        width = adapter.rank * num_experts
        expected = (width, num_inputs), (num_outputs, width), (num_outputs,)
        if shapes != expected[: len(shapes)]:
            written = " and ".join(str(list(shape)) for shape in shapes)
            yield "layers", f"the adapter of {layer} in the directory has shapes {written}"
            return
    for name, shape in adapter.apart.items():
        if name not in apart:
            yield "apart", f"the directory has {name}, which the plan does not train next to its adapters"
            return
        if apart[name] not in (None, shape):
            yield "apart", f"{name} in the directory has shape {list(shape)}"
            return


def _text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _listed(layers: list[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} and {len(layers) - 1} more layers"
