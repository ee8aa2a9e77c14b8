"""The sizes that tp shards, for the rules on each: the first of them reports all that tp does not divide."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from math import gcd

from planc.checks.support.attention_heads import AttentionHolders, divided_attentions
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Subject
from planc.diagnostics import Label
from planc.inventory.schema import Attention, Kind, Module, OwnHeads, Parameter
from planc.plan.bind import Assignment
from planc.plan.divided_heads import attentions_with_replicated_kv
from planc.plan.mesh import MeshSpec
from planc.record import record
from planc.source import Span
from planc.styles import StyleUse
from planc.styles.edges import FEATURES, SEQUENCE, normal
from planc.tables import plural
from planc.vocab import Placement, Shard, parent_of, sharded_lengths


class SizeKind(IntEnum):
    """Kinds of sizes, each with a rule of its own, in the order in which these rules report."""

    HEADS = 0
    KV_HEADS = 1
    WIDTH = 2
    VOCABULARY = 3
    TOKENS = 4


@record
class ShardedSize:
    """A size that ranks of tp share, and `text` for it: `8 attention heads`.

    `sites` are the rules that shard it, each with the modules that it shards.
    """

    kind: SizeKind
    size: int
    text: str
    sites: tuple[tuple[Span, str], ...]

    def fits(self, tp: int) -> bool:
        """Whether tp divides the size; of a vocabulary, whether every rank gets rows."""
        return self.size >= tp if self.kind is SizeKind.VOCABULARY else self.size % tp == 0


def misfits(subject: Subject, *, first: SizeKind) -> tuple[ShardedSize, ...]:
    """All the sizes that do not fit tp, if `first` is the first kind of them, and none otherwise.

    Projections of attentions whose heads do not fit are left out: heads that fit make them fit.
    """
    tp = subject.plan.mesh.tp
    found = tuple(size for size in sharded_sizes(subject) if not size.fits(tp))
    return found if found and found[0].kind is first else ()


def legal_sizes(subject: Subject) -> str | None:
    """`1, 2 or 4`: the sizes of tp nearest to the plan's that fit nodes and everything sharded.

    None if only 1 does.
    """
    sizes, mesh = sharded_sizes(subject), subject.plan.mesh
    bound = min((size.size for size in sizes if size.kind is SizeKind.VOCABULARY), default=None)
    exact = gcd(*(size.size for size in sizes if size.kind is not SizeKind.VOCABULARY))
    if not exact and fits_nodes(mesh, tp=mesh.tp):
        return f"at most {bound}"
    found = divisors(exact or mesh.devices_per_node or 1)
    legal = [size for size in found if (bound is None or size <= bound) and fits_nodes(mesh, tp=size)]
    return choices(legal, near=mesh.tp) if len(legal) > 1 else None


def fits_nodes(mesh: MeshSpec, *, tp: int) -> bool:
    """Whether ranks of a node have all groups of tp to themselves."""
    per_node = mesh.devices_per_node
    return per_node is None or per_node % tp == 0 or mesh.world_size <= per_node


def listed(sizes: Sequence[ShardedSize], *, tp: int) -> str:
    """`tp = 3 does not divide 8 attention heads or 256 tokens`."""
    texts = [size.text for size in sizes]
    joined = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
    return f"tp = {tp} does not divide {joined}"


def labels(sizes: Sequence[ShardedSize]) -> tuple[Label, ...]:
    """One label for each rule, with all that it shards."""
    found: dict[Span, list[str]] = {}
    for size in sizes:
        for span, text in size.sites:
            found.setdefault(span, []).append(text)
    return tuple(Label(span, f"shards {' and '.join(dict.fromkeys(texts))}") for span, texts in found.items())


def sharding_rule(subject: Subject) -> Assignment | None:
    """The first rule that leaves ranks a part of the tokens."""
    return next(
        (assignment for assignment in subject.bound.styles.values() if divides_sequence(assignment.use)), None
    )


def divides_sequence(use: StyleUse) -> bool:
    """Whether a module takes, computes on or gives a part of the tokens."""
    return SEQUENCE in (normal(use.input), normal(use.computes_on), normal(use.output))


@functools.lru_cache(maxsize=1)
def sharded_sizes(subject: Subject) -> tuple[ShardedSize, ...]:
    """Every sharded size, in the order of the kinds. Kept, since five rules ask for the same ones."""
    return (*_heads(subject), *_widths(subject), *_vocabulary(subject), *_tokens(subject))


def _heads(subject: Subject) -> Iterator[ShardedSize]:
    attentions = divided_attentions(subject)
    sites = _sites(subject, ((style.span, attention.fqn) for attention, style in attentions))
    for size in dict.fromkeys(one.num_heads for one, _ in attentions):
        yield ShardedSize(SizeKind.HEADS, size, f"{plural(size, 'attention head')}", sites)
    replicating = attentions_with_replicated_kv(subject.bound)
    sharing = tuple((one, style) for one, style in attentions if one.fqn not in replicating)
    places = (
        (span, attention.fqn)
        for attention, style in sharing
        for span in _kv_rules(subject, attention, first=style)
    )
    of_kv = _sites(subject, places)
    for size in dict.fromkeys(one.num_kv_heads for one, _ in sharing):
        yield ShardedSize(SizeKind.KV_HEADS, size, f"{plural(size, 'key/value head')}", of_kv)


def _sites(subject: Subject, places: Iterable[tuple[Span, str]]) -> tuple[tuple[Span, str], ...]:
    """Rules with the attentions whose heads they shard, in words."""
    found: dict[Span, list[str]] = {}
    for span, fqn in places:
        found.setdefault(span, []).append(fqn)
    return tuple((span, f"the heads of {subject.named(fqns)}") for span, fqns in found.items())


def _kv_rules(subject: Subject, attention: Attention | OwnHeads, *, first: Assignment) -> Iterator[Span]:
    """The rules that shard an attention's keys and values, where it is known which layers project to them."""
    if attention.shared_kv is None:
        yield first.span
        return
    for projection in attention.shared_kv.projections:
        assignment = subject.bound.styles.get(f"{attention.fqn}.{projection.layer}")
        if assignment is not None and normal(assignment.use.output) == FEATURES:
            yield assignment.span


def _widths(subject: Subject) -> Iterator[ShardedSize]:
    tp = subject.plan.mesh.tp
    excused = {
        attention.fqn
        for attention, _ in divided_attentions(subject)
        if attention.num_heads % tp or attention.num_kv_heads % tp
    } - attentions_with_replicated_kv(subject.bound)
    by_size: dict[int, list[Assignment]] = {}
    holders = AttentionHolders.of(subject.inventory)
    for fqn, assignment in subject.bound.styles.items():
        if holders.attention_of(fqn) not in excused:
            for size in _sizes_of(subject, assignment):
                by_size.setdefault(size, []).append(assignment)
    for size, assignments in by_size.items():
        parents = [parent_of(assignment.fqn) or assignment.fqn for assignment in assignments]
        sites: dict[Span, list[str]] = {}
        for one in assignments:
            sites.setdefault(one.span, []).append(one.fqn)
        yield ShardedSize(
            SizeKind.WIDTH,
            size,
            f"{plural(size, 'feature')} of {subject.named(parents)}",
            tuple((span, subject.named(fqns)) for span, fqns in sites.items()),
        )


def _sizes_of(subject: Subject, assignment: Assignment) -> tuple[int, ...]:
    """The sizes of a module's parameters along the dimensions that its style shards, each once."""
    module = subject.inventory.get(assignment.fqn)
    assert module is not None, "styles are of modules of this inventory"
    sizes: dict[int, None] = {}
    for parameter in module.parameters:
        placement = assignment.placement(parameter.name)
        for size in sharded_lengths(placement, parameter.shape):
            if not _is_vocabulary(subject, module, parameter, placement):
                sizes[size] = None
    return tuple(sizes)


def _is_vocabulary(subject: Subject, module: Module, parameter: Parameter, placement: Placement) -> bool:
    """Rows of an embedding or of the head: the lookup and the loss are exact with unequal shards."""
    head = subject.inventory.head
    rows = placement == Shard(0) and parameter.shape[0] == subject.inventory.vocab_size
    return rows and (module.kind is Kind.EMBEDDING or (head is not None and module.fqn == head.fqn))


def _vocabulary(subject: Subject) -> Iterator[ShardedSize]:
    tables = vocabulary_tables(subject)
    if tables:
        size = subject.inventory.vocab_size
        sites = tuple((table.span, f"the rows of `{table.fqn}`") for table in tables)
        yield ShardedSize(SizeKind.VOCABULARY, size, f"a vocabulary of only {plural(size, 'row')}", sites)


def vocabulary_tables(subject: Subject) -> tuple[Assignment, ...]:
    """The modules whose weights are sharded by rows of the vocabulary."""
    tables: list[Assignment] = []
    for fqn, assignment in subject.bound.styles.items():
        module = subject.inventory.get(fqn)
        weight = (
            next((parameter for parameter in module.parameters if parameter.name == "weight"), None)
            if module
            else None
        )
        by_rows = assignment.placement("weight") == Shard(0)
        if weight and by_rows and weight.shape[0] == subject.inventory.vocab_size:
            tables.append(assignment)
    return tuple(tables)


def _tokens(subject: Subject) -> Iterator[ShardedSize]:
    """The tokens of a rank; none if cp does not divide the sequence, which is another rule's finding."""
    mesh, length = subject.plan.mesh, subject.plan.data.sequence_length
    cp = mesh.cp if subject.plan.context_parallel else 1
    rule = sharding_rule(subject)
    if rule is not None and length % cp == 0:
        text = f"{plural(length // cp, 'token')}" + (f" ({length} / cp = {cp})" if cp > 1 else "")
        yield ShardedSize(SizeKind.TOKENS, length // cp, text, ((rule.span, "the sequence: Shard(1)"),))
