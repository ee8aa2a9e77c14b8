"""Layers that are sharded as two halves and do not have two."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.attention_heads import AttentionHolders
from planc.checks.support.clash_report import patterns
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Rule, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Kind, Module
from planc.layouts.families import quoted
from planc.styles.colwise import COLWISE
from planc.vocab import MeshDim, StridedShard

CODE = Code("P431", "packed-projection", "this layer can't be sharded as two halves")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule that shards two halves of a layer without them."""
    for span, assignments in by_rule(subject):
        packed = [one.fqn for one in assignments if _is_packed_linear(subject, one.fqn)]
        single = [fqn for fqn in packed if not _holds_two(subject, fqn)]
        if single:
            names = quoted(patterns(subject, single))
            yield CODE.at(
                span,
                f"{names} does not hold two projections of one width",
                notes=("a rank would get columns from two places and treat them as one shard",),
                help=f"write {changed(subject, single, COLWISE.name)}, or `colwise_gather_output` for "
                "a layer that holds several",
            )


def _is_packed_linear(subject: Subject, fqn: str) -> bool:
    module = subject.inventory.get(fqn)
    is_linear = module is not None and module.kind is Kind.LINEAR
    return is_linear and isinstance(subject.bound.styles[fqn].placement("weight"), StridedShard)


def _holds_two(subject: Subject, fqn: str) -> bool:
    """Whether all consumers take half of the layer's output; inside attention there are three parts."""
    if AttentionHolders.of(subject.inventory).attention_of(fqn) is not None:
        return False
    (width, *_) = _weight(subject.inventory.get(fqn))
    consumers = [
        module for module in subject.inventory.modules if module.kind is Kind.LINEAR and fqn in module.sources
    ]
    return bool(consumers) and all(
        consumer.sources == (fqn,) and 2 * _weight(consumer)[1] == width for consumer in consumers
    )


def _weight(module: Module | None) -> tuple[int, ...]:
    assert module is not None, "styles are of modules of this inventory"
    return next(parameter.shape for parameter in module.parameters if parameter.name == "weight")


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
