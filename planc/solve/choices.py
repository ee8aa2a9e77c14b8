"""The possible rules of a module, by which patterns, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planc.estimate.result import Collective
from planc.estimate.result import Kind as CollectiveKind
from planc.inventory.schema import Inventory, Kind, Module
from planc.layouts.families import exact_families, family
from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.styles import BY_NAME, Boundary, Style
from planc.styles.edges import FEATURES, At, Edge, normal
from planc.styles.linear import PACKED_COLWISE, REPLICATED_KV, packing_options
from planc.styles.style import edges, use
from planc.vocab import MeshDim, Placement, Replicate

Members = Mapping[str, Sequence[Module]]
"""The modules of each family."""


def members_of(inventory: Inventory) -> Members:
    """All modules by their families."""
    found: dict[str, list[Module]] = {}
    for module in inventory.modules:
        found.setdefault(family(inventory, module.fqn), []).append(module)
    return found


def patterns_for(name: str, members: Members, style: Style, inventory: Inventory) -> Sequence[str]:
    """The name of a family or of one module, or patterns for the members with parameters: a norm can be an
    identity in some layers."""
    if name not in members:
        return (name,)
    fitting = [member.fqn for member in members[name] if style.prepares or member.parameters]
    return (name,) if len(fitting) == len(members[name]) else exact_families(inventory, fitting)


_SCALE = 1 << 10
"""Values of so many tokens with an element of one byte are compared: whole bytes, on any number of ranks."""
_SMALL = 32
"""A matrix below a 32nd of its container's weights may stay whole: sharding it saves next to nothing."""

_LINEAR = ("colwise", "rowwise", "packed_colwise", "colwise_gather_output", "rowwise_split_input")

_STYLES: Mapping[Kind, tuple[str, ...]] = {
    # In the order in which equal costs are settled.
    Kind.LINEAR: (*_LINEAR, "mla_kv_a_proj"),
    Kind.CONV1D: _LINEAR,
    Kind.NORM: ("replicated_with_grad_allreduce",),
    Kind.OTHER: ("moe_tp_experts", "local_params"),
    Kind.EMBEDDING: ("embedding_rowwise", "embedding_colwise"),
}


@record
class Cost:
    """The cost of rules: what ranks do and keep whole, what each sends, and how unusual the rules are."""

    attentions: int = 0
    """Attentions that every rank computes all of."""
    whole: int = 0
    """Elements of matrices that every rank has all of."""
    sent: int = 0
    """Bytes over the tensor-parallel ranks in forward and backward, for 1,024 elements of each feature."""
    rank: int = 0

    @property
    def sent_per_token(self) -> int:
        """Elements that a rank sends for each token."""
        return self.sent // _SCALE

    @property
    def key(self) -> tuple[int, ...]:
        return self.attentions, self.whole, self.sent, self.rank

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(sum, zip(self.key, other.key, strict=True)))


@record
class Choice:
    """A style of one module with its cost; no action leaves the module without a rule."""

    action: StyleAction | None
    cost: Cost
    is_norm: bool = False

    @property
    def takes(self) -> Placement:
        """The layout of its input; without a rule, modules compute on whole values."""
        return normal(use(self.action.style, self.action.boundary).input) if self.action else Replicate()

    @property
    def gives(self) -> tuple[Placement, bool]:
        """The layout of its output, and whether heads that are shards may meet it."""
        if self.action is None:
            return Replicate(), False
        return normal(use(self.action.style, self.action.boundary).output), self.action.style.meets_heads


def choices(
    module: Module,
    *,
    tp: int,
    small: int,
    is_head: bool,
    is_prepared: bool,
    is_behind_heads: bool,
    held: tuple[int, ...] | None,
    replicates_kv: bool,
) -> tuple[Choice, ...]:
    """Every choice for a module, the cheapest first.

    Matrices of fewer than `small` elements cost nothing where they stay whole. If `is_prepared`, a container
    sums the gradient of the module's input. Only shards of its input tell a module behind an attention that
    the heads are shared. `held` are the widths of the projections that an attention's layer holds.
    With `replicates_kv` it projects to fewer key/value heads than ranks.
    """
    attentions = 1 if is_behind_heads else 0
    is_norm = module.kind is Kind.NORM
    choices = [Choice(None, Cost(attentions, _elements(module, small)), is_norm)]
    for rank, action in enumerate(_actions(module, is_head, held, replicates_kv), start=1):
        style = action.style
        whole = 0 if style.parameters or style.placed_by_model else _elements(module, small)
        apart = 0 if normal(use(style, action.boundary).input) == FEATURES else attentions
        sent = _sent(module, action, tp=tp, prepared=is_prepared)
        choices.append(Choice(action, Cost(apart, whole, sent, rank), is_norm))
    return tuple(sorted(choices, key=lambda choice: choice.cost.key))


def small_elements(modules: list[Module]) -> int:
    """The size below which the matrices of a container count as small."""
    return max((_elements(module, 0) for module in modules), default=0) // _SMALL


def _actions(
    module: Module, is_head: bool, held: tuple[int, ...] | None, replicates_kv: bool
) -> Iterator[StyleAction]:
    for name in _STYLES.get(module.kind, ()):
        boundary = Boundary()
        if is_head and name == "colwise":
            # The loss takes sharded logits.
            boundary = Boundary(output=FEATURES)
        elif held and name == PACKED_COLWISE.name:
            boundary = packing_options(held)
        yield StyleAction(BY_NAME[name], boundary)
    if replicates_kv:
        yield StyleAction(REPLICATED_KV, Boundary())


def _elements(module: Module, small: int) -> int:
    """Elements of a module's matrices that count."""
    sizes = (parameter.num_elements for parameter in module.parameters if len(parameter.shape) > 1)
    return sum(size for size in sizes if size >= small)


def _sent(module: Module, action: StyleAction, *, tp: int, prepared: bool) -> int:
    at_edges = edges(action.style, use(action.style, action.boundary), is_prepared=prepared)
    return sum(sent_at(edge, _width(module, edge), tp=tp) for edge in at_edges)


def sent_at(edge: Edge, width: int, *, tp: int) -> int:
    """Return the bytes that a rank sends for a value of so many features at an edge, forward and backward."""
    total = 0
    for transfer in (edge.forward, edge.backward):
        if transfer.sends:
            kind = CollectiveKind(transfer.value)
            gathers = kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL)
            num_bytes = -(-width * _SCALE // tp) if gathers else width * _SCALE
            total += Collective((MeshDim.TP,), tp, kind, "tp.shard", 1, num_bytes).sent_bytes
    return total


def _width(module: Module, edge: Edge) -> int:
    """Features of the value at an edge."""
    out_of, into = _matrix(module)
    if module.kind is Kind.EMBEDDING:
        return into
    return into if edge.at is At.INPUT else out_of


def width_of_input(module: Module) -> int:
    """Features of the value that a module with a matrix reads."""
    return _matrix(module)[1]


def _matrix(module: Module) -> tuple[int, int]:
    """The last two dimensions of a module's first matrix, as [out, in]."""
    shape = next((parameter.shape for parameter in module.parameters if len(parameter.shape) > 1), (0, 0))
    first, last = shape[-2:]
    return (last, first) if module.kind is Kind.CONV1D else (first, last)
