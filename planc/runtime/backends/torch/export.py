"""The weights as transformers loads them: gathered one at a time, streamed to rank 0's disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor

import planc
from planc.graph.ops import BuildModel, ExportHf
from planc.runtime import export_folder
from planc.runtime.backends.torch.checkpoint.agreement import from_coordinator, rank
from planc.runtime.backends.torch.checkpoint.tensors import element_type, tensor_names
from planc.runtime.backends.torch.checkpointing import run_errors
from planc.runtime.backends.torch.dtypes import TORCH_DTYPES
from planc.runtime.backends.torch.session import Session
from planc.runtime.checkpoints.errors import CheckpointError
from planc.runtime.checkpoints.manifest import ElementType
from planc.runtime.checkpoints.shards import Entry
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import config_digest

MAX_SHARD_BYTES = 5 * 10**9
"""Of one safetensors file, unless a single tensor is larger."""


def export_hf(session: Session, op: ExportHf, position: Position) -> None:
    """Puts `export/hf` into the run's folder, in place of an earlier export of the run.

    Each tensor is gathered alone, so that no rank ever holds more of the model than its own shards and one
    whole tensor. Names are the model's own, which are transformers' for every model without a weight
    conversion; from_pretrained reads the others by these names too.
    """
    tensors = _exported(session.model, dtype=TORCH_DTYPES[op.dtype])
    entries = [
        Entry(name, cast(ElementType, element_type(dtype)), tuple(tensor.shape))
        for name, (tensor, dtype) in tensors.items()
    ]
    files = export_folder.plan_files(entries, max_bytes=MAX_SHARD_BYTES)
    folder, source = session.paths.run / "export" / "hf", session.paths.base / op.path
    if config_digest(source) != session.model_digest:
        raise RunError(
            f"{source / 'config.json'} changed during the run",
            help="restore the file and start the run again: it goes on from its last checkpoint",
        )
    with run_errors():
        temporary = Path(from_coordinator(lambda: str(export_folder.begin(folder))))
        for file, held in files.items():
            _write_file(temporary / file, held, tensors)
        described = export_folder.Description(
            source=source,
            config=_config_changes(session, op),
            files=files,
            origin={"planc": planc.__version__, "plan_hash": session.plan_hash, "step": position.step},
        )
        replaced = from_coordinator(lambda: export_folder.finish(temporary, folder, described=described))
    session.observer.noted(f"exported {folder}, {op.dtype}{replaced}")


def _exported(model: torch.nn.Module, *, dtype: torch.dtype) -> Mapping[str, tuple[Tensor, torch.dtype]]:
    """Every tensor with the dtype that it is written in, tied ones once; buffers keep their own dtype."""
    ignored = tuple(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return {
        name: (tensor.detach(), dtype if isinstance(tensor, torch.nn.Parameter) else tensor.dtype)
        for tensor, name in tensor_names(model).items()
        if name not in ignored
    }


def _write_file(
    path: Path, entries: Sequence[Entry], tensors: Mapping[str, tuple[Tensor, torch.dtype]]
) -> None:
    """Writes one file on rank 0. All ranks gather with it, and raise the CheckpointError that stops it."""
    whole = _gathered(entries, tensors)
    failure: CheckpointError | None = None
    with without_gather_warnings():
        if rank() == 0:
            try:
                export_folder.write_file(path, entries, data=map(_bytes, whole))
            except CheckpointError as error:
                failure = error
        # The other ranks gather all of a file, so a rank 0 that cannot write goes on gathering with them.
        for _ in whole:
            pass

    def outcome() -> str:
        if failure is not None:
            raise failure
        return ""

    from_coordinator(outcome)


def _gathered(
    entries: Sequence[Entry], tensors: Mapping[str, tuple[Tensor, torch.dtype]]
) -> Iterator[Tensor]:
    """Each tensor whole, on every rank, one after the other. All ranks must draw all of them.

    Raises the same RunError on each where a cast leaves the range of the dtype.
    """
    for entry in entries:
        tensor, dtype = tensors[entry.key]
        # Cast first: a narrower dtype is less to gather, and each element rounds alone.
        narrow = tensor.to(dtype)
        whole = narrow.full_tensor() if isinstance(narrow, DTensor) else narrow
        if dtype != tensor.dtype and not whole.isfinite().all():
            raise RunError(
                f"{entry.key} does not fit into {entry.dtype}: a weight of it would be infinite",
                code=ExitCode.NUMERICS,
                help="export as bfloat16, which reaches as far as float32",
            )
        yield whole


@contextmanager
def without_gather_warnings() -> Iterator[None]:
    """Keeps torch from warning, on every rank, that a weight under TP and FSDP takes two gathers.

    That is slower than one, and exact: a gather adds nothing up.
    """
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's elements in C order, as they lie in memory."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _config_changes(session: Session, op: ExportHf) -> dict[str, Any]:
    """What an export's config.json says otherwise than the model's own."""
    built = next(one for one in session.graph.setup if isinstance(one, BuildModel))
    return {
        "architectures": [built.architecture],
        # transformers 4 reads the second.
        "dtype": str(op.dtype),
        "torch_dtype": str(op.dtype),
        "transformers_version": transformers.__version__,
    }
