"""Check that ranks with their own files loaded the same weights: another machine reads each part again.

A rank reads only its part of a file, so the digests of two ranks can't be compared. Instead it sends a rank
on another machine the parts that it read and their digests, and that rank reads them from its own files. If
all ranks have the same file, there is nothing to compare.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.graph.ops import LoadWeights
from planc.hub.names import model_folder
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_files
from planc.runtime.numerics import MAX_NAMED
from planc.runtime.torch.agreement.agree import agreed, gather
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.blocks import Slices, blocks
from planc.runtime.torch.parallel.packing import Packing, packed_parameters
from planc.runtime.torch.parallel.replicas import digest
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.nf4 import nf4_formats
from planc.runtime.torch.weights.views import View

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Rows = list[tuple[int, Slices, int]]
"""(index of the tensor, a block of it, the digest of its values)."""


@agreed
def compare_copies(run: Run, op: LoadWeights, model: nn.Module, views: Mapping[str, View]) -> None:
    """RunError if another rank's part of the weights differs from this rank's own files."""
    if run.launch.world_size == 1 or _is_one_copy(model_folder(op.path, base=run.paths.base)):
        return
    names = sorted(views)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    packings = packed_parameters(model)
    own = [
        (place, block, int(digest(values)))
        for place, name in enumerate(names)
        if name in tensors
        for block, values in local_blocks(tensors[name], packings.get(tensors[name]))
    ]
    shift = _shift(run)
    dtypes = {name: _dtype(run, name, tensors.get(name)) for name in names}
    known = {(place, _flat(block)): value for place, block, value in own}
    differing: dict[str, None] = {}
    for place, block, value in _exchanged(own, shift=shift):
        name = names[place]
        found = known.get((place, _flat(block)))
        if found is None:
            found = _read_digest(views[name], block, dtype=dtypes[name])
        if found != value:
            differing[name] = None
    if differing:
        raise _failure(list(differing), other=_partner(-shift))


def _dtype(run: Run, name: str, held: Tensor | None) -> torch.dtype:
    """A tensor's dtype, though another stage of a pipeline may have it."""
    if held is not None:
        return held.dtype
    if name in nf4_formats(run.graph):
        return torch.uint8
    build = run.model_op
    return TORCH_DTYPES[run.graph.other_dtypes.get(name, build.dtype)]


def local_blocks(tensor: Tensor, packing: Packing | None) -> Iterator[tuple[Slices, Tensor]]:
    """(a block of the whole tensor, its values on this rank)."""
    if not isinstance(tensor, DTensor):
        yield tuple(slice(0, size) for size in tensor.shape), tensor.detach()
        return
    local: Tensor = tensor.to_local().detach()
    if local.numel():
        for block, held in blocks(tensor, packing):
            yield block, local[held]


def _is_one_copy(folder: Path) -> bool:
    """Whether all ranks read the same files: the same machine, device and inodes."""
    files = weight_files(folder)
    paths = {files} if isinstance(files, Path) else set(files.values())
    boot = _BOOT_ID.read_text(encoding="ascii") if _BOOT_ID.is_file() else ""
    stats = [(path.name, path.stat()) for path in sorted(paths)]
    own = [(name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in stats]
    return len(set(gather(f"{socket.gethostname()} {boot} {own}"))) == 1


def _shift(run: Run) -> int:
    """The distance to a rank on another machine, if that is known."""
    local, world_size = run.launch.local_world_size, run.launch.world_size
    return local if local is not None and local < world_size else 1


def _partner(shift: int) -> int:
    return (dist.get_rank() + shift) % dist.get_world_size()


def _exchanged(own: _Rows, *, shift: int) -> _Rows:
    """The rows of the rank `shift` before this one; the rank `shift` after it gets this rank's."""
    flat = [number for place, block, value in own for number in (place, len(block), *_flat(block), value)]
    sent = torch.tensor(flat, dtype=torch.int64)
    length = _passed_on(torch.tensor([len(flat)], dtype=torch.int64), size=1, shift=shift)
    numbers = iter(_passed_on(sent, size=int(length), shift=shift).tolist())
    rows: _Rows = []
    for place in numbers:
        block = tuple(slice(next(numbers), next(numbers)) for _ in range(next(numbers)))
        rows.append((place, block, next(numbers)))
    return rows


def _passed_on(tensor: Tensor, *, size: int, shift: int) -> Tensor:
    received = torch.empty(size, dtype=torch.int64)
    sending = dist.isend(tensor, _partner(shift)) if tensor.numel() else None
    if size:
        dist.recv(received, _partner(-shift))
    if sending is not None:
        sending.wait()
    return received


def _flat(block: Slices) -> tuple[int, ...]:
    return tuple(end for one in block for end in (one.start, one.stop))


def _read_digest(view: View, block: Slices, *, dtype: torch.dtype) -> int:
    shape = [one.stop - one.start for one in block]
    values = torch.empty(shape, dtype=dtype)
    view.fill(values, block)
    return int(digest(values))


def _failure(names: Sequence[str], *, other: int) -> RunError:
    shown = ", ".join(names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return RunError(
        f"its weight files and those of rank {other} have different values of {shown}{more}",
        help="give every machine the same weights; compare the safetensors files with sha256sum",
    )
