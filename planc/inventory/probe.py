"""An inventory taken from the model itself, on the meta device. The only file here that imports torch.

The model is built without memory and runs once on eight tokens. Every tensor carries the set of modules whose
outputs reached it, through any torch function; modules that own parameters, and members of repeated blocks,
start a new set. Attention runs through a function of our own, so heads and windows are what the model passes
to its attention, not what its configuration seems to say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from planc.inventory.attention_extras import attention_extras
from planc.inventory.files import CONFIG_NAME, InventoryError, config_digest, parse_json, read_config
from planc.inventory.head_probe import Core, fixed_heads
from planc.inventory.schema import Attention, Inventory, Kind, Module, Parameter

_NUM_TOKENS = 8
_ATTENTION = "planc_probe"


def probe(model_dir: Path) -> Inventory:
    """The inventory of the causal language model whose config.json lies in `model_dir`.

    Nothing is downloaded and no code of the directory runs. InventoryError when transformers has no such
    model, or when it cannot be run on the meta device.
    """
    content = read_config(model_dir)
    config, model_class = _read_model_class(content, model_dir=model_dir)
    with _attention_calls() as calls:
        model = _build(config, model_class=model_class)
        blocks = _blocks(model)
        flow = _record(model, calls=calls, blocks=blocks)
        modules = tuple(_module(fqn, module, flow=flow) for fqn, module in model.named_modules())
        attentions = _attentions(model, calls=calls, config=config, flow=flow)
    return Inventory(
        config_digest=config_digest(content),
        architecture=model_class.__name__,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_positions=getattr(config, "max_position_embeddings", None),
        modules=modules,
        attentions=attentions,
        ties=_ties(model),
        tp_plan=tuple((model._tp_plan or {}).items()),
        blocks=blocks,
    )


def _read_model_class(content: bytes, *, model_dir: Path) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    path = model_dir / CONFIG_NAME
    raw = parse_json(content, name=str(path))
    if not isinstance(raw, dict):
        raise InventoryError(f"{path} is not a JSON object", help="Take the config.json of the model.")
    if "auto_map" in raw:
        raise InventoryError(
            f'{path} asks for code of its own ("auto_map")',
            help="planc runs no remote code. Take a model that transformers implements, and drop auto_map.",
        )
    model_type, architectures = raw.get("model_type"), raw.get("architectures")
    names = _causal_lm_names(model_type)
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in names:
        raise InventoryError(
            f"{path}: no causal language model of transformers has model_type {model_type!r} "
            f"and architectures {architectures!r}",
            help=f'Set "architectures": ["{names[0]}"].' if names else "Set a model_type of transformers.",
        )
    try:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        is_text_alone = config.get_text_config() is config
    except Exception as error:
        raise InventoryError(f"{path}: {error}", help="Correct the values in config.json.") from error
    if not is_text_alone:
        raise InventoryError(
            f"{path} describes a model of more than text",
            help="Take the configuration of its language model alone.",
        )
    return config, getattr(transformers, architectures[0])


def _causal_lm_names(model_type: object) -> tuple[str, ...]:
    if not isinstance(model_type, str):
        return ()
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)


def _build(config: PreTrainedConfig, *, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    # grouped_mm, the kernel of experts, takes bfloat16 only; shapes do not depend on the dtype.
    with _refusals_of(model_class), torch.device("meta"):
        model: PreTrainedModel = model_class._from_config(
            config, dtype=torch.bfloat16, attn_implementation=_ATTENTION
        )
    model.train(False)
    return model


@contextlib.contextmanager
def _refusals_of(model_class: type[PreTrainedModel]) -> Iterator[None]:
    """Whatever the model's own code raises, as an InventoryError."""
    try:
        yield
    except Exception as error:
        raise InventoryError(
            f"{model_class.__name__} does not run on the meta device: {type(error).__name__}: {error}",
            help="Check config.json for missing or unusual values. planc needs a model without branches on "
            "tensor values, whose attention goes through transformers' AttentionInterface.",
        ) from error


def _module(fqn: str, module: nn.Module, *, flow: _Flow) -> Module:
    return Module(
        fqn=fqn,
        class_name=type(module).__name__,
        kind=_kind(module),
        parameters=tuple(
            Parameter(name, tuple(parameter.shape))
            for name, parameter in module._parameters.items()
            if parameter is not None
        ),
        sources=flow.in_order(flow.inputs.get(fqn, frozenset())),
        returns=flow.in_order(flow.outputs.get(fqn, frozenset())),
    )


def _kind(module: nn.Module) -> Kind:
    match module:
        case nn.Linear():
            return Kind.LINEAR
        case nn.Embedding():
            return Kind.EMBEDDING
        case nn.ModuleList():
            return Kind.MODULE_LIST
        case _ if not _owns_parameters(module):
            return Kind.CONTAINER
        case _ if "RMSNorm" in type(module).__name__ or "LayerNorm" in type(module).__name__:
            return Kind.NORM
        case _:
            return Kind.OTHER


def _owns_parameters(module: nn.Module) -> bool:
    return any(parameter is not None for parameter in module._parameters.values())


def _blocks(model: nn.Module) -> tuple[str, ...]:
    """The outermost module lists whose members are themselves made of modules, such as decoder layers."""
    blocks: list[str] = []
    for fqn, module in model.named_modules():
        is_inner = any(fqn.startswith(f"{block}.") for block in blocks)
        if isinstance(module, nn.ModuleList) and not is_inner and _members_are_blocks(module):
            blocks.append(fqn)
    return tuple(blocks)


def _members_are_blocks(members: nn.ModuleList) -> bool:
    return len(members) > 0 and all(
        any(True for _ in member.children()) and any(True for _ in member.parameters()) for member in members
    )


def _ties(model: PreTrainedModel) -> tuple[tuple[str, ...], ...]:
    """Parameter fqns by storage, where several share one. transformers maps each tied name to its owner."""
    names_of: dict[int, list[str]] = {}
    for fqn, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names_of.setdefault(id(parameter), []).append(f"{fqn}.{name}" if fqn else name)
    tied = model.all_tied_weights_keys
    return tuple(
        tuple(sorted(names, key=lambda name: name in tied)) for names in names_of.values() if len(names) > 1
    )


@dataclass(frozen=True, slots=True)
class _AttentionCall:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    value_dim: int | None
    extras: tuple[str, ...]
    inputs: tuple[Tensor, ...]


@contextlib.contextmanager
def _attention_calls() -> Iterator[dict[nn.Module, _AttentionCall]]:
    """The calls of attention modules, filled while the context lasts and a model runs."""
    calls: dict[nn.Module, _AttentionCall] = {}

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        # [batch, heads, tokens, head_dim]; no mask, for only the flow matters.
        num_heads, num_kv_heads = query.shape[1], key.shape[1]
        head_dim, value_dim = query.shape[-1], value.shape[-1]
        calls[module] = _AttentionCall(
            num_heads,
            num_kv_heads,
            head_dim,
            options.get("sliding_window"),
            None if value_dim == head_dim else value_dim,
            attention_extras(module, options),
            (query, key, value),
        )
        groups = num_heads // num_kv_heads
        scores = query @ key.repeat_interleave(groups, dim=1).transpose(2, 3)
        output = scores.softmax(dim=-1) @ value.repeat_interleave(groups, dim=1)
        return output.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS[_ATTENTION] = attend
    try:
        yield calls
    finally:
        ALL_ATTENTION_FUNCTIONS.pop(_ATTENTION)


def _attentions(
    model: PreTrainedModel, *, calls: dict[nn.Module, _AttentionCall], config: PreTrainedConfig, flow: _Flow
) -> tuple[Attention, ...]:
    if not calls and any("Attention" in type(module).__name__ for module in model.modules()):
        raise InventoryError(
            f"{type(model).__name__} has attention of its own, which planc cannot see into",
            help="planc needs a model whose attention goes through transformers' AttentionInterface.",
        )
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise InventoryError(
            f"{type(model).__name__} has attention in chunks, which planc does not know",
            help="planc knows full and sliding attention.",
        )
    found = dict(calls)
    fixed = _fixed_heads(model, calls=calls, flow=flow)
    return tuple(
        Attention(
            fqn,
            call.num_heads,
            call.num_kv_heads,
            call.head_dim,
            call.window,
            call.value_dim,
            call.extras,
            module in fixed,
        )
        for fqn, module in model.named_modules()
        if (call := found.get(module)) is not None
    )


def _fixed_heads(
    model: PreTrainedModel, *, calls: dict[nn.Module, _AttentionCall], flow: _Flow
) -> frozenset[nn.Module]:
    """Attentions that do not work on a share of their heads. Running the model again fills `calls` anew."""
    named = dict(model.named_modules())

    def projections(fqn: str) -> tuple[nn.Linear, ...]:
        into = flow.cores[fqn]
        # Norms of queries and keys stand between a projection and the core.
        behind = {
            source for name in into if not isinstance(named[name], nn.Linear) for source in flow.inputs[name]
        }
        found = (named[name] for name in {*into, *behind} if name.startswith(f"{fqn}."))
        return tuple(module for module in found if isinstance(module, nn.Linear))

    def run() -> Mapping[nn.Module, tuple[int, int]]:
        calls.clear()
        _run(model)
        return {module: (call.num_heads, call.num_kv_heads) for module, call in calls.items()}

    cores = [
        Core(named[fqn], projections(fqn), (calls[named[fqn]].num_heads, calls[named[fqn]].num_kv_heads))
        for fqn in flow.cores
    ]
    return fixed_heads([core for core in cores if core.projections], run=run)


@dataclass(slots=True)
class _Flow:
    """What one forward recorded, by module fqn; `order` is that of registration."""

    order: Mapping[str, int]
    inputs: dict[str, frozenset[str]] = field(default_factory=dict)
    outputs: dict[str, frozenset[str]] = field(default_factory=dict)
    cores: dict[str, frozenset[str]] = field(default_factory=dict)
    """What reached the queries, keys and values of each attention."""

    def in_order(self, fqns: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(fqns, key=self.order.__getitem__))


def _record(
    model: PreTrainedModel, *, calls: Mapping[nn.Module, _AttentionCall], blocks: tuple[str, ...]
) -> _Flow:
    """The data flow of one forward, for modules that own parameters and for members of `blocks`."""
    named = dict(model.named_modules())
    flow = _Flow({fqn: index for index, fqn in enumerate(named)})
    tracker = SourceTracker()
    recorded = {fqn for fqn, module in named.items() if fqn and _owns_parameters(module)}
    recorded |= {fqn for fqn in named if fqn.rpartition(".")[0] in blocks}
    holds_recorded = {parent for fqn in recorded for parent in _ancestors(fqn)}

    def before(fqn: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        flow.inputs[fqn] = flow.inputs.get(fqn, frozenset()) | tracker.sources((args, kwargs))

    def after(fqn: str, module: nn.Module, args: Any, output: Any) -> None:
        if fqn in holds_recorded:
            flow.outputs[fqn] = flow.outputs.get(fqn, frozenset()) | tracker.sources(output)
        tracker.mark(output, sources=frozenset((fqn,)))

    for fqn in recorded:
        named[fqn].register_forward_pre_hook(partial(before, fqn), with_kwargs=True)
        named[fqn].register_forward_hook(partial(after, fqn))
    with _refusals_of(type(model)), tracker:
        _run(model)
    for fqn, module in named.items():
        if module in calls:
            flow.cores[fqn] = tracker.sources(calls[module].inputs)
    return flow


def _run(model: PreTrainedModel) -> None:
    tokens = torch.zeros(1, _NUM_TOKENS, dtype=torch.long, device="meta")
    with torch.no_grad():
        model(input_ids=tokens, use_cache=False)


def _ancestors(fqn: str) -> Iterator[str]:
    while fqn := fqn.rpartition(".")[0]:
        yield fqn


_FRESH = frozenset(
    f"{stem}_like" for stem in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")
) | frozenset(f"new_{stem}" for stem in ("zeros", "ones", "empty", "full"))
"""Functions that take a tensor only as the pattern of a new one."""

_CASTS = frozenset(("to", "type_as"))
"""Functions that take their second tensor only for its dtype and device."""


class SourceTracker(TorchFunctionMode):
    """Follows through every torch function which modules' outputs reached a tensor.

    Sources belong to a view's base, so that a write through one view is seen through the others. Tensors are
    kept alive: their identities are the keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, tuple[Tensor, frozenset[str]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        inputs = {id(base): base for base in _bases(args[:1] if name in _CASTS else (args, kwargs))}
        versions = {key: base._version for key, base in inputs.items()}
        result = func(*args, **(kwargs or {}))
        sources = frozenset() if name in _FRESH else self.sources(tuple(inputs.values()))
        written = [base for key, base in inputs.items() if base._version != versions[key]]
        # A result that is a view of an input has the input's sources already, whatever else was passed.
        fresh = [base for base in _bases(result) if id(base) not in inputs]
        self.mark((written, fresh), sources=sources)
        return result

    def sources(self, value: Any) -> frozenset[str]:
        """The sources of all tensors in `value`, a tensor or a nest of containers."""
        known = (self._sources.get(id(base)) for base in _bases(value))
        return frozenset().union(*(entry[1] for entry in known if entry is not None))

    def mark(self, value: Any, *, sources: frozenset[str]) -> None:
        """Give all tensors in `value` these sources and no others."""
        for base in _bases(value):
            self._sources[id(base)] = (base, sources)


def _bases(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value if value._base is None else value._base
        case Mapping():
            for item in value.values():
                yield from _bases(item)
        case list() | tuple():
            for item in value:
                yield from _bases(item)
