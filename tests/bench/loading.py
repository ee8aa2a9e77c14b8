"""What a rank holds at most while it loads weights from disk: `python -m tests.bench.loading`.

Two ranks load a Llama of 0.3 billion parameters (1.2 GB) from two safetensors files, with planc and with
examples/by_hand.py. What counts is what a process has allocated (RssAnon), sampled by a thread, beyond what
it had before. Pages of mapped files, which the system takes back as it likes, are reported too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from examples import by_hand
from planc.inventory.load import save_inventory
from planc.runtime.interpreter import Position
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.verify.pool import run_ranks
from planc.verify.ranks import Task, open_run
from tests.bench.meter import memory
from tests.bench.result import Result, report, write_results
from tests.bench.shapes import MODEL, TEXT, Shape, compile_shape

SECTION = "loading"
SHAPES = (Shape({"dp_shard": 2}), Shape({"tp": 2}))
ALLOWANCE_BYTES = 300 * 10**6
SAMPLE_SECONDS = 0.002
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes beyond what the process had before: the most while it loaded. `shard` is what stays."""

    peak_allocated: int
    peak_mapped: int
    shard: int
    wall_seconds: float
    processor_seconds: float


class Sampler:
    """The most that this process held while it was watched, in bytes."""

    def __init__(self) -> None:
        self.allocated, self.mapped = resident()
        self.is_over = threading.Event()

    def watch(self) -> None:
        while not self.is_over.wait(SAMPLE_SECONDS):
            allocated, mapped = resident()
            self.allocated, self.mapped = max(self.allocated, allocated), max(self.mapped, mapped)


def resident() -> tuple[int, int]:
    """Bytes of this process that are resident: allocated, and of mapped files."""
    return memory("RssAnon"), memory("RssFile")


@contextmanager
def sampled() -> Iterator[Sampler]:
    """Watches what the process holds for as long as the context lasts."""
    sampler = Sampler()
    thread = threading.Thread(target=sampler.watch, daemon=True)
    thread.start()
    yield sampler
    sampler.is_over.set()
    thread.join()


def load(rank: int, world_size: int, workspace: Path, shape: Shape, loader: str) -> Held:
    """What this rank held as `loader`, planc or by_hand, set its training up."""
    graph = compile_shape(shape, num_steps=100, workspace=workspace)
    backend = TorchBackend(open_run(Task(graph, workspace, workspace / "run"), Observer()))
    if loader == "planc":
        backend.execute(graph.setup[0], Position())
    sizes: dict[str, Any] = {"model": workspace / MODEL, "text": workspace / TEXT, "steps": 100}
    before, began = resident(), (time.perf_counter(), time.process_time())
    dist.barrier()
    with sampled() as sampler:
        if loader == "planc":
            for op in graph.setup[1:]:
                backend.execute(op, Position())
            model: Any = backend.state[nn.Module]
        else:
            model = by_hand.build(by_hand.Settings(**sizes, **shape.mesh)).model
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    shard = sum(local_bytes(parameter) for parameter in model.parameters())
    dist.barrier()
    dist.destroy_process_group()
    peaks = sampler.allocated - before[0], sampler.mapped - before[1]
    return Held(*peaks, shard, wall, processor)


def local_bytes(parameter: Any) -> int:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return int(local.numel() * local.element_size())


def make_workspace(folder: Path) -> Path:
    """`folder`, with the model, its weights in two files, and a text."""
    model_folder = folder / MODEL
    model_folder.mkdir()
    (model_folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_inventory(model_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_folder))
    names = list(model.state_dict())
    index: dict[str, str] = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        tensors = {name: torch.full(model.state_dict()[name].shape, 0.01) for name in part}
        save_file(tensors, model_folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    listing = json.dumps({"metadata": {}, "weight_map": index})
    (model_folder / "model.safetensors.index.json").write_text(listing, encoding="utf-8")
    (folder / TEXT).write_text("the mesh of ranks " * 1000, encoding="utf-8")
    return folder


def result(shape: Shape, loader: str, ranks: list[Held]) -> Result:
    """The row of the rank that held most. planc alone has a goal."""
    most = max(ranks, key=lambda held: held.peak_allocated)
    limit = most.shard + ALLOWANCE_BYTES
    megabytes = (most.peak_allocated, most.shard, most.peak_mapped)
    return Result(
        name=f"{shape.name}, {loader}",
        cells=(
            *(f"{size / 1e6:,.0f}" for size in megabytes),
            f"{max(held.wall_seconds for held in ranks):.1f}",
            f"{sum(held.processor_seconds for held in ranks):.1f}",
        ),
        goal=f"<= {limit / 1e6:,.0f} MB" if loader == "planc" else "",
        is_met=loader != "planc" or most.peak_allocated <= limit,
    )


def main() -> int:
    results = []
    with TemporaryDirectory() as folder:
        workspace = make_workspace(Path(folder))
        for shape in SHAPES:
            for loader in ("planc", "by_hand"):
                arguments = (workspace, shape, loader)
                ranks = run_ranks(load, shape.world_size, *arguments, init=False, timeout_seconds=300)
                results.append(result(shape, loader, ranks))
                print(results[-1], flush=True)
    write_results(SECTION, results)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
