"""Meshes of several ranks that compute what one rank computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """`settings` of `plans/<plan>.plan`, and the ranks that they make."""

    name: str
    num_ranks: int
    settings: tuple[str, ...]
    is_bfloat16: bool = False
    """Whether its losses have bfloat16's rounding, so that they are only near those of one rank."""
    reference: str = "one-rank"
    """The step on one rank that it is compared with."""
    plan: str = "small"

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for one in self.settings for word in ("--set", one))


_RING = "context_parallel.rotate=ring"
DOCUMENTS = ("data.packing=isolate",)
"""Attention ends with each document."""
_BFLOAT16 = ("fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=float32")
_MUON = "optimizer.kind=muon(lr=2e-2,ns_dtype=float32,rest=adamw(lr=2e-3))"
_EIGHT_BIT = "optimizer.kind=adamw_8bit(lr=2e-3)"
REFERENCES: tuple[Case, ...] = (
    Case("", 1, ()),
    Case("documents", 1, DOCUMENTS),
    Case("experts", 1, ("mesh.dp_shard=1", "expert_parallel.size=1"), plan="expert-parallel"),
    Case("adapters", 1, (), plan="adapters"),
    Case("muon", 1, (_MUON,)),
    Case("8bit", 1, (_EIGHT_BIT,)),
)
"""What cases are compared with: `one-rank`, or `one-rank-` and the name."""
CASES: tuple[Case, ...] = (
    Case("fsdp", 2, ("mesh.dp_shard=2",)),
    Case("tp", 2, ("mesh.tp=2",)),
    Case("pp-1f1b", 2, ("mesh.pp=2",)),
    Case("cp-ulysses", 2, ("mesh.cp=2", "context_parallel.rotate=ulysses")),
    Case("cp-allgather", 2, ("mesh.cp=2",)),
    Case("cp-ring", 2, ("mesh.cp=2", _RING)),
    Case("cp-ring-bf16", 2, ("mesh.cp=2", _RING, *_BFLOAT16), is_bfloat16=True),
    Case("cp-allgather-bf16", 2, ("mesh.cp=2", *_BFLOAT16), is_bfloat16=True),
    Case("cp-ring-documents", 2, ("mesh.cp=2", _RING, *DOCUMENTS), reference="one-rank-documents"),
    Case("ep", 2, ("mesh.dp_shard=2",), reference="one-rank-experts", plan="expert-parallel"),
    Case("ep-fsdp", 4, ("mesh.dp_shard=4",), reference="one-rank-experts", plan="expert-parallel"),
    Case(
        "ep-bf16",
        2,
        ("mesh.dp_shard=2", *_BFLOAT16),
        is_bfloat16=True,
        reference="one-rank-experts",
        plan="expert-parallel",
    ),
    Case("lora-fsdp", 2, ("mesh.dp_shard=2",), reference="one-rank-adapters", plan="adapters"),
    Case("lora-tp", 2, ("mesh.tp=2",), reference="one-rank-adapters", plan="adapters"),
    Case("muon-fsdp", 2, ("mesh.dp_shard=2", _MUON), reference="one-rank-muon"),
    Case("muon-tp", 2, ("mesh.tp=2", _MUON), reference="one-rank-muon"),
    Case("8bit-fsdp", 2, ("mesh.dp_shard=2", _EIGHT_BIT), reference="one-rank-8bit"),
    Case("pp-zero-bubble", 2, ("mesh.pp=2", "pipeline.schedule=zero_bubble")),
    Case("pp-interleaved", 2, ("mesh.pp=2", "pipeline.schedule=interleaved(stages_per_rank=2)")),
    Case("hsdp", 4, ("mesh.dp_replicate=2", "mesh.dp_shard=2")),
    Case("fsdp-tp", 4, ("mesh.dp_shard=2", "mesh.tp=2")),
    Case("pp-fsdp", 4, ("mesh.pp=2", "mesh.dp_shard=2")),
    Case("pp-tp", 4, ("mesh.pp=2", "mesh.tp=2")),
    Case("cp-tp", 4, ("mesh.cp=2", "mesh.tp=2", "context_parallel.rotate=ulysses")),
)
RESHARDED: tuple[Case, ...] = (
    Case("dp_shard 2", 2, ("mesh.dp_shard=2",)),
    Case("tp 2", 2, ("mesh.tp=2",)),
    Case("pp 2", 2, ("mesh.pp=2",)),
)
"""The meshes of one run, which stops and resumes on the next."""
