"""The ops that save and resume."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from torch.optim import Optimizer

from planc.graph import ops
from planc.graph.graph import Graph
from planc.runtime.checkpoint_format.best import KeepBest
from planc.runtime.checkpoint_format.hashing import sha256
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.manifest import Batch, Manifest, Origin, Progress
from planc.runtime.checkpoint_format.origin import origin_of, source_in
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Memory
from planc.runtime.schedule import set_learning_rate
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.checkpoint import Destination, TrainingState, latest_step, load, save
from planc.runtime.torch.checkpoint.agreement import from_coordinator
from planc.runtime.torch.checkpoint.background_saving import Checkpoints, join_save, start_save
from planc.runtime.torch.checkpoint.base import base_of_resumed
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import begin_averages, training_state
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Averages, Data, Evaluations, History, Schedule, Update, Weights


def save_checkpoint(
    run: Run,
    op: ops.SaveCheckpoint,
    at: Position,
    stopping: Stopping,
    weights: Weights,
    optimizer: Optimizer,
    schedule: Schedule,
    data: Data,
    history: History,
    evaluations: Evaluations,
    checkpoints: Checkpoints,
    averages: Averages | None,
    pipeline: Pipeline | None,
) -> None:
    """Commit `checkpoints/step-N` with everything that a resume needs: now, or in the background.

    At the last step, this save and one under way are committed on return: no training follows.
    """
    began = stopping.save_begins()
    loader, (since_step, since_samples) = data.loader, history.batch_since
    progress = Progress(
        step=at.step,
        samples_consumed=loader.samples_consumed,
        seed=run.seed,
        data_fingerprint=data.fingerprint,
        epoch=loader.samples_consumed // loader.source.dataset.num_sequences,
        recent_losses=history.memory.losses,
        skipped_in_a_row=history.memory.num_skipped,
        scheduler={"kind": schedule.op.kind, "step": at.step},
        evaluations_left=evaluations.postponed,
        evaluated=dict(history.evaluated),
        stop=history.stop,
        batch=Batch(samples=loader.source.global_batch, since_step=since_step, since_samples=since_samples),
    )
    to = Destination(
        root=run.paths.checkpoints,
        progress=progress,
        plan_hash=run.plan_hash,
        model_digest=run.model_op.config_digest,
        mesh=dict(run.graph.mesh),
        base=checkpoints.base,
        origin=checkpoints.origin,
        keep_last=op.keep_last,
        keep_best=_best_to_keep(run.graph, history),
        plan=run.artifact,
        effort=run.effort,
    )
    state = training_state(weights, optimizer, averages, pipeline, base=checkpoints.base)
    if op.mode == "async" and not at.is_last_step:
        start_save(run, op, stopping, checkpoints, state, to=to)
        return
    join_save(run, stopping, checkpoints)
    if checkpoints.saved_step == at.step:
        return
    with run_errors():
        directory = save(state, to=to, plan=checkpoints.plan(state))
    checkpoints.saved_step = at.step
    run.observer.saved(directory)
    stopping.warn_of_grace(seconds=time.monotonic() - began)


def _best_to_keep(graph: Graph, history: History) -> tuple[KeepBest, ...]:
    """The checkpoints to keep for evaluations that have been done."""
    judges = (op for op in graph.step if isinstance(op, ops.JudgeEvaluations) and op.keep_best)
    return tuple(
        KeepBest(op.evaluation, op.keep_best, history.evaluated[op.evaluation].data)
        for op in judges
        if op.evaluation in history.evaluated
    )


def resume_checkpoint(
    run: Run,
    op: ops.ResumeCheckpoint,
    weights: Weights,
    optimizer: Optimizer,
    schedule: Schedule,
    data: Data,
    history: History,
    checkpoints: Checkpoints,
    averages: Averages | None,
    pipeline: Pipeline | None,
) -> tuple[History, Evaluations | None, Update | None]:
    """Fill model, optimizer and positions from the newest checkpoint, if the run directory has one."""
    with run_errors():
        step = latest_step(run.paths.checkpoints)
    if step is None:
        return history, None, None
    directory = step_directory(run.paths.checkpoints, step=step)
    state = training_state(weights, optimizer, averages, pipeline)
    manifest = _fill(run, state, schedule, data, checkpoints, directory=directory)
    checkpoints.origin, checkpoints.saved_step = manifest.origin, manifest.step
    run.observer.noted(f"resumed from {directory}{_changes(run, manifest)}")
    stop = manifest.progress.stop
    # Other code, or other arguments, may judge otherwise.
    if stop is not None and stop.callbacks == callbacks_digest(run.graph):
        history = replace(history, stop=stop)
    return _position(data, history, manifest)


def branch_run(
    run: Run,
    op: ops.BranchRun,
    weights: Weights,
    optimizer: Optimizer,
    schedule: Schedule,
    data: Data,
    history: History,
    checkpoints: Checkpoints,
    averages: Averages | None,
    pipeline: Pipeline | None,
) -> tuple[History, Evaluations | None, Update | None]:
    """Fill them from another run's checkpoint, if the run directory has none of its own."""
    if checkpoints.saved_step is not None:
        return history, None, None

    def source() -> str:
        return str(source_in(op.path, base=run.paths.base, run=run.paths.run))

    with run_errors():
        # One rank decides which is the newest: the other run may be saving.
        directory = Path(from_coordinator(source))
        text = from_coordinator(lambda: origin_of(directory, path=op.path).model_dump_json())
    state = training_state(weights, optimizer, averages, pipeline)
    try:
        manifest = _fill(run, state, schedule, data, checkpoints, directory=directory)
    except RunError as error:
        if error.code is ExitCode.CORRUPT_CHECKPOINT:
            error.help = "name another checkpoint in `resume`, or restore this one from a backup"
        raise
    checkpoints.origin = Origin.model_validate_json(text)
    run.observer.noted(f"branched from {directory}{_changes(run, manifest)}")
    return _position(data, history, manifest)


def _fill(
    run: Run,
    state: TrainingState,
    schedule: Schedule,
    data: Data,
    checkpoints: Checkpoints,
    *,
    directory: Path,
) -> Manifest:
    """Fill model, optimizer and data from a checkpoint. RunError if it is damaged or of another training."""
    assert state.optimizer is not None, "training has an optimizer"
    with run_errors():
        # Its errors end the run, so nothing uses values that are not verified.
        manifest = load(state, directory=directory, in_place=True)
    begin_averages(state, manifest)
    checkpoints.base = base_of_resumed(run, manifest, checkpoints.base)
    _refuse_other_data(run, data, manifest)
    data.loader.load_state(manifest.progress.samples_consumed)
    set_learning_rate(state.optimizer.param_groups, schedule.factor(manifest.step + 1))
    return manifest


def _position(data: Data, history: History, manifest: Manifest) -> tuple[History, Evaluations, Update]:
    """The records of the steps that a checkpoint holds."""
    progress = manifest.progress
    since = manifest.step, progress.samples_consumed
    if progress.batch is not None and progress.batch.samples == data.loader.source.global_batch:
        since = progress.batch.since_step, progress.batch.since_samples
    memory = Memory(progress.recent_losses, progress.skipped_in_a_row)
    return (
        replace(
            history,
            memory=memory,
            batch_since=since,
            resumed_at=manifest.step,
            evaluated=progress.evaluated,
        ),
        Evaluations(postponed=progress.evaluations_left),
        Update(manifest.step),
    )


def callbacks_digest(graph: Graph) -> str:
    """The SHA-256 of the plan's own callbacks: their code and their arguments."""
    callbacks = (own for op in graph.setup if isinstance(op, ops.LoadReaders) for own in op.callbacks)
    return sha256("\n".join(str(own) for own in callbacks).encode())


def _refuse_other_data(run: Run, data: Data, manifest: Manifest) -> None:
    """RunError if resuming would silently continue a different run from the one that was saved."""
    if manifest.model_digest != run.model_op.config_digest:
        raise RunError(
            "the checkpoint's model has a different config.json",
            help="restore the config, or start a new run with another --run-dir",
        )
    if manifest.progress.data_fingerprint != data.fingerprint:
        images = "images, their encoder, " if isinstance(data.op, ops.OpenImageData) else ""
        raise RunError(
            f"the checkpoint was trained on different data: {images}"
            "text, sources and their weights, tokenizer, sequence length, packing or shuffle seed",
            help="restore the data settings, or start a new run with another --run-dir",
        )
    if manifest.progress.seed != run.seed:
        raise RunError(
            f"the checkpoint was trained with model.seed = {manifest.progress.seed}, "
            f"but the plan has {run.seed}",
            help="restore the seed, or start a new run with another --run-dir",
        )


def _changes(run: Run, manifest: Manifest) -> str:
    """A note for the log: whether another plan saved this, and how its mesh differs."""
    if manifest.plan_hash == run.plan_hash:
        return ""
    sizes = dict(run.graph.mesh)
    changed = [
        f"{mesh_dim} {manifest.mesh.get(mesh_dim, 1)} -> {size}"
        for mesh_dim, size in sizes.items()
        if manifest.mesh.get(mesh_dim, 1) != size
    ]
    mesh = f"its mesh: {', '.join(changed)}" if changed else "on the same mesh"
    return f" (saved by another plan, {manifest.plan_hash[:12]}, {mesh})"
