"""The plan that a search starts from, the part of it that it keeps, and the plan of a choice as text.

The comments of blocks that are kept are kept too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from planc.fmt.format import format_source
from planc.inventory.schema import Inventory
from planc.lower.optimizer import build_optimizer
from planc.plan.bind import BoundPlan
from planc.plan.facts import sequences_together, tokens_per_step
from planc.plan.spec import Expectation, Plan
from planc.record import record
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from planc.syntax.write import block, call, rule
from planc.tune.choice import Choice, Recompute, Rules
from planc.vocab import DType

TEXT = 'text("data/*.txt")'


def model_plan(
    model: str, inventory: Inventory, *, sequence_length: int, tokenizer: str, source: str = TEXT
) -> str:
    """Pretraining in bfloat16 with AdamW, on text files in the plan's directory, or on another source.

    `model`, `tokenizer` and `source` are as a plan writes them: a path in quotes, a call.
    """
    units = (rule([f"{layers}.*"], "unit") for layers in inventory.blocks)
    tokens = (f"tokenizer = {tokenizer}", f"sequence_length = {sequence_length}")
    kind = "kind = adamw(lr = 3e-4, betas = [0.9, 0.95], weight_decay = 0.1)"
    blocks = {
        "model": (f"hf = {model}",),
        "mesh": ("dp_shard = 2",),
        "fsdp on dp_shard": ("param_dtype = bfloat16", "reduce_dtype = float32", *units),
        "data": (f"source = {source}", *tokens, "micro_batch = 1"),
        "optimizer": (kind, "clip_grad_norm = 1.0"),
        "train": ("steps = 1000",),
    }
    return "".join(block(header, lines) for header, lines in blocks.items())


_BLOCK = re.compile(r"^(\w+)[^\n]*\{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_CHOSEN = (
    *("mesh", "pipeline", "tensor_parallel", "fsdp", "context_parallel", "activation_checkpoint"),
    "expert_parallel",
)
"""Blocks that the search replaces."""
_MATRIX = (1024, 1024)
"""A usual one."""
ROTATIONS = ("allgather", "ring", "ulysses")


@record
class Base:
    """A plan without what the search chooses."""

    name: str
    kept: tuple[tuple[str, str], ...]
    """Blocks by kind, as text."""
    given_rules: str
    """The plan's own tensor-parallel block; empty without one."""
    given_experts: str
    """The plan's own expert-parallel block, if it has a capacity: any mesh drops tokens. Else empty."""
    expectations: tuple[Expectation, ...]
    dtypes: tuple[str, ...]
    """The settings of FSDP's dtypes as the plan has them; empty for those of the model."""
    gradient_bytes: float
    """The size of a gradient's element that FSDP reduces, in the mean over trained and frozen parameters."""
    state_bytes: float
    """The least size of a parameter's state, in that mean: its element and what the optimizer keeps of it."""
    blocks: tuple[str, ...]
    """The module lists whose members repeat."""
    sequence_length: int
    sequences_together: int
    """The sequences of which a micro batch has a multiple, as pairs need."""
    tokens_per_step: int
    balance: str
    may_chunk: bool
    """Whether the loss may be computed in chunks: the plan has no number of them."""
    may_compile: bool
    """Whether layers may be compiled: the plan compiles nothing and isolates no documents.

    Compiled layers compute masks of documents, eager ones compute each document alone."""


def base_of(bound: BoundPlan, *, tokens: int | None) -> Base:
    """Return what a plan fixes: all but its mesh, pipeline, FSDP, cp, recomputation, micro batch.

    Tensor-parallel rules that it has stay, where a choice has a tp of more than one rank.
    """
    plan = bound.plan
    texts = {match.group(1): match.group(0) for match in _BLOCK.finditer(resolved_text(bound))}
    # Settings have comments of planc's own.
    plain = {kind: re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE) for kind, text in texts.items()}
    context = plan.context_parallel
    sizes = [(fqn, module, prod(one.shape)) for fqn, module, one in bound.inventory.parameters()]
    number = sum(size for *_, size in sizes)
    trained = sum(size for fqn, _, size in sizes if fqn not in bound.frozen) / number
    quantized = sum(size for _, module, size in sizes if module.fqn in bound.quantized) / number
    return Base(
        plan.name,
        tuple((kind, text) for kind, text in plain.items() if kind not in _CHOSEN),
        plain.get("tensor_parallel", ""),
        plain["expert_parallel"] if bound.capped else "",
        plan.expectations,
        _dtypes(plan),
        _reduce_dtype(plan).size_bytes * trained,
        _state_bytes(bound, trained=trained, quantized=quantized),
        bound.inventory.blocks,
        plan.data.sequence_length,
        sequences_together(plan),
        tokens or tokens_per_step(plan),
        context.load_balancer if context else "headtail",
        plan.train.loss_chunks == 1,
        plan.compile is None and not plan.data.packing.isolates,
    )


def with_comments(base: Base, comments: Mapping[str, _Comments]) -> Base:
    """The base with a plan's own comments in the blocks that the search keeps."""
    kept = ((kind, commented(text, comments.get(kind, {}))) for kind, text in base.kept)
    return replace(base, kept=tuple(kept))


def _state_bytes(bound: BoundPlan, *, trained: float, quantized: float) -> float:
    """The least state of a parameter in the mean: frozen ones have their element alone, or 4 bits of it."""
    kinds = set(build_optimizer(bound).settings_by_parameter().values())
    element = bound.plan.model.dtype.size_bytes
    kept = min(kind.state_bytes(_MATRIX, element=element) // prod(_MATRIX) for kind in kinds)
    return element * (1 - quantized) + quantized / 2 + trained * kept


def _dtypes(plan: Plan) -> tuple[str, ...]:
    fsdp = plan.fsdp
    named = (("param_dtype", fsdp.param_dtype), ("reduce_dtype", fsdp.reduce_dtype)) if fsdp else ()
    return tuple(f"{name} = {dtype}" for name, dtype in named if dtype is not None)


def _reduce_dtype(plan: Plan) -> DType:
    fsdp = plan.fsdp
    found = (fsdp.reduce_dtype or fsdp.param_dtype) if fsdp is not None else None
    return found or plan.model.dtype


def recurrent_layer(inventory: Inventory) -> str:
    """The first layer without attention, whose code may loop over tokens; empty if all have attention."""
    attentions = tuple(f"{attention.fqn}." for attention in inventory.attentions)
    bare = (name for name in inventory.layers() if not any(fqn.startswith(f"{name}.") for fqn in attentions))
    return next(bare, "")


def rules_of(bound: BoundPlan) -> str:
    """The plan's tensor-parallel block with every rule by pattern."""
    found = (match for match in _BLOCK.finditer(resolved_text(bound)) if match.group(1) == "tensor_parallel")
    return next(found).group(0)


def plan_text(base: Base, choice: Choice, *, devices_per_node: int, rules: str = "") -> str:
    """The whole plan of a choice, with these tensor-parallel rules, or with `auto`."""
    return "\n".join(_blocks(base, choice, devices_per_node, rules))


def _blocks(base: Base, choice: Choice, node: int, rules: str) -> Iterator[str]:
    mesh = choice.mesh
    kept = dict(base.kept)
    sharding = f"dp_shard{', cp' if mesh.cp > 1 else ''}"
    layers = [f"{one}.*" for one in base.blocks]
    yield kept.pop("model")
    yield block("mesh", [*(f"{name} = {size}" for name, size in mesh.sizes), f"devices_per_node = {node}"])
    if choice.schedule:
        yield block("pipeline on pp", [f"schedule = {choice.schedule}"])
    if mesh.rules is Rules.GIVEN:
        yield base.given_rules
    elif mesh.tp > 1 and rules:
        yield rules
    elif mesh.tp > 1:
        directive = "auto" if mesh.rules is Rules.AUTO else "auto(sequence_parallel = true)"
        yield block("tensor_parallel on tp", [directive])
    if base.given_experts:
        yield re.sub(r"^  size = .*$", f"  size = {choice.ep}", base.given_experts, flags=re.MULTILINE)
    elif choice.ep > 1:
        on = f"{sharding}, tp" if mesh.rules is Rules.EXPERTS else sharding
        yield block(f"expert_parallel on {on}", [f"size = {choice.ep}", "auto"])
    # Nothing where no parameters are sharded, and none is cast.
    if mesh.dp_shard * mesh.cp * choice.ep > 1 or mesh.dp_replicate == 1 or base.dtypes:
        yield block(f"fsdp on {sharding}", _fsdp(base, choice, layers))
    if mesh.cp > 1:
        balance = [] if choice.rotate == "ulysses" else [f"load_balancer = {base.balance}"]
        yield block("context_parallel on cp", [f"rotate = {choice.rotate}", *balance])
    if choice.recompute is not Recompute.NONE:
        yield block("activation_checkpoint", [rule([layer], choice.recompute) for layer in layers])
    if choice.is_compiled:
        yield block("compile", [rule([layer], "region") for layer in layers])
    for kind, text in kept.items():
        if kind == "data":
            text = re.sub(r"^  micro_batch = .*$", f"  micro_batch = {choice.micro_batch}", text, flags=re.M)
        if kind == "train":
            text = _with_tokens(text, base.tokens_per_step)
            if choice.in_chunks:
                text = re.sub(r"^  loss_chunks = .*$", "  loss_chunks = auto", text, flags=re.MULTILINE)
        yield text


def _with_tokens(text: str, tokens: int) -> str:
    without = re.sub(r"^  tokens_per_step = .*\n", "", text, flags=re.MULTILINE)
    return without.removesuffix("}\n") + f"  tokens_per_step = {tokens:_}\n}}\n"


def _fsdp(base: Base, choice: Choice, layers: Sequence[str]) -> Iterator[str]:
    if choice.mesh.dp_replicate > 1:
        yield "replicate_on = dp_replicate"
    yield from base.dtypes
    unit = call("unit", [f"reshard_after_forward = {str(choice.reshard).lower()}"])
    yield from (rule([layer], unit) for layer in layers)


_Comments = Mapping[str, tuple[str, ...]]
"""Lines of comments by the start of the statement below them; by nothing for the block's own."""

_HEADER = re.compile(r"(\w+)[^\n]*\{$")
_OWN = ("# Written by planc new", "# Found by planc tune")
"""The start of planc's own comment on a whole plan, which another choice makes untrue."""


def comments_of(source: SourceFile) -> Mapping[str, _Comments]:
    """The comments of a plan's own file by block; none of a file that does not parse."""
    text, _ = format_source(source)
    blocks: dict[str, dict[str, tuple[str, ...]]] = {}
    kind, pending = "", list[str]()
    for line in (text or "").splitlines():
        statement = line.strip()
        if statement.startswith("#"):
            pending.append(statement)
            continue
        statement, _, after = statement.partition("  # ")
        if after:
            pending.append(f"# {after}")
        header = _HEADER.match(line)
        if header:
            kind = header.group(1)
        if pending and kind and not _is_own(pending):
            blocks.setdefault(kind, {})["" if header else _start(statement)] = tuple(pending)
        if statement or _is_own(pending):
            pending = []
        if line == "}":
            kind = ""
    return blocks


def commented(text: str, comments: _Comments) -> str:
    """A block's text with its comments; those without their statement come first."""
    header, *lines = text.splitlines()
    starts = {_start(line.strip()) for line in lines}
    above = [line for start, texts in comments.items() if start not in starts for line in texts]
    body: list[str] = []
    for line in lines:
        body += [
            f"  {comment}" for comment in comments.get(_start(line.strip()), ()) if line.startswith("  ")
        ]
        body.append(line)
    return "\n".join((*above, header, *body)) + "\n"


def _start(statement: str) -> str:
    """Return what tells a statement of a block from others: the name of a setting, or a rule's patterns."""
    return re.split(r" = | -> | \{", statement, maxsplit=1)[0].removeprefix("override ")


def _is_own(comments: list[str]) -> bool:
    return bool(comments) and comments[0].startswith(_OWN)
