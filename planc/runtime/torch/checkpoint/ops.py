"""Saves and resumes as ops."""

from __future__ import annotations

import time

from planc.graph.ops import ResumeCheckpoint, SaveCheckpoint
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.manifest import Batch, Manifest, Progress
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Memory
from planc.runtime.torch.checkpoint import Destination, TrainingState, latest_step, load, save
from planc.runtime.torch.checkpoint.background_saving import join_save, start_save
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.optimizer import set_learning_rate
from planc.runtime.torch.training.preemption import warn_of_grace


def save_checkpoint(session: Session, op: SaveCheckpoint, position: Position) -> None:
    """Commits `checkpoints/step-N` with everything that training needs to go on: now, or behind training.

    The last step's is committed on return, and so is what was under way: there is no training to go on.
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
        evaluations_left=session.evaluations_left,
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
    )
    if op.mode == "async" and not position.is_last_step:
        start_save(session, op, to=to)
        return
    join_save(session)
    if session.saved_step == position.step:
        return
    began = time.perf_counter()
    with run_errors():
        directory = save(TrainingState(session.model, session.optimizer), to=to)
    session.saved_step = position.step
    session.observer.saved(directory)
    warn_of_grace(session, seconds=time.perf_counter() - began)


def resume_checkpoint(session: Session, op: ResumeCheckpoint, position: Position) -> None:
    """Fills model, optimizer and positions from the newest checkpoint, if the run's folder has one."""
    with run_errors():
        step = latest_step(session.paths.checkpoints)
        if step is None:
            return
        directory = step_directory(session.paths.checkpoints, step=step)
        manifest = load(TrainingState(session.model, session.optimizer), directory=directory)
    _refuse_other_data(session, manifest)
    session.loader.load_state(manifest.progress.samples_consumed)
    progress = manifest.progress
    session.guard.memory = Memory(progress.recent_losses, progress.skipped_in_a_row)
    session.completed_steps = session.saved_step = manifest.step
    session.evaluations_left = progress.evaluations_left
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
    """RunError where going on would silently mean something else than the run that was saved."""
    if manifest.model_digest != session.model_digest:
        raise RunError(
            "the checkpoint is of a model with another config.json",
            help="restore the config, or start anew with another --run-dir",
        )
    if manifest.progress.data_fingerprint != session.data_fingerprint:
        raise RunError(
            "the checkpoint was trained on other data: "
            "text, tokenizer, sequence length, packing or shuffle seed",
            help="restore the data settings, or start anew with another --run-dir",
        )
    if manifest.progress.seed != session.seed:
        raise RunError(
            f"the checkpoint was trained with model.seed = {manifest.progress.seed}, "
            f"the plan has {session.seed}",
            help="restore the seed, or start anew with another --run-dir",
        )


def _changes(session: Session, manifest: Manifest) -> str:
    """For the log: that another plan saved this, and what of its mesh is known to differ."""
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
