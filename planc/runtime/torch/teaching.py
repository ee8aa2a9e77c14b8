"""Store a teacher's log-probabilities at every position of a plan's data, outside of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from planc.graph import ops
from planc.graph.op import Op, Stage
from planc.graph.sources import training_data
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.loader import MicroBatch, micro_batch_of
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.files.best_effort import retried
from planc.runtime.interpreter import Position, execute
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Data, Logits, TokenCount, Weights
from planc.runtime.torch.training import stored_reference
from planc.runtime.torch.training.step_loss import StepLoss
from planc.runtime.torch.training.stored_teacher import Layout, is_stored, part_path, write_part


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a computation on one rank."""

    layout: Layout
    num_computed: int
    """Parts that all ranks have computed now; the others were there."""
    covered: float | None
    """The mean probability that this rank's stored tokens have, over positions with a label."""


def store_teacher(
    backend: TorchBackend, folder: Path, *, teacher: str, top_k: int, say: Callable[[str], None]
) -> Stored:
    """Compute the parts that are missing in `folder`, each on one rank. Every rank must call it.

    The graph is the teacher's own, on the data of the plan. RunError for parts of another teacher or other
    data, and for what can't be computed or written.
    """
    run = backend.run
    for op in run.graph.setup:
        if _is_needed(op):
            execute(backend, op, Position())
    data = backend.state[Data]
    dataset = data.loader.source.dataset
    layout = Layout(dataset.num_sequences, dataset.sequence_length, top_k)
    of_weights = stored_reference.origin_of(run, data.fingerprint, other=None)
    assert of_weights is not None, "a teacher is not of the plan's own code"
    origin = {**of_weights, "teacher": teacher, "top_k": str(top_k)}
    missing = _missing(run, folder, layout, origin)
    size, covered = run.launch.world_size, []
    for first in range(0, len(missing), size):
        # Shards of the model are on all ranks: those without a part of their own compute one again.
        own = missing[min(first + run.launch.rank, len(missing) - 1)]
        length = max(len(layout.part(number)) for number in missing[first : first + size])
        ids, log_probabilities, share = _computed(
            backend, dataset, layout.part(own), top_k=top_k, length=length
        )
        covered.append(share)
        if first + run.launch.rank < len(missing):
            _write(folder, own, ids, log_probabilities, origin)
        say(f"{min(first + size, len(missing))} of {len(missing)} parts")
    return Stored(layout, len(missing), sum(covered) / len(covered) if covered else None)


def _is_needed(op: Op) -> bool:
    is_data = isinstance(op, ops.OpenData | ops.OpenSource)
    return is_data or (op.stage < Stage.OPTIMIZER and not isinstance(op, ops.OpenLog | ops.LoadSchedule))


@agreed
def _missing(run: Run, folder: Path, layout: Layout, origin: Mapping[str, str]) -> list[int]:
    """The parts that are not there. RunError if one is of another origin."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        code = ExitCode.STORAGE
        raise RunError(f"cannot create {folder}: {error.strerror}", code=code, is_shared=False) from error
    missing = [part for part in range(layout.num_parts) if not is_stored(folder, part, layout, origin)]
    run.reads.add("file", "the parts that are not stored", " ".join(map(str, missing)) or "none")
    return missing


def _computed(
    backend: TorchBackend, dataset: Dataset, sequences: range, *, top_k: int, length: int
) -> tuple[Tensor, Tensor, float]:
    """Ids and log-probabilities [sequences, length, k] of a part, and the mean probability that they cover.

    Micro-batches have `length` sequences, as those of the longest part among all ranks.
    """
    size, last = training_data(backend.run.graph).micro_batch, dataset.num_sequences - 1
    ids, values, sums, count = [], [], 0.0, 0
    for start in range(sequences.start, sequences.start + length, size):
        # Past the end of the data, its last sequence again.
        places = np.minimum(np.arange(start, start + size, dtype=np.int64), last)
        batch = micro_batch_of(dataset, places)
        some, log_probabilities = _likeliest(backend, batch, top_k)
        is_label = torch.from_numpy(batch.labels != IGNORED_LABEL)
        sums += log_probabilities.double().exp().sum(-1)[is_label].sum().item()
        count += int(is_label.sum())
        ids.append(some)
        values.append(log_probabilities)
    kept = len(sequences)
    return torch.cat(ids)[:kept], torch.cat(values)[:kept], sums / max(1, count)


@torch.no_grad()
def _likeliest(backend: TorchBackend, batch: MicroBatch, top_k: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities [B, length, k] on the host, of the likeliest tokens, the first one first."""
    state, run = backend.state, backend.run
    count = torch.ones((), dtype=torch.int64, device=run.device)
    for record in (Batch([batch]), TokenCount(count), StepLoss.begin(run)):
        state.put(record)
    state[Weights].model.eval()
    body = next(op.body for op in run.graph.step if isinstance(op, ops.Accumulate))
    for op in body:
        if isinstance(op, ops.ShardContext | ops.Forward):
            execute(backend, op, Position())
    logits = state[Logits].values
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    values, ids = wide.topk(top_k, dim=-1)
    log_probabilities = values - wide.logsumexp(-1, keepdim=True)
    if not log_probabilities.isfinite().all():
        numbers = ", ".join(map(str, batch.sample_ids))
        raise RunError(
            f"the teacher's logits are NaN or inf in one of the sequences {numbers}",
            code=ExitCode.NUMERICS,
            help="use other weights, or another `dtype` in `model`",
            is_shared=False,
        )
    return ids.to("cpu", torch.int32), log_probabilities.to("cpu", torch.float32)


def _write(
    folder: Path, number: int, ids: Tensor, log_probabilities: Tensor, origin: Mapping[str, str]
) -> None:
    try:
        retried(lambda: write_part(folder, number, ids, log_probabilities, origin))
    except OSError as error:
        raise RunError(
            f"cannot write {part_path(folder, number)}: {error.strerror}",
            code=ExitCode.STORAGE,
            help="free space there, and run the command again: it continues",
            is_shared=False,
        ) from error
