"""Mesh sizes that an elastic run can't shrink to."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P310", "elastic-sizes", "invalid `elastic` sizes")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error for several mesh dims, for an empty list, and for each size too large or repeated."""
    plan = subject.plan
    if (elastic := plan.elastic) is None:
        return
    if len(elastic.on) > 1:
        dims = " and ".join(elastic.on)
        help = f"keep one of them: `elastic on {elastic.on[0]} {{`"
        yield CODE.at(plan.span("elastic"), f"{dims} can't shrink independently of each other", help=help)
        return
    (mesh_dim,) = elastic.on
    most, span = plan.mesh.size(mesh_dim), plan.span("elastic.sizes")
    label = Label(plan.span(f"mesh.{mesh_dim}"), f"the mesh has {mesh_dim} = {most}")
    if most == 1:
        help = f"set `mesh.{mesh_dim}` to its size with all nodes, or remove this block"
        yield CODE.at(plan.span("elastic"), f"{mesh_dim} = 1 is the smallest size", help=help)
        return
    if not elastic.sizes:
        yield CODE.at(span, "no size is given", help=f"write sizes below {most}, such as [{most // 2}]")
    for size in sorted(set(elastic.sizes)):
        if size >= most:
            help = f"write sizes below {most}; the full mesh may always run"
            yield CODE.at(span, f"{size} is not smaller than the mesh's own", secondary=(label,), help=help)
        elif elastic.sizes.count(size) > 1:
            yield CODE.at(span, f"{size} is listed twice", help="write each size once")
