"""One run of a plan on this rank, step by step: `planc run` and `planc.run` from Python are the same."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from planc.cli.running import preflight
from planc.cli.running.banner import TORCHRUN_TRACEBACK, banner, closing, mesh_text, preempted
from planc.cli.running.compiled import Compiled, compiled_for, require_models
from planc.cli.running.opening import count_first_step, meet, run_of
from planc.cli.running.resuming import changes_since_saved
from planc.cli.running.run_errors import run_directory
from planc.cli.running.starting import Options, start_with
from planc.cli.running.watching import Listener
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import LoadReaders
from planc.runtime import interpreter, process
from planc.runtime.callbacks import Callback, Metric, names_of
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.observer import Together
from planc.runtime.ranks.rank_claims import Claim, require_free_port
from planc.runtime.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    from planc.cli.running.progress import RunDisplay
    from planc.runtime.torch.backend import TorchBackend
    from planc.runtime.torch.run import Run


@dataclass(slots=True)
class Session:
    """A run, and what is known of it so far: its launch and its directory come with the first steps."""

    options: Options
    listener: Listener
    stream: TextIO
    """The stream on which rank 0 prints the run's progress."""
    launch: process.Launch
    directory: RunDirectory | None
    compiled: Compiled | None = None
    """Given, or compiled at the start."""
    num_before: int = 0
    """The runs of this process before this one."""
    callbacks: tuple[Callback, ...] = ()
    metrics: tuple[Metric, ...] = ()
    backend: TorchBackend | None = None
    """None before setup, and on a spare rank."""
    checkpoint: Path | None = None
    """The last one that this run saved; on rank 0."""
    last_step: int = 0
    code: ExitCode = ExitCode.DONE

    def steps(self) -> Iterator[int]:
        """Yield the step that is resumed once setup is over, then each step when it is done and saved.

        RunError if the run can't start or continue.
        """
        options, listener = self.options, self.listener
        listener.launch = self.launch = replace(process.read_launch(os.environ), num_before=self.num_before)
        preflight.require_interface(self.launch, os.environ)
        preflight.require_packages(options.allow_release, self.launch)
        preflight.require_threads(os.environ)
        self.compiled = compiled = self.compiled or compiled_for(options, self.launch)
        graph = compiled.graph
        listener.notice.saves = bool(graph.save)
        if compiled.num_spares:
            if self.launch.rank >= graph.world_size:
                listener.stands_by = True
                self.code = _stand_by(self.launch, graph)
                return
            listener.launch = self.launch = replace(self.launch, world_size=graph.world_size)
        launch = self.launch
        line = start_with(options, world_size=graph.world_size, devices_per_node=compiled.devices_per_node)
        process.require_world_size(launch, wanted=graph.world_size, mesh=mesh_text(graph), start_with=line)
        preflight.require_trackers(graph, launch, os.environ)
        preflight.require_push(graph, launch, os.environ)
        # First, so another process with this rank finds out early.
        claim = Claim(launch)
        require_free_port(launch)
        _require_step(options.stop_after, graph)
        directory = self.directory or run_directory(Path("runs") / graph.name)
        listener.directory = self.directory = directory
        preflight.require_storage(directory.path, launch=launch, graph=graph, inventory=compiled.inventory)
        require_models(graph)
        changes = changes_since_saved(graph, directory.path, allowed=options.allow_change, base=compiled.base)
        for change in changes if launch.rank == 0 else ():
            print(f"since the checkpoint was saved: {change}", file=self.stream)
        yield from self._execute(compiled, directory, claim)
        if listener.notice.is_agreed:
            self.code = ExitCode.PREEMPTED

    @property
    def early_stop(self) -> str:
        """The reason for which an evaluation or a callback of the plan ended the run; empty if none did."""
        return self.backend.early_stop() if self.backend is not None else ""

    @property
    def state(self) -> Literal["done", "stopped", "preempted"]:
        """The outcome of a run that has ended without an error."""
        if self.code is ExitCode.PREEMPTED:
            return "preempted"
        num_steps = self.compiled.graph.num_steps if self.compiled is not None else 0
        return "done" if self.last_step >= num_steps or self.early_stop else "stopped"

    def end(self) -> None:
        """End the run after the step that is done, as if it were the last."""
        self.listener.notice.ends_early = True

    def write_stopped(self) -> None:
        """Record on rank 0 that the run's program left it after the last step, without saving."""
        if self.launch.rank == 0 and self.directory is not None and self.backend is not None:
            digest = self.listener.plan_hash
            self.directory.write_status("stopped", code=ExitCode.DONE, step=self.last_step, plan_hash=digest)

    def _execute(self, compiled: Compiled, directory: RunDirectory, claim: Claim) -> Iterator[int]:
        """Run the graph on the torch backend."""
        # Imported here because it takes seconds; errors that need no torch have been raised.
        import torch.distributed as dist

        from planc.runtime.torch.agreement.rank_0 import by_rank_0
        from planc.runtime.torch.agreement.shared_folder import require_shared_folder
        from planc.runtime.torch.backend import TorchBackend
        from planc.runtime.torch.parallel.mesh import choose_device
        from planc.runtime.torch.parallel.spares import dismiss
        from planc.runtime.torch.reporting.profile import require_traceable
        from planc.runtime.torch.reporting.readers import Readers

        if not gc.isenabled():
            # Training needs garbage collection; imported objects stay, so it can skip them.
            gc.freeze()
            gc.enable()
        options, launch, listener, graph = self.options, self.launch, self.listener, compiled.graph
        listener.plan_hash = plan_hash(graph)
        device = choose_device(graph.init_mesh.backend, launch)
        require_traceable(graph, device)
        _require_other_names(graph, self.metrics)
        with claim:
            names = names_of(self.callbacks, self.metrics)
            store = meet(compiled, launch, device=device, claim=claim, readers=names)
        display = readers = None
        observer = Together()
        try:
            if process.needs_shared_folder(graph):
                require_shared_folder(store, launch, directory.path)
            notes = by_rank_0(store, launch, partial(_take, directory, compiled, listener))
            if notes is not None:
                display = self._display(compiled, directory, notes, device=device.type)
                observer.observers.append(display)
            run = run_of(compiled, launch, directory, listener, store=store, observer=observer, device=device)
            self.backend = TorchBackend(replace(run, reports_sample_ids=options.sample_ids))
            if self.callbacks or self.metrics:
                readers = Readers(run, self.callbacks, self.metrics)
                self.backend.instruments.readers = readers
                observer.observers.append(readers)
            if launch.world_size > 1:
                count_first_step(self.backend, compiled, is_skipped=options.skip_collectives_check)
            for step in interpreter.steps(graph, self.backend, stop_after=options.stop_after):
                self.last_step = step
                yield step
            self.backend.ended(step=self.last_step)
            self._conclude(run, display, directory)
        finally:
            if self.backend is not None:
                self.backend.close(is_done=sys.exc_info()[0] is None)
            if display is not None:
                display.close()
            # A failing rank must not wait for others, which may hang. Its claim ends with its process.
            if sys.exc_info()[0] in (None, GeneratorExit) or launch.world_size == 1:
                if self.backend is not None:
                    _end_watch(self.backend.run)
                if compiled.num_spares and launch.rank == 0:
                    dismiss(store, num_spares=compiled.num_spares)
                dist.destroy_process_group()

    def _display(
        self, compiled: Compiled, directory: RunDirectory, notes: Sequence[str], *, device: str
    ) -> RunDisplay:
        """Rank 0's display, after printing the banner and notes."""
        # Imported here: the other ranks need no display.
        from planc.cli.running.progress import RunDisplay

        stop_after, graph = self.options.stop_after, compiled.graph
        display = RunDisplay(directory, stop_after=stop_after, stream=self.stream)
        if stop_after is not None and not graph.save:
            display.noted("nothing will be saved: the plan has no `checkpoint` block")
        folder, overrides = directory.path, compiled.overrides
        readers = names_of(self.callbacks, self.metrics)
        text = banner(
            graph, self.launch, device=device, run_folder=folder, overrides=overrides, readers=readers
        )
        print(text, file=self.stream, flush=True)
        for note in notes:
            display.noted(note)
        return display

    def _conclude(self, run: Run, display: RunDisplay | None, directory: RunDirectory) -> None:
        """End a run that finished, or that a signal stopped."""
        run.notice.is_over = True
        if display is not None:
            self._close(display, directory, run=run)
        if run.notice.is_agreed:
            # Imported lazily, as all of torch is.
            import torch.distributed as dist

            # torchrun ends all ranks when the first one exits, which may be before this one does.
            dist.barrier()

    def _close(self, display: RunDisplay, directory: RunDirectory, *, run: Run) -> None:
        """Write the final status and print the closing lines, on rank 0."""
        display.close()
        graph, notice, digest, last_step = run.graph, run.notice, run.plan_hash, self.last_step
        reason = self.early_stop
        if notice.is_agreed:
            steps = committed_steps(directory.path / "checkpoints")
            saved = {
                "saved_step": max(steps, default=None),
                "signal": notice.signal_name or None,
                "left": notice.undone,
            }
            directory.write_status(
                "preempted", code=ExitCode.PREEMPTED, step=last_step, plan_hash=digest, **saved
            )
            text = preempted(graph, last_step=last_step, signal_name=notice.signal_name)
            print(text, file=self.stream, flush=True)
        else:
            ended: dict[str, str] = {"early_stop": reason} if reason else {}
            directory.write_status(self.state, code=ExitCode.DONE, step=last_step, plan_hash=digest, **ended)
        self.checkpoint = display.checkpoint
        text = closing(
            directory,
            checkpoint=display.checkpoint,
            last_step=last_step,
            num_steps=graph.num_steps,
            early_stop=reason,
        )
        print(text, file=self.stream, flush=True)
        if notice.is_agreed and process.is_under_torchrun(os.environ):
            print(TORCHRUN_TRACEBACK, file=self.stream, flush=True)


def _end_watch(run: Run) -> None:
    """End the threads that look after the other ranks: the process may live on, or end as Python's do."""
    if run.watch is not None:
        run.watch.close()
    if run.stop_points is not None:
        run.stop_points.close()


def _stand_by(launch: process.Launch, graph: Graph) -> ExitCode:
    # Only a spare needs it, and it imports torch.
    from planc.runtime.torch.parallel.spares import stand_by

    text = f"rank {launch.rank} waits as a spare: the mesh {mesh_text(graph)} needs no more ranks"
    print(f"planc: {text}", file=sys.stderr)
    return stand_by(launch) if graph.world_size > 1 else ExitCode.DONE


def _take(directory: RunDirectory, compiled: Compiled, listener: Listener) -> tuple[str, ...]:
    """Claim the run directory; return one line for each entry that had to be set aside."""
    notes = directory.free_lock()
    directory.claim()
    notes += directory.repair()
    directory.prepare(compiled.artifact, plan_hash=listener.plan_hash)
    return notes


def _require_other_names(graph: Graph, metrics: Sequence[Metric]) -> None:
    """RunError for a metric of the program that has the name of one of the plan."""
    of_plan = {own.extension.entry for op in graph.setup if isinstance(op, LoadReaders) for own in op.metrics}
    for metric in metrics:
        if metric.name in of_plan:
            raise RunError(
                f"the plan has a metric {metric.name} too", help="rename the one of the program that runs it"
            )


def _require_step(stop_after: int | None, graph: Graph) -> None:
    """RunError for a step past the end of the plan."""
    if stop_after is not None and stop_after > graph.num_steps:
        raise RunError(
            f"--stop-after {stop_after} is past the plan's last step ({graph.num_steps})",
            help="leave it out to train to the end",
        )
