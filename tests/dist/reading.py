"""Ranks that each read a folder of their own, as machines without a shared file system do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planc.graph.graph import Graph
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import run
from planc.runtime.torch.backend import TorchBackend
from planc.verify.ranks import Metrics, Task, open_run
from tests.dist.pool import run_ranks

NUM_RANKS = 3
ODD = 2
"""The rank whose folder is changed."""
SOURCES = {
    "text": 'text("data/*.txt")',
    "jsonl": 'jsonl("data/*.jsonl")',
    "chat": 'chat("data/talks.chat")',
    "hf_dataset": 'hf_dataset("data/set.jsonl")',
}
PLAN = """\
model {{
  hf = "model"
  weights = {weights}
}}

mesh {{
  {mesh} = 3
}}

fsdp on dp_shard, cp {{
  replicate_on = dp_replicate
  "model.layers.*" -> unit
}}

data {{
  source = {source}
  tokenizer = file("tokenizer", end_of_document = "<|endoftext|>")
  sequence_length = 64
  micro_batch = 1
  packing = none
  eval "held_out" {{ source = text("held_out.txt"), every = 2 steps }}
}}

optimizer {{
  kind = adamw(lr = 1e-2)
}}

train {{
  steps = 2
  tokens_per_step = 192
}}
"""


@dataclass(slots=True)
class Told:
    """How a rank's run ended: `code` is None where it was done."""

    code: ExitCode | None = None
    message: str = ""
    help: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A graph, the folders of the ranks, and what happens on each before it runs."""

    graph: Graph
    folders: Path
    before: Callable[[int], None] | None = None


def rank_folder(folders: Path, rank: int) -> Path:
    return folders / f"rank-{rank}"


def train_own(rank: int, world_size: int, reading: Reading) -> Told:
    """This rank's run in its own folder."""
    metrics = Metrics()
    base = rank_folder(reading.folders, rank)
    os.chdir(base)
    own = open_run(Task(reading.graph, base, reading.folders / "run"), metrics)
    if reading.before is not None:
        reading.before(rank)
    try:
        run(reading.graph, TorchBackend(own))
    except RunError as error:
        return Told(error.code, error.message, error.help or "", error.record, len(metrics.steps))
    return Told(steps=len(metrics.steps))


def run_own(reading: Reading) -> list[Told]:
    return run_ranks(train_own, NUM_RANKS, reading, init=False)
