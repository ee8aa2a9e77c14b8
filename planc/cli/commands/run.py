"""`planc run`: run a plan, or an artifact of one, on this rank.

Every rank compiles the plan itself; ranks compare the graph's hash before the first collective.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from planc.cli.running.banner import TORCHRUN_TRACEBACK, banner, closing, mesh_text, preempted
from planc.cli.running.compiled import Compiled, compiled_for, require_models
from planc.cli.running.opening import count_first_step, meet, run_of
from planc.cli.running.preflight import (
    RELEASE_HELP,
    require_interface,
    require_packages,
    require_storage,
    require_threads,
    require_trackers,
)
from planc.cli.running.resuming import changes_since_saved
from planc.cli.running.run_errors import record, report, report_unforeseen, run_directory
from planc.cli.running.starting import start_with
from planc.cli.running.watching import Listener, listen
from planc.cli.support.arguments import add_plan_argument, add_run_dir_argument, add_set_argument
from planc.cli.support.parser import Parser
from planc.cli.support.streams import outlive_readers, quiet_libraries, show_crashes
from planc.graph.graph import Graph, plan_hash
from planc.outgoing import guard
from planc.runtime import interpreter
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.collectives import SKIP_CHECK
from planc.runtime.cpus import unsupported_system
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.observer import Together
from planc.runtime.process import (
    Launch,
    is_under_torchrun,
    needs_shared_folder,
    read_launch,
    require_world_size,
)
from planc.runtime.ranks.rank_claims import Claim, require_free_port
from planc.runtime.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    from planc.cli.running.progress import RunDisplay
    from planc.runtime.torch.run import Run

DESCRIPTION = "Run a plan, or a compiled plan, on this rank. Start all ranks with torchrun."
EPILOG = """examples:
  torchrun --nproc-per-node 4 -m planc.run plans/quickstart.plan
  python -m planc.run plans/launch-one-process.plan

exit codes: 0 done, 2 bad input, 4 storage, 5 numerics, 6 communication, 7 corrupt checkpoint,
8 out of memory or threads, 75 stopped by a signal (SIGTERM, Ctrl-C, SIGHUP, SIGUSR1) after saving: the same
command resumes. status.json in the run directory has the code too, because torchrun returns 1 for every
failure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_argument(parser, help="a .plan file, or an artifact from `planc compile`", type=Path)
    add_set_argument(parser)
    add_run_dir_argument(parser)
    parser.add_argument(
        "--stop-after", type=_step, metavar="STEP", help="stop after this step; save as the plan says"
    )
    parser.add_argument(
        "--sample-ids", action="store_true", help="write the sample ids of each step to metrics.jsonl"
    )
    parser.add_argument(
        SKIP_CHECK,
        action="store_true",
        help="do not compare the collectives of the first step with those that the graph predicts",
    )
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="NAME",
        help="resume even though NAME differs from the checkpoint's plan (NAME as printed in the error); "
        "can be repeated",
    )
    parser.add_argument("--allow-release", action="append", default=[], metavar="PIN", help=RELEASE_HELP)


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:18]) > 0):
        raise ValueError(text)
    return int(text)


_step.__name__ = "step"  # argparse names the type by it: invalid step value


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = Parser("planc.run", description=DESCRIPTION, epilog=EPILOG)
    add_arguments(parser)
    for stream in (sys.stdout, sys.stderr):
        guard(stream, environment=os.environ)
    run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> NoReturn:
    """Run a plan and end the process with the run's exit code."""
    outlive_readers()
    show_crashes()
    quiet_libraries(os.environ)
    # Imports leave no garbage, and collection takes a fifth of their time. `_execute` turns it on again.
    gc.disable()
    _leave(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    refusal = unsupported_system("run")
    if refusal:
        print(f"planc: error: {refusal}", file=sys.stderr)
        return ExitCode.INPUT
    launch = Launch(rank=_rank_hint())
    # Known before the plan is read, so a rejected launch is recorded in the directory of the run to resume.
    directory = run_directory(arguments.run_dir) if arguments.run_dir else None
    try:
        listener = listen(launch, directory)
    except RuntimeError as error:  # no thread can be started
        return report_unforeseen(error, launch, directory)
    try:
        listener.launch = launch = read_launch(os.environ)
        require_interface(launch, os.environ)
        require_packages(arguments.allow_release, launch)
        require_threads(os.environ)
        compiled = compiled_for(arguments, launch)
        graph = compiled.graph
        listener.notice.saves = bool(graph.save)
        if compiled.num_spares:
            if launch.rank >= graph.world_size:
                listener.stands_by = True
                return _stand_by(launch, graph)
            listener.launch = launch = replace(launch, world_size=graph.world_size)
        line = start_with(arguments, world_size=graph.world_size, devices_per_node=compiled.devices_per_node)
        require_world_size(launch, wanted=graph.world_size, mesh=mesh_text(graph), start_with=line)
        require_trackers(graph, launch, os.environ)
        # First, so another process with this rank finds out early.
        claim = Claim(launch)
        require_free_port(launch)
        _require_step(arguments.stop_after, graph)
        listener.directory = directory = directory or run_directory(Path("runs") / graph.name)
        require_storage(directory.path, launch=launch, graph=graph, inventory=compiled.inventory)
        require_models(graph)
        changes = changes_since_saved(graph, directory.path, allowed=arguments.allow_change)
        for change in changes if launch.rank == 0 else ():
            print(f"since the checkpoint was saved: {change}")
        _execute(compiled, launch, directory, arguments, listener, claim)
    except RunError as error:
        listener.notice.has_failed = listener.notice.is_over = True
        report(error, launch, directory)
        return error.code
    except KeyboardInterrupt:
        record(RunError("interrupted", code=ExitCode.INTERRUPTED), launch, directory)
        if launch.rank == 0:
            print("planc: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except STOPS:
        raise
    except BaseException as error:
        listener.notice.has_failed = listener.notice.is_over = True
        return report_unforeseen(error, launch, directory)
    return ExitCode.PREEMPTED if listener.notice.is_agreed else ExitCode.DONE


def _stand_by(launch: Launch, graph: Graph) -> ExitCode:
    # Only a spare needs it, and it imports torch.
    from planc.runtime.torch.parallel.spares import stand_by

    text = f"rank {launch.rank} waits as a spare: the mesh {mesh_text(graph)} needs no more ranks"
    print(f"planc: {text}", file=sys.stderr)
    return stand_by(launch) if graph.world_size > 1 else ExitCode.DONE


def _execute(
    compiled: Compiled,
    launch: Launch,
    directory: RunDirectory,
    arguments: argparse.Namespace,
    listener: Listener,
    claim: Claim,
) -> None:
    """Run the graph on the torch backend."""
    # Imported here because it takes seconds; errors that need no torch have been raised.
    import torch.distributed as dist

    from planc.runtime.torch.agreement.rank_0 import by_rank_0
    from planc.runtime.torch.agreement.shared_folder import require_shared_folder
    from planc.runtime.torch.backend import TorchBackend
    from planc.runtime.torch.parallel.mesh import choose_device
    from planc.runtime.torch.parallel.spares import dismiss
    from planc.runtime.torch.reporting.profile import require_traceable

    # Training needs garbage collection; imported objects stay, so it can skip them.
    gc.freeze()
    gc.enable()
    graph = compiled.graph
    listener.plan_hash = plan_hash(graph)
    device = choose_device(graph.init_mesh.backend, launch)
    require_traceable(graph, device)
    with claim:
        store = meet(compiled, launch, device=device, claim=claim)
    display = backend = None
    observer = Together()
    try:
        if needs_shared_folder(graph):
            require_shared_folder(store, launch, directory.path)
        notes = by_rank_0(store, launch, partial(_take, directory, compiled, listener))
        if notes is not None:
            display = _display(compiled, launch, directory, arguments, notes, device=device.type)
            observer.observers.append(display)
        run = run_of(compiled, launch, directory, listener, store=store, observer=observer, device=device)
        backend = TorchBackend(replace(run, reports_sample_ids=arguments.sample_ids))
        if launch.world_size > 1:
            count_first_step(backend, compiled, is_skipped=arguments.skip_collectives_check)
        last = interpreter.run(graph, backend, stop_after=arguments.stop_after)
        _conclude(run, display, directory, last_step=last)
    finally:
        if backend is not None:
            backend.close(is_done=sys.exc_info()[0] is None)
        if display is not None:
            display.close()
        # A failing rank must not wait for others, which may hang. Its claim on the directory ends with it.
        if sys.exc_info()[0] is None:
            if compiled.num_spares and launch.rank == 0:
                dismiss(store, num_spares=compiled.num_spares)
            dist.destroy_process_group()


def _take(directory: RunDirectory, compiled: Compiled, listener: Listener) -> tuple[str, ...]:
    """Claim the run directory; return one line for each entry that had to be set aside."""
    notes = directory.free_lock()
    directory.claim()
    notes += directory.repair()
    directory.prepare(compiled.artifact, plan_hash=listener.plan_hash)
    return notes


def _conclude(run: Run, display: RunDisplay | None, directory: RunDirectory, *, last_step: int) -> None:
    """End a run that finished, or that a signal stopped."""
    run.notice.is_over = True
    if run.watch is not None:
        run.watch.close()
    if display is not None:
        _close(display, directory, last_step=last_step, run=run)
    if run.notice.is_agreed:
        # Imported lazily, as all of torch is.
        import torch.distributed as dist

        # torchrun ends all ranks when the first one exits, which may be before this one does.
        dist.barrier()


def _close(display: RunDisplay, directory: RunDirectory, *, last_step: int, run: Run) -> None:
    """Write the final status and print the closing lines, on rank 0."""
    display.close()
    graph, notice, digest = run.graph, run.notice, run.plan_hash
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
        print(preempted(graph, last_step=last_step, signal_name=notice.signal_name), flush=True)
    else:
        state = "done" if last_step >= graph.num_steps else "stopped"
        directory.write_status(state, code=ExitCode.DONE, step=last_step, plan_hash=digest)
    checkpoint, num_steps = display.checkpoint, graph.num_steps
    print(closing(directory, checkpoint=checkpoint, last_step=last_step, num_steps=num_steps), flush=True)
    if notice.is_agreed and is_under_torchrun(os.environ):
        print(TORCHRUN_TRACEBACK, flush=True)


def _display(
    compiled: Compiled,
    launch: Launch,
    directory: RunDirectory,
    arguments: argparse.Namespace,
    notes: Sequence[str],
    *,
    device: str,
) -> RunDisplay:
    """Rank 0's display, after printing the banner and notes."""
    # Imported here: the other ranks need no display.
    from planc.cli.running.progress import RunDisplay

    display = RunDisplay(directory, stop_after=arguments.stop_after)
    if arguments.stop_after is not None and not compiled.graph.save:
        display.noted("nothing will be saved: the plan has no `checkpoint` block")
    text = banner(
        compiled.graph, launch, device=device, run_folder=directory.path, overrides=compiled.overrides
    )
    print(text, flush=True)
    for note in notes:
        display.noted(note)
    return display


def _require_step(stop_after: int | None, graph: Graph) -> None:
    """RunError for a step past the end of the plan."""
    if stop_after is not None and stop_after > graph.num_steps:
        raise RunError(
            f"--stop-after {stop_after} is past the plan's last step ({graph.num_steps})",
            help="leave it out to train to the end",
        )


def _rank_hint() -> int:
    """The rank that decides who reports, before the environment has been validated."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _leave(code: int) -> NoReturn:
    """End the process at once, without the interpreter's shutdown.

    Threads of a broken process group could keep a failed rank alive. A thread of an intact one that frees a
    tensor during shutdown aborts the process: on a busy machine, in one of ten finished runs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
