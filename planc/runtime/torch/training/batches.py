"""Batches on the device: this rank's samples, and this rank's positions in them."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from planc.graph import ops
from planc.graph.sources import name_of, reads_pairs, training_data
from planc.hub.names import model_folder
from planc.modeling.decoder_inputs import decoder_inputs
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
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.agreement.prepared_data import FailedElsewhereError, require_prepared
from planc.runtime.torch.attention.documents import Documents, document_starts
from planc.runtime.torch.attention.sharding import shard
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Data, Evaluations, LocalBatch, Sources, TokenCount
from planc.runtime.torch.training.step_loss import StepLoss
from planc.tables import plural


@agreed
def open_data(run: Run, op: ops.OpenData, sources: Sources | None) -> Data | None:
    """Every rank has the same data; the order decides which samples are its own."""
    if isinstance(op.source, ops.Mixture):
        data = _mixed(sources or Sources(), op)
    else:
        spec = data_spec(op, training=op)
        data = opened(run, spec, vocab_size=op.vocab_size, label="training")
    if data is None:
        return None
    _require_counted(run, op, data.dataset)
    # On every rank, so all of them end if it can't be exported.
    files = None if data.tokenizer.is_bytes else _exported(run, data.tokenizer)
    loader = BatchLoader(
        BatchSource(
            *(data.dataset, data.order, op.global_batch, op.micro_batch, run.dp_size, run.dp_rank),
            masks=data.masks,
        ),
        prefetch=op.prefetch,
        # As long as other ranks wait for this one.
        patience_seconds=run.graph.init_mesh.timeout_seconds,
    )
    run.observer.noted(f"data: {summary_of(data.dataset)}")
    if data.marks:
        run.observer.noted(f"data: {data.marks}")
    if op.global_batch > data.dataset.num_sequences:
        run.observer.noted(
            f"data: a step takes {plural(op.global_batch, 'sequence')}, but the data has only "
            f"{data.dataset.num_sequences:_}: some repeat within a step"
        )
    return Data(op, loader, data.fingerprint, files if run.launch.rank == 0 else None)


def _exported(run: Run, tokenizer: TokenizerFiles) -> Files:
    """The tokenizer's files as an export has them. RunError if transformers would load another one there."""
    export = next((op for op in run.graph.save if isinstance(op, ops.ExportHf)), None)
    if export is None:
        return tokenizer.files
    try:
        config = (model_folder(export.path, base=run.paths.base) / "config.json").read_bytes()
        return exported_tokenizer(tokenizer, config=config)
    except DataError as error:
        raise RunError(error.message, help=error.help) from error


def _require_counted(run: Run, op: ops.OpenData, dataset: Dataset) -> None:
    """Print how epochs became steps. RunError if the data is not what they were computed from."""
    if not op.epochs:
        return
    if op.num_sequences != dataset.num_sequences:
        raise RunError(
            f"the steps were computed for {op.num_sequences} sequences, and the data has "
            f"{dataset.num_sequences}",
            help="compile the plan again: its data has changed since",
        )
    steps, times = plural(run.graph.num_steps, "step"), plural_epochs(op.epochs)
    run.observer.noted(
        f"data: {times} of {plural(dataset.num_sequences, 'sequence')} take {steps} of {op.global_batch}"
    )


def plural_epochs(epochs: str) -> str:
    """`1 epoch`, `5/2 epochs`."""
    return f"{epochs} epoch{'' if epochs == '1' else 's'}"


@agreed
def open_source(run: Run, op: ops.OpenSource, sources: Sources | None) -> Sources:
    """Read one source with the settings of the training data, which joins it with the others."""
    training = training_data(run.graph)
    spec = data_spec(op, training=training)
    data = opened(run, spec, vocab_size=training.vocab_size, label=name_of(op))
    found = None if data is None else MixedData(op.label, op.weight, data)
    return Sources((*(sources.opened if sources else ()), found))


def _mixed(sources: Sources, op: ops.OpenData) -> OpenedData | None:
    """The sources as one order; None if another rank can't use its own."""
    found = [one for one in sources.opened if one is not None]
    return mixed(found, seed=op.shuffle_seed) if len(found) == len(sources.opened) else None


def opened(run: Run, spec: DataSpec, *, vocab_size: int, label: str) -> OpenedData | None:
    """The data of a spec: read and packed by every rank if it is small, else prepared once a machine.

    RunError if it can't be used; None if another rank can't use its own, which that rank reports.
    """
    base, reads = run.paths.base, run.reads
    try:
        make = partial(want, spec, base=base, reads=reads, runs_extensions=run.runs_extensions)
        wanted, prepared = require_prepared(run, make, label=label)
        if prepared is not None:
            data = open_prepared(prepared, wanted, model_vocab_size=vocab_size, reads=reads)
        else:
            share_cpus(run.launch.local_world_size or run.launch.world_size)
            data = open_in_memory(wanted, model_vocab_size=vocab_size, reads=reads)
        for message in data.left_out:
            run.observer.noted(f"data: left out of the {label} data: {message}")
        return data
    except FailedElsewhereError:
        return None
    except DataError as error:
        code = ExitCode.STORAGE if isinstance(error, DataStorageError) else ExitCode.INPUT
        raise RunError(error.message, code=code, help=error.help) from error


def next_batch(
    run: Run, op: ops.NextBatch, at: Position, mesh: Mesh, data: Data
) -> tuple[Batch, TokenCount, StepLoss, Evaluations]:
    """Take the step's micro-batches, and count the tokens that normalize the loss, on the device."""
    began = time.perf_counter()
    batches = _read(run, data.loader, at)
    reading_ns = int((time.perf_counter() - began) * 1e9)
    number = sum(int(np.count_nonzero(batch.labels != IGNORED_LABEL)) for batch in batches)
    if op.is_every_token:
        if number != sum(batch.labels.size for batch in batches):
            raise RunError("a batch has tokens without labels, and its graph requires one for every token")
        number *= run.dp_size
    # Filled on the device: a number copied to it would wait for it.
    count = torch.full((), number, dtype=torch.int64, device=run.device)
    tokens = TokenCount(mesh.sum_over(count, op.count_over))
    return Batch(batches, began, reading_ns, data.teacher), tokens, StepLoss.begin(run), Evaluations()


def _read(run: Run, loader: BatchLoader, at: Position) -> list[MicroBatch]:
    """This rank's micro-batches. RunError with the storage code if they can't be read."""
    try:
        return loader.next_step()
    except STOPS:
        raise
    except BaseException as error:
        # Of any kind: the reader may be a library, and the sequences help with any error.
        ids = loader.next_ids()
        more = f" and {len(ids) - MAX_SEQUENCES} more" if len(ids) > MAX_SEQUENCES else ""
        shown = f"{', '.join(map(str, ids[:MAX_SEQUENCES]))}{more}"
        what = error.message if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise RunError(
            f"cannot read the batch of step {at.step} on rank {run.launch.rank} (sequences {shown}): {what}",
            code=ExitCode.STORAGE,
            help=error.help if isinstance(error, DataError) else None,
            is_shared=False,
        ) from error


def shard_context(
    run: Run, op: ops.ShardContext, at: Position, batch: Batch, documents: Documents | None
) -> LocalBatch:
    """Move one micro-batch to the device, with each registered buffer reduced to this rank's positions."""
    own = batch.micro_batches[at.micro_step]
    tensors = {
        "input_ids": torch.from_numpy(own.inputs),
        "labels": torch.from_numpy(own.labels),
        "position_ids": torch.from_numpy(own.position_ids),
    }
    if own.token_types is not None:
        tensors["token_types"] = torch.from_numpy(own.token_types)
    if own.sources is not None:
        tensors["sources"] = torch.from_numpy(own.sources)
    if reads_pairs(run.graph):
        tensors["sample_ids"] = torch.from_numpy(own.sample_ids)
    data = training_data(run.graph)
    if isinstance(data, ops.OpenMatchedData):
        tensors["lengths"] = torch.from_numpy(_before_padding(own).sum(1))
    if isinstance(data, ops.OpenMappedData):
        tensors["is_input"] = torch.from_numpy(_before_padding(own))
        tensors["decoder_input_ids"] = decoder_inputs(
            tensors["labels"], start=data.start_id, padding=data.padding_id
        )
    if documents is not None:
        # Every rank of a sequence keeps all starts: its queries may see keys on another rank.
        documents.begin(own.position_ids, on_device=run.to_device(tensors["position_ids"]))
    if op.first_position is not None or op.uncounted_token is not None:
        tensors["position_ids"] = model_positions(
            tensors["input_ids"],
            places=tensors["position_ids"],
            first=op.first_position or 0,
            uncounted_token=op.uncounted_token,
        )
    buffers = op.buffers
    if batch.teacher is not None:
        stored = batch.teacher.rows(own.sample_ids)
        tensors |= stored
        buffers = (*buffers, *((name, 1) for name in stored))
    for mesh_dim in op.over:
        for name, tensor_dim in buffers:
            tensors[name] = shard(
                tensors[name],
                tensor_dim=tensor_dim,
                parts=run.graph.size(mesh_dim),
                index=run.coordinate(mesh_dim),
                balance=op.balance,  # type: ignore[arg-type]
            )
    return LocalBatch(**{name: run.to_device(tensor) for name, tensor in tensors.items()})


def _before_padding(batch: MicroBatch) -> npt.NDArray[np.bool_]:
    """[B, S]: the tokens of texts, each alone in its sequence. Positions begin again where padding does."""
    return np.equal(batch.position_ids, np.arange(batch.position_ids.shape[1]))


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
