"""Batches on the device: this rank's samples, and this rank's positions in them."""

from __future__ import annotations

import contextlib
import time
from functools import partial

import numpy as np
import torch
from torch import Tensor

from planc.graph.ops import ExportHf, Mixture, NextBatch, OpenData, OpenSource, ShardContext
from planc.graph.sources import name_of, training_data
from planc.hub.names import model_folder
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.errors import DataError, DataStorageError
from planc.runtime.data.exported_tokenizer import exported_tokenizer
from planc.runtime.data.loader import BatchLoader, BatchSource, MicroBatch
from planc.runtime.data.open import MixedData, mixed, open_in_memory, open_prepared
from planc.runtime.data.open import OpenData as OpenedData
from planc.runtime.data.ops import data_spec
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.summary import summary_of
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.data.tokenizers import TokenizerFiles, share_cpus
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.numerics import MAX_SEQUENCES
from planc.runtime.torch.agreement.prepared_data import FailedElsewhereError, require_prepared
from planc.runtime.torch.attention.documents import document_starts
from planc.runtime.torch.attention.sharding import shard
from planc.runtime.torch.reporting.by_source import SourceSums
from planc.runtime.torch.session import LocalBatch, Session
from planc.tables import plural


def open_data(session: Session, op: OpenData, position: Position) -> None:
    """Every rank has the same data; the order decides which samples are its own."""
    session._data_op = op
    if isinstance(op.source, Mixture):
        data = _mixed(session, op)
    else:
        spec = data_spec(op, training=op)
        data = opened(session, spec, vocab_size=op.vocab_size, label="training")
    if data is None:
        return
    _require_counted(session, op, data.dataset)
    session.data_fingerprint = data.fingerprint
    if not data.tokenizer.is_bytes:
        # On every rank, so all of them end if it can't be exported.
        files = _exported(session, data.tokenizer)
        session.tokenizer_files = files if session.launch.rank == 0 else None
    session._loader = BatchLoader(
        BatchSource(
            data.dataset, data.order, op.global_batch, op.micro_batch, session.dp_size, session.dp_rank
        ),
        prefetch=op.prefetch,
        # As long as other ranks wait for this one.
        patience_seconds=session.graph.init_mesh.timeout_seconds,
    )
    session.observer.noted(f"data: {summary_of(data.dataset)}")
    if data.marks:
        session.observer.noted(f"data: {data.marks}")
    if op.global_batch > data.dataset.num_sequences:
        session.observer.noted(
            f"data: a step takes {plural(op.global_batch, 'sequence')}, but the data has only "
            f"{data.dataset.num_sequences:_}: some repeat within a step"
        )


def _exported(session: Session, tokenizer: TokenizerFiles) -> Files:
    """The tokenizer's files as an export has them. RunError if transformers would load another one there."""
    export = next((op for op in session.graph.save if isinstance(op, ExportHf)), None)
    if export is None:
        return tokenizer.files
    try:
        config = (model_folder(export.path, base=session.paths.base) / "config.json").read_bytes()
        return exported_tokenizer(tokenizer, config=config)
    except DataError as error:
        raise RunError(error.message, help=error.help) from error


def _require_counted(session: Session, op: OpenData, dataset: Dataset) -> None:
    """Print how epochs became steps. RunError if the data is not what they were computed from."""
    if not op.epochs:
        return
    if op.num_sequences != dataset.num_sequences:
        raise RunError(
            f"the steps were computed for {op.num_sequences} sequences, and the data has "
            f"{dataset.num_sequences}",
            help="compile the plan again: its data has changed since",
        )
    steps, times = plural(session.graph.num_steps, "step"), plural_epochs(op.epochs)
    session.observer.noted(
        f"data: {times} of {plural(dataset.num_sequences, 'sequence')} take {steps} of {op.global_batch}"
    )


def plural_epochs(epochs: str) -> str:
    """`1 epoch`, `5/2 epochs`."""
    return f"{epochs} epoch{'' if epochs == '1' else 's'}"


def open_source(session: Session, op: OpenSource, position: Position) -> None:
    """Read one source with the settings of the training data, which joins it with the others."""
    training = training_data(session.graph)
    spec = data_spec(op, training=training)
    data = opened(session, spec, vocab_size=training.vocab_size, label=name_of(op))
    session.mixed.append(None if data is None else MixedData(op.label, op.weight, data))


def _mixed(session: Session, op: OpenData) -> OpenedData | None:
    """The sources as one order; None if another rank can't use its own."""
    found = [one for one in session.mixed if one is not None]
    return mixed(found, seed=op.shuffle_seed) if len(found) == len(session.mixed) else None


def opened(session: Session, spec: DataSpec, *, vocab_size: int, label: str) -> OpenedData | None:
    """The data of a spec: read and packed by every rank if it is small, else prepared once a machine.

    RunError if it can't be used; None if another rank can't use its own, which that rank reports.
    """
    base, reads = session.paths.base, session.reads
    try:
        make = partial(want, spec, base=base, reads=reads)
        wanted, prepared = require_prepared(session, make, label=label)
        if prepared is not None:
            data = open_prepared(prepared, wanted, model_vocab_size=vocab_size, reads=reads)
        else:
            share_cpus(session.launch.local_world_size or session.launch.world_size)
            data = open_in_memory(wanted, model_vocab_size=vocab_size, reads=reads)
        for message in data.left_out:
            session.observer.noted(f"data: left out of the {label} data: {message}")
        return data
    except FailedElsewhereError:
        return None
    except DataError as error:
        code = ExitCode.STORAGE if isinstance(error, DataStorageError) else ExitCode.INPUT
        raise RunError(error.message, code=code, help=error.help) from error


def next_batch(session: Session, op: NextBatch, position: Position) -> None:
    """Take the step's micro-batches, and count the tokens that normalize the loss, on the device."""
    session.step_started = time.perf_counter()
    if session.clock is not None:
        session.clock.begin_step()
    with session.own_time.reading() if session.own_time is not None else contextlib.nullcontext():
        session.batch = _read(session, position)
    session.evaluations, session.pending_evaluations = [], ()
    session.guard.micro_losses = []
    number = sum(int(np.count_nonzero(batch.labels != IGNORED_LABEL)) for batch in session.batch)
    if op.is_every_token:
        if number != sum(batch.labels.size for batch in session.batch):
            raise RunError("a batch has tokens without labels, and its graph requires one for every token")
        number *= session.dp_size
    # Filled on the device: a number copied to it would wait for it.
    count = torch.full((), number, dtype=torch.int64, device=session.device)
    session.num_labels = session.sum_over(count, op.count_over)
    session.step_loss = torch.zeros((), dtype=torch.float64, device=session.device)
    session.source_sums = SourceSums.of(session)
    session.squared_norm = torch.zeros((), dtype=torch.float64, device=session.device)


def _read(session: Session, position: Position) -> list[MicroBatch]:
    """This rank's micro-batches. RunError with the storage code if they can't be read."""
    try:
        return session.loader.next_step()
    except STOPS:
        raise
    except BaseException as error:
        # Of any kind: the reader may be a library, and the sequences help with any error.
        ids = session.loader.next_ids()
        more = f" and {len(ids) - MAX_SEQUENCES} more" if len(ids) > MAX_SEQUENCES else ""
        shown = f"{', '.join(map(str, ids[:MAX_SEQUENCES]))}{more}"
        what = error.message if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise RunError(
            f"cannot read the batch of step {position.step} on rank {session.launch.rank} "
            f"(sequences {shown}): {what}",
            code=ExitCode.STORAGE,
            help=error.help if isinstance(error, DataError) else None,
            is_shared=False,
        ) from error


def shard_context(session: Session, op: ShardContext, position: Position) -> None:
    """Move one micro-batch to the device, with each registered buffer reduced to this rank's positions."""
    batch = session.batch[position.micro_step]
    tensors = {
        "input_ids": torch.from_numpy(batch.inputs),
        "labels": torch.from_numpy(batch.labels),
        "position_ids": torch.from_numpy(batch.position_ids),
    }
    if batch.sources is not None:
        tensors["sources"] = torch.from_numpy(batch.sources)
    if session.documents is not None:
        # Every rank of a sequence keeps all starts: its queries may see keys on another rank.
        session.documents.begin(batch.position_ids, on_device=session.to_device(tensors["position_ids"]))
    if op.first_position is not None or op.uncounted_token is not None:
        tensors["position_ids"] = model_positions(
            tensors["input_ids"],
            places=tensors["position_ids"],
            first=op.first_position or 0,
            uncounted_token=op.uncounted_token,
        )
    for mesh_dim in op.over:
        for name, tensor_dim in op.buffers:
            tensors[name] = shard(
                tensors[name],
                tensor_dim=tensor_dim,
                parts=session.graph.size(mesh_dim),
                index=session.coordinate(mesh_dim),
                balance=op.balance,  # type: ignore[arg-type]
            )
    session.local_batch = LocalBatch(**{name: session.to_device(tensor) for name, tensor in tensors.items()})


def model_positions(input_ids: Tensor, *, places: Tensor, first: int, uncounted_token: int | None) -> Tensor:
    """[B, S]: the positions that the model itself gives each document alone, of whole sequences.

    `places` [B, S] restart at 0 with every document.
    """
    if uncounted_token is None:
        return places + first
    is_counted = (input_ids != uncounted_token).long()
    counted = is_counted.cumsum(1)
    starts = document_starts(places)
    before = (counted - is_counted).gather(1, starts)
    return (counted - before) * is_counted + first - 1
