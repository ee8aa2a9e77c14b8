"""The closed form against the rehearsal, plan by plan: `make estimate-accuracy`.

The rehearsal runs planc's own operations on fake tensors, and an allocator on what they allocate; both
figures are of a device with expandable segments. `held` leaves the gaps between blocks out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.estimate.layout import layouts
from planc.estimate.result import Memory
from planc.graph.graph import Graph
from planc.graph.ops import AllReduceGradients, AttachAttention, ShardTensorParallel
from planc.inventory.schema import Inventory
from planc.runtime.rehearsal.findings import Measured
from planc.runtime.rehearsal.memory import BLOCK_BYTES
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.plans import PLANS

_GIB = 2**30
_OWN_HEAD_UNIT = '  ["model.norm", "lm_head"] -> unit(reshard_after_forward = false)\n'
_IN_PAIRS = (
    'data.source=pairs("data/*.jsonl", template = none)',
    "data.packing=none",
    "train.loss=dpo(beta = 0.1)",
)
_PROJECTIONS = '"model.layers.*.{self_attn,mlp}.*_proj"'


@dataclass(frozen=True, slots=True)
class Variant:
    """plans/llama-3.1-8b.plan on another mesh. `steps` micro steps make a step."""

    name: str
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    sequence: int = 8192
    micro_batch: int = 1
    steps: int = 1
    recomputes: bool = True
    recomputation: str = "full"
    rotate: str = "allgather"
    is_narrow: bool = True
    """Whether it computes in bfloat16."""
    is_tied: bool = False
    """The 1B model instead, whose head is its embedding."""
    is_whole: bool = False
    """Without FSDP, in float32."""
    chunks: int = 1
    """Of the loss."""
    in_pairs: bool = False
    """Whether the loss is of pairs of answers."""
    distillation: str = ""
    """The arguments of a loss with a teacher, which is the model itself."""
    prefetch: int = 1
    is_whole_in_step: bool = False
    """Whether parameters are gathered once a step, as in ZeRO-1 and ZeRO-2."""
    reduce_every: str = "step"
    is_compiled: bool = False
    """Whether layers are."""
    schedule: str = ""
    """Of a pipeline in four stages, of which `stage` is measured. It has `steps` micro-batches."""
    stage: int = 0
    adapter: str = ""
    """Its arguments: every projection has one, and the model's own parameters are frozen, in bfloat16."""
    base: str = "model"
    """The storage of these."""

    @property
    def text(self) -> str:
        text = (PLANS / "llama-3.1-8b.plan").read_text(encoding="utf-8")
        for block in ("expect", "activation_checkpoint", *["fsdp on dp_shard, cp"] * self.is_whole):
            text = re.sub(rf"^{block} \{{.*?^\}}\n", "", text, flags=re.DOTALL | re.MULTILINE)
        edits = {"rotate = allgather": f"rotate = {self.rotate}"}
        if self.rotate == "ulysses":
            edits["load_balancer = headtail"] = "load_balancer = none"
        if not self.is_narrow and not self.is_whole:
            edits["  param_dtype = bfloat16\n  reduce_dtype = float32\n"] = ""
        if self.is_tied:
            edits["models/llama-3.1-8b"] = "models/llama-3.2-1b"
        if self.is_tied and not self.is_whole:
            edits[_OWN_HEAD_UNIT] = ""
        if self.is_whole_in_step:
            edits["reshard_after_forward = true"] = "reshard_after_forward = false"
        if self.schedule:
            edits["  dp_replicate = 2\n"] = f"  pp = {PP}\n  dp_replicate = 2\n"
            text += f"pipeline on pp {{ schedule = {self.schedule} }}\n"
        for old, new in edits.items():
            assert old in text, f"nothing to edit: {old}"
            text = text.replace(old, new)
        rule = f'"model.layers.*" -> {self.recomputation}' if self.recomputes else ""
        if self.adapter:
            text = text.replace("  dtype = float32\n", "  dtype = bfloat16\n", 1)
            kind = f"  kind = lora({self.adapter})\n  base = {self.base}\n"
            text += f"adapter {{\n{kind}  {_PROJECTIONS} -> adapted\n}}\n"
        compilation = 'compile { "model.layers.*" -> region }\n' if self.is_compiled else ""
        return f"{text}activation_checkpoint {{\n  {rule}\n}}\n{compilation}"

    @property
    def settings(self) -> tuple[str, ...]:
        tokens = self.sequence * self.micro_batch * self.steps * self.dp_replicate * self.dp_shard
        return (
            *(f"mesh.{name}={getattr(self, name)}" for name in ("dp_replicate", "dp_shard", "cp", "tp")),
            f"data.sequence_length={self.sequence}",
            f"data.micro_batch={self.micro_batch}",
            f"train.tokens_per_step={tokens}",
            f"train.loss_chunks={self.chunks}",
            *([] if self.is_whole else self._fsdp_settings),
            *(_IN_PAIRS if self.in_pairs else ()),
            *([self._distillation] if self.distillation else ()),
        )

    @property
    def _distillation(self) -> str:
        teacher = "models/llama-3.2-1b" if self.is_tied else "models/llama-3.1-8b"
        return f'train.loss=distillation(teacher = "{teacher}", logits = "stored", {self.distillation})'

    @property
    def _fsdp_settings(self) -> tuple[str, ...]:
        keeps = str(not self.is_whole_in_step).lower()
        return (
            f"fsdp.prefetch={self.prefetch}",
            f"fsdp.reshard_after_backward={keeps}",
            f"fsdp.reduce_every={self.reduce_every}",
        )


PAIRS: Mapping[str, Any] = {"in_pairs": True, "sequence": 4096, "micro_batch": 2}
MANY_ROWS = "top_k = 1024, temperature = 2.0"
"""The arguments of a teacher whose rows are some of what is held."""
_SELECTIVE: Mapping[str, Any] = {"recomputation": "selective"}

QUICK = (
    Variant("FSDP 64", dp_shard=64),
    Variant("FSDP 8, TP 4", dp_shard=8, tp=4),
    Variant("FSDP 8, CP 4 ring, all kept", dp_shard=8, cp=4, sequence=32768, rotate="ring", recomputes=False),
    Variant("FSDP 8, TP 4, selective", dp_shard=8, tp=4, **_SELECTIVE),
    Variant("2 replicas, tied, 2 micro steps", 2, sequence=256, steps=2, is_tied=True, is_whole=True),
)
SLOW = (
    Variant("FSDP 64, all kept", dp_shard=64, recomputes=False),
    Variant("FSDP 64, 2 micro steps", dp_shard=64, steps=2),
    Variant("FSDP 64, 2 micro steps, all kept", dp_shard=64, steps=2, recomputes=False),
    Variant("FSDP 8, float32", dp_shard=8, is_narrow=False),
    Variant(
        "FSDP 8, float32, 2 micro steps, all kept",
        *(1, 8),
        sequence=4096,
        steps=2,
        is_narrow=False,
        recomputes=False,
    ),
    Variant("HSDP 2 x 8", dp_replicate=2, dp_shard=8),
    Variant("HSDP 2 x 8, all kept", dp_replicate=2, dp_shard=8, recomputes=False),
    Variant("FSDP 8, tied", dp_shard=8, is_tied=True),
    Variant("one device, tied", sequence=4096, is_tied=True),
    Variant("FSDP 8, TP 4, all kept", dp_shard=8, tp=4, recomputes=False),
    Variant("FSDP 8, TP 4, 2 micro steps", dp_shard=8, tp=4, steps=2),
    Variant("FSDP 8, TP 4, 4 samples", dp_shard=8, tp=4, sequence=4096, micro_batch=4),
    Variant("FSDP 4, TP 2, tied", dp_shard=4, tp=2, is_tied=True),
    Variant("TP 8", tp=8),
    Variant("FSDP 8, CP 4 ring", dp_shard=8, cp=4, sequence=32768, rotate="ring"),
    Variant("FSDP 8, CP 4 allgather", dp_shard=8, cp=4, sequence=32768),
    Variant("FSDP 8, CP 4 allgather, all kept", dp_shard=8, cp=4, sequence=32768, recomputes=False),
    Variant("FSDP 8, CP 4 ulysses", dp_shard=8, cp=4, sequence=32768, rotate="ulysses"),
    Variant("FSDP 8, CP 2 allgather, TP 4", dp_shard=8, cp=2, tp=4, sequence=32768),
    Variant("FSDP 64, selective", dp_shard=64, **_SELECTIVE),
    Variant("FSDP 8, pairs", dp_shard=8, **PAIRS),
    Variant("FSDP 64, 2 micro steps, selective", dp_shard=64, steps=2, **_SELECTIVE),
    Variant("FSDP 8, float32, selective", dp_shard=8, is_narrow=False, **_SELECTIVE),
    Variant("FSDP 8, CP 4 allgather, selective", dp_shard=8, cp=4, sequence=32768, **_SELECTIVE),
    Variant("FSDP 8, tied, 3 units ahead", dp_shard=8, is_tied=True, prefetch=3),
    Variant("FSDP 8, 2 units ahead, all kept", dp_shard=8, recomputes=False, prefetch=2),
    Variant(
        "FSDP 8, CP 4 ulysses, selective", dp_shard=8, cp=4, sequence=32768, rotate="ulysses", **_SELECTIVE
    ),
)
_KEPT: Mapping[str, Any] = {"dp_shard": 8, "is_whole_in_step": True}
_EACH: Mapping[str, Any] = {"dp_shard": 8, "reduce_every": "micro_batch"}
SHARDINGS = (
    Variant("FSDP 8, ZeRO-1", **_KEPT),
    Variant("FSDP 8, ZeRO-1, 4 micro steps", steps=4, **_KEPT),
    Variant("FSDP 8, ZeRO-2, 4 micro steps", steps=4, **{**_EACH, **_KEPT}),
    Variant("FSDP 8, ZeRO-2, 2 micro steps, all kept", steps=2, recomputes=False, **{**_EACH, **_KEPT}),
    Variant("FSDP 8, reduced each, 4 micro steps", steps=4, **_EACH),
    Variant("FSDP 8, reduced each, float32, 3 micro steps", steps=3, is_narrow=False, **_EACH),
    Variant("HSDP 2 x 8, reduced each, 4 micro steps", 2, steps=4, **_EACH),
    Variant("FSDP 8, TP 4, ZeRO-2, 4 micro steps", tp=4, steps=4, **{**_EACH, **_KEPT}),
)
"""What is sharded between uses: ZeRO's stages, and gradients as shards with parameters as shards."""
_COMPILED: Mapping[str, Any] = {"is_compiled": True, "recomputes": False}
COMPILED = (
    Variant("FSDP 8, compiled", dp_shard=8, **_COMPILED),
    Variant("FSDP 8, float32, compiled", dp_shard=8, is_narrow=False, **_COMPILED),
    Variant("FSDP 8, TP 4, compiled", dp_shard=8, tp=4, **_COMPILED),
    Variant("FSDP 8, CP 4 allgather, compiled", dp_shard=8, cp=4, sequence=32768, **_COMPILED),
    Variant("FSDP 8, 2 micro steps, compiled", dp_shard=8, steps=2, **_COMPILED),
    Variant("FSDP 8, recomputed, compiled", dp_shard=8, is_compiled=True),
    Variant("FSDP 8, selective, compiled", dp_shard=8, is_compiled=True, **_SELECTIVE),
)
_OFFLOADED: Mapping[str, Any] = {"recomputation": "offload"}
OFFLOADED = (
    Variant("FSDP 8, TP 4, offloaded", dp_shard=8, tp=4, **_OFFLOADED),
    Variant("FSDP 8, offloaded", dp_shard=8, **_OFFLOADED),
    Variant("FSDP 8, offloaded, compiled", dp_shard=8, is_compiled=True, **_OFFLOADED),
    Variant("FSDP 8, CP 4 ring, offloaded", dp_shard=8, cp=4, sequence=32768, rotate="ring", **_OFFLOADED),
)
_ONE: Mapping[str, Any] = {"is_whole": True, "adapter": "rank = 16, alpha = 32"}
_DROPPING = "rank = 16, alpha = 32, dropout = 0.05"
_DORA = "rank = 16, alpha = 32, dora = true"
ADAPTED = (
    Variant("one device, adapters", sequence=4096, **_ONE),
    Variant("one device, adapters, all kept", sequence=4096, recomputes=False, **_ONE),
    Variant("one device, adapters, selective", sequence=4096, **_ONE, **_SELECTIVE),
    Variant("one device, adapters, 2 micro steps", sequence=4096, steps=2, **_ONE),
    Variant(
        "one device, dropout, all kept",
        sequence=4096,
        recomputes=False,
        is_whole=True,
        adapter=_DROPPING,
    ),
    Variant("one device, DoRA", sequence=4096, is_whole=True, adapter=_DORA),
    Variant("one device, DoRA, all kept", sequence=4096, recomputes=False, is_whole=True, adapter=_DORA),
    Variant("FSDP 8, TP 2, DoRA", dp_shard=8, tp=2, adapter=_DORA),
    Variant("FSDP 8, TP 2, DoRA, dropout", dp_shard=8, tp=2, adapter=f"{_DORA}, dropout = 0.05"),
    Variant(
        "FSDP 8, TP 2, DoRA, dropout, selective", 1, 8, tp=2, **_SELECTIVE, adapter=f"{_DORA}, dropout = 0.05"
    ),
    Variant("FSDP 8, DoRA, nf4", dp_shard=8, adapter=_DORA, base="nf4"),
    Variant("one device, nf4", sequence=4096, base="nf4", **_ONE),
    Variant("one device, nf4, all kept", sequence=4096, recomputes=False, base="nf4", **_ONE),
    Variant("FSDP 8, nf4", dp_shard=8, adapter=_ONE["adapter"], base="nf4"),
    Variant("FSDP 8, TP 2, nf4", dp_shard=8, tp=2, adapter=_ONE["adapter"], base="nf4"),
    Variant("FSDP 8, adapters", dp_shard=8, adapter=_ONE["adapter"]),
    Variant("FSDP 8, adapters, all kept", dp_shard=8, recomputes=False, adapter=_ONE["adapter"]),
    Variant("FSDP 8, TP 2, dropout", dp_shard=8, tp=2, adapter=_DROPPING),
    Variant("FSDP 8, TP 2, adapters, all kept", dp_shard=8, tp=2, recomputes=False, adapter=_ONE["adapter"]),
)
PP = 4
_INTERLEAVED = "interleaved(stages_per_rank = 2)"
_MICRO_BATCHES: Mapping[str, Any] = {"sequence": 4096, "steps": 8}
_WIDE: Mapping[str, Any] = {"dp_shard": 8, "is_narrow": False, **_MICRO_BATCHES}
_LAST = PP - 1
PIPELINES = (
    *(
        Variant(
            f"{schedule.partition('(')[0]}, {name}, stage {stage}", schedule=schedule, stage=stage, **kind
        )
        for schedule in ("gpipe", "one_f_one_b", "zero_bubble", _INTERLEAVED)
        for name, kind in {
            "FSDP 8": {"dp_shard": 8, **_MICRO_BATCHES},
            "FSDP 8, all kept": {"dp_shard": 8, "recomputes": False, **_MICRO_BATCHES},
            "FSDP 2, TP 4": {"dp_shard": 2, "tp": 4, "sequence": 8192, "steps": 8},
            "FSDP 8, ZeRO-1": {**_KEPT, **_MICRO_BATCHES},
            "FSDP 8, float32": _WIDE,
            "FSDP 8, teacher": {"dp_shard": 8, "distillation": MANY_ROWS, **_MICRO_BATCHES},
        }.items()
        for stage in (0, _LAST)
    ),
    Variant("gpipe, pairs, stage 3", 1, 8, steps=8, schedule="gpipe", stage=_LAST, **PAIRS),
    Variant("one_f_one_b, pairs, stage 3", 1, 8, steps=8, schedule="one_f_one_b", stage=_LAST, **PAIRS),
)
"""Both ends of pipelines: several micro-batches are in flight at the first, and the loss is at the last."""
PLAN_NAMES = ("llama-3.1-8b", "qwen3-8b", "llama-3.1-405b")


@dataclass(frozen=True, slots=True)
class Compared:
    """A plan's estimate beside what its rehearsal measured."""

    name: str
    graph: Graph
    inventory: Inventory
    memory: Memory
    """Of the measured rank."""
    measured: Measured

    @property
    def held_error(self) -> float:
        """Relative, signed, as the next."""
        return self.memory.held_bytes / self.measured.held_bytes - 1

    @property
    def error(self) -> float:
        return self.memory.peak.num_bytes / self.measured.reserved_bytes - 1

    @property
    def is_fsdp_alone(self) -> bool:
        """Whether neither activations nor sequences are divided, and FSDP reduces all gradients.

        Buckets of whole replicas leave gaps that the estimate does not count.
        """
        ops = self.graph.setup
        if any(isinstance(op, AllReduceGradients) for op in self.graph.step):
            return False
        over_cp = any(isinstance(op, AttachAttention) and op.over for op in ops)
        return not over_cp and not any(isinstance(op, ShardTensorParallel) for op in ops)

    @property
    def state_blocks(self) -> int:
        """Bytes of parameters and optimizer state, each tensor in blocks of the allocator's size."""
        return sum(
            (1 if one.is_frozen else 3) * _in_blocks(one.local_bytes) + BLOCK_BYTES * (not one.is_frozen)
            for one in layouts(self.graph, self.inventory)
        )

    @property
    def measured_states(self) -> int:
        """What the rehearsal holds of them between two steps."""
        (between,) = (one for one in self.measured.segments if one.segment == "batch.next")
        parts = dict(between.parts)
        return parts["parameters"] + parts["optimizer state"]


def _in_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def compare(variant: Variant) -> Compared:
    return compare_text(variant.name, variant.text, settings=variant.settings, stage=variant.stage)


def compare_plan(name: str) -> Compared:
    """A plan of plans/ as it is."""
    return compare_text(name, (PLANS / f"{name}.plan").read_text(encoding="utf-8"))


def compare_text(
    name: str, text: str, *, settings: tuple[str, ...] = (), base: Path = PLANS, stage: int = 0
) -> Compared:
    """A plan's text, whose paths are relative to `base`, on the first rank of a stage."""
    sources = [SourceFile(f"--set[{index}]", setting) for index, setting in enumerate(settings)]
    checked = check_source(SourceFile("variant.plan", text), base=base, settings=sources)
    assert checked.graph is not None and checked.inventory is not None, checked.diagnostics
    rehearsal = rehearse(checked.graph, base=base, measured_stage=stage)
    assert rehearsal.measured is not None and not rehearsal.failures, rehearsal.failures
    found = estimate(checked.graph, checked.inventory)
    memory = (found.ranks or (found,))[stage].memory
    return Compared(name, checked.graph, checked.inventory, memory, rehearsal.measured)


def _rows() -> Iterator[str]:
    yield f"{'':<46}{'held, GiB':>12}{'closed form':>13}{'reserved':>11}{'closed form':>13}"
    for variant in (*QUICK, *SLOW, *SHARDINGS, *COMPILED, *OFFLOADED, *ADAPTED, *PIPELINES):
        yield _row(compare(variant))
    for name in PLAN_NAMES:
        yield _row(compare_plan(name))


def _row(one: Compared) -> str:
    held, reserved = one.measured.held_bytes / _GIB, one.measured.reserved_bytes / _GIB
    errors = 100 * one.held_error, 100 * one.error
    return f"{one.name:<46}{held:>12.2f}{errors[0]:>+11.2f} %{reserved:>11.2f}{errors[1]:>+11.2f} %"


if __name__ == "__main__":
    for row in _rows():
        print(row, flush=True)
