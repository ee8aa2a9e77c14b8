"""Rows of tables whose code looks up other rows than it is asked for."""

from __future__ import annotations

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.rule_groups import by_rule
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.styles.modules import EMBEDDING_COLWISE
from planc.vocab import Shard

CODE = Code("P436", "rows-renumbered", "ranks would miss the rows that this module looks up")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that shards such a table by rows."""
    for span, assignments in by_rule(subject):
        fqns = [
            assignment.fqn
            for assignment in assignments
            if assignment.fqn in subject.inventory.renumbered and assignment.placement("weight") == Shard(0)
        ]
        if fqns:
            yield CODE.at(
                span,
                f"the code of {subject.named(fqns)} computes the numbers of its rows itself",
                notes=("a rank finds its own rows by the numbers that enter the module",),
                help=f"shard its features: write {changed(subject, fqns, EMBEDDING_COLWISE.name)}, "
                "or leave this rule out",
            )
