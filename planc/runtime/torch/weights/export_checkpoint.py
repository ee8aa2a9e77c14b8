"""Export a checkpoint for transformers in one process, whatever mesh saved it.

Tensors are copied one by one; the whole model is never in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

import planc
from planc.extend.reference import Extension
from planc.graph.ops import AttachAdapters, BuildModel
from planc.runtime.checkpoint_format.base import hash_files, refuse_other_base
from planc.runtime.checkpoint_format.manifest import Base, Manifest, WholeTensor
from planc.runtime.checkpoint_format.records import ElementType
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.errors import RunError
from planc.runtime.model_files import config_digest, weight_names
from planc.runtime.run_directory import export_folder
from planc.runtime.torch.checkpoint.chunks import ChunkReader
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.loading import refuse_damage
from planc.runtime.torch.checkpoint.tensors import AVERAGE, element_type, tensor_names
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.weights.adapters import merged
from planc.runtime.torch.weights.conversion import to_checkpoint
from planc.runtime.torch.weights.expert_adapters import are_transposed
from planc.runtime.torch.weights.export_adapter import adapter_config
from planc.runtime.torch.weights.export_format import (
    MAX_SHARD_BYTES,
    as_bytes,
    common_dtype,
    config_changes,
    entries_of,
    refuse_overflow,
    written_dtypes,
)
from planc.runtime.torch.weights.factory import config_in, on_meta, own_class
from planc.runtime.torch.weights.files import stored_views
from planc.runtime.torch.weights.fit import converted
from planc.runtime.torch.weights.image_encoder import encoder_views
from planc.runtime.torch.weights.nf4 import Nf4
from planc.runtime.torch.weights.peft_format import peft_views
from planc.runtime.torch.weights.views import View, leaf
from planc.vocab import DOWN, MAGNITUDE, UP, DType, parent_of

_MODEL_PREFIX = "model."


@dataclass(frozen=True, slots=True)
class OwnCode:
    """A plan's own model class, where its file is, and whether it may run."""

    model: Extension
    base: Path
    is_allowed: bool


def export_checkpoint(
    directory: Path,
    *,
    model: Path,
    tokenizer: Files | None,
    folder: Path,
    dtype: DType | None,
    rope: tuple[tuple[str, object], ...] = (),
    strip: str | None = None,
    adapters: AttachAdapters | None = None,
    formats: Mapping[str, Nf4] = MappingProxyType({}),
    own: OwnCode | None = None,
    build: BuildModel | None = None,
    names: tuple[str, ...] = (),
    averaged: bool = False,
) -> str:
    """Export the checkpoint in `directory` to `folder`; return remarks on it, as of what it replaces.

    `model` is the directory of the model's config.json, and of weights that the checkpoint leaves out.
    `tokenizer` has the files of the plan's tokenizer, if it has one, `rope` what the plan states of rotary
    embeddings, `strip` what it removes from names in the model's files, `adapters` those that weights are
    merged with, `formats` those of quantized weights, of which the export has what training computes with,
    `own` the plan's own class, `build` its model, if known, `names` those of its classes. The default
    dtype is the checkpoint's. With `averaged` weights are averages. RunError for damage, or another model.
    """
    with run_errors():
        manifest = read_manifest(directory)
        if config_digest(model) != manifest.model_digest:
            raise RunError(
                f"{model / 'config.json'} does not match the model in checkpoint {directory}",
                help="pass the directory of its model: --model DIR",
            )
        averages = averages_in(manifest, directory) if averaged else frozenset()
        pristine = _on_meta(model, own, build)
        refuse_damage(directory, manifest=manifest)
        source = _Source(
            directory,
            manifest,
            pristine,
            dtype=dtype,
            adapters=adapters,
            formats=formats,
            base=_base(manifest.base, pristine, folder=model, strip=strip) if manifest.base else {},
            averages=averages,
            others=encoder_views(pristine, model, strip=strip),
        )
        views = to_checkpoint(pristine, source.views())
        files = export_folder.plan_files(
            entries_of(views, dtype_of=source.dtypes.__getitem__), max_bytes=MAX_SHARD_BYTES
        )
        temporary = export_folder.begin(folder)
        for file, entries in files.items():
            data = (as_bytes(source.values(views[entry.key])) for entry in entries)
            export_folder.write_file(temporary / file, entries, data=data)
        name, written = type(pristine).__name__, source.parameter_dtype
        changes = config_changes(model, architecture=name, dtype=written, rope=rope, head=build, names=names)
        described = export_folder.Description(
            source=model, tokenizer=tokenizer, config=changes, files=files, origin=_origin(manifest)
        )
        return export_folder.finish(temporary, folder, described=described)


def _on_meta(folder: Path, own: OwnCode | None, build: BuildModel | None) -> PreTrainedModel:
    kind = own_class(own.model, base=own.base, is_allowed=own.is_allowed) if own else None
    return on_meta(config_in(folder, kind, build), kind)


def export_adapters(
    directory: Path,
    *,
    adapters: AttachAdapters,
    base: str,
    architecture: str,
    folder: Path,
    dtype: DType | None,
    averaged: bool = False,
) -> str:
    """Export the adapters of the checkpoint in `directory` to `folder`, as peft loads them onto the model
    `base` of a class, or their averages; return remarks on it.

    All of the checkpoint is verified first. RunError if something is damaged.
    """
    with run_errors():
        manifest = read_manifest(directory)
        refuse_damage(directory, manifest=manifest)
        if averaged:
            averages_in(manifest, directory)
        stored, chunks = _stored(manifest), ChunkReader(directory, manifest)
        prefix = AVERAGE if averaged else _MODEL_PREFIX
        views = {
            name: leaf(name, shape=stored[name].shape, read=partial(chunks.read, f"{prefix}{name}"))
            for name in (*adapters.parameters, *adapters.apart)
        }
        dtypes = {
            name: TORCH_DTYPES[dtype] if dtype else getattr(torch, stored[name].dtype) for name in views
        }
        views, dtype_of = peft_views(adapters, views), dtypes.__getitem__
        entries = entries_of(views, dtype_of=dtype_of)
        temporary = export_folder.begin(folder)
        data = (as_bytes(_filled(view, common_dtype(view, dtype_of=dtype_of))) for view in views.values())
        export_folder.write_file(temporary / export_folder.ADAPTER_WEIGHTS, entries, data=data)
        return export_folder.finish_adapter(
            temporary,
            folder,
            config=adapter_config(adapters, base=base, architecture=architecture),
            origin=_origin(manifest),
        )


def averages_in(manifest: Manifest, directory: Path) -> frozenset[str]:
    """The parameters whose averages a checkpoint has. RunError if it has none."""
    names = (name for name in manifest.tensors if name.startswith(AVERAGE))
    found = frozenset(name.removeprefix(AVERAGE) for name in names)
    if not found:
        raise RunError(
            f"{directory} has no averages of weights: its plan does not set `train.ema_decay`",
            help="leave out --ema",
        )
    return found


def _base(base: Base, model: PreTrainedModel, *, folder: Path, strip: str | None) -> Mapping[str, View]:
    """The tensors that a checkpoint leaves out, by the model's names, from the files that it names."""
    refuse_other_base(base, hash_files(folder, weight_names(folder)), folder=folder)
    views = converted(model, stored_views(folder), strip=strip).views
    return {name: views[name.removeprefix(_MODEL_PREFIX)] for name in base.tensors}


def _origin(manifest: Manifest) -> dict[str, object]:
    return {"planc": planc.__version__, "plan_hash": manifest.plan_hash, "step": manifest.step}


class _Source:
    """The model's tensors in a checkpoint, and the dtype that each is written in."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        model: PreTrainedModel,
        *,
        dtype: DType | None,
        adapters: AttachAdapters | None,
        formats: Mapping[str, Nf4],
        base: Mapping[str, View],
        averages: Collection[str],
        others: Mapping[str, View],
    ) -> None:
        """`others` are tensors that no checkpoint has: those of an image encoder."""
        self._formats = formats
        self._adapters = adapters
        self._adapted: dict[str, Callable[[Slices], Tensor]] = {}
        for fqn in adapters.layers if adapters else ():
            self._adapted[f"{fqn}.weight"] = partial(self._merged, fqn)
        for name in adapters.stacked if adapters else ():
            is_transposed = are_transposed(model.get_submodule(parent_of(name)))
            self._adapted[name] = partial(self._merged_stack, name, is_transposed=is_transposed)
        apart = adapters.parameters if adapters else ()
        self._entries = _entries(manifest, model, apart=apart, formats=formats)
        parameters = dict(model.named_parameters())
        self.parameter_dtype = dtype or _model_dtype(self._entries, parameters)
        # In the checkpoint's own dtype, each tensor keeps its own.
        is_cast = dtype is not None and dtype is not _model_dtype(self._entries, parameters)
        cast = written_dtypes(model, self.parameter_dtype) if is_cast else {}
        self.dtypes: Mapping[str, torch.dtype] = {
            **dict.fromkeys(others, TORCH_DTYPES[self.parameter_dtype]),
            **{name: cast.get(name, getattr(torch, entry.dtype)) for name, entry in self._entries.items()},
        }
        self._others = others
        self._chunks = ChunkReader(directory, manifest)
        self._base, self._averages = base, averages

    def views(self) -> dict[str, View]:
        own = {
            name: leaf(name, shape=entry.shape, read=self._adapted.get(name, partial(self._read, name)))
            for name, entry in self._entries.items()
        }
        return {**own, **self._others}

    def values(self, view: View) -> Tensor:
        """A view's values in the dtype that it is written in. RunError if a cast leaves its range."""
        out = _filled(view, common_dtype(view, dtype_of=self.dtypes.__getitem__))
        entries = (self._entries[name] for name in view.sources if name in self._entries)
        is_cast = any(entry.dtype != element_type(out.dtype) for entry in entries)
        if is_cast or self._averages or not self._adapted.keys().isdisjoint(view.sources):
            refuse_overflow(view.sources[0], out)
        return out

    def _merged(self, fqn: str, block: Slices) -> Tensor:
        """A block of a layer's weight as it is with its adapter, in float32 at least."""
        assert self._adapters is not None, "it has the layer"
        rows, columns = block
        # A row's length is of all its columns.
        whole = slice(0, self._entries[f"{fqn}.weight"].shape[1]) if self._adapters.dora else columns
        parts = {
            "weight": (rows, whole),
            f"{DOWN}.weight": (slice(0, self._adapters.rank), whole),
            f"{UP}.weight": (rows, slice(0, self._adapters.rank)),
            **({f"{MAGNITUDE}.weight": (rows,)} if self._adapters.dora else {}),
        }
        weight, down, up, *magnitude = (self._read(f"{fqn}.{part}", of) for part, of in parts.items())
        changed = merged(
            weight, down=down, up=up, magnitude=next(iter(magnitude), None), scale=self._adapters.scale
        )
        start = columns.start - whole.start
        return changed[:, start : start + columns.stop - columns.start]

    def _merged_stack(self, name: str, block: Slices, *, is_transposed: bool) -> Tensor:
        """A block of stacked experts' weights as they are with their adapters, in float32 at least."""
        assert self._adapters is not None, "it has the stack"
        experts, *sizes = block
        rows, columns = reversed(sizes) if is_transposed else sizes
        every = slice(0, self._adapters.rank)
        down = self._read(f"{name}_{DOWN}", (experts, every, columns))
        up = self._read(f"{name}_{UP}", (experts, rows, every))
        weight, scale = self._read(name, block), self._adapters.scale
        return merged(weight, down=down, up=up, scale=scale, is_transposed=is_transposed)

    def _read(self, name: str, block: Slices) -> Tensor:
        """A block of a tensor, from the checkpoint, or from its base in the dtype of the run."""
        stored = f"{AVERAGE if name in self._averages else _MODEL_PREFIX}{name}"
        view, nf4 = self._base.get(stored), self._formats.get(name)
        if nf4 is not None:
            stored_fill = nf4.filling(view.fill) if view is not None else partial(self._fill, stored)
            return nf4.read(stored_fill, block)
        if view is None:
            return self._chunks.read(stored, block)
        dtype = getattr(torch, self._entries[name].dtype)
        out = torch.empty([one.stop - one.start for one in block], dtype=dtype)
        view.fill(out, block)
        return out

    def _fill(self, stored: str, out: Tensor, block: Slices) -> None:
        out.copy_(self._chunks.read(stored, block))


def _filled(view: View, dtype: torch.dtype) -> Tensor:
    out = torch.empty(view.shape, dtype=dtype)
    view.fill(out, view.whole)
    return out


def _model_dtype(entries: Mapping[str, WholeTensor], parameters: Container[str]) -> DType:
    """The dtype of most elements of parameters: a few may be stored in float32."""
    elements: Counter[str] = Counter()
    for name, entry in entries.items():
        if name in parameters:
            elements[entry.dtype] += prod(entry.shape)
    return DType(elements.most_common(1)[0][0])


def _stored(manifest: Manifest) -> dict[str, WholeTensor]:
    """The model's tensors, by name, those of the base too."""
    every: dict[str, WholeTensor] = {**manifest.tensors, **(manifest.base.tensors if manifest.base else {})}
    return {
        name.removeprefix(_MODEL_PREFIX): entry
        for name, entry in every.items()
        if name.startswith(_MODEL_PREFIX)
    }


def _entries(
    manifest: Manifest, model: PreTrainedModel, *, apart: Collection[str], formats: Mapping[str, Nf4]
) -> dict[str, WholeTensor]:
    """The entries by the model's own names, without adapters', and of quantized weights those of what they
    hold. RunError if names or shapes differ from the checkpoint's."""
    stored = {name: entry for name, entry in _stored(manifest).items() if name not in apart}
    for name in formats.keys() & stored.keys():
        dtype, shape = cast(ElementType, element_type(formats[name].dtype)), stored[name].shape
        stored[name] = WholeTensor(dtype=dtype, shape=formats[name].shape(shape))
    wanted = {name: tuple(tensor.shape) for tensor, name in tensor_names(model).items()}
    if {name: entry.shape for name, entry in stored.items()} != wanted:
        names = sorted(
            name
            for name in stored.keys() | wanted.keys()
            if name not in stored or stored[name].shape != wanted.get(name)
        )
        raise RunError(
            f"the checkpoint does not match the model of this config.json: {names[0]} differs",
            help="use the transformers release that the model was trained with",
        )
    ignored = tuple(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return {name: entry for name, entry in stored.items() if name not in ignored}
