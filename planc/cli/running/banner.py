"""The lines around a run: what is about to run, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planc.figures import plan as of_plan
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import AttachAttention, ResumeCheckpoint, SaveCheckpoint
from planc.runtime.process import Launch
from planc.runtime.run_directory.directory import RunDirectory
from planc.show.mesh import mesh_rows, range_text
from planc.tables import render_table

_MAX_RANK_ROWS = 8
"""More are for `planc show --mesh`."""
_LABEL_WIDTH = 13


def banner(graph: Graph, launch: Launch, *, device: str, run_folder: Path, overrides: Sequence[str]) -> str:
    """What is about to run, before it runs: mesh, layout, folder, and where overriding values came from."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    ranks = of_plan.world_size(graph).text
    lines = [
        f"planc run {graph.name}  plan_hash {plan_hash(graph)[:12]}",
        f"  mesh       {mesh_text(graph)}  ({ranks}, {device}, {backend})",
        *_ranks(graph, launch),
        *_layout(graph),
        f"  run folder {run_folder}",
        *(f"  override   {text}" for text in overrides),
    ]
    return "\n".join(lines)


def closing(directory: RunDirectory, *, checkpoint: Path | None, last_step: int, num_steps: int) -> str:
    """Where everything is, and how far the loss has come since the run's first step."""
    if last_step > num_steps:
        lines = [f"nothing to do: step {last_step} is saved, and the plan ends after step {num_steps}"]
    else:
        lines = ["done" if last_step == num_steps else f"stopped after step {last_step} of {num_steps}"]
    losses = directory.losses()
    if losses:
        (first, first_loss), (last, last_loss) = losses[0], losses[-1]
        lines.append(f"  loss       {first_loss:.4f} (step {first}) -> {last_loss:.4f} (step {last})")
    lines.append(f"  metrics    {directory.path / 'metrics.jsonl'}")
    if checkpoint is not None:
        lines.append(f"  checkpoint {checkpoint}")
    return "\n".join(lines)


def preempted(graph: Graph, *, last_step: int, heard: str) -> str:
    """Why a run ends early, and how it goes on. `heard` is empty where other ranks alone were told."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if not any(isinstance(op, SaveCheckpoint) for op in graph.save):
        came_of_it = "nothing is saved: the plan has no checkpoint block"
    elif last_step == 0:
        came_of_it = "nothing was trained"
    elif resumes:
        came_of_it = "the same command goes on from there"
    else:
        came_of_it = "set checkpoint.resume = latest to go on from there"
    return f"told to end ({heard or 'on another rank'}); {came_of_it}"


def mesh_text(graph: Graph) -> str:
    """`dp_shard=2 tp=2`; dims of one rank are left out."""
    return " ".join(f"{mesh_dim}={size}" for mesh_dim, size in graph.mesh if size > 1) or "of one rank"


def _ranks(graph: Graph, launch: Launch) -> list[str]:
    """Where ranks meet, and the place of each in the mesh."""
    if graph.world_size == 1:
        return []
    here = f", {launch.local_world_size} on this machine" if launch.local_world_size else ""
    lines = [f"  meet at    {launch.address}:{launch.port}{here}"]
    rows = mesh_rows([size for _, size in graph.mesh])
    if len(rows) > _MAX_RANK_ROWS:
        return lines
    divided = [index for index, (_, size) in enumerate(graph.mesh) if size > 1]
    header = ("rank", *(str(graph.mesh[index][0]) for index in divided))
    cells = []
    for row in rows:
        ranges = ((row.first_rank, row.last_rank), *(row.coordinates[index] for index in divided))
        cells.append([range_text(*one) for one in ranges])
    table = render_table(cells, header=header, right=range(len(header)), indent=" " * _LABEL_WIDTH)
    return [*lines, *table.splitlines()]


def _layout(graph: Graph) -> list[str]:
    attention = next(op for op in graph.setup if isinstance(op, AttachAttention))
    lines = [f"  layout     {of_plan.modules_text(graph)}"]
    if attention.over:
        lines.append(f"  context    {attention.kind} attention over cp, {attention.balance} balance")
    return lines
