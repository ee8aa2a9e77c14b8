"""The dropout of a run: its modules, and the step and samples of every forward."""

from __future__ import annotations

from typing import Any

from torch import nn

from planc.graph.graph import Graph
from planc.graph.ops import AttachDropout, OpenData, ShardContext
from planc.runtime.data.order import rank_positions
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.sharding import local_positions
from planc.runtime.torch.dropout.masked_modules import STALE, Calls, mask_calls, mask_dropout
from planc.runtime.torch.dropout.masking import AttachedDraw, Masking
from planc.runtime.torch.dropout.positions import ALONE
from planc.runtime.torch.parallel.transfers import ranks_of
from planc.runtime.torch.session import Session


def attach_dropout(session: Session, op: AttachDropout, position: Position) -> None:
    """Let modules draw their masks by global position."""
    if session.masking is None:
        session.masking = _masking(session)
    ranks = ranks_of(session.submesh(op.over[0]).get_group()) if op.over else ALONE
    for fqn in op.modules:
        draws = tuple(
            AttachedDraw(draw, session.masking, ranks, (op.seed, fqn, number))
            for number, draw in enumerate(op.draws)
        )
        session.masking.draws.extend(draws)
        module, calls = session.model.get_submodule(fqn), Calls(fqn, draws)
        if type(module) is not nn.Dropout:
            mask_calls(module, calls)
            continue
        if module.p != op.draws[0].probability:
            message = f"`{fqn}` has probability {module.p}, not {op.draws[0].probability}"
            raise RunError(message, help=STALE)
        parent = session.model.get_submodule(fqn.rpartition(".")[0])
        mask_dropout(module, calls, caller=parent if len(draws) > 1 else None)


def begin_dropout(session: Session, position: Position) -> None:
    """Tell every draw the step and the samples of the next forward in training."""
    if session.masking is None or not session.model.training:
        return
    data = _data(session.graph)
    samples = rank_positions(
        0,
        global_batch=data.global_batch,
        micro_batch=data.micro_batch,
        dp_size=session.dp_size,
        dp_rank=session.dp_rank,
        micro_step=position.micro_step,
    )
    session.masking.begin(step=position.step, samples=samples)


def _masking(session: Session) -> Masking:
    """The positions in every sequence that this rank holds."""
    (context,) = (op for op in session.graph.ops() if isinstance(op, ShardContext))
    parts, index = 1, 0
    for mesh_dim in context.over:
        parts, index = session.graph.size(mesh_dim), session.coordinate(mesh_dim)
    balance: Any = context.balance
    length = _data(session.graph).sequence_length
    positions = local_positions(length, parts=parts, index=index, balance=balance, device=session.device)
    return Masking(positions, length, has_queue=session.has_queue)


def _data(graph: Graph) -> OpenData:
    (found,) = (op for op in graph.setup if isinstance(op, OpenData))
    return found
