"""Prints what loading a model's weights takes of each rank: memory in addition to its shards, and seconds.

A Llama of `--gigabytes` in bfloat16 is written first; FSDP divides it over `--ranks` processes on gloo. The
memory is what a process allocates (RssAnon): pages of a mapped file are the system's to drop. The exit code
is 1 if a rank takes more than the goal in addition to its shards.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_source
from planc.graph.op import Op
from planc.graph.ops import LoadWeights
from planc.inventory.load import save_inventory
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.local_parts import local_of
from planc.source import SourceFile
from planc.verify.pool import run_ranks
from planc.verify.ranks import Task, open_run
from tests.bench.meter import memory

GOAL_BYTES = 300 * 2**20
"""In addition to the shards, which are in memory when loading begins."""
_SAMPLE_SECONDS = 0.002
_HIDDEN, _INTERMEDIATE, _VOCABULARY = 2048, 5632, 32_000
_LAYER_NUMBERS = 4 * _HIDDEN**2 + 3 * _HIDDEN * _INTERMEDIATE

PLAN = """
model {{
  hf = "model"
  weights = pretrained
  dtype = bfloat16
}}
mesh {{
  dp_shard = {ranks}
}}
fsdp on dp_shard {{
  "model.layers.*" -> unit
}}
data {{
  source = python_stdlib()
  sequence_length = 128
  micro_batch = 1
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 1
}}
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rank took."""

    shard_bytes: int
    beside_bytes: int
    seconds: float


def allocated_bytes() -> int:
    """What this process has allocated and touched."""
    return memory("RssAnon")


class Measuring(TorchBackend):
    """Watches memory while weights are loaded."""

    peak_bytes = 0
    start_bytes = 0
    seconds = 0.0

    def execute(self, op: Op, position: Position) -> None:
        if not isinstance(op, LoadWeights):
            super().execute(op, position)
            return
        # Empty memory counts only once it is written to: then shards are all there is in the difference.
        with torch.no_grad():
            for parameter in self.state[nn.Module].parameters():
                local_of(parameter).zero_()
        done = threading.Event()
        self.start_bytes = self.peak_bytes = allocated_bytes()

        def sample() -> None:
            while not done.wait(_SAMPLE_SECONDS):
                self.peak_bytes = max(self.peak_bytes, allocated_bytes())

        watcher = threading.Thread(target=sample, daemon=True)
        watcher.start()
        start = time.perf_counter()
        super().execute(op, position)
        self.seconds = time.perf_counter() - start
        done.set()
        watcher.join()


def load_rank(rank: int, world_size: int, task: Task) -> Taken:
    backend = Measuring(open_run(task, Observer()))
    run(task.graph, backend, stop_after=0)
    shard = sum(local_of(parameter).nbytes for parameter in backend.state[nn.Module].parameters())
    dist.destroy_process_group()
    return Taken(shard, backend.peak_bytes - backend.start_bytes, backend.seconds)


def write_model(folder: Path, *, gigabytes: float) -> int:
    """Write weights, a config and an inventory; return the bytes of the weights."""
    num_layers = max(1, round((gigabytes * 5e8 - 2 * _VOCABULARY * _HIDDEN) / _LAYER_NUMBERS))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": _VOCABULARY,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    save_inventory(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def main() -> int:
    """1 where a rank takes more than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.6)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        whole = write_model(base / "model", gigabytes=arguments.gigabytes)
        source = SourceFile("bench.plan", PLAN.format(ranks=arguments.ranks))
        checked = check_source(source, base=base, world_size=arguments.ranks)
        if checked.graph is None:
            raise ValueError("; ".join(map(str, checked.diagnostics)))
        task = Task(checked.graph, base, base / "run", collective_timeout_seconds=600)
        found = run_ranks(load_rank, arguments.ranks, task, init=False)
    print(f"model {whole / 2**20:,.0f} MiB, {arguments.ranks} ranks")
    for rank, one in enumerate(found):
        print(
            f"rank {rank}: shard {one.shard_bytes / 2**20:,.0f} MiB, "
            f"in addition {one.beside_bytes / 2**20:,.1f} MiB, {one.seconds:.2f} s"
        )
    return int(max(one.beside_bytes for one in found) > GOAL_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
