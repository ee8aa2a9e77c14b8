"""The tiny model's four layers as a pipeline."""

from __future__ import annotations

from pathlib import Path

from tests.plans import TINY, write_plan


def pipelined(
    folder: Path,
    *,
    pp: int = 2,
    schedule: str = "one_f_one_b",
    micro_batches: int = 4,
    rules: str = "",
    more: str = "",
    is_tied: bool = False,
) -> Path:
    """A plan on `pp` ranks, or on one without a pipeline; 64 tokens a micro batch."""
    pipeline = f"pipeline on pp {{\n  schedule = {schedule}\n{rules}}}" if pp > 1 else ""
    edits = [
        ("param size: int = 2\n", ""),
        ("  dp_shard = size\n  tp = 2\n", f"  pp = {pp}\n"),
        ("tensor_parallel on tp {\n  auto\n}", pipeline),
        ('fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n', more),
        ("  steps = 10", f"  steps = 10\n  tokens_per_step = {64 * micro_batches}"),
    ]
    if is_tied:
        edits.append(("models/tiny-llama", "models/tiny-llama-tied"))
    return write_plan(folder, text=TINY, edits=edits)
