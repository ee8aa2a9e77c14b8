"""The source that an op reads, as the registry of sources has it."""

from __future__ import annotations

from typing import Any

from planc.data_sources import BY_NAME
from planc.data_sources.hub_datasets import HubDataset
from planc.graph.ops import OpenData, OpenEvaluation


def source_arguments(op: OpenData | OpenEvaluation) -> dict[str, Any]:
    """The arguments of an op's source, by their names in the registry."""
    # Ops keep a repository in `patterns`.
    arguments = BY_NAME[op.source].arguments
    return {name: op.patterns[0] if name == "repository" else getattr(op, name) for name in arguments}


def reads_local_files(op: OpenData | OpenEvaluation) -> bool:
    """Whether the op's patterns match files that must exist before a run starts."""
    return BY_NAME[op.source].reads_local_files and HubDataset.of(op.patterns) is None
