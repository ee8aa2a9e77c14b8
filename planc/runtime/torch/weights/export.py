"""Export weights for transformers: gathered one at a time, streamed into files that ranks write at once."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

import planc
from planc.graph.ops import AttachAdapters, ExportHf, LoadWeights
from planc.graph.sources import class_names
from planc.hub.names import model_folder
from planc.modeling.initialization import fresh_copy
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import config_digest
from planc.runtime.run_directory import export_folder
from planc.runtime.torch.agreement.agree import rank, world_size
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.checkpoint.agreement import from_coordinator, require_on_all
from planc.runtime.torch.checkpoint.background_saving import Checkpoints
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages, tensor_names
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.parallel.packing import Packing, gathered, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Data, Weights
from planc.runtime.torch.weights import export_format
from planc.runtime.torch.weights.adapters import merged
from planc.runtime.torch.weights.conversion import to_checkpoint
from planc.runtime.torch.weights.expert_adapters import are_transposed
from planc.runtime.torch.weights.export_files import Turn, Writer, deal, turns
from planc.runtime.torch.weights.export_format import common_dtype, refuse_overflow
from planc.runtime.torch.weights.image_encoder import encoder_views
from planc.runtime.torch.weights.nf4 import Nf4, nf4_formats
from planc.runtime.torch.weights.views import View, leaf
from planc.vocab import DOWN, MAGNITUDE, UP, parent_of


@dataclass(frozen=True, slots=True)
class Export:
    """A complete export."""

    folder: Path


def export_hf(
    run: Run,
    op: ExportHf,
    at: Position,
    stopping: Stopping,
    weights: Weights,
    data: Data,
    checkpoints: Checkpoints,
    pipeline: Pipeline | None,
) -> Export | None:
    """Write `export/hf` into the run directory, replacing an earlier export of the run.

    Each tensor is gathered alone, and the files are dealt to the ranks, which write them in threads. So a
    rank holds its own shards and one whole tensor, and in the host's memory two that it has yet to write.
    Names and shapes are those of `save_pretrained`: experts that a model stacks have their own tensors again.
    """
    pristine, build = fresh_copy(weights.model), run.model_op
    gathering = Gathering(run, _exported(run, op, weights.model, pristine, pipeline), pipeline)
    views = to_checkpoint(pristine, gathering.views)
    entries = export_format.entries_of(views, dtype_of=gathering.dtype)
    files = export_folder.plan_files(entries, max_bytes=export_format.MAX_SHARD_BYTES)
    folder, source = run.paths.run / "export" / "hf", model_folder(op.path, base=run.paths.base)
    if config_digest(source) != build.config_digest:
        raise RunError(
            f"{source / 'config.json'} changed during the run",
            help="restore the file and run again; with checkpoint.resume the run resumes from its last save",
        )
    dealt = deal(files, num_ranks=world_size())
    with run_errors():
        temporary = Path(from_coordinator(lambda: str(export_folder.begin(folder, effort=run.effort))))
        with without_gather_warnings(), Writer(temporary, dealt[rank()]) as writer:
            # Without a checkpoint of its step, it is completed anyway.
            can_stop = checkpoints.saved_step == at.step
            is_whole = _gather_to(writer, turns(dealt, views), gathering, stopping, can_stop=can_stop)
        # No rank continues, or removes the files, while another one writes.
        require_on_all(writer.require_written)
        if not is_whole:
            if rank() == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            stopping.report_undone(f"the export to {folder}")
            return None
        described = export_folder.Description(
            source=source,
            tokenizer=data.tokenizer_files,
            config=export_format.config_changes(
                source,
                architecture=build.architecture,
                dtype=str(op.dtype),
                rope=build.rope,
                head=build,
                names=class_names(run.graph),
            ),
            files=files,
            origin={"planc": planc.__version__, "plan_hash": run.plan_hash, "step": at.step},
        )
        replaced = from_coordinator(
            lambda: export_folder.finish(temporary, folder, described=described, effort=run.effort)
        )
    run.observer.noted(f"exported {folder}, {op.dtype}{replaced}")
    return Export(folder)


def _gather_to(
    writer: Writer, order: Iterator[Turn], gathering: Gathering, stopping: Stopping, *, can_stop: bool
) -> bool:
    """Gather all turns on every rank, and give this rank's to its writer; False if the run is to stop."""
    for turn in order:
        if stopping.stops_here() and can_stop:
            return False
        gathering.gather(turn.views[0])
        if turn.writer == rank():
            writer.put([export_format.as_bytes(gathering.values(view)) for view in turn.views])
    return True


@dataclass(frozen=True, slots=True)
class Exported:
    """A tensor, the dtype that it is written in, and how ranks hold it if it packs several."""

    tensor: Tensor
    """On meta if another stage of a pipeline has it."""
    dtype: torch.dtype
    packing: Packing | None
    source: int | None
    """The pp rank that has it, in a pipeline; None if every one has."""
    nf4: Nf4 | None = None
    """The storage of a quantized weight."""
    merges: Merge | None = None
    """The adapter that is added to it."""
    stored: View | None = None
    """The values in a file, of a part that is not trained and in no rank's memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, or of the weight that its bytes hold."""
        return self.nf4.shape(self.tensor.shape) if self.nf4 else tuple(self.tensor.shape)


@dataclass(frozen=True, slots=True)
class Merge:
    """An adapter: `scale * up @ down` is what it adds to its layer's weight, whose rows then have lengths.

    Of stacked experts, it is a stack, transposed if the weights are.
    """

    down: Exported
    up: Exported
    scale: float
    magnitude: Exported | None = None
    is_transposed: bool = False


def _exported(
    run: Run, op: ExportHf, model: nn.Module, pristine: PreTrainedModel, pipeline: Pipeline | None
) -> Mapping[str, Exported]:
    """Every tensor with the dtype that it is written in, tied ones once; buffers keep their own dtype.

    Weights of layers with adapters are merged with them.
    In the model's dtype all keep their own, as in `save_pretrained`. In another, parameters get the dtypes
    that `from_pretrained` would give them.
    """
    ignored = tuple(getattr(model, "_keys_to_ignore_on_save", None) or ())
    dtypes = export_format.written_dtypes(pristine, op.dtype) if op.dtype is not run.model_op.dtype else {}
    # Every rank gathers in the model's order.
    names = [name for name in tensor_names(pristine).values() if name not in ignored]
    exported = exported_tensors(model, names, pipeline, dtypes=dtypes)
    for name, nf4 in nf4_formats(run.graph).items():
        exported[name] = replace(exported[name], nf4=nf4, dtype=dtypes.get(name, nf4.dtype))
    for name, view in encoder_views(
        pristine, model_folder(op.path, base=run.paths.base), strip=_strip(run)
    ).items():
        empty = torch.empty(view.shape, device="meta")
        exported[name] = Exported(empty, TORCH_DTYPES[op.dtype], packing=None, source=None, stored=view)
    if run.graph.adapters is not None:
        for name, merge in _merges(run.graph.adapters, model, pristine, pipeline):
            exported[name] = replace(exported[name], merges=merge)
    return exported


def _strip(run: Run) -> str | None:
    return next((op.strip for op in run.graph.setup if isinstance(op, LoadWeights)), None)


def _merges(
    adapters: AttachAdapters, model: nn.Module, pristine: PreTrainedModel, pipeline: Pipeline | None
) -> Iterator[tuple[str, Merge]]:
    """(weight or stack, the adapter that is added to it)."""
    parts = exported_tensors(model, adapters.parameters, pipeline)
    for fqn in adapters.layers:
        down, up, magnitude = (parts.get(f"{fqn}.{part}.weight") for part in (DOWN, UP, MAGNITUDE))
        assert down is not None and up is not None, "every adapter has both"
        yield f"{fqn}.weight", Merge(down, up, adapters.scale, magnitude)
    for name in adapters.stacked:
        down, up = (parts[f"{name}_{part}"] for part in (DOWN, UP))
        is_transposed = are_transposed(pristine.get_submodule(parent_of(name)))
        yield name, Merge(down, up, adapters.scale, is_transposed=is_transposed)


def exported_tensors(
    model: nn.Module,
    names: Iterable[str],
    pipeline: Pipeline | None,
    *,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> dict[str, Exported]:
    """The tensors of these names that the model has, on any stage. `dtypes` states other dtypes than
    theirs."""
    packings, dtypes = packed_parameters(model), dtypes or {}
    held = {name: tensor.detach() for tensor, name in tensor_names(model).items()}
    packed = {name: packings.get(tensor) for tensor, name in tensor_names(model).items()}
    tensors = {**_elsewhere(held, pipeline), **held}
    return {
        name: Exported(
            tensors[name],
            dtypes.get(name, tensors[name].dtype),
            packed.get(name),
            pipeline.rank_of(name) if pipeline is not None else None,
        )
        for name in names
        if name in tensors
    }


def _elsewhere(held: Mapping[str, Tensor], pipeline: Pipeline | None) -> Mapping[str, Tensor]:
    """The tensors of all stages of a pipeline, on meta."""
    outline = outline_of_all_stages(held, stages=pipeline.activations if pipeline is not None else None)
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, (dtype, shape) in outline.items()
    }


class Gathering:
    """Tensors of a sharded model, gathered only while a view of them is written.

    All ranks request the same in turn.
    """

    def __init__(self, run: Run, tensors: Mapping[str, Exported], pipeline: Pipeline | None) -> None:
        self._run, self._pipeline = run, pipeline
        self._tensors = tensors
        self._whole: dict[str, Tensor] = {}
        self.views = {
            name: leaf(name, shape=one.shape, read=partial(self._read, name)) for name, one in tensors.items()
        }

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that a tensor is written in."""
        return self._tensors[name].dtype

    def gather(self, view: View) -> None:
        """Gather the tensors of a view on every rank, and free all others."""
        if not self._whole.keys() >= set(view.sources):
            self._whole.clear()
            self._whole.update({name: self._gathered(name) for name in view.sources})

    def values(self, view: View) -> Tensor:
        """A view's values, once it has been gathered."""
        [name, *_] = view.sources
        # A tensor that is written unchanged needs no copy.
        if view is self.views[name]:
            return self._whole[name]
        out = torch.empty(view.shape, dtype=common_dtype(view, dtype_of=self.dtype))
        view.fill(out, view.whole)
        return out

    def _read(self, name: str, block: Slices) -> Tensor:
        return self._whole[name][block]

    def _gathered(self, name: str) -> Tensor:
        """A tensor whole, on every rank.

        Raises the same RunError on each where a cast leaves the range of the dtype.
        """
        exported = self._tensors[name]
        if exported.merges is None:
            return self._of_one(name, exported)
        merges = exported.merges
        own = exported.nf4.dtype if exported.nf4 else exported.tensor.dtype
        weight = self._of_one(name, replace(exported, dtype=own))
        down, up = (self._of_one(name, part) for part in (merges.down, merges.up))
        magnitude = self._of_one(name, merges.magnitude) if merges.magnitude else None
        whole = merged(
            weight,
            down=down,
            up=up,
            magnitude=magnitude,
            scale=merges.scale,
            is_transposed=merges.is_transposed,
        ).to(exported.dtype)
        refuse_overflow(name, whole)
        return whole

    def _of_one(self, name: str, exported: Exported) -> Tensor:
        """A tensor that is held as it is."""
        if exported.stored is not None:
            out = torch.empty(exported.shape, dtype=exported.dtype)
            exported.stored.fill(out, exported.stored.whole)
            refuse_overflow(name, out)
            return out
        tensor, pipeline = exported.tensor, self._pipeline
        sent = exported.dtype if exported.nf4 is None else tensor.dtype
        if tensor.is_meta:
            whole = torch.empty_like(tensor, dtype=sent, device=self._run.weights_device)
        else:
            # Cast first: a narrower dtype is less to gather, and each element is rounded on its own.
            whole = gathered(tensor.to(sent), exported.packing)
        if pipeline is not None and exported.source is not None:
            dist.broadcast(whole, group=pipeline.activations, group_src=exported.source)
        if exported.nf4 is not None:
            whole = exported.nf4.weight(whole).to(exported.dtype)
        if exported.dtype != tensor.dtype:
            refuse_overflow(name, whole)
        return whole


@contextmanager
def without_gather_warnings() -> Iterator[None]:
    """Silence torch's warning, on every rank, that a weight under TP and FSDP takes two gathers.

    Two are slower than one, but exact: a gather adds nothing.
    """
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
