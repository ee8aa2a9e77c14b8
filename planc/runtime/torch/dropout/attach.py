"""The dropout of a run: its modules, and the step and samples of every forward."""

from __future__ import annotations

from typing import Any

from torch import nn

from planc.graph.ops import AttachDropout, ShardContext
from planc.graph.sources import training_data
from planc.runtime.data.order import rank_positions
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import STALE
from planc.runtime.torch.attention.sharding import local_positions
from planc.runtime.torch.dropout.masked_modules import Calls, mask_calls, mask_dropout
from planc.runtime.torch.dropout.masking import AttachedDraw, Masking
from planc.runtime.torch.dropout.positions import ALONE
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.transfers import ranks_of
from planc.runtime.torch.run import Run
from planc.vocab import parent_of


def attach_dropout(
    run: Run, op: AttachDropout, mesh: Mesh, model: nn.Module, masking: Masking | None
) -> Masking:
    """Let modules draw their masks by global position."""
    masking = masking or _masking(run)
    ranks = ranks_of(mesh.group(op.over[0])) if op.over else ALONE
    for fqn in op.modules:
        draws = tuple(
            AttachedDraw(draw, masking, ranks, (op.seed, fqn, number)) for number, draw in enumerate(op.draws)
        )
        masking.draws.extend(draws)
        module, calls = model.get_submodule(fqn), Calls(fqn, draws)
        if type(module) is not nn.Dropout:
            mask_calls(module, calls)
            continue
        if module.p != op.draws[0].probability:
            message = f"`{fqn}` has probability {module.p}, not {op.draws[0].probability}"
            raise RunError(message, help=STALE)
        parent = model.get_submodule(parent_of(fqn))
        mask_dropout(module, calls, caller=parent if len(draws) > 1 else None)
    return masking


def begin_dropout(masking: Masking, run: Run, at: Position) -> None:
    """Tell every draw the step and the samples of the next forward in training."""
    data = training_data(run.graph)
    samples = rank_positions(
        0,
        global_batch=data.global_batch,
        micro_batch=data.micro_batch,
        dp_size=run.dp_size,
        dp_rank=run.dp_rank,
        micro_step=at.micro_step,
    )
    masking.begin(step=at.step, samples=samples)


def _masking(run: Run) -> Masking:
    """The positions in every sequence that this rank holds."""
    (context,) = (op for op in run.graph.ops() if isinstance(op, ShardContext))
    parts, index = 1, 0
    for mesh_dim in context.over:
        parts, index = run.graph.size(mesh_dim), run.coordinate(mesh_dim)
    balance: Any = context.balance
    length = training_data(run.graph).sequence_length
    positions = local_positions(length, parts=parts, index=index, balance=balance, device=run.device)
    return Masking(positions, length, has_queue=run.has_queue)
