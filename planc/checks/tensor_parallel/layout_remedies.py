"""The help of P415: how to fix layouts that differ, by the producer and consumer of the activation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.clash_report import ClashGroup, rowwise_for
from planc.checks.support.remedies import behind_norms, changed, gathered, is_sequence_divided, with_option
from planc.checks.support.rule import Subject
from planc.inventory.routers import routers
from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.layouts.types import WHOLE, takes_shards
from planc.styles.edges import FEATURES, SEQUENCE, normal
from planc.vocab import Placement, parent_of

_LEAVE_OUT = (
    "leave this rule out: the sequence is not sharded here, and all ranks have the same gradient; "
    "`planc explain sequence_parallel` lists the rules that shard it"
)
_PREPARE = "prepare_input(input = {}, desired = {})"


def combined_help(subject: Subject, group: ClashGroup) -> str:
    """The help for values that are added or multiplied: how to give all of them one layout."""
    producers, needs = group.producers, group.first.needs
    style, partner = subject.style(producers[0]), subject.style(group.partners[0])
    if style is None and _is_kind(subject, producers, *LINEAR_KINDS):
        is_beside_linear = partner is not None and Kind.LINEAR in partner.kinds
        return subject.rules_to_add(
            producers,
            partner.name if partner and is_beside_linear else rowwise_for(subject, producers[0]),
        )
    if style is not None and "output" not in style.options and needs == FEATURES:
        return f"write {changed(subject, producers, 'colwise')}"
    # If a norm after the producers takes their outputs, the partners have the wrong layout.
    are_right = group.first.arriving == SEQUENCE and _norms_tokens(subject, producers)
    divided = _leave(subject, group.partners, SEQUENCE) if are_right else None
    return divided or _leave(subject, producers, needs) or _prepared_member(subject, producers)


def _norms_tokens(subject: Subject, fqns: Sequence[str]) -> bool:
    """Whether a norm with a rule for sharded tokens reads modules, in a plan that shards other tokens too."""
    norms = (
        subject.inventory.get(fqn)
        for fqn, one in subject.bound.styles.items()
        if "sequence_dim" in one.style.options
    )
    is_read = any(fqn in module.sources for module in norms if module for fqn in fqns)
    return is_read and is_sequence_divided(subject, apart_from=fqns)


def declared_help(subject: Subject, group: ClashGroup) -> str:
    """The help for a module or a prepared container that gets an unexpected layout."""
    arriving, style = group.first.arriving, group.style
    if _is_kind(subject, group.consumers, Kind.NORM):
        return _norm_help(subject, group)
    if style is None or (style.name == "replicate" and _is_kind(subject, group.consumers, *LINEAR_KINDS)):
        return _ruleless_help(subject, group)
    if "desired" in style.options:
        if is_exchanged(subject, group):
            return f"write {changed(subject, group.consumers, _PREPARE.format(arriving, group.first.needs))}"
        leave = _leave(subject, group.producers, group.first.needs)
        is_inside = group.producers[0].startswith(f"{group.consumers[0]}.")
        is_due = arriving == WHOLE and is_sequence_divided(subject, apart_from=group.consumers)
        return leave if leave and (is_inside or is_due) else f"write `input = {arriving}`"
    if "desired" in _options(subject, group.producers[0]):
        return _prepared_help(subject, group)
    members = _members(group)
    if group.first.needs == WHOLE and _is_gathered_above(subject, members):
        gather = _gather_above(subject, group, members)
        others = tuple(fqn for fqn in group.consumers if fqn not in members)
        return f"{gather}, and write `input = {arriving}` for {subject.named(others)}" if others else gather
    leave = _leave(subject, group.producers, group.first.needs)
    if leave and _is_output_written(subject, group.producers):
        return leave
    if "input" in style.options:
        return f"write `input = {arriving}`" + (f", or {leave}" if leave else "")
    return leave or f"use another style: this one takes {group.first.needs}"


def is_exchanged(subject: Subject, group: ClashGroup) -> bool:
    """Whether prepared containers pass on the sharded tokens that reach them: their options are swapped."""
    if group.first.arriving == WHOLE or group.style is None or "desired" not in group.style.options:
        return False
    uses = (subject.bound.styles[fqn].use for fqn in group.consumers)
    return all(normal(use.computes_on) == group.first.arriving for use in uses)


def _norm_help(subject: Subject, group: ClashGroup) -> str:
    arriving, style, producer = group.first.arriving, group.style, group.producers[0]
    is_for_tokens = style is not None and "sequence_dim" in style.options
    if arriving == FEATURES and group.first.needs == WHOLE:
        parents = _parents(group.consumers)
        gather = gathered(subject, parents) if _is_kind(subject, group.producers, *LINEAR_KINDS) else ""
        due = SEQUENCE if is_for_tokens else WHOLE
        leave = _leave(subject, group.producers, due)
        return f"gather the features for the norms: write {gather}" if gather or not leave else leave
    if arriving == SEQUENCE:
        return f"write {changed(subject, group.consumers, 'sequence_parallel')}"
    if arriving == FEATURES:
        return f"write {changed(subject, group.consumers, 'replicated_with_grad_allreduce')}"
    if "desired" in _options(subject, producer):
        return (
            f"leave out the rule of {subject.named([producer])}: only attention and MLPs need prepared inputs"
        )
    bare = [fqn for fqn in behind_norms(subject, group.consumers) if subject.style(fqn) is None]
    if not is_for_tokens and bare and _is_kind(subject, bare, *LINEAR_KINDS):
        return subject.rules_to_add(bare, "colwise")
    leave = _leave(subject, group.producers, SEQUENCE)
    return leave if leave and is_for_tokens and is_sequence_divided(subject) else _LEAVE_OUT


def _ruleless_help(subject: Subject, group: ClashGroup) -> str:
    """The help for modules that need the whole sequence: gather it for them, or never shard it."""
    arriving, head = group.first.arriving, subject.inventory.head
    leave = _leave(subject, group.producers, WHOLE)
    if leave and not is_sequence_divided(subject, apart_from=group.producers):
        return leave
    inner = tuple(fqn for fqn in group.consumers if head is None or fqn != head.fqn)
    if not inner:
        action = f"colwise(input = {arriving}, output = Shard(-1))"
        return f"write {changed(subject, group.consumers, action)}"
    if set(inner) <= {*_next_to_experts(subject)}:
        return subject.rules_to_add(inner, "sequence_parallel")
    members = _members(group)
    if _is_kind(subject, inner, *LINEAR_KINDS) and set(members) == set(inner):
        gather = _gather_above(subject, group, members)
        if len(inner) == len(group.consumers) or head is None:
            return gather
        action = f"colwise(input = {arriving}, output = Shard(-1))"
        return f"{gather}, and write {changed(subject, [head.fqn], action)}"
    return _prepared_member(subject, inner)


def _next_to_experts(subject: Subject) -> Iterator[str]:
    """The routers and linear layers directly next to experts that take shards."""
    experts = {module.fqn for module in takes_shards(subject.bound)}
    yield from (router.fqn for router in routers(subject.inventory) if router.experts in experts)
    parts = set(map(parent_of, experts))
    yield from (
        module.fqn
        for module in subject.inventory.modules
        if module.is_linear and parent_of(module.fqn) in parts
    )


def _prepared_member(subject: Subject, fqns: Sequence[str]) -> str:
    """The help for modules that no style shards: gather before their layer's member, and shard after it."""
    depths = {block: block.count(".") + 2 for block in subject.inventory.blocks}
    members = tuple(
        dict.fromkeys(
            ".".join(fqn.split(".")[: depth + 1])
            for fqn in fqns
            for block, depth in depths.items()
            if fqn.startswith(f"{block}.")
        )
    )
    if not members or set(members) & set(fqns):
        return "keep the sequence whole, without `sequence_parallel`, `prepare_input` and `Shard(1)`"
    action = "prepare_input_output(input = Shard(1), desired = Replicate(), output = Shard(1))"
    return f"write {changed(subject, members, action)}"


def _prepared_help(subject: Subject, group: ClashGroup) -> str:
    """The help for a prepared container whose layers need another layout than it gives them."""
    gates, needs = subject.named(group.producers), group.first.needs
    assignment = subject.bound.styles[group.consumers[0]]
    boundary = assignment.rule.action.boundary if assignment.rule else None
    if boundary is not None and boundary.input is not None:
        return f"write `input = {group.first.arriving}` here, since {gates} prepares it"
    return f"write `desired = {needs}` for {gates}"


def _members(group: ClashGroup) -> tuple[str, ...]:
    """The modules that a container holds, which can gather for them; not `lm_head`."""
    return tuple(fqn for fqn in group.consumers if "." in fqn)


def _is_gathered_above(subject: Subject, members: Sequence[str]) -> bool:
    """Whether a container should gather: for several modules in it, and always for attention.

    Attention takes the number of tokens from its own input.
    """
    parents = _parents(members)
    attentions = {attention.fqn for attention in subject.inventory.known_heads}
    return bool(parents) and (len(parents) < len(members) or parents[0] in attentions)


def _gather_above(subject: Subject, group: ClashGroup, members: Sequence[str]) -> str:
    action = _PREPARE.format(group.first.arriving, group.first.needs)
    return f"gather once for all of them: {subject.rules_to_add(_parents(members), action)}"


def _leave(subject: Subject, producers: Sequence[str], placement: Placement) -> str | None:
    """The edit that makes producers output a placement; None if no rule for them can."""
    names, options = subject.named(producers), _options(subject, producers[0])
    if "output" in options:
        return f"write `output = {placement}` for {names}"
    if _is_kind(subject, producers, Kind.EMBEDDING) and subject.style(producers[0]) is None:
        return subject.rules_to_add(producers, with_option("embedding_rowwise", "output", placement))
    if "desired" in options:
        return f"write `desired = {placement}` for {names}"
    return None


def _is_output_written(subject: Subject, fqns: Sequence[str]) -> bool:
    """Whether all rules write the `output` of their modules."""
    rules = [one.rule for one in map(subject.bound.styles.get, fqns) if one]
    return bool(rules) and all(rule and rule.action.boundary.output is not None for rule in rules)


def _parents(fqns: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parent_of(fqn) for fqn in fqns))


def _is_kind(subject: Subject, fqns: Sequence[str], *kinds: Kind) -> bool:
    return all(module is not None and module.kind in kinds for module in map(subject.inventory.get, fqns))


def _options(subject: Subject, fqn: str) -> tuple[str, ...]:
    style = subject.style(fqn)
    return style.options if style else ()
