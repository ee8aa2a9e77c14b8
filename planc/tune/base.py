"""The part of a plan that a search keeps, and the plan of a choice as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.inventory.schema import Inventory
from planc.lower.optimizer import build_optimizer
from planc.plan.bind import BoundPlan
from planc.plan.facts import tokens_per_step
from planc.plan.spec import Expectation, Plan
from planc.record import record
from planc.show.resolved import resolved_text
from planc.tune.choice import Choice, Recompute, Rules
from planc.vocab import DType

_BLOCK = re.compile(r"^(\w+)[^\n]*\{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_CHOSEN = ("mesh", "pipeline", "tensor_parallel", "fsdp", "context_parallel", "activation_checkpoint")
"""Blocks that the search replaces."""
ROTATIONS = ("allgather", "ring", "ulysses")


@record
class Base:
    """A plan without what the search chooses."""

    name: str
    kept: tuple[tuple[str, str], ...]
    """Blocks by kind, as text."""
    given_rules: str
    """The plan's own tensor-parallel block; empty without one."""
    expectations: tuple[Expectation, ...]
    dtypes: str
    """The dtypes of FSDP as the plan has them; empty for those of the model."""
    gradient_bytes: int
    """Of a gradient's element that FSDP reduces."""
    state_bytes: int
    """Of a parameter: its element and what the optimizer keeps of it."""
    blocks: tuple[str, ...]
    """The module lists whose members repeat."""
    sequence_length: int
    tokens_per_step: int
    balance: str
    may_chunk: bool
    """Whether the loss may be computed in chunks: the plan has no number of them."""
    may_compile: bool
    """Whether layers may be compiled: the plan compiles nothing."""


def base_of(bound: BoundPlan, *, tokens: int | None) -> Base:
    """What a plan fixes: everything but its mesh, pipeline, FSDP, cp, recomputation, micro batch.

    Tensor-parallel rules that it has stay, where a choice has a tp of more than one rank.
    """
    plan = bound.plan
    texts = {match.group(1): match.group(0) for match in _BLOCK.finditer(resolved_text(bound))}
    # Settings have comments of planc's own.
    plain = {kind: re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE) for kind, text in texts.items()}
    context = plan.context_parallel
    return Base(
        plan.name,
        tuple((kind, text) for kind, text in plain.items() if kind not in _CHOSEN),
        plain.get("tensor_parallel", ""),
        plan.expectations,
        _dtypes(plan),
        _reduce_dtype(plan).size_bytes,
        plan.model.dtype.size_bytes * (1 + len(build_optimizer(bound).state_names)),
        bound.inventory.blocks,
        plan.data.sequence_length,
        tokens or tokens_per_step(plan),
        context.load_balancer if context else "headtail",
        plan.train.loss_chunks == 1,
        plan.compile is None,
    )


def _dtypes(plan: Plan) -> str:
    fsdp = plan.fsdp
    named = (("param_dtype", fsdp.param_dtype), ("reduce_dtype", fsdp.reduce_dtype)) if fsdp else ()
    return "".join(f"  {name} = {dtype}\n" for name, dtype in named if dtype is not None)


def _reduce_dtype(plan: Plan) -> DType:
    fsdp = plan.fsdp
    found = (fsdp.reduce_dtype or fsdp.param_dtype) if fsdp is not None else None
    return found or plan.model.dtype


def layers_of(inventory: Inventory) -> tuple[str, ...]:
    """The members of the repeated blocks."""
    return tuple(fqn for fqn in inventory.names() if fqn.rpartition(".")[0] in inventory.blocks)


def rules_of(bound: BoundPlan) -> str:
    """The plan's tensor-parallel block with every rule by pattern."""
    found = (match for match in _BLOCK.finditer(resolved_text(bound)) if match.group(1) == "tensor_parallel")
    return next(found).group(0)


def plan_text(base: Base, choice: Choice, *, devices_per_node: int, rules: str = "") -> str:
    """The whole plan of a choice, with these tensor-parallel rules, or with `auto`."""
    return "\n".join(_blocks(base, choice, devices_per_node, rules))


def _blocks(base: Base, choice: Choice, node: int, rules: str) -> Iterator[str]:
    mesh = choice.mesh
    sizes = "".join(f"  {name} = {size}\n" for name, size in mesh.sizes)
    kept = dict(base.kept)
    yield kept.pop("model")
    yield f"mesh {{\n{sizes}  devices_per_node = {node}\n}}\n"
    if choice.schedule:
        yield f"pipeline on pp {{\n  schedule = {choice.schedule}\n}}\n"
    if mesh.rules is Rules.GIVEN:
        yield base.given_rules
    elif mesh.tp > 1 and rules:
        yield rules
    elif mesh.tp > 1:
        directive = "auto" if mesh.rules is Rules.AUTO else "auto(sequence_parallel = true)"
        yield f"tensor_parallel on tp {{\n  {directive}\n}}\n"
    if fsdp := _fsdp(base, choice):
        yield fsdp
    if mesh.cp > 1:
        yield _context_parallel(base, choice)
    if choice.recompute is not Recompute.NONE:
        layers = "".join(f'  "{block}.*" -> {choice.recompute}\n' for block in base.blocks)
        yield f"activation_checkpoint {{\n{layers}}}\n"
    if choice.is_compiled:
        layers = "".join(f'  "{block}.*" -> region\n' for block in base.blocks)
        yield f"compile {{\n{layers}}}\n"
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


def _fsdp(base: Base, choice: Choice) -> str:
    """Nothing where no parameters are sharded, and none is cast."""
    if choice.mesh.dp_shard * choice.mesh.cp == 1 and choice.mesh.dp_replicate > 1 and not base.dtypes:
        return ""
    dims = ["dp_shard", "cp"] if choice.mesh.cp > 1 else ["dp_shard"]
    replicas = "  replicate_on = dp_replicate\n" if choice.mesh.dp_replicate > 1 else ""
    reshard = str(choice.reshard).lower()
    units = "".join(f'  "{block}.*" -> unit(reshard_after_forward = {reshard})\n' for block in base.blocks)
    return f"fsdp on {', '.join(dims)} {{\n{replicas}{base.dtypes}{units}}}\n"


def _context_parallel(base: Base, choice: Choice) -> str:
    balance = "" if choice.rotate == "ulysses" else f"  load_balancer = {base.balance}\n"
    return f"context_parallel on cp {{\n  rotate = {choice.rotate}\n{balance}}}\n"
