"""The plan of each column: the same training on other meshes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.inventory.schema import Inventory
from planc.vocab import Task
from tests.models.architectures import MIXTURES
from tests.models.independent import NUM_SEQUENCES
from tests.models.tiny import SEQUENCE_LENGTH, Size

NUM_STEPS = 3
NUM_CHUNKS = 4
CORPUS, ROWS = "corpus.txt", "corpus.jsonl"

_PLAN = """\
model {{
  hf = "{model}"
  seed = 7{task}
  dtype = {dtype}
  weights = {weights}
  attention = {attention}
}}
mesh {{
{mesh}
}}
{blocks}data {{
  source = {source}
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
  tokens_per_step = {tokens_per_step}
  loss_chunks = {chunks}
}}
"""

_ON_SEQUENCES = "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n"
_SOLVED = "tensor_parallel on tp {\n  auto(solve)\n}\n"

COLUMNS: Mapping[str, str] = {
    "random": "random weights",
    "one": "one process",
    "fsdp": "FSDP2 over 2",
    "tp": "TP 2, `auto`",
    "solve": "TP 2, `auto(solve)`",
    "sp": "TP 2, sequence parallel",
    "cp": "CP 2",
    "one bfloat16": "one process, bfloat16",
    "fsdp bfloat16": "FSDP2 over 2, bfloat16",
    "tp bfloat16": "TP 2, bfloat16",
    "compile": "TP 2, compiled",
    "full": "TP 2, recomputed",
    "sp-full": "TP 2, sequence parallel, recomputed",
    "compile-full": "TP 2, compiled and recomputed",
    "tp4": "TP 4",
    "tp-fsdp": "TP 2 and FSDP2 over 2",
    "fsdp-chunks": "FSDP2 over 2, loss in chunks",
    "pp": "PP 2",
    "pp-sp": "PP 2 and TP 2, sequence parallel",
    "pp-fsdp": "PP 2 and FSDP2 over 2, units inside layers",
    "ep": "EP 2",
    "ep4": "EP 4",
    "ep-tp": "EP 2 and TP 2",
    "ep-sp": "EP 4 over the ranks of TP 2, sequence parallel",
}
"""By a name that is a mesh and, unless it is float32, a dtype."""
SAMPLED = ("tp4", "tp-fsdp", "ep4", "ep-tp")
"""Columns of 4 ranks, filled for a quarter of the architectures."""
OF_EXPERTS = ("ep", "ep4", "ep-tp", "ep-sp")
"""Columns filled for the architectures with experts."""


def is_filled(column: str, model_type: str) -> bool:
    """Whether a column is for an architecture; the quarter is drawn by the hash of its name."""
    if column in OF_EXPERTS and model_type not in MIXTURES:
        return False
    return column not in SAMPLED or hashlib.sha256(model_type.encode()).digest()[0] % 4 == 0


def size_of(column: str) -> Size:
    """The size of a column's tiny model: heads for the ranks of tp, and two experts for each rank of ep."""
    return Size(tp=4 if column == "tp4" else 2, num_experts=8 if column in ("ep4", "ep-sp") else 4)


def dtype_of(column: str) -> str:
    return column.partition(" ")[2] or "float32"


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
    """The plan of a column for a model in the folder `model`."""
    mesh, blocks = "  tp = 1", ""
    name = column.partition(" ")[0]
    match name:
        case "fsdp" | "fsdp-chunks":
            mesh, blocks = "  dp_shard = 2", _fsdp(inventory, on="dp_shard", dtype=dtype_of(column))
        case "tp":
            mesh, blocks = "  tp = 2", "tensor_parallel on tp {\n  auto\n}\n"
        case "solve":
            mesh, blocks = "  tp = 2", _SOLVED
        case "sp":
            mesh, blocks = "  tp = 2", _ON_SEQUENCES
        case "compile":
            mesh, blocks = "  tp = 2", _SOLVED + _compile(inventory)
        case "full":
            mesh, blocks = "  tp = 2", _SOLVED + _recompute(inventory)
        case "compile-full":
            mesh, blocks = "  tp = 2", _SOLVED + _compile(inventory) + _recompute(inventory)
        case "sp-full":
            mesh, blocks = "  tp = 2", _ON_SEQUENCES + _recompute(inventory)
        case "pp":
            mesh, blocks = "  pp = 2", "pipeline on pp {\n}\n"
        case "pp-sp":
            mesh = "  pp = 2\n  tp = 2"
            blocks = "pipeline on pp {\n}\n" + _ON_SEQUENCES
        case "pp-fsdp":
            mesh = "  pp = 2\n  dp_shard = 2"
            rules = f"  {_inner_unit(inventory)}\n"
            blocks = f"pipeline on pp {{\n}}\nfsdp on dp_shard {{\n{rules}}}\n"
        case "tp4":
            mesh, blocks = "  tp = 4", _SOLVED
        case "tp-fsdp":
            mesh, blocks = "  tp = 2\n  dp_shard = 2", _SOLVED + _fsdp(inventory, on="dp_shard")
        case "cp":
            mesh, blocks = "  cp = 2", _fsdp(inventory, on="cp") + _context(variant.rotate)
        case "ep" | "ep4":
            size = 4 if name == "ep4" else 2
            mesh, blocks = f"  dp_shard = {size}", _experts(size) + _fsdp(inventory, on="dp_shard")
        case "ep-tp":
            mesh = "  dp_shard = 2\n  tp = 2"
            blocks = _SOLVED + _experts(2) + _fsdp(inventory, on="dp_shard")
        case "ep-sp":
            mesh = "  dp_shard = 2\n  tp = 2"
            blocks = _ON_SEQUENCES + _experts(4, on="dp_shard, tp") + _fsdp(inventory, on="dp_shard")
    data_ranks = {"ep": 2, "ep4": 4, "ep-tp": 2, "ep-sp": 2}.get(name, 2 if "fsdp" in name else 1)
    micro_batch = NUM_SEQUENCES // data_ranks // (2 if "pp" in name else 1)
    weights = "random" if name == "random" else "pretrained"
    return _plan(
        model,
        dtype_of(column),
        variant,
        mesh,
        blocks,
        weights=weights,
        micro_batch=micro_batch,
        chunks=NUM_CHUNKS if name == "fsdp-chunks" else 1,
        inventory=inventory,
    )


def plan_with_rules(rules: str, *, model: str, dtype: str, variant: Variant, pp: int = 1) -> str:
    """The plan of these tensor-parallel rules on two ranks of tp, in `pp` stages."""
    blocks = f"tensor_parallel on tp {{\n{rules}\n}}\n"
    if pp == 1:
        return _plan(model, dtype, variant, "  tp = 2", blocks)
    mesh, blocks = f"  pp = {pp}\n  tp = 2", f"pipeline on pp {{\n}}\n{blocks}"
    return _plan(model, dtype, variant, mesh, blocks, micro_batch=NUM_SEQUENCES // pp)


def _plan(
    model: str,
    dtype: str,
    variant: Variant,
    mesh: str,
    blocks: str,
    *,
    weights: str = "pretrained",
    micro_batch: int = NUM_SEQUENCES,
    chunks: int = 1,
    inventory: Inventory | None = None,
) -> str:
    task = "" if inventory is None or inventory.task is Task.CAUSAL_LM else f"\n  task = {inventory.task}"
    source = f'text("{CORPUS}")'
    if inventory is not None and inventory.num_labels is not None:
        task += f"(labels = {inventory.num_labels})"
        by_word = ', field = "words", label = "tags"' if inventory.task is Task.TOKEN_CLASSIFICATION else ""
        source = f'labeled("{ROWS}"{by_word})'
    if inventory is not None and inventory.task is Task.SEQ2SEQ_LM:
        source = f'mapped("{ROWS}", input = "text", ignore = ["label", "words", "tags"])'
    return _PLAN.format(
        model=model,
        task=task,
        source=source,
        dtype=dtype,
        weights=weights,
        attention=variant.attention,
        mesh=mesh,
        blocks=blocks,
        sequence_length=SEQUENCE_LENGTH,
        micro_batch=micro_batch,
        tokens_per_step=NUM_SEQUENCES * SEQUENCE_LENGTH,
        chunks=chunks,
    )


def _experts(size: int, *, on: str = "dp_shard") -> str:
    return f"expert_parallel on {on} {{\n  size = {size}\n  auto\n}}\n"


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


def _inner_unit(inventory: Inventory) -> str:
    """A unit for the child that most layers have, of those that hold modules; none for what is beside it."""
    found = Counter(
        name.removeprefix(f"{block}.").partition(".")[2]
        for block in inventory.blocks
        for name in inventory.names()
        if name.startswith(f"{block}.")
    )
    inner = {name.rpartition(".")[0] for name in found}
    children = {name: count for name, count in found.items() if name in inner and name and "." not in name}
    child = max(children, key=lambda name: children[name], default="")
    return f'"{inventory.blocks[0]}.*.{child}" -> unit'


def _compile(inventory: Inventory) -> str:
    """Traced and run op by op: what the compiler does to the program, without its kernels."""
    rules = "".join(f'  "{block}.*" -> region\n' for block in inventory.blocks)
    return f"compile {{\n  backend = aot_eager\n{rules}}}\n"


def _recompute(inventory: Inventory) -> str:
    rules = "".join(f'  "{block}.*" -> full\n' for block in inventory.blocks)
    return f"activation_checkpoint {{\n{rules}}}\n"


def _context(rotate: str) -> str:
    balance = "none" if rotate == "ulysses" else "headtail"
    return (
        f"context_parallel on cp {{\n  rotate = {rotate}\n  load_balancer = {balance}\n"
        '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n'
    )


def _is_in(fqn: str, block: str) -> bool:
    return fqn.startswith(f"{block}.")
