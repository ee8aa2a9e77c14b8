"""The ops that save and resume."""

from __future__ import annotations

import time

from planc.graph.ops import ResumeCheckpoint, SaveCheckpoint
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.manifest import Batch, Manifest, Progress
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Memory
from planc.runtime.torch.checkpoint import Destination, latest_step, load, save
from planc.runtime.torch.checkpoint.background_saving import join_save, kept_plan, start_save
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.optimizer import set_learning_rate
from planc.runtime.torch.training.preemption import warn_of_grace


def save_checkpoint(session: Session, op: SaveCheckpoint, position: Position) -> None:
    """Commit `checkpoints/step-N` with everything that a resume needs: now, or in the background.

    At the last step, this save and one under way are committed on return: no training follows.
    """
    progress = Progress(
        step=position.step,
        samples_consumed=session.loader.samples_consumed,
        seed=session.seed,
        data_fingerprint=session.data_fingerprint,
        epoch=session.loader.samples_consumed // session.loader.source.dataset.num_sequences,
        recent_losses=session.guard.memory.losses,
        skipped_in_a_row=session.guard.memory.num_skipped,
        scheduler={"kind": session.schedule.kind, "step": position.step},
        evaluations_left=session.pending_evaluations,
        batch=_batch(session),
    )
    to = Destination(
        root=session.paths.checkpoints,
        progress=progress,
        plan_hash=session.plan_hash,
        model_digest=session.model_digest,
        mesh=dict(session.graph.mesh),
        keep_last=op.keep_last,
        plan=session.artifact,
        effort=session.effort,
    )
    if op.mode == "async" and not position.is_last_step:
        start_save(session, op, to=to)
        return
    join_save(session)
    if session.saved_step == position.step:
        return
    began = time.perf_counter()
    with run_errors():
        state = session.training_state
        directory = save(state, to=to, plan=kept_plan(session))
    session.saved_step = position.step
    session.observer.saved(directory)
    warn_of_grace(session, seconds=time.perf_counter() - began)


def resume_checkpoint(session: Session, op: ResumeCheckpoint, position: Position) -> None:
    """Fill model, optimizer and positions from the newest checkpoint, if the run directory has one."""
    with run_errors():
        step = latest_step(session.paths.checkpoints)
        if step is None:
            return
        directory = step_directory(session.paths.checkpoints, step=step)
        # Its errors end the run, so nothing uses values that are not verified.
        state = session.training_state
        manifest = load(state, directory=directory, in_place=True)
    _refuse_other_data(session, manifest)
    session.loader.load_state(manifest.progress.samples_consumed)
    progress = manifest.progress
    session.guard.memory = Memory(progress.recent_losses, progress.skipped_in_a_row)
    session.completed_steps = session.saved_step = manifest.step
    session.pending_evaluations = progress.evaluations_left
    if progress.batch is not None and progress.batch.samples == session.loader.source.global_batch:
        session.batch_since = (progress.batch.since_step, progress.batch.since_samples)
    else:
        session.batch_since = (manifest.step, progress.samples_consumed)
    set_learning_rate(session, step=manifest.step + 1)
    session.observer.noted(f"resumed from {directory}{_changes(session, manifest)}")


def _batch(session: Session) -> Batch:
    step, samples = session.batch_since
    return Batch(samples=session.loader.source.global_batch, since_step=step, since_samples=samples)


def _refuse_other_data(session: Session, manifest: Manifest) -> None:
    """RunError if resuming would silently continue a different run from the one that was saved."""
    if manifest.model_digest != session.model_digest:
        raise RunError(
            "the checkpoint's model has a different config.json",
            help="restore the config, or start a new run with another --run-dir",
        )
    if manifest.progress.data_fingerprint != session.data_fingerprint:
        raise RunError(
            "the checkpoint was trained on different data: "
            "text, sources and their weights, tokenizer, sequence length, packing or shuffle seed",
            help="restore the data settings, or start a new run with another --run-dir",
        )
    if manifest.progress.seed != session.seed:
        raise RunError(
            f"the checkpoint was trained with model.seed = {manifest.progress.seed}, "
            f"but the plan has {session.seed}",
            help="restore the seed, or start a new run with another --run-dir",
        )


def _changes(session: Session, manifest: Manifest) -> str:
    """For the log: whether another plan saved this, and how its mesh differs."""
    if manifest.plan_hash == session.plan_hash:
        return ""
    sizes = dict(session.graph.mesh)
    changed = [
        f"{mesh_dim} {manifest.mesh.get(mesh_dim, 1)} -> {size}"
        for mesh_dim, size in sizes.items()
        if manifest.mesh.get(mesh_dim, 1) != size
    ]
    mesh = f"its mesh: {', '.join(changed)}" if changed else "on the same mesh"
    return f" (saved by another plan, {manifest.plan_hash[:12]}, {mesh})"
