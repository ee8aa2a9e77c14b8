"""Part of the tokens in code outside of the layers."""

from __future__ import annotations

from planc.checks.support.clash_report import labels_at
from planc.checks.support.rule import Findings, Subject
from planc.checks.support.sharded_sizes import divides_sequence
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.families import layer_of, quoted
from planc.plan.bind import Assignment
from planc.styles.edges import SEQUENCE, normal

CODE = Code("P484", "tokens-outside", "the model's code outside of its layers needs all tokens")

_HELP = (
    "shard the sequence within the layers only, as `auto(sequence_parallel = true)` does: "
    "leave out `Shard(1)` outside of them"
)


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding, at the first rule that gives part of the tokens to code outside of the layers."""
    inventory, styles = subject.inventory, subject.bound.styles
    outside = [
        fqn for fqn, one in styles.items() if divides_sequence(one.use) and not layer_of(inventory, fqn)
    ]
    if not outside:
        return
    place = styles[outside[0]].span
    names = subject.named(outside)
    if inventory.needing_all_tokens:
        code = quoted(token or "the model" for token in inventory.needing_all_tokens)
        yield CODE.at(
            place,
            f"{names} would have part of the tokens",
            notes=(f"{code} computes with all of them before its first layer or behind its last",),
            help=_HELP,
        )
        return
    changing = [fqn for fqn, one in styles.items() if layer_of(inventory, fqn) == fqn and _changes(one)]
    if changing:
        yield CODE.at(
            place,
            f"part of the tokens at {names}, and all of them at {subject.named(changing)}",
            secondary=labels_at(subject.rule_spans(changing), "here sequences are whole", apart_from=place),
            notes=("the code around the layers may use the tokens of one place for the shape of another",),
            help=_HELP,
        )


def _changes(assignment: Assignment) -> bool:
    """Whether a layer is between whole sequences and parts of them."""
    use = assignment.use
    held = {normal(use.input), normal(use.computes_on)}
    held |= {normal(use.output)} if "output" in assignment.style.options else set()
    return assignment.style.prepares and SEQUENCE in held and len(held) > 1
