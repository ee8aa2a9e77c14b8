"""From a graph to the text of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any

from planc.graph.graph import AnyOp, Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import (
    Accumulate,
    AllReduceGradients,
    AttachAttention,
    Backward,
    BuildModel,
    BuildOptimizer,
    BuildSchedule,
    ClipGradients,
    ComputeLoss,
    Forward,
    FullyShard,
    InitMesh,
    InitWeights,
    LoadWeights,
    Log,
    MaterialiseWeights,
    NextBatch,
    OpenData,
    ReduceMetrics,
    ShardContext,
    ShardTensorParallel,
    StepOptimizer,
    StepSchedule,
    SyncGradients,
)
from planc.plain_pytorch import setup, steps
from planc.plain_pytorch.parts_file import copied
from planc.plain_pytorch.script import NotInScript, in_one_line, quoted, refuse

Emitter = Callable[[Any, Graph], Iterable[str]]

EMITTERS: tuple[tuple[type[Op], Emitter], ...] = (
    (InitMesh, setup.init_mesh),
    (BuildModel, setup.build_model),
    (AttachAttention, setup.attach_attention),
    (ShardTensorParallel, setup.shard_tensor_parallel),
    (FullyShard, setup.fully_shard),
    (MaterialiseWeights, setup.materialise_weights),
    (InitWeights, setup.init_weights),
    (LoadWeights, setup.load_weights),
    (BuildOptimizer, setup.build_optimizer),
    (BuildSchedule, setup.build_schedule),
    (OpenData, setup.open_data),
    (NextBatch, steps.next_batch),
    (Accumulate, steps.accumulate),
    (ShardContext, steps.shard_context),
    (Forward, steps.forward),
    (ComputeLoss, steps.compute_loss),
    (Backward, steps.backward),
    (SyncGradients, steps.sync_gradients),
    (AllReduceGradients, steps.all_reduce_gradients),
    (ClipGradients, steps.clip_gradients),
    (ReduceMetrics, steps.reduce_metrics),
    (StepOptimizer, steps.step_optimizer),
    (StepSchedule, steps.step_schedule),
    (Log, steps.log),
)
"""One for each op that a script can have."""


def script(graph: Graph, *, base: str, ties: tuple[tuple[str, ...], ...]) -> str:
    """The script's text. `base` leads from its folder to where the plan's relative paths start, and `ties`
    names the model's parameters that are one.

    NotInScript names every op that has no form in a script, and where the plan asks for it.
    """
    refusals = [
        str(refuse(op, f"{' and '.join(tie)} are one parameter, which has no form in a script"))
        for op in graph.setup
        if isinstance(op, BuildModel)
        for tie in ties
    ]
    main = [*_lines(graph.setup, graph, depth=4, refusals=refusals)]
    main += [f"    for step in range(1, {graph.num_steps + 1}):"]
    main += [*_lines(graph.step, graph, depth=8, refusals=refusals)]
    main += [*_lines(graph.save, graph, depth=4, refusals=refusals)]
    if refusals:
        raise NotInScript("\n".join(dict.fromkeys(refusals)))
    text = [
        f"BASE = Path(__file__).resolve().parent / {quoted(base)}",
        *("", "", "def main() -> None:", *main, "    dist.destroy_process_group()"),
        *("", "", 'if __name__ == "__main__":', "    main()", ""),
    ]
    return "\n\n".join((_title(graph), copied("\n".join(text))))


def _lines(ops: Iterable[AnyOp], graph: Graph, *, depth: int, refusals: list[str]) -> Iterator[str]:
    """Every op's lines under a comment that says which op of which line of the plan they are."""
    emitters = dict(EMITTERS)
    for op in ops:
        try:
            emit = emitters.get(type(op))
            if emit is None:
                raise refuse(op, "this op has no form in a script")
            text = [*emit(op, graph)]
        except NotInScript as refusal:
            refusals.append(str(refusal))
            continue
        where = f", {in_one_line(PurePath(op.span.file).name)}:{op.span.line}" if op.span else ""
        yield f"{' ' * depth}# {op.name}{where}"
        yield from (f"{' ' * depth}{line}" for line in text)
        if isinstance(op, Accumulate):
            yield from _lines(op.body, graph, depth=depth + 4, refusals=refusals)


def _title(graph: Graph) -> str:
    launch = f"torchrun --nproc-per-node {graph.world_size}"
    return (
        f'"""Trains what the plan {in_one_line(graph.name)} says, with PyTorch and transformers alone.\n\n'
        f"{launch} this file. Written by `planc compile --script` from the graph {plan_hash(graph)[:12]}.\n"
        '"""\n\nfrom __future__ import annotations'
    )
