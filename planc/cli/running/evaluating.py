"""An evaluation outside of a run: which weights, on which graph, on this rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.running.banner import mesh_text
from planc.cli.running.compiled import Compiled, checked_for, of_checked, print_progress, require_models
from planc.cli.running.opening import meet
from planc.cli.running.preflight import require_interface, require_threads
from planc.cli.running.run_errors import PlanRefused
from planc.cli.running.starting import Options
from planc.cli.support.plans import render_errors
from planc.cli.versions.saved_plans import NoSavedPlanError, saved_plan
from planc.graph.artifact import graph_of
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import BuildModel, ComputeReference, OpenEvaluation
from planc.hub.user_dirs import data_dir
from planc.lower.evaluating import on_one_rank
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.errors import RunError
from planc.runtime.observer import Evaluation, Together
from planc.runtime.process import Launch
from planc.runtime.ranks.rank_claims import Claim, require_free_port

if TYPE_CHECKING:
    # It imports torch, which takes seconds.
    from planc.runtime.torch.backend import TorchBackend


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights: a checkpoint of planc with its manifest, or a directory that transformers loads."""

    folder: Path
    manifest: Manifest | None


def of_saved_plan(weights: Weights, launch: Launch) -> Compiled:
    """The plan that saved a checkpoint, on the ranks of its mesh or on one. RunError if it is missing."""
    pass_plan = "pass the plan whose data and tokenizer it is evaluated with: --plan PLAN"
    if weights.manifest is None:
        raise RunError(f"`{weights.folder}` is an export, which has no plan", help=pass_plan)
    try:
        saved = saved_plan(weights.folder, weights.manifest)
    except NoSavedPlanError as error:
        raise RunError(f"{weights.folder}: the plan that saved it {error}", help=pass_plan) from error
    except CheckpointError as error:
        raise RunError(error.message, help=error.help) from error
    artifact = saved.artifact
    graph = _on_ranks(graph_of(artifact), launch)
    return Compiled(graph, saved.folder / artifact.base, artifact.sources, artifact.overrides)


def of_plan(weights: Weights, launch: Launch, options: Options, *, runs_extensions: bool) -> Compiled:
    """A plan from the command line, on the ranks of its mesh or on one. PlanRefused if it has errors."""
    if weights.manifest is None:
        model = f'model.hf="{weights.folder.resolve()}"'
        options = replace(options, set=(*options.set, model, "model.weights=pretrained"))
    checked = checked_for(
        options, world_size=None, on_probe=None, say=print_progress, runs_extensions=runs_extensions
    )
    if checked.graph is None:
        findings = render_errors(checked, stream=sys.stderr).rstrip("\n")
        raise PlanRefused(findings, diagnostics=checked.diagnostics)
    compiled = of_checked(checked, checked.graph, base=options.plan.parent)
    return replace(compiled, graph=_on_ranks(compiled.graph, launch))


def _on_ranks(graph: Graph, launch: Launch) -> Graph:
    """The graph on as many ranks as were started, which are its own or one."""
    if launch.world_size == graph.world_size:
        return graph
    if launch.world_size > 1:
        raise RunError(
            f"the mesh {mesh_text(graph)} has {graph.world_size} ranks, and {launch.world_size} processes "
            "were started",
            help=f"start {graph.world_size} or 1, or give a plan another mesh: --plan PLAN --set mesh.tp=2",
        )
    return on_one_rank(graph)


def evaluate(
    compiled: Compiled, weights: Weights, launch: Launch, *, runs_extensions: bool, averaged: bool = False
) -> tuple[Evaluation, ...]:
    """The result of each evaluation, the same on every rank. RunError for what can't be evaluated."""
    graph = compiled.graph
    _require_evaluations(graph)
    _require_model(graph, weights)
    _require_reference(graph, weights)
    # Imported here because it takes seconds; errors that need no torch have been raised.
    from planc.runtime.torch.evaluating import evaluate_weights

    checkpoint = weights.folder if weights.manifest is not None else None
    with without_run(compiled, launch, runs_extensions=runs_extensions) as backend:
        return evaluate_weights(backend, checkpoint, averaged=averaged)


@contextmanager
def without_run(compiled: Compiled, launch: Launch, *, runs_extensions: bool) -> Iterator[TorchBackend]:
    """Yield a backend that executes a graph's ops outside of a run, once all ranks have met.

    Every rank must enter it.
    """
    graph = compiled.graph
    require_interface(launch, os.environ)
    require_threads(os.environ)
    claim = Claim(launch)
    require_free_port(launch)
    require_models(graph)
    # Imported lazily, as above.
    import torch.distributed as dist

    from planc.runtime.torch.backend import TorchBackend
    from planc.runtime.torch.parallel.mesh import choose_device
    from planc.runtime.torch.run import Paths, Run

    device = choose_device(graph.init_mesh.backend, launch)
    with claim:
        store = meet(compiled, launch, device=device, claim=claim, readers=())
    # Nothing is written to the directory of a run: there is none.
    paths = Paths(base=compiled.base, run=Path(os.devnull), prepared=data_dir())
    run = Run(
        *(graph, plan_hash(graph), launch, paths, Together(), device),
        runs_extensions=runs_extensions,
        store=store,
    )
    try:
        yield TorchBackend(run)
    except BaseException:
        # A failing rank must not wait for others, which may hang.
        if launch.world_size == 1:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _require_evaluations(graph: Graph) -> None:
    if not any(isinstance(op, OpenEvaluation) for op in graph.setup):
        raise RunError(
            "the plan has no evaluation data",
            help='name some: --data "held_out/*.txt", or a source as a plan writes it',
        )


def _require_reference(graph: Graph, weights: Weights) -> None:
    """RunError if answers would be compared with the weights that are evaluated."""
    references = [op for op in graph.setup if isinstance(op, ComputeReference) and op.path is None]
    if weights.manifest is None and references:
        raise RunError(
            f"`{weights.folder}` is an export, and the reference of pairs is of the weights that training "
            "started from",
            help="pass the checkpoint, or other data: --data SOURCE evaluates cross entropy",
            span=references[0].span,
        )


def _require_model(graph: Graph, weights: Weights) -> None:
    """RunError unless the checkpoint is of the graph's model."""
    built = next(op for op in graph.setup if isinstance(op, BuildModel))
    if weights.manifest is not None and weights.manifest.model_digest != built.config_digest:
        raise RunError(
            f"{weights.folder} is of a model with another config.json than {built.path}",
            help="evaluate it with a plan of its model",
        )
