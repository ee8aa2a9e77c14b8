"""One rank that starts, does one step and ends, recording its CPU time until each part was over.

Imports nothing above what Python itself has: what a way of starting needs is what is measured.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTS = (
    *("python", "planc's compiler", "compile", "torch", "transformers", "planc's backend"),
    *("process group", "model", "weights", "optimizer", "data", "first step"),
)
PLAN, SIZES = "bench.plan", "sizes.json"
"""In the folder: the plan, and the same as settings of examples/by_hand.py."""
LIBRARIES = {
    "torch": ("torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    "transformers": ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama"),
}
_BY_OP = {
    "weights.materialise": "weights",
    "weights.init": "weights",
    "weights.load": "weights",
    "optimizer.build": "optimizer",
    "schedule.build": "optimizer",
    "data.open": "data",
}


class Marks:
    """This process's CPU seconds by part. A part ends where it is marked."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = 0.0

    def mark(self, part: str) -> None:
        now = time.process_time()
        self.parts[part] = self.parts.get(part, 0.0) + now - self.last
        self.last = now

    def write(self, folder: Path) -> None:
        text = json.dumps({"parts": self.parts, "ended": time.time()})
        (folder / f"marks-{os.environ['RANK']}").write_text(text)


def import_libraries(marks: Marks) -> None:
    """What any script imports that divides a model of transformers."""
    for part, modules in LIBRARIES.items():
        for module in modules:
            importlib.import_module(module)
        marks.mark(part)


def start_floor(marks: Marks, folder: Path) -> None:
    import_libraries(marks)
    marks.write(folder)


def start_planc(marks: Marks, folder: Path) -> None:
    """`planc run` of the plan."""
    from planc.cli.commands import run
    from planc.cli.running.session import Session
    from planc.runtime import interpreter

    marks.mark("planc's compiler")
    execute, interpret = Session._execute, interpreter.steps

    def execute_marked(*arguments: Any) -> Iterator[int]:
        marks.mark("compile")
        import_libraries(marks)
        importlib.import_module("planc.runtime.torch.backend")
        marks.mark("planc's backend")
        return execute(*arguments)

    def interpret_marked(graph: Any, backend: Any, *, stop_after: int | None) -> Iterator[int]:
        marks.mark("process group")
        carry_out = backend.execute

        def execute_op(op: Any, position: Any) -> None:
            carry_out(op, position)
            marks.mark("first step" if position.step else _BY_OP.get(op.name, "model"))

        backend.execute = execute_op
        yield from interpret(graph, backend, stop_after=stop_after)
        marks.write(folder)

    Session._execute, interpreter.steps = execute_marked, interpret_marked  # type: ignore[method-assign]
    # A folder of this launch: the ranks of one have one parent.
    run.main([str(folder / PLAN), "--run-dir", str(folder / f"run-{os.getppid()}"), "--stop-after", "1"])


def start_by_hand(marks: Marks, folder: Path) -> None:
    """examples/by_hand.py with the plan's mesh and model."""
    import_libraries(marks)
    import torch
    import torch.distributed as dist

    from examples import by_hand

    dist.init_process_group("gloo")
    marks.mark("process group")
    sizes = json.loads((folder / SIZES).read_text())
    paths = {name: folder / sizes.pop(name) for name in ("model", "text")}
    settings = by_hand.Settings(**paths, **sizes)
    trainer = by_hand.build(settings)
    marks.mark("model")
    trainer.step(torch.arange(settings.global_batch))
    marks.mark("first step")
    marks.write(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    ways = {"floor": start_floor, "by_hand": start_by_hand, "planc": start_planc}
    own = Marks()
    own.mark("python")
    ways[sys.argv[1]](own, Path(sys.argv[2]))
