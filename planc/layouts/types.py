"""The types of activations and gradients over tp, and the signatures that styles give modules.

A type is the placement of a value on the ranks of a mesh dim, with the placement of its gradient:

| value     | gradient  | meaning                                                                    |
|-----------|-----------|----------------------------------------------------------------------------|
| Replicate | Replicate | all ranks compute the same with it, and each gets the full gradient         |
| Replicate | Partial   | ranks compute different things with it: the gradient must be summed once    |
| Shard(d)  | Shard(d)  | each rank has its own shard of both                                         |
| Partial   | Replicate | a sum that is still pending                                                 |

Between modules, planc's styles use only the first and the third kind: they reduce partial values before
these leave a module, forward and backward, and plans can't write `Partial()`. So a plan is well typed when
combined values have one type, and when every replicated parameter among shards is one whose gradient
torch knows to be partial. Over dp and cp all activations are shards of the data, all parameters `Replicate`
with `Partial` gradients: `gradients_unsummed` asks that each mesh dim sums them, `buffer_dim` that ids,
labels and positions are sharded the same way.

Meta's `spmd-types` (0.3, BSD) has the same four types (invariant, replicate, varying, partial) and was tested
before this was written: under a fake process group it types torch's own tensor-parallel styles, and rejects a
norm without a style. It does so while a model runs under torch; a check has no torch, a quarter of a second,
and must point at lines of a plan. What only it can see, single tensor operations
between modules, is left to the rehearsal, which runs the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from planc.inventory.schema import Module
from planc.plan.bind import Assignment, BoundPlan
from planc.record import record
from planc.styles.edges import SEQUENCE, normal
from planc.vocab import Partial, Placement, Replicate, Shard

WHOLE = Replicate()


class GradientFault(StrEnum):
    """A fault in the gradient of a replicated parameter."""

    NEVER_SUMMED = "never-summed"
    SUMMED_AGAIN = "summed-again"
    """Every rank has the full gradient, and the sum over ranks is a multiple of it."""


@record
class Signature:
    """The layouts of a module's input, computation and output; None for the layout of the input.

    `parameters` are the sharded ones. The others are replicated, and torch sums their gradients if
    `is_typed` declares that they are combined with shards.
    """

    takes: Placement
    computes_on: Placement
    gives: Placement | None
    parameters: Mapping[str, Placement]
    is_typed: bool
    meets_heads: bool = False
    """Whether its output may be combined with sharded heads."""

    @property
    def sums_whole(self) -> bool:
        """Whether it sums the gradients of parameters that are all replicated."""
        return self.is_typed and not self.parameters


PLAIN = Signature(WHOLE, WHOLE, None, {}, is_typed=False)
"""The signature of a module without a style: it computes on whole values."""


def signature(assignment: Assignment) -> Signature:
    """The signature that a style gives its module."""
    style, use, placed = assignment.style, assignment.use, assignment.parameters
    takes, computes_on = normal(use.input), normal(use.computes_on)
    if style.reduces_parameter_gradients and not style.shares_heads:
        return Signature(takes, computes_on, None, {}, is_typed=True)
    # The output of an attention with parameters of its own is the output of its last projection.
    gives = None if style.name == "local_params" else normal(use.output)
    return Signature(takes, computes_on, gives, placed, bool(placed), style.meets_heads)


def signatures(bound: BoundPlan) -> dict[str, Signature]:
    """The signatures of modules with a style, and of experts that take shards of sequences.

    Modules of one rule, or of one use by `auto`, share theirs.
    """
    made: dict[object, Signature] = {}
    known = {}
    for fqn, assignment in bound.styles.items():
        # The layouts of parameters play no part, only which of them are sharded.
        key: object = id(assignment.rule) if assignment.rule else assignment.use
        if assignment.style.placed_by_model:
            key = fqn
        if key not in made:
            made[key] = signature(assignment)
        known[fqn] = made[key]
    return known | {module.fqn: _on_shards(module) for module in takes_shards(bound)}


def takes_shards(bound: BoundPlan) -> Iterator[Module]:
    """The modules of experts to which ranks of tp send their own tokens."""
    plan = bound.plan
    spec = plan.expert_parallel if plan.tensor_parallel is not None else None
    modules = map(bound.inventory.get, bound.experts if spec is not None and spec.on_shards else ())
    return (module for module in modules if module is not None)


def _on_shards(experts: Module) -> Signature:
    """Each rank has its own experts, which have the gradients of all tokens that they get."""
    own = {parameter.name: Shard(0) for parameter in experts.parameters}
    return Signature(SEQUENCE, SEQUENCE, SEQUENCE, own, is_typed=True)


def gradient_of_whole(computed_on: Placement) -> Placement:
    """The placement of a replicated parameter's gradient, by the value that it is computed from."""
    return Partial() if isinstance(computed_on, Shard) else WHOLE


def gradient_fault(module: Module, using: Signature, *, arriving: Placement) -> GradientFault | None:
    """The fault in the gradients of a module's replicated parameters if its input has this layout.

    torch trusts the signature: it sums the gradients of declared shards, and nothing else.
    """
    if all(parameter.name in using.parameters for parameter in module.parameters):
        return None
    is_moved = using.takes != using.computes_on
    computed_on = using.computes_on if is_moved or arriving == using.takes else arriving
    is_partial = gradient_of_whole(computed_on) == Partial()
    is_summed = using.is_typed and gradient_of_whole(using.computes_on) == Partial()
    if is_partial == is_summed or using.parameters:
        return None
    return GradientFault.NEVER_SUMMED if is_partial else GradientFault.SUMMED_AGAIN
