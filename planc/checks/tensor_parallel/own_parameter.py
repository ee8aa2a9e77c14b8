"""Parameters of a module whose layers give it sharded activations."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.clash_report import clash_groups, labels_at
from planc.checks.support.remedies import changed, gathered
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.sharded_sizes import divides_sequence
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.families import exact_families, layer_of, quoted
from planc.layouts.flow import ClashKind
from planc.plan.parameters import sinks_of
from planc.styles.modules import LOCAL_PARAMS

CODE = Code("P480", "own-parameter", "a parameter's gradient is not reduced over tp")

_UNSUMMED = "each rank would have part of the gradient, and nothing would sum the parts over tp"


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the rule that shards, for all modules of one kind."""
    for group in clash_groups(subject, ClashKind.OWN_PARAMETER):
        spans = subject.rule_spans(group.producers)
        span = subject.primary_span(spans)
        owner = group.first.consumer
        yield CODE.at(
            span,
            subject.outputs(group.producers, group.first.arriving),
            secondary=labels_at(spans, "and here", apart_from=span),
            notes=(
                f"`{subject.patterns([owner])[0]}` has {_owned(subject, owner)} of its own, "
                "replicated on every rank",
                _UNSUMMED,
                *subject.size_note(group.consumers),
            ),
            help=_help(subject, group.consumers),
        )
    yield from _read_by_layers(subject)


def _help(subject: Subject, owners: Sequence[str]) -> str:
    if sinks_of(subject.inventory).keys() >= {*owners}:
        return f"shard it with the heads: write {changed(subject, owners, LOCAL_PARAMS.name)}"
    return f"gather the outputs of its layers: write {gathered(subject, owners)}"


def _read_by_layers(subject: Subject) -> Findings:
    """One finding for parameters that the code of layers uses on part of the tokens."""
    inventory, styles = subject.inventory, subject.bound.styles
    dividing = {layer_of(inventory, fqn): one for fqn, one in styles.items() if divides_sequence(one.use)}
    owners = [fqn for fqn in inventory.read_by_layers if layer_of(inventory, fqn) in dividing]
    if owners:
        owner = exact_families(inventory, owners)[0]
        yield CODE.at(
            dividing[layer_of(inventory, owners[0])].span,
            "gives each rank part of the tokens",
            notes=(
                f"code of the layers reads {_owned(subject, owners[0])} of `{owner}`",
                _UNSUMMED,
                *subject.size_note(owners),
            ),
            help="keep sequences whole in these layers: leave out `Shard(1)` and `sequence_parallel`",
        )


def _owned(subject: Subject, owner: str) -> str:
    module = subject.inventory.get(owner)
    assert module is not None, "clashes are of modules of this inventory"
    return quoted(parameter.name for parameter in module.parameters)
