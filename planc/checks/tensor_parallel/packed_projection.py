"""Layers that are sharded as projections that they do not hold."""

from __future__ import annotations

from planc.checks.support.packed_layers import held_widths, packing_style
from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.plan.bind import Assignment
from planc.styles.linear import COLWISE
from planc.vocab import PackedShard, StridedShard

CODE = Code("P431", "packed-projection", "this layer does not hold these projections")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule with both options, and for each way in which its layers hold others."""
    for span, assignments in by_rule(subject):
        packed = [assignment for assignment in assignments if _is_packed_linear(subject, assignment)]
        rule = packed[0].rule if packed else None
        if rule is not None and rule.action.boundary.parts and rule.action.boundary.widths:
            yield CODE.at(span, "`parts` and `widths` exclude each other", help="leave out one of them")
            continue
        wrong: dict[tuple[str, str], list[str]] = {}
        for one in packed:
            held = held_widths(subject, one.fqn)
            if _widths(subject, one) != held:
                text = packing_style(held) if held else ""
                wrong.setdefault((_described(subject, one), text), []).append(one.fqn)
        for (described, style), fqns in wrong.items():
            yield CODE.at(
                span,
                f"{subject.named(fqns)} does not hold {described}",
                notes=("a rank would get columns from several places and treat them as one shard",),
                help=f"write {changed(subject, fqns, style)}"
                if style
                else f"write {changed(subject, fqns, COLWISE.name)}, or `colwise_gather_output` for "
                "a layer that holds several",
            )


def _is_packed_linear(subject: Subject, assignment: Assignment) -> bool:
    module = subject.inventory.get(assignment.fqn)
    is_linear = module is not None and module.is_linear
    return is_linear and isinstance(assignment.placement("weight"), StridedShard | PackedShard)


def _widths(subject: Subject, assignment: Assignment) -> tuple[int, ...]:
    """The widths of the projections that a rule says a layer holds."""
    placement, module = assignment.placement("weight"), subject.inventory.get(assignment.fqn)
    assert isinstance(placement, StridedShard | PackedShard), "only packed layers are asked about"
    assert module is not None, "styles are of modules of this inventory"
    return placement.widths_of(module.out_features)


def _described(subject: Subject, assignment: Assignment) -> str:
    """`3 projections of one width`."""
    placement = assignment.placement("weight")
    if isinstance(placement, PackedShard):
        return f"projections of the widths {list(placement.widths)}"
    number = len(_widths(subject, assignment))
    return f"{'two' if number == 2 else number} projections of one width"
