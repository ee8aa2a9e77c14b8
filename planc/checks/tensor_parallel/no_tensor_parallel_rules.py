"""A tensor_parallel block that shards nothing."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Module
from planc.plan.auto import Auto
from planc.vocab import MeshDim, parent_of

CODE = Code("P413", "no-tensor-parallel-rules", "nothing is sharded over tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding if the block has neither rules nor a plan for `auto`, or only `replicate` rules."""
    spec = subject.plan.tensor_parallel
    if spec is None:
        return
    if spec.rules:
        styles = subject.bound.styles.values()
        if styles and all(assignment.style.name == "replicate" for assignment in styles):
            text = f"all rules are `replicate`, so {subject.plan.mesh.tp} ranks would do the same work"
            yield CODE.at(spec.span, text, help=f"{_example(subject)}, or set `tp` to 1")
    elif spec.auto is None:
        help = "write `auto` for the model's own plan" if subject.inventory.tp_plan else _example(subject)
        yield CODE.at(spec.span, "this block has neither rules nor `auto`", help=help)
    elif not subject.bound.auto.rules:
        yield from _none_found(subject, spec.auto)


def _none_found(subject: Subject, auto: Auto) -> Findings:
    """The finding at an `auto` without rules, with the finding about the last that planc tried."""
    architecture, reason = subject.inventory.architecture, subject.bound.auto.reason
    if not reason:
        text = f"{architecture} has no tensor-parallel plan of its own"
        yield CODE.at(auto.span, text, help=_example(subject))
        return
    text = f"planc finds no rules for {architecture}"
    if auto.sequence_parallel:
        text, help = f"{text} on shards of the sequence", "leave out `sequence_parallel`"
    else:
        help = _example(subject)
    yield CODE.at(auto.span, text, notes=(f"the last that were tried break {reason}",), help=help)


def _example(subject: Subject) -> str:
    """Rules for the layers of MLPs, if they are chained as in most models.

    Attention is left out: other rules decide whether it can work on some of its heads.
    """
    attentions = {attention.fqn for attention in subject.inventory.attentions}
    first: list[str] = []
    last: list[str] = []
    for module in subject.inventory.modules:
        parent = parent_of(module.fqn)
        sources = [one for one in map(subject.inventory.get, module.sources) if one is not None]
        is_behind = sources and module.is_linear and all(_feeds(source, module) for source in sources)
        if is_behind and parent not in attentions:
            first.extend(source.fqn for source in sources)
            last.append(module.fqn)
    if not last:
        return "add rules with `colwise`, `rowwise` and `embedding_rowwise`"
    added = subject.rules_to_add(first, "colwise"), subject.rules_to_add(last, "rowwise")
    return " and ".join(added).replace(" and add ", " and ")


def _feeds(source: Module, module: Module) -> bool:
    """Whether a module outputs exactly the features that another in its container takes."""
    if not source.is_linear or parent_of(source.fqn) != parent_of(module.fqn):
        return False
    return module.is_linear and source.out_features == module.in_features
