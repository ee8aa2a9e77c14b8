"""The lattice: every mesh of 1, 2, 4 and 8 ranks, with every way to run it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from planc.api import check_source
from planc.graph.graph import Graph
from planc.plan.spec import Plan
from planc.source import SourceFile
from planc.verify.losses import STORED, pairs_of, store_teacher
from tests.inventories import save_inventory
from tests.lattice.covering import covering

SEQUENCE_LENGTH = 32
MIN_GLOBAL_BATCH = 8
NUM_STEPS, TOTAL_STEPS, WARMUP_STEPS = 2, 4, 1
LEARNING_RATE, EPS, MAX_NORM = 1e-2, 1e-6, 1.0
SEED, SHUFFLE_SEED = 7, 42
CORPUS, PAIRS = "corpus.txt", "pairs.jsonl"
NUM_PAIRS = 24
WORLD_SIZES = (1, 2, 4, 8)
_CORPUS_WORDS = 3000

_SIZES: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 256,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
_STARCODER: Mapping[str, Any] = {
    **_SIZES,
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "sliding_window": None,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
}
_DEEP: Mapping[str, Any] = {**_STARCODER, "num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 88}
_LLAMA: Mapping[str, Any] = {**_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_EXPERTS: Mapping[str, Any] = {
    **_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "float64": _STARCODER,
    "float64-deep": _DEEP,
    "float64-tied": {**_DEEP, "tie_word_embeddings": True},
    "float32": _LLAMA,
    "bfloat16": _LLAMA,
    "float64-experts": _EXPERTS,
    "float64-wide": {**_STARCODER, "intermediate_size": 256},
}
"""The model that is run in each dtype, and in pipelines. A Llama's norms square in float32 whatever the
dtype; Starcoder 2 has PyTorch's layer norms, and nothing of it but rotary tables is computed in less than
float64. Its linear layers have biases."""
_LINEAR: Mapping[str, tuple[str, str]] = {
    "starcoder2": ("c_fc", "c_proj"),
    "llama": ("{gate,up}_proj", "down_proj"),
}
"""The layers of an MLP, by the model's type."""

CONTEXTS = ("ring headtail", "ring none", "allgather headtail", "allgather none", "ulysses none")
RECOMPUTATIONS = ("none", "selective", "full")
_LAYERS = '  "model.layers.*" -> unit\n'
_ENDS = '  "model.embed_tokens" -> unit\n  ["model.norm", "lm_head"] -> unit\n'
UNITS: Mapping[str, str] = {
    "layers": _LAYERS,
    "none": "",
    "ends": _ENDS,
    "ends and layers": _ENDS + _LAYERS,
    "attention": '  "model.layers.*.self_attn" -> unit\n',
    "mlp": '  "model.layers.*.mlp" -> unit(reshard_after_forward = false)\n',
    "norms, attention and mlp": (
        '  "model.layers.*.mlp" -> unit\n  "model.layers.*.self_attn" -> unit\n'
        '  "model.layers.*.{input,post_attention}_layernorm" -> unit\n'
    ),
    "all layers but one": '  "model.layers.{0,2,3,4,5,6,7}" -> unit\n',
    "one layer": '  "model.layers.0" -> unit(reshard_after_forward = false)\n',
}
"""The rules of FSDP's units by their shape. What lies in none is held by the root, or by units of stages."""
SHARDINGS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "zero 1": ("reshard_after_backward = false",),
    "zero 2": ("reshard_after_backward = false", "reduce_every = micro_batch"),
    "reduced each micro-batch": ("reduce_every = micro_batch",),
}
"""What is sharded between uses: lines of the `fsdp` block. By default all is, but gradients once a step."""
_ADAPTED = '  "model.layers.*.{self_attn,mlp}.*_proj" -> adapted\n}'
_IN_ATTENTION = '  "model.layers.*.self_attn.*_proj" -> adapted\n}'
_IN_EXPERTS = {"LoRA": f'  "model.layers.*.mlp.experts" -> adapted\n{_IN_ATTENTION}'}
TRAINED: Mapping[str, str] = {
    "freeze": 'freeze {\n  ["model.embed_tokens", "model.layers.0", "**.*norm*"] -> frozen\n}',
    "LoRA": f"adapter {{\n  kind = lora(rank = 4, alpha = 8)\n{_ADAPTED}",
    "DoRA": f"adapter {{\n  kind = lora(rank = 4, alpha = 8, dora = true)\n{_ADAPTED}",
    "QLoRA": f"adapter {{\n  kind = lora(rank = 4, alpha = 6, rslora = true)\n  base = nf4\n{_ADAPTED}",
}
"""The blocks that decide what is trained, by their names; all of the model is without one."""
_ADAMW = f"adamw(lr = {LEARNING_RATE}, eps = {EPS:.6f})"
OPTIMIZERS: Mapping[str, str] = {
    "Muon": f"muon(lr = {LEARNING_RATE}, ns_dtype = float64, rest = {_ADAMW})",
    "8 bits": f"adamw_8bit(lr = {LEARNING_RATE}, eps = {EPS:.6f}, block = 4)",
}
"""The optimizers of cells that do not train by AdamW."""
_DPO = "  loss = dpo(beta = 0.3, label_smoothing = 0.1)\n"
_TEACHER = (
    f'  loss = distillation(teacher = "float64", logits = "{STORED}", top_k = 5, temperature = 2.0, '
    "weight = 0.7)\n"
)
_IN_CHUNKS = "  loss_chunks = 4\n"
LOSSES: Mapping[str, str] = {
    "chunks": _IN_CHUNKS,
    "DPO": _DPO,
    "DPO in chunks": _DPO + _IN_CHUNKS,
    "teacher": _TEACHER,
    "teacher in chunks": _TEACHER + _IN_CHUNKS,
}
"""The lines of cells that have another loss than cross entropy of whole logits."""
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved(stages_per_rank = 2)", "zero_bubble")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes, outermost first."""

    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    pp: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        return asdict(self)

    @property
    def world_size(self) -> int:
        return prod(self.sizes.values())

    @property
    def name(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items() if size > 1) or "one rank"

    @property
    def has_shards(self) -> bool:
        """Whether FSDP shards anything."""
        return self.dp_shard * self.cp > 1

    @property
    def may_be_whole(self) -> bool:
        """Whether there are replicas, and nothing that they would be sharded over."""
        return self.dp_replicate > 1 and self.dp_shard == self.cp == 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One mesh with one way to run it. What a mesh has no use for is at its default."""

    mesh: Mesh
    whole_replicas: bool = False
    sequence_parallel: bool = False
    loss_parallel: bool = False
    context: str = ""
    num_micro_steps: int = 1
    recomputation: str = "none"
    dtype: str = "float64"
    schedule: str = ""
    """Of a pipeline: each of its micro-batches is one sequence a rank of dp."""
    is_tied: bool = False
    """Whether both ends of the pipeline have the embedding, which is the head's weight too."""
    units: str = "layers"
    """The shape of FSDP's units."""
    sharding: str = ""
    ep: int = 1
    """Neighboring ranks that hold different experts."""
    experts_on: str = "dp_shard"
    """The mesh dims of these ranks."""
    capacity: float | None = None
    """The most tokens of a sequence that an expert takes, of an equal share; others are dropped."""
    trained: str = ""
    """The name of a block that decides what is trained."""
    optimizer: str = ""
    """The name of an optimizer; AdamW without one."""
    has_averages: bool = False
    loss: str = ""
    """The name of a loss; cross entropy of whole logits without one."""

    @property
    def name(self) -> str:
        parts = (
            self.mesh.name,
            "whole replicas" * self.whole_replicas,
            "sequence parallel" * self.sequence_parallel,
            "loss parallel" * self.loss_parallel,
            self.context,
            f"{self.num_micro_steps} micro steps" if self.num_micro_steps > 1 else "",
            f"recompute {self.recomputation}" if self.recomputation != "none" else "",
            self.schedule,
            "tied" * self.is_tied,
            f"units: {self.units}" if self.units != "layers" else "",
            self.sharding,
            f"ep {self.ep} of {self.experts_on}" if self.ep > 1 else "",
            f"capacity {self.capacity}" if self.capacity is not None else "",
            self.trained,
            self.optimizer,
            "averages" * self.has_averages,
            self.loss,
            self.dtype,
        )
        return ", ".join(part for part in parts if part)

    @property
    def dp_size(self) -> int:
        return self.mesh.dp_replicate * self.mesh.dp_shard

    @property
    def global_batch(self) -> int:
        sequences = self.dp_size * self.num_micro_steps * (1 + self.in_pairs)
        return sequences if self.schedule else max(MIN_GLOBAL_BATCH, sequences)

    @property
    def in_pairs(self) -> bool:
        """Whether the loss is of pairs of answers, which are two sequences each."""
        return "dpo" in LOSSES.get(self.loss, "")

    @property
    def model(self) -> str:
        """The folder of its config."""
        if self.ep > 1:
            return f"{self.dtype}-experts"
        if self.trained == "QLoRA":
            return f"{self.dtype}-wide"
        deep = "float64-tied" if self.is_tied else "float64-deep"
        return deep if self.schedule else self.dtype


def meshes(world_size: int) -> Iterator[Mesh]:
    """Every factorisation of a number of ranks, a power of two, over the mesh dims but pp."""
    powers = [2**power for power in range(world_size.bit_length())]
    for sizes in product(powers, repeat=len(fields(Mesh)) - 1):
        if prod(sizes) == world_size:
            yield Mesh(*sizes)


def full_product(mesh: Mesh) -> Iterator[Cell]:
    """Every way to run a mesh in float64."""
    whole = (True, False) if mesh.may_be_whole else (False,)
    over_tp = (True, False) if mesh.tp > 1 else (False,)
    contexts = CONTEXTS if mesh.cp > 1 else ("",)
    for axes in product(whole, over_tp, over_tp, contexts, (1, 4), RECOMPUTATIONS):
        yield Cell(mesh, *axes)


def pipelines(mesh: Mesh, *, is_tied: bool) -> Iterator[Cell]:
    """Every way to run a mesh with pp: fewer micro-batches than ranks, as many, and no multiple of them."""
    over_tp = (True, False) if mesh.tp > 1 else (False,)
    numbers = (mesh.pp // 2, mesh.pp, mesh.pp + mesh.pp // 2)
    contexts = CONTEXTS if mesh.cp > 1 else ("",)
    # A tied weight is in one unit, where both ends are one stage.
    shapes = [one for one in UNITS if not (is_tied and "ends" in one)]
    if mesh.may_be_whole:
        ways = [(True, "layers"), *((False, one) for one in shapes if one != "layers")]
    else:
        ways = [(False, one) for one in shapes if mesh.has_shards or one == "layers"]
    axes = product(over_tp, contexts, numbers, RECOMPUTATIONS, SCHEDULES, ways)
    for is_sharded, context, times, recomputation, schedule, (is_whole, units) in axes:
        yield Cell(
            mesh,
            whole_replicas=is_whole,
            sequence_parallel=is_sharded,
            loss_parallel=is_sharded,
            context=context,
            num_micro_steps=times,
            recomputation=recomputation,
            schedule=schedule,
            is_tied=is_tied,
            units=units,
        )


@cache
def pipeline_cells(pp: int) -> tuple[Cell, ...]:
    """All float64 cells with pp 2; of those with cp or tied, and with pp 4, enough that every two values
    meet."""
    meshes = [Mesh(*sizes, pp=pp) for sizes in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 1, 2))]
    with_cp = Mesh(1, 1, 2, 1, pp=pp)
    every = tuple(cell for mesh in meshes for cell in _with_layers(mesh, is_tied=False))
    over_cp = tuple(_with_layers(with_cp, is_tied=False))
    tied = tuple(cell for mesh in (*meshes, with_cp) for cell in _with_layers(mesh, is_tied=True))
    if pp == 2:
        found = (*every, *_covering(over_cp), *_covering(tied))
    else:
        found = _covering((*every, *over_cp, *tied))
    return tuple(sorted(found, key=lambda cell: [*meshes, with_cp].index(cell.mesh)))


def _with_layers(mesh: Mesh, *, is_tied: bool) -> Iterator[Cell]:
    return (cell for cell in pipelines(mesh, is_tied=is_tied) if cell.units == "layers")


@cache
def unit_cells() -> tuple[Cell, ...]:
    """Pipelines with units of every other shape: with each schedule, each recomputation, and FSDP over
    dp_shard and over cp; and so many more that every two values meet, with replicas and pp 4 as well."""
    beside = ((1, 2, 1), (1, 1, 2), (2, 1, 1))
    meshes = [Mesh(*sizes, 1, pp) for pp in (2, 4) for sizes in beside]
    every = [
        cell
        for mesh in meshes
        for is_tied in (False, True)
        for cell in pipelines(mesh, is_tied=is_tied)
        if cell.units != "layers"
    ]
    full = {
        cell
        for cell in every
        if cell.mesh.pp == 2
        and cell.mesh.has_shards
        and cell.num_micro_steps == 3
        and cell.context in ("", CONTEXTS[0])
        and not cell.is_tied
    }
    chosen = full.union(_covering(tuple(every)))
    return tuple(cell for cell in every if cell in chosen)


@cache
def cells(world_size: int) -> tuple[Cell, ...]:
    """The float64 cells that are run: all on 4 ranks, elsewhere enough that every two values meet.

    On 1 and 2 ranks they meet within each mesh. On 8 ranks the mesh is one more axis, so every value is
    run on every mesh, and any two of them on some mesh.
    """
    every = {mesh: tuple(full_product(mesh)) for mesh in meshes(world_size)}
    if world_size == 4:
        return tuple(cell for of_mesh in every.values() for cell in of_mesh)
    if world_size == 8:
        return _covering(tuple(cell for of_mesh in every.values() for cell in of_mesh))
    return tuple(cell for of_mesh in every.values() for cell in _covering(of_mesh))


def _covering(every: tuple[Cell, ...]) -> tuple[Cell, ...]:
    rows = covering([{one.name: getattr(cell, one.name) for one in fields(Cell)} for cell in every])
    found = {Cell(**row) for row in rows}  # type: ignore[arg-type]
    return tuple(cell for cell in every if cell in found)


def narrow_cells(dtype: str) -> tuple[Cell, ...]:
    """A sample in a narrower dtype: every mesh of 4 and 8 ranks, with values of the other axes in turn."""
    found = []
    for world_size in (4, 8):
        for index, mesh in enumerate(meshes(world_size)):
            every = tuple(full_product(mesh))
            # 7 has no divisor in common with the number of cells of any mesh: 2, 3 and 5 divide them.
            found.append(replace(every[index * 7 % len(every)], dtype=dtype))
    return tuple(found)


@cache
def sharding_cells() -> tuple[Cell, ...]:
    """Of meshes of 2 and 4 ranks with FSDP, and of pipelines with it, enough that each way to shard between
    uses meets each value of another axis."""
    flat = [mesh for world_size in (2, 4) for mesh in meshes(world_size) if mesh.dp_shard * mesh.cp > 1]
    every = [cell for mesh in flat for cell in full_product(mesh)]
    every += pipelines(Mesh(1, 2, 1, 1, pp=2), is_tied=False)
    found = _covering(tuple(replace(cell, sharding=one) for cell in every for one in SHARDINGS if one))
    return tuple(sorted(found, key=lambda cell: astuple(cell.mesh)))


@cache
def expert_cells() -> tuple[Cell, ...]:
    """Experts on 2 and 4 ranks of dp_shard, next to every other mesh dim, on ranks of cp, and on those of tp
    with shards of sequences, and in stages of four ranks: of each, enough that every two values meet."""
    flat = [Mesh(1, 2, 1, 1), Mesh(1, 4, 1, 1), Mesh(2, 2, 1, 1), Mesh(1, 2, 2, 1), Mesh(1, 2, 1, 2)]
    flat += [Mesh(1, 4, 2, 1), Mesh(1, 4, 1, 2), Mesh(1, 2, 2, 2)]
    with_cp = [mesh for mesh in flat if mesh.cp > 1] + [Mesh(1, 1, 4, 1), Mesh(2, 1, 2, 1)]
    stages = [Mesh(1, 2, 1, 1, pp=2), Mesh(1, 4, 1, 1, pp=2)]
    of_dp = _covering(tuple(_dispatched([*flat, *stages], {"dp_shard"})))
    of_cp = _covering(tuple(_dispatched([*with_cp, Mesh(1, 1, 2, 1, pp=2)], {"dp_shard", "cp"})))
    with_tp = [Mesh(1, 2, 1, 2), Mesh(1, 1, 2, 2), Mesh(2, 1, 1, 2), Mesh(1, 1, 1, 4), Mesh(1, 1, 1, 2, pp=2)]
    on_tp = _dispatched(with_tp, {"dp_shard", "cp", "tp"})
    of_tp = _covering(tuple(cell for cell in on_tp if cell.sequence_parallel))
    wide = [Mesh(1, 2, 1, 2, pp=2), Mesh(1, 2, 2, 1, pp=2), Mesh(2, 1, 1, 2, pp=2), Mesh(1, 1, 2, 2, pp=2)]
    wide += [Mesh(1, 1, 1, 4, pp=2)]
    staged = (*_dispatched(wide, {"dp_shard"}), *_dispatched(wide, {"dp_shard", "cp", "tp"}))
    of_stages = _covering(tuple(cell for cell in staged if cell.sequence_parallel or cell.mesh.tp == 1))
    found = dict.fromkeys((*of_dp, *of_cp, *of_tp, *of_stages))
    return tuple(sorted(found, key=lambda cell: (cell.mesh.world_size, astuple(cell))))


def _dispatched(some: Collection[Mesh], on: Collection[str]) -> Iterator[Cell]:
    """Every way to run these meshes with experts on ranks along those of these mesh dims that are wide."""
    for mesh, ep in product(some, (2, 4)):
        sizes = {name: size for name, size in mesh.sizes.items() if name in on and size > 1}
        every = pipelines(mesh, is_tied=False) if mesh.pp > 1 else full_product(mesh)
        for cell in every if prod(sizes.values()) % ep == 0 else ():
            is_run = mesh.pp > 1 or not cell.loss_parallel
            if is_run and not cell.whole_replicas and cell.units in ("layers", "attention"):
                # A sequence must be counted whole.
                for capacity in (None,) if cell.context or "tp" in sizes else (None, 0.75):
                    yield replace(cell, ep=ep, experts_on=", ".join(sizes), capacity=capacity)


@cache
def trained_cells() -> tuple[Cell, ...]:
    """Parts of the model that are frozen, adapters, averages, pairs and optimizers, on meshes of up to 4
    ranks and pipelines: enough that each meets each other one, and each value of another axis."""
    flat = [mesh for world_size in (1, 2, 4) for mesh in meshes(world_size)]
    every = [cell for mesh in flat for cell in full_product(mesh)]
    staged = Mesh(1, 2, 1, 1, pp=2)
    every += [cell for cell in pipelines(staged, is_tied=False) if cell.units == "layers"]
    with_experts = [Mesh(1, 2, 1, 1), Mesh(1, 4, 1, 1), Mesh(1, 2, 2, 1), Mesh(1, 2, 1, 2), staged]
    every += [cell for cell in _dispatched(with_experts, {"dp_shard", "cp"}) if cell.units == "layers"]
    every += [cell for cell in _dispatched([Mesh(1, 2, 1, 2)], {"dp_shard", "tp"}) if cell.sequence_parallel]
    ways = product(("", *TRAINED), ("", *OPTIMIZERS), (False, True), ("", "DPO"))
    return _trained_in(every, [dict(zip(WAYS, way, strict=True)) for way in ways if any(way)])


@cache
def loss_cells() -> tuple[Cell, ...]:
    """Losses of pairs and with a teacher, and all losses in chunks, next to what is trained: on meshes of up
    to 4 ranks and pipelines, enough that every two values meet."""
    flat = [mesh for world_size in (1, 2, 4) for mesh in meshes(world_size)]
    every = [cell for mesh in flat for cell in full_product(mesh)]
    for staged in (Mesh(1, 2, 1, 1, pp=2), Mesh(1, 1, 1, 2, pp=2), Mesh(1, 1, 2, 1, pp=2)):
        every += [cell for cell in pipelines(staged, is_tied=False) if cell.units == "layers"]
    ways = product(("", "LoRA"), LOSSES)
    return _trained_in(every, [{"trained": trained, "loss": loss} for trained, loss in ways])


def _trained_in(every: Iterable[Cell], ways: Sequence[Mapping[str, Any]]) -> tuple[Cell, ...]:
    found = (replace(cell, **way) for cell in every for way in ways)
    run = tuple(cell for cell in found if is_supported(cell))
    return tuple(sorted(_covering(run), key=lambda cell: (cell.mesh.world_size, astuple(cell))))


WAYS = ("trained", "optimizer", "has_averages", "loss")
"""The axes of what is trained, and how."""


def is_supported(cell: Cell) -> bool:
    """Logits that all ranks of tp have are in one chunk. Muon is refused with adapters and with experts on
    different ranks. Of weights in 4 bits ranks must have whole blocks of 64 inputs, and the model that has
    them as many layers as there are stages, and no stacked experts."""
    if _IN_CHUNKS in LOSSES.get(cell.loss, "") and cell.mesh.tp > 1 and not cell.loss_parallel:
        return False
    if cell.trained == "QLoRA" and (cell.mesh.tp > 2 or "interleaved" in cell.schedule or cell.ep > 1):
        return False
    return cell.optimizer != "Muon" or (cell.trained in ("", "freeze") and cell.ep == 1)


def plan_text(cell: Cell) -> str:
    """The plan of a cell; paths are relative to the workspace."""
    mesh = "\n".join(f"  {mesh_dim} = {size}" for mesh_dim, size in cell.mesh.sizes.items())
    micro_batch = cell.global_batch // cell.dp_size // cell.num_micro_steps
    source = f'pairs("{PAIRS}", template = none)' if cell.in_pairs else f'text("{CORPUS}")'
    kept = LOSSES.get(cell.loss, "")
    kept += "  ema_decay = 0.8\n" if cell.has_averages else ""
    tokens = cell.global_batch * SEQUENCE_LENGTH
    blocks = [
        f'model {{\n  hf = "{cell.model}"\n  seed = {SEED}\n  dtype = {cell.dtype}\n}}',
        f"mesh {{\n{mesh}\n}}",
        f"data {{\n  source = {source}\n  sequence_length = {SEQUENCE_LENGTH}\n"
        f"  micro_batch = {micro_batch}\n  shuffle_seed = {SHUFFLE_SEED}\n}}",
        f"optimizer {{\n  kind = {OPTIMIZERS.get(cell.optimizer, _ADAMW)}\n"
        f"  clip_grad_norm = {MAX_NORM}\n  schedule = cosine(warmup = {WARMUP_STEPS} steps)\n}}",
        f"train {{\n  steps = {TOTAL_STEPS}\n  tokens_per_step = {tokens}\n{kept}}}",
        f'activation_checkpoint {{\n  "model.layers.*" -> {cell.recomputation}\n}}',
    ]
    if not cell.whole_replicas:
        blocks.append(_fsdp(cell))
    if cell.schedule:
        blocks.append(f"pipeline on pp {{\n  schedule = {cell.schedule}\n}}")
    if cell.ep > 1:
        settings = f"  size = {cell.ep}\n{_capacity(cell)}"
        blocks.append(f"expert_parallel on {cell.experts_on} {{\n{settings}  auto\n}}")
    if cell.mesh.tp > 1:
        rules = _automatic_rules(cell) if cell.ep > 1 else _tensor_parallel_rules(cell)
        blocks.append(f"tensor_parallel on tp {{\n{rules}}}")
    if cell.context:
        rotate, balance = cell.context.split()
        blocks.append(
            f"context_parallel on cp {{\n  rotate = {rotate}\n  load_balancer = {balance}\n"
            '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}'
        )
    if cell.trained:
        # The model of these cells has experts in the place of other layers.
        rules = _ADAPTED if cell.ep == 1 else _IN_EXPERTS.get(cell.trained, _IN_ATTENTION)
        blocks.append(TRAINED[cell.trained].replace(_ADAPTED, rules))
    return "\n".join(blocks) + "\n"


def _capacity(cell: Cell) -> str:
    return "" if cell.capacity is None else f"  capacity = {cell.capacity}\n"


def _fsdp(cell: Cell) -> str:
    units = UNITS[cell.units]
    if "zero" in cell.sharding:
        units = re.sub(r"-> unit$", "-> unit(reshard_after_forward = false)", units, flags=re.MULTILINE)
    lines = ("replicate_on = dp_replicate", *SHARDINGS[cell.sharding])
    return "fsdp on dp_shard, cp {\n" + "".join(f"  {line}\n" for line in lines) + units + "}"


def _automatic_rules(cell: Cell) -> str:
    return "  auto(sequence_parallel = true)\n" if cell.sequence_parallel else "  auto(solve)\n"


def _tensor_parallel_rules(cell: Cell) -> str:
    head_output = "Shard(-1)" if cell.loss_parallel else "Replicate()"
    enters, leaves = _LINEAR[MODELS[cell.model]["model_type"]]
    sums = f'["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.{leaves}"]'
    rules = [
        '"model.layers.*.self_attn.{q,k,v}_proj" -> colwise',
        f'"model.layers.*.mlp.{enters}" -> colwise',
    ]
    if cell.sequence_parallel:
        rules += [
            '"model.embed_tokens" -> embedding_rowwise(output = Shard(1))',
            '"model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel',
            '"model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())',
            f"{sums} -> rowwise(output = Shard(1))",
            '"model.norm" -> sequence_parallel',
            f'"lm_head" -> colwise(input = Shard(1), output = {head_output})',
        ]
    else:
        rules += [
            '"model.embed_tokens" -> embedding_rowwise',
            f"{sums} -> rowwise",
            f'"lm_head" -> colwise(output = {head_output})',
        ]
    return "".join(f"  {rule}\n" for rule in rules)


def make_workspace(folder: Path) -> Path:
    """`folder`, filled with every model's config and inventory, and with the data that all cells read."""
    for name, config in MODELS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_inventory(folder / name)
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(_CORPUS_WORDS))
    (folder / CORPUS).write_text(text, encoding="utf-8")
    answers = (" ".join(words[n % 11] for n in range(i, i + 1 + i % 4)) for i in range(3 * NUM_PAIRS))
    pairs = (f"{json.dumps(pair)}\n" for pair in pairs_of(answer[:14] for answer in answers))
    (folder / PAIRS).write_text("".join(pairs), encoding="utf-8")
    store_teacher(compile_cell(Cell(Mesh(1, 1, 1, 1), loss="teacher"), workspace=folder)[1], base=folder)
    return folder


def compile_cell(cell: Cell, *, workspace: Path) -> tuple[Plan, Graph]:
    """A cell's plan and its graph, through every check. ValueError with the findings if there are errors."""
    source = SourceFile("lattice.plan", plan_text(cell))
    checked = check_source(source, base=workspace, world_size=cell.mesh.world_size)
    if checked.graph is None or checked.bound is None:
        raise ValueError(f"{cell.name}: {'; '.join(map(str, checked.diagnostics))}")
    return checked.bound.plan, checked.graph
