"""The types of activations and gradients over tp, and what a style makes of them: a module's signature.

A type says how a value lies over the ranks of a mesh dim, and with it how its gradient does:

| value     | gradient  | meaning                                                                    |
|-----------|-----------|----------------------------------------------------------------------------|
| Replicate | Replicate | all ranks compute the same with it, and each works out the whole gradient   |
| Replicate | Partial   | ranks compute different things with it: the gradient is to be summed, once  |
| Shard(d)  | Shard(d)  | each rank has its own part of both                                          |
| Partial   | Replicate | a sum that is still to be made                                              |

Between modules, planc's styles leave the first and the third kind alone: they sum what is partial before
it leaves, forwards and backwards, and `Partial()` is no word of the language. So a plan is well typed when
values that meet are of one type, and when every parameter that stays whole among parts is one whose gradient
torch knows to be partial. Over dp and cp all activations are shards of the data, all parameters `Replicate`
with `Partial` gradients: `gradients_unsummed` asks that each mesh dim sums them, `missing_buffers` that ids,
labels and positions are divided alike.

Meta's `spmd-types` (0.3, BSD) has the same four types (invariant, replicate, varying, partial), and was tried
before this was written: under a fake process group it types torch's own tensor-parallel styles, and refuses a
norm that is left out. It does so while a model runs under torch; a check has no torch, a quarter of a second,
and lines of a plan to point at. What it sees and names and shapes cannot show, single tensor operations
between modules, is for the rehearsal, which runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from planc.inventory.schema import Module
from planc.plan.bind import Assignment
from planc.record import record
from planc.vocab import Partial, Placement, Replicate, Shard

WHOLE = Replicate()
BATCH = Shard(0)
SEQUENCE = Shard(1)
FEATURES = Shard(-1)

NUM_DIMS = 3
"""Of activations between modules: [batch, sequence, features]."""


class GradientFault(StrEnum):
    """What is wrong with the gradient of a parameter that stays whole."""

    NEVER_SUMMED = "never-summed"
    SUMMED_AGAIN = "summed-again"
    """Every rank has all of it, and the sum over the ranks is a multiple."""


@record
class Signature:
    """How a module takes its input, what it computes on, and how its output leaves; None: as it came.

    `parameters` are those that are divided. The others stay whole, and torch sums their gradients where
    `is_typed` tells it that they meet parts.
    """

    takes: Placement
    computes_on: Placement
    gives: Placement | None
    parameters: Mapping[str, Placement]
    is_typed: bool
    meets_heads: bool = False
    """Whether what it gives may stand beside divided heads."""

    @property
    def sums_whole(self) -> bool:
        """Whether it is there to sum the gradients of parameters that are all whole."""
        return self.is_typed and not self.parameters


PLAIN = Signature(WHOLE, WHOLE, None, {}, is_typed=False)
"""Of a module without a style: it computes on whole values."""


def signature(assignment: Assignment) -> Signature:
    """What a style makes of its module."""
    style, use, placed = assignment.style, assignment.use, assignment.parameters
    takes, computes_on = normal(use.input), normal(use.computes_on)
    if style.reduces_parameter_gradients:
        return Signature(takes, computes_on, None, {}, is_typed=True)
    # What an attention with parameters of its own gives is what its last projection does.
    gives = None if style.name == "local_params" else normal(use.output)
    return Signature(takes, computes_on, gives, placed, bool(placed), style.meets_heads)


def normal(placement: Placement) -> Placement:
    """The layout that a placement of [batch, sequence, features] means, by its usual name.

    After the view to heads, `Shard(2)` is whole heads, which are the same ranks' features.
    """
    if isinstance(placement, Shard) and -NUM_DIMS <= placement.tensor_dim < NUM_DIMS:
        return (BATCH, SEQUENCE, FEATURES)[placement.tensor_dim % NUM_DIMS]
    return placement


def gradient_of_whole(computed_on: Placement) -> Placement:
    """How the gradient of a parameter that is whole on every rank lies, by what it is computed from."""
    return Partial() if isinstance(computed_on, Shard) else WHOLE


def gradient_fault(module: Module, using: Signature, *, arriving: Placement) -> GradientFault | None:
    """What becomes of the gradients of a module's whole parameters when its input arrives like this.

    torch believes the signature: it sums what it takes for a part, and nothing else.
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
