"""A plan's own graph, for a tiny model of the same kind on few ranks.

Nothing is planned again: ops are the graph's, without the names of layers that are left out, and the rest
renumbered. Of every kind of layer, equal in itself and in what the graph does to it, the first stays; if all
are equal, the first two.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from planc.data_sources.kinds import PythonStdlibSource
from planc.graph import ops
from planc.graph.extensions import extensions_of
from planc.graph.graph import Graph
from planc.inventory.small_config import IMAGE_ID, START_ID, Config, Demands, shrink_config
from planc.modeling.language_part import whole_values
from planc.modeling.tensor_dtypes import kept_in_float32
from planc.plan import spec
from planc.plan.bind import BoundPlan
from planc.runtime.data.sources import documents
from planc.runtime.errors import STOPS
from planc.runtime.model_files import config_digest
from planc.runtime.rehearsal.stack import Stack, stack_of
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.weights.adapters import attach
from planc.runtime.torch.weights.build import bare_model, meta_model, own_dtypes
from planc.runtime.torch.weights.factory import config_in
from planc.verify.images import small_images, write_images
from planc.verify.losses import MAX_TOP_K, PAIRS, STORED, pairs_of, store_teacher
from planc.verify.recipe import CORPUS, MAX_RANKS, MODEL, SEQUENCE_LENGTH, Recipe, recipe_of
from planc.verify.rewrite import in_small_stages, num_small_stages, resized, shrunk_graph
from planc.verify.twin import CannotShrink, Renaming, names_of, require_twin
from planc.vocab import DType, parent_of

_CORPUS_BYTES = 100_000
_MAX_DOCUMENT, _LENGTH_STEP = 90, 37
"""Characters of a document; lengths cover all up to the maximum, since the two have no common divisor."""
_MAX_ANSWER, _MAX_PAIRS = 24, 24
_MAX_LAYERS = 16


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A graph that runs anywhere, and the training that it must repeat."""

    graph: Graph
    recipe: Recipe
    kept: tuple[int, ...]
    num_layers: int


def shrink(bound: BoundPlan, graph: Graph, *, base: Path, folder: Path, dtype: DType) -> Shrunk:
    """Shrink the plan, and write its model and text into `folder`. CannotShrink, or RunError."""
    build = next(op for op in graph.setup if isinstance(op, ops.BuildModel))
    model = meta_model(build, base=base, runs_extensions=True)
    if graph.adapters is not None:
        attach(model, graph.adapters)
    num_stages = num_small_stages(graph)
    layers, kept = _layers(bound, model, stack_of(model, graph), at_least=num_stages)
    numbers = tuple(int(name.rpartition(".")[2]) for name in kept)
    demands = _demands(bound, tuple(dict.fromkeys(numbers)), num_layers=len(layers))
    small = shrink_config(_config_of(model), demands, aliases=type(model.config).attribute_map)
    _write_config(folder / MODEL, whole_values(model, small, image_token=IMAGE_ID, video_token=START_ID))
    _write_corpus(folder)
    if (images := small_images(bound, MODEL)) is not None:
        write_images(folder, images, config_in(folder / MODEL, None))
    for _, extension in extensions_of(graph):
        (folder / extension.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(base / extension.file, folder / extension.file)
    digest = config_digest(folder / MODEL)
    # The small config has what a plan sets in the large one.
    built = replace(build, path=MODEL, config_digest=digest, dtype=dtype)
    built = replace(built, zeroed=(), rope=(), rope_positions=None)
    short = _built(replace(built, path=str((folder / MODEL).absolute())), base=base)
    # The names of its own layers, in its own dtype.
    built = replace(
        built,
        own_dtypes=own_dtypes(short, dtype=dtype),
        kept_in_float32=kept_in_float32(short, TORCH_DTYPES[dtype]),
    )
    renamed = Renaming(frozenset(layers), dict(zip(kept, _renumbered(kept), strict=True)), names_of(short))
    if graph.adapters is not None:
        own, stacked = map(renamed.of, (graph.adapters.modules, graph.adapters.stacked))
        attach(short, replace(graph.adapters, modules=own, stacked=stacked))
        renamed = replace(renamed, names=names_of(short))
    require_twin(model, short, renamed.kept, _config_of(model), small)
    recipe = recipe_of(bound, renamed, folder=folder, dtype=dtype)
    sizes = {mesh_dim: min(size, MAX_RANKS) for mesh_dim, size in graph.mesh}
    staged = in_small_stages(
        graph,
        bound.plan.pipeline,
        _renumbered(kept),
        sizes=sizes,
        hidden_size=short.get_input_embeddings().embedding_dim,
        dtype=dtype,
    )
    shrunk = shrunk_graph(
        *(_without_directories(staged), built, renamed, sizes, recipe),
        vocab_size=short.config.vocab_size,
        padding=getattr(short.config, "pad_token_id", None),
        start=getattr(short.config, "decoder_start_token_id", None),
    )
    shrunk = resized(shrunk, short)
    recipe = replace(recipe, matrices=matrices_of(shrunk))
    if (quantized := shrunk.quantized) is not None:
        recipe = replace(recipe, quantized=quantized.modules, block=quantized.block)
    _require_all_stated(shrunk, short)
    store_teacher(shrunk, base=folder)
    return Shrunk(shrunk, recipe, numbers, len(layers))


def _without_directories(graph: Graph) -> Graph:
    """The graph with adapters that are drawn, a reference of the start, and a teacher that is made up: those
    of directories do not fit the small model."""
    seed = next(op.seed for op in graph.setup if isinstance(op, ops.InitWeights | ops.LoadWeights))
    setup: list[Any] = []
    for op in graph.setup:
        if isinstance(op, ops.LoadAdapters):
            setup.append(ops.InitAdapters(modules=op.modules, seed=seed, span=op.span))
        elif isinstance(op, ops.OpenTeacher):
            setup.append(replace(op, path=STORED, top_k=min(op.top_k, MAX_TOP_K)))
        else:
            setup.append(replace(op, path=None) if isinstance(op, ops.ComputeReference) else op)
    return replace(graph, setup=tuple(setup))


def _demands(bound: BoundPlan, kept: tuple[int, ...], *, num_layers: int) -> Demands:
    plan, cp = bound.plan, bound.plan.context_parallel
    positions = bound.inventory.positions
    return Demands(
        kept=kept,
        num_layers=num_layers,
        tp=plan.mesh.tp,
        cp=plan.mesh.cp,
        divides_heads=cp is not None and cp.rotate is spec.Rotate.ULYSSES,
        num_shards=plan.mesh.dp_shard * plan.mesh.cp * plan.mesh.tp,
        sequence_length=plan.data.sequence_length,
        short_length=min(SEQUENCE_LENGTH, plan.data.sequence_length),
        first_position=positions.first,
        uncounted_token=positions.uncounted_token,
    )


def _layers(
    bound: BoundPlan, model: nn.Module, stack: Stack, *, at_least: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All layers, and the layers that stay, by name in the model's order.

    An encoder and its decoder keep the layers of the same numbers. CannotShrink for other lists of layers.
    """
    found = {layer: index for index, kind in enumerate(stack.kinds) for layer in kind.layers}
    lists = sorted({parent_of(layer) for layer in found} or set(bound.inventory.blocks[:1]))
    if len(lists) != (2 if bound.inventory.start_token is not None else 1):
        raise CannotShrink(f"the model has {len(lists)} lists of layers: {', '.join(lists)}")
    members = {fqn: [name for name, _ in model.get_submodule(fqn).named_children()] for fqn in lists}
    layers = tuple(f"{fqn}.{name}" for fqn in reversed(lists) for name in members[fqn])
    # A unit of several layers has no kind of its own: then all stay.
    kept = {kind.layers[0].rpartition(".")[2] for kind in stack.kinds} or {*members[lists[0]]}
    for name in members[lists[0]]:
        if len(kept) < max(2, at_least):
            kept.add(name)
    if len(kept) > _MAX_LAYERS:
        raise CannotShrink(
            f"the plan treats {len(kept)} layers of {lists[0]} in different ways, more than {_MAX_LAYERS}"
        )
    if any(not kept <= {*names} for names in members.values()):
        raise CannotShrink(f"{' and '.join(lists)} have no {max(2, at_least)} layers of the same numbers")
    return layers, tuple(layer for layer in layers if layer.rpartition(".")[2] in kept)


def _renumbered(kept: tuple[str, ...]) -> tuple[str, ...]:
    """The names in lists that have these layers alone."""
    lists: dict[str, list[str]] = {}
    for name in kept:
        lists.setdefault(parent_of(name), []).append(name)
    return tuple(f"{fqn}.{index}" for fqn, names in lists.items() for index in range(len(names)))


def _config_of(model: Any) -> Config:
    """The model's config as its class filled it in."""
    config: dict[str, Any] = model.config.to_dict()
    return {name: value for name, value in config.items() if name not in ("_name_or_path", "dtype")}


def _write_config(folder: Path, config: Config) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _write_corpus(folder: Path) -> None:
    """Real text, and pairs of it: the beginning of the interpreter's own sources.

    Documents have all lengths up to about a sequence, so most sequences hold several, and some are
    cut. Pairs are few, as each is in the pass of the reference.
    """
    text = ""
    for document in documents(PythonStdlibSource(), base=folder):
        text += document.text
        if len(text) > _CORPUS_BYTES:
            break
    texts: list[str] = []
    start = 0
    while start < _CORPUS_BYTES:
        length = 2 + len(texts) * _LENGTH_STEP % _MAX_DOCUMENT
        texts.append(text[start : start + length])
        start += length
    short = [text for text in texts if text.strip() and len(text) <= _MAX_ANSWER][: 3 * _MAX_PAIRS]
    labeled = [_labeled(text) for text in texts]
    for name, rows in ((CORPUS, labeled), (PAIRS, pairs_of(short))):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _labeled(text: str) -> dict[str, Any]:
    """A row with classes: lengths, which follow from no one byte."""
    words = text.split() or [text]
    of_words = {"words": words, "labels": [len(word) % 2 for word in words]}
    return {"text": text, "label": len(text) % 2, "pair": text[::-3], **of_words}


def _built(build: ops.BuildModel, *, base: Path) -> Any:
    """The small model on meta; CannotShrink if its class rejects the sizes."""
    try:
        return bare_model(build, base=base, runs_extensions=True)
    except STOPS:
        raise
    except BaseException as error:  # a class may raise anything for invalid sizes
        reason = str(error).strip().partition("\n")[0]
        raise CannotShrink(f"{build.architecture} can't be built with small sizes: {reason}") from error


def matrices_of(graph: Graph) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Muon's matrices, and the rows of each part that one fuses."""
    build = next(op for op in graph.setup if isinstance(op, ops.BuildOptimizer))
    groups = [group for group in build.groups if isinstance(group, ops.MatrixGroup)]
    return tuple((fqn, dict(group.widths).get(fqn, ())) for group in groups for fqn in group.parameters)


def _require_all_stated(graph: Graph, model: nn.Module) -> None:
    build = next(op for op in graph.setup if isinstance(op, ops.BuildOptimizer))
    stated = {name for group in build.groups for name in group.parameters}
    stated.update(graph.frozen)
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    # The last stage of a pipeline has a copy of its own of a frozen weight of both ends.
    lost = sorted({name for name, _ in model.named_parameters()} - stated | stated - aliases)
    if lost:
        raise CannotShrink(f"a smaller model has other parameters: {', '.join(lost[:3])}")
