"""The lines before and after a run: its setup and its outcome."""

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
"""`planc show --mesh` prints more."""
_LABEL_WIDTH = 13


def banner(
    graph: Graph,
    launch: Launch,
    *,
    device: str,
    run_folder: Path,
    overrides: Sequence[str],
    readers: Sequence[str] = (),
) -> str:
    """The lines before a run: mesh, layout, run directory, overrides, and what reads the run."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    ranks = of_plan.world_size(graph).text
    lines = [
        f"planc run {graph.name}  plan_hash {plan_hash(graph)[:12]}",
        f"  mesh       {mesh_text(graph)}  ({ranks}, {device}, {backend})",
        *_ranks(graph, launch),
        *_layout(graph),
        f"  run dir    {run_folder}",
        *(f"  override   {text}" for text in overrides),
        *(f"  reader     {text}" for text in readers),
    ]
    return "\n".join(lines)


def closing(
    directory: RunDirectory,
    *,
    checkpoint: Path | None,
    last_step: int,
    num_steps: int,
    early_stop: str = "",
) -> str:
    """The lines after a run: the loss of its first and last step, and where its files are."""
    if last_step > num_steps:
        lines = [f"nothing to do: step {last_step} is saved, and the plan ends after step {num_steps}"]
    else:
        lines = ["done" if last_step == num_steps else f"stopped after step {last_step} of {num_steps}"]
    if early_stop:
        lines[0] = f"done early, after step {last_step} of {num_steps}: {early_stop}"
    losses = directory.losses()
    if losses:
        (first, first_loss), (last, last_loss) = losses[0], losses[-1]
        lines.append(f"  loss       {first_loss:.4f} (step {first}) -> {last_loss:.4f} (step {last})")
    lines.append(f"  metrics    {directory.path / 'metrics.jsonl'}")
    if checkpoint is not None:
        lines.append(f"  checkpoint {checkpoint}")
    return "\n".join(lines)


def preempted(graph: Graph, *, last_step: int, signal_name: str) -> str:
    """Explain why a run ends early and how to resume. `signal_name` is empty if only others got a signal."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if not any(isinstance(op, SaveCheckpoint) for op in graph.save):
        outcome = "nothing is saved: the plan has no `checkpoint` block"
    elif last_step == 0:
        outcome = "no step was trained"
    elif resumes:
        outcome = "the same command resumes"
    else:
        outcome = "set `checkpoint.resume = latest` to resume"
    return f"stopped by {signal_name or 'a signal on another rank'}; {outcome}"


TORCHRUN_TRACEBACK = "torchrun prints a traceback about the signal; the run itself ended without an error"
"""The last line of a run under torchrun that a signal ended."""


def mesh_text(graph: Graph) -> str:
    """`dp_shard=2 tp=2`; dims of one rank are left out."""
    return " ".join(f"{mesh_dim}={size}" for mesh_dim, size in graph.mesh if size > 1) or "of one rank"


def _ranks(graph: Graph, launch: Launch) -> list[str]:
    """List the address where ranks meet, and the mesh coordinates of each."""
    if graph.world_size == 1:
        return []
    here = f", {launch.local_world_size} on this machine" if launch.local_world_size else ""
    lines = [f"  rendezvous {launch.address}:{launch.port}{here}"]
    rows = mesh_rows([size for _, size in graph.mesh])
    if len(rows) > _MAX_RANK_ROWS:
        return lines
    sharded = [index for index, (_, size) in enumerate(graph.mesh) if size > 1]
    header = ("rank", *(str(graph.mesh[index][0]) for index in sharded))
    cells = []
    for row in rows:
        ranges = ((row.first_rank, row.last_rank), *(row.coordinates[index] for index in sharded))
        cells.append([range_text(*one) for one in ranges])
    table = render_table(cells, header=header, right=range(len(header)), indent=" " * _LABEL_WIDTH)
    return [*lines, *table.splitlines()]


def _layout(graph: Graph) -> list[str]:
    attention = next(op for op in graph.setup if isinstance(op, AttachAttention))
    lines = [f"  layout     {of_plan.modules_text(graph)}"]
    if attention.over:
        lines.append(f"  context    {attention.kind} attention over cp, {attention.balance} balance")
    return lines
