"""Data on the device: this rank's samples, and this rank's positions in them."""

from __future__ import annotations

import time

import numpy as np
import torch

from planc.graph.ops import NextBatch, OpenData, ShardContext
from planc.runtime.backends.torch.attention.sharding import shard
from planc.runtime.backends.torch.session import LocalBatch, Session
from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.open import open_data as open_packed
from planc.runtime.data.sources import JsonLinesSource, PythonStdlibSource, Source, TextSource
from planc.runtime.data.spec import DataSpec
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position

IGNORED_LABEL = -100


def open_data(session: Session, op: OpenData, position: Position) -> None:
    """Every rank reads and packs the same text; the order decides which samples are its own."""
    spec = DataSpec(
        source=_source(op),
        tokenizer=op.tokenizer,
        sequence_length=op.sequence_length,
        shuffle_seed=op.shuffle_seed,
        end_of_document=op.end_of_document,
    )
    try:
        data = open_packed(spec, base=session.paths.base, model_vocab_size=op.vocab_size)
        source = BatchSource(
            data.dataset, data.order, op.global_batch, op.micro_batch, session.dp_size, session.dp_rank
        )
    except DataError as error:
        raise RunError(error.message, help=error.help) from error
    session.data_fingerprint = data.fingerprint
    session._loader = BatchLoader(source)
    session.observer.noted(
        f"data: {data.dataset.num_documents:,} documents, {data.dataset.num_tokens:,} tokens, "
        f"{data.dataset.num_sequences:,} sequences; {data.dataset.num_dropped_tokens} tokens left over"
    )


def _source(op: OpenData) -> Source:
    match op.source:
        case "text":
            return TextSource(op.patterns)
        case "jsonl":
            return JsonLinesSource(op.patterns, op.field)
        case "python_stdlib":
            return PythonStdlibSource()
        case unknown:
            raise AssertionError(f"no source {unknown}")


def next_batch(session: Session, op: NextBatch, position: Position) -> None:
    """Takes the step's micro-batches, and counts the tokens that the loss will be divided by."""
    session.step_started = time.perf_counter()
    session.batch = session.loader.next_step()
    local = sum(int(np.count_nonzero(batch.labels != IGNORED_LABEL)) for batch in session.batch)
    count = torch.tensor(local, dtype=torch.int64, device=session.device)
    session.batch_tokens = int(session.sum_over(count, op.count_over))
    session.step_loss = torch.zeros((), dtype=torch.float64, device=session.device)


def shard_context(session: Session, op: ShardContext, position: Position) -> None:
    """One micro-batch on the device, each registered buffer reduced to this rank's positions."""
    batch = session.batch[position.micro_step]
    tensors = {
        "input_ids": torch.from_numpy(batch.inputs),
        "labels": torch.from_numpy(batch.labels),
        "position_ids": torch.arange(batch.inputs.shape[1]).expand(batch.inputs.shape),
    }
    for mesh_dim in op.over:
        for name, tensor_dim in op.buffers:
            tensors[name] = shard(
                tensors[name],
                tensor_dim=tensor_dim,
                parts=session.graph.size(mesh_dim),
                index=session.coordinate(mesh_dim),
                balance=op.balance,  # type: ignore[arg-type]
            )
    session.local_batch = LocalBatch(**{name: tensor.to(session.device) for name, tensor in tensors.items()})
