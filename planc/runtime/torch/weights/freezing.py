"""Parameters that no step changes, and the proof that every op of the setup leaves them so."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from planc.graph.graph import Graph
from planc.graph.op import Op, Resource
from planc.graph.ops import OPS, AttachAdapters, BuildModel, FreezeParameters
from planc.runtime.errors import RunError
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.fit import listed

PLACING = frozenset(
    kind
    for kind in OPS
    if Resource.MODEL in kind.touches.writes and not issubclass(kind, BuildModel | AttachAdapters)
)
"""The ops that change the model's modules or parameters once it has them all."""


def freeze_parameters(run: Run, op: FreezeParameters, model: nn.Module) -> None:
    """Exclude the op's parameters from autograd. Ops that shard them keep `requires_grad`."""
    for name in op.parameters:
        model.get_parameter(name).requires_grad_(False)


def require_frozen(graph: Graph, op: Op, model: nn.Module) -> None:
    """RunError unless each parameter requires a gradient, after the op, if the graph trains it.

    A parameter that replaces a frozen one is trained unless someone says otherwise: it would change,
    and no loss would show it.
    """
    frozen = frozenset(graph.frozen)
    differing = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad is (name in frozen)
    ]
    if differing:
        raise RunError(_message(op, differing, is_thawed=differing[0] in frozen), help=_HELP)


def _message(op: Op, names: Sequence[str], *, is_thawed: bool) -> str:
    change = "trained, and the graph freezes" if is_thawed else "frozen, and the graph trains"
    return f"after {op.name}, {listed(names, most=3)} would be {change} {'them' if len(names) > 1 else 'it'}"


_HELP = "compile the plan again with this version of planc, or report a bug"
