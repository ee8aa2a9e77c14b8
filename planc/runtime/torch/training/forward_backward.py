"""Forward, loss and backward."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from planc.graph.ops import Backward, ComputeLoss, Forward
from planc.modeling.initialization import derived_seed
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.interpreter import Position
from planc.runtime.torch.session import Session

_WIDE = (torch.float32, torch.float64)


def forward(session: Session, op: Forward, position: Position) -> None:
    """Logits [micro_batch, local sequence, vocabulary or this rank's part of it].

    The random state depends only on seed, step and data-parallel rank: equal over tp, different over dp,
    and the same after a resume.
    """
    assert session.local_batch is not None
    _seed(
        derived_seed(session.seed, "step", position.step, position.micro_step, session.dp_rank),
        device=session.device,
    )
    session.logits = session.model(
        input_ids=session.local_batch.input_ids,
        position_ids=session.local_batch.position_ids,
        use_cache=False,
    ).logits


def _seed(seed: int, *, device: torch.device) -> None:
    """Set the random state of the host and of the device.

    `torch.manual_seed` does so for all kinds of device: for absent ones it keeps a stack trace each time,
    which takes longer than the whole interpretation of a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def compute_loss(session: Session, op: ComputeLoss, position: Position) -> None:
    """Local sum of cross entropies over the step's global token count: right for every mesh and packing.

    Zero if no token of the step is a label, and so are its gradients.
    """
    assert session.logits is not None and session.local_batch is not None
    logits = session.logits if session.logits.dtype in _WIDE else session.logits.float()
    labels = session.local_batch.labels.flatten()
    session.is_vocab_parallel = bool(op.vocab_over)
    if op.vocab_over:
        (mesh_dim,) = op.vocab_over
        shape = torch.Size((*logits.shape[:-1], session.vocab_size))
        stride = (shape[1] * shape[2], shape[2], 1)
        logits = DTensor.from_local(
            logits, session.submesh(mesh_dim), (Shard(-1),), run_check=False, shape=shape, stride=stride
        )
    with _loss_context(session):
        total = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum", ignore_index=IGNORED_LABEL)
    session.loss = total / max(session.batch_tokens, 1)
    session.logits = None
    local = session.loss.to_local() if isinstance(session.loss, DTensor) else session.loss
    assert session.step_loss is not None
    session.step_loss += local.detach()
    session.guard.micro_losses.append(local.detach())


def backward(session: Session, op: Backward, position: Position) -> None:
    """Compute gradients; sharded units reduce them once, on the last micro step."""
    if isinstance(session.model, FSDPModule):
        session.model.set_requires_gradient_sync(position.is_last_micro_step)
    assert session.loss is not None
    with _loss_context(session):
        session.loss.backward()  # type: ignore[no-untyped-call]
    session.loss = None


def _loss_context(session: Session) -> contextlib.AbstractContextManager[object]:
    # loss_parallel replaces the cross entropy of DTensors, forward and backward, while it is entered.
    return loss_parallel() if session.is_vocab_parallel else contextlib.nullcontext()
