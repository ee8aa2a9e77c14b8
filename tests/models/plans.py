"""The plan of each column: the same training on other meshes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.inventory.schema import Inventory, Kind
from tests.models.independent import NUM_SEQUENCES
from tests.models.tiny import SEQUENCE_LENGTH

NUM_STEPS = 3
CORPUS = "corpus.txt"

_PLAN = """\
model {{
  hf = "{model}"
  seed = 7
  dtype = {dtype}
  weights = {weights}
  attention = {attention}
}}
mesh {{
{mesh}
}}
{blocks}data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = {sequence_length}
  micro_batch = {micro_batch}
  shuffle_seed = 42
}}
optimizer {{
  kind = adamw(lr = 1e-2, betas = [0.9, 0.95], eps = 1e-3, weight_decay = 0.1)
  clip_grad_norm = 1.0
  schedule = constant(warmup = 1 steps)
}}
train {{
  steps = 10
}}
"""

COLUMNS: Mapping[str, str] = {
    "random": "random weights",
    "one": "one process",
    "fsdp": "FSDP2 over 2",
    "tp": "TP 2, `auto`",
    "solve": "TP 2, `auto(solve)`",
    "sp": "TP 2 + sequence",
    "cp": "CP 2",
    "one bfloat16": "one process, bfloat16",
    "fsdp bfloat16": "FSDP2 over 2, bfloat16",
    "tp bfloat16": "TP 2, bfloat16",
}
"""By a name that is a mesh and, unless it is float32, a dtype."""


def dtype_of(column: str) -> str:
    return column.partition(" ")[2] or "float32"


class NoPlan(ValueError):
    """A column for which this generator writes no plan; says why."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How attention is computed."""

    attention: str = "sdpa"
    rotate: str = ""


def variants(column: str) -> tuple[Variant, ...]:
    """The attention settings of a column's plan: the next if `check` rejects the one before."""
    if column == "cp":
        return Variant(rotate="allgather"), Variant(rotate="ulysses")
    return Variant(), Variant(attention="eager")


def plan_text(column: str, inventory: Inventory, *, model: str, variant: Variant) -> str:
    """The plan of a column for a model in the folder `model`. NoPlan where there is none."""
    mesh, blocks = "  tp = 1", ""
    name = column.partition(" ")[0]
    match name:
        case "fsdp":
            mesh, blocks = "  dp_shard = 2", _fsdp(inventory, on="dp_shard", dtype=dtype_of(column))
        case "tp":
            mesh, blocks = "  tp = 2", "tensor_parallel on tp {\n  auto\n}\n"
        case "solve":
            mesh, blocks = "  tp = 2", "tensor_parallel on tp {\n  auto(solve)\n}\n"
        case "sp":
            rules = "".join(f"  {rule}\n" for rule in sequence_rules(inventory))
            mesh, blocks = "  tp = 2", f"tensor_parallel on tp {{\n{rules}}}\n"
        case "cp":
            mesh, blocks = "  cp = 2", _fsdp(inventory, on="cp") + _context(variant.rotate)
    return _PLAN.format(
        model=model,
        dtype=dtype_of(column),
        weights="random" if name == "random" else "pretrained",
        attention=variant.attention,
        mesh=mesh,
        blocks=blocks,
        sequence_length=SEQUENCE_LENGTH,
        micro_batch=NUM_SEQUENCES // (2 if name == "fsdp" else 1),
    )


def _fsdp(inventory: Inventory, *, on: str, dtype: str = "float32") -> str:
    rules = [rule for block in inventory.blocks for rule in _units(inventory, block)]
    rules += [f'"{fqn}" -> unit' for fqn in _wide_modules(inventory)] if dtype == "bfloat16" else []
    lines = "".join(f"  {rule}\n" for rule in rules)
    return f"fsdp on {on} {{\n{lines}}}\n"


def _wide_modules(inventory: Inventory) -> Iterator[str]:
    """Modules all of whose parameters stay float32 in a bfloat16 model, which no other unit can hold.

    Only what the model calls can be a unit.
    """
    for module in inventory.modules:
        wide = {*dict(module.own_dtypes), *module.kept_in_half}
        is_wide = all(parameter.name in wide for parameter in module.parameters)
        if module.parameters and module.sources and is_wide:
            yield module.fqn


def _units(inventory: Inventory, block: str) -> Iterator[str]:
    """A unit for each layer; layers that share weights are one unit together."""
    layers = [name for name in inventory.names() if name.rpartition(".")[0] == block]
    shared = [
        layer
        for layer in layers
        if any(
            _is_in(name, layer) and not all(_is_in(other, layer) for other in tie)
            for tie in inventory.ties
            for name in tie
        )
    ]
    if not shared:
        yield f'"{block}.*" -> unit'
        return
    yield from (f'"{layer}" -> unit' for layer in layers if layer not in shared)
    together = ", ".join(f'"{layer}"' for layer in shared)
    yield f"[{together}] -> unit"


def _context(rotate: str) -> str:
    balance = "none" if rotate == "ulysses" else "headtail"
    return (
        f"context_parallel on cp {{\n  rotate = {rotate}\n  load_balancer = {balance}\n"
        '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n'
    )


_INSIDE = {"colwise": "colwise", "rowwise": "rowwise(output = Shard(1))"}
_HEAD_NORM = "replicated_with_grad_allreduce"


def sequence_rules(inventory: Inventory) -> Iterator[str]:
    """Rules that divide a plain decoder's tokens between its layers, from the model's own plan for a layer.

    NoPlan unless a layer is norms, attention and a dense MLP, and its own plan divides these by columns and
    rows.
    """
    if not inventory.tp_plan:
        raise NoPlan("the model has no plan of its own to start from")
    if len(inventory.blocks) != 1:
        raise NoPlan(f"{len(inventory.blocks)} lists of layers")
    (block,) = inventory.blocks
    own = {pattern: style for pattern, style in inventory.tp_plan if pattern.startswith(f"{block}.*")}
    strange = sorted({style for style in own.values() if style not in (*_INSIDE, _HEAD_NORM)})
    if strange or not own:
        raise NoPlan(f"the model's own plan of a layer has {', '.join(strange) or 'no rule'}")
    layers = [name for name in inventory.names() if name.rpartition(".")[0] == block]
    divided = {pattern.removeprefix(f"{block}.*.").partition(".")[0] for pattern in own}
    children = {name: _child_kinds(inventory, layers, name) for name in _children(inventory, layers)}
    other = sorted(
        name for name, kinds in children.items() if name not in divided and kinds - {Kind.NORM, None}
    )
    if other:
        raise NoPlan(f"a layer has {', '.join(other)} in addition to norms and what its own plan shards")
    outside = [module for module in inventory.modules if module.parameters and not _is_in(module.fqn, block)]
    head = inventory.head
    for module in outside:
        match module.kind:
            case Kind.EMBEDDING:
                yield f'"{module.fqn}" -> embedding_rowwise(output = Shard(1))'
            case Kind.NORM:
                yield f'"{module.fqn}" -> sequence_parallel'
            case _ if head is not None and module.fqn == head.fqn:
                yield f'"{module.fqn}" -> colwise(input = Shard(1), output = Shard(-1))'
            case _:
                raise NoPlan(f"{module.fqn} is outside the layers")
    for name, kinds in children.items():
        if name in divided:
            yield f'"{block}.*.{name}" -> prepare_input(input = Shard(1), desired = Replicate())'
        elif Kind.NORM in kinds:
            yield f'"{block}.*.{name}" -> sequence_parallel'
    for pattern, style in own.items():
        yield f'"{pattern}" -> {_INSIDE.get(style, style)}'
    for name in sorted(_head_norms(inventory, layers) - set(own)):
        yield f'"{block}.*.{name}" -> {_HEAD_NORM}'


def _is_in(fqn: str, block: str) -> bool:
    return fqn.startswith(f"{block}.")


def _children(inventory: Inventory, layers: list[str]) -> tuple[str, ...]:
    """Names of what layers are made of, in order."""
    names = (name for layer in layers for name in inventory.names() if name.rpartition(".")[0] == layer)
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _child_kinds(inventory: Inventory, layers: list[str], name: str) -> set[Kind | None]:
    """Kinds of one child over all layers; None for one without parameters anywhere below."""
    found: set[Kind | None] = set()
    for layer in layers:
        module = inventory.get(f"{layer}.{name}")
        if module is not None:
            inside = [one for one in inventory.modules if one.parameters and _is_in(one.fqn, module.fqn)]
            found.add(module.kind if module.parameters or inside else None)
    return found


def _head_norms(inventory: Inventory, layers: list[str]) -> set[str]:
    """Norms on single heads, as names below a layer."""
    sizes = {attention.head_dim for attention in inventory.attentions}
    return {
        module.fqn.removeprefix(f"{layer}.")
        for layer in layers
        for module in inventory.modules
        if module.kind is Kind.NORM
        and _is_in(module.fqn, layer)
        and module.fqn.count(".") > layer.count(".") + 1
        and all(parameter.shape in {(size,) for size in sizes} for parameter in module.parameters)
    }
