"""`planc run`: a plan, or an artifact of one, on this rank.

Every rank compiles the plan itself; ranks compare the graph's hash before they do anything together.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from planc.cli.banner import banner, closing, mesh_text
from planc.cli.fetching import require_models, with_model
from planc.cli.preflight import require_interface, require_packages, require_storage, require_trackers
from planc.cli.starting import start_with
from planc.cli.watching import keep_watch
from planc.estimate.flops import flops
from planc.estimate.rank_work import rank_work
from planc.graph.artifact import ArtifactError, base_between, dump, graph_of, load
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import InitMesh, ResumeCheckpoint
from planc.inventory.schema import Inventory
from planc.runtime import interpreter
from planc.runtime.checkpoints.layout import committed_steps
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.launch import (
    Launch,
    needs_shared_folder,
    read_launch,
    require_free_port,
    require_world_size,
)
from planc.runtime.observer import Observer, Silent
from planc.runtime.run_directory import FolderInUseError, RunDirectory
from planc.runtime.throughput import Work
from planc.runtime.watch import Watch

if TYPE_CHECKING:
    from planc.cli.progress import RunDisplay

    # The front end, which a compiled artifact runs without.
    from planc.plan.spec import Plan

DESCRIPTION = "Run a plan, or a compiled plan, on this process's rank."
EPILOG = """examples:
  torchrun --nproc-per-node 4 -m planc.run plans/quickstart.plan
  python -m planc.run plans/quickstart.plan --set mesh.dp_shard=1 --set mesh.tp=1

exit codes: 0 done, 2 bad input, 4 storage, 5 numerics, 6 communication, 7 corrupt checkpoint.
They are also in the run folder's status.json, since torchrun returns 1 for every failure."""

_FIRST_WORD_SECONDS = 2.0
"""How long other ranks wait for rank 0 to report an error that all of them have."""
_TURN_SECONDS = 0.5
"""How much longer each further rank of a node waits, so that one of them speaks."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What is run: the graph, where its relative paths start, and what it was made from."""

    graph: Graph
    base: Path
    sources: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    inventory: Inventory | None = None
    """The model's, where the plan was compiled here."""
    peak_flops: float | None = None
    """Of the device that the plan names."""
    devices_per_node: int | None = None
    """As the plan's mesh says."""

    def artifact(self, folder: Path) -> str:
        """The artifact's text for a file in `folder`."""
        base = base_between(folder, plan_folder=self.base)
        return dump(self.graph, sources=self.sources, overrides=self.overrides, base=base)


class PlanRefused(RunError):
    """The plan has errors; the message is all of them, rendered."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, help="a .plan file, or an artifact of `planc compile`")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a param or a setting"
    )
    parser.add_argument("--run-dir", type=_folder, help="where results go (default: runs/<plan's name>)")
    parser.add_argument(
        "--stop-after", type=_step, metavar="STEP", help="end early, after this step; save as the plan says"
    )
    parser.add_argument(
        "--sample-ids", action="store_true", help="write each step's sample ids into metrics.jsonl"
    )


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:18]) > 0):
        raise ValueError(text)
    return int(text)


def _folder(text: str) -> Path:
    if not text:
        raise ValueError(text)
    return Path(text)


_folder.__name__ = "folder"
_step.__name__ = "step"  # argparse names the type by it: invalid step value


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="planc.run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> NoReturn:
    """Runs a plan and ends the process with the run's exit code."""
    # Imports leave no garbage, and looking for it is a fifth of their time. `_execute` turns it on again.
    gc.disable()
    _leave(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    launch = Launch(rank=_rank_hint())
    # Known before the plan is: a refused launch shows in the folder of the run that it was to go on with.
    directory = RunDirectory(arguments.run_dir) if arguments.run_dir else None
    try:
        launch = read_launch(os.environ)
        require_interface(launch, os.environ)
        require_packages()
        compiled = _compile(arguments, launch)
        graph = compiled.graph
        line = start_with(arguments, world_size=graph.world_size, devices_per_node=compiled.devices_per_node)
        require_world_size(launch, wanted=graph.world_size, mesh=mesh_text(graph), start_with=line)
        require_trackers(graph, launch, os.environ)
        require_free_port(launch)
        _require_step(arguments.stop_after, graph)
        directory = directory or RunDirectory(Path("runs") / graph.name)
        require_storage(directory.path, launch=launch, graph=graph, inventory=compiled.inventory)
        require_models(graph)
        _execute(compiled, launch, directory, arguments)
    except RunError as error:
        _report(error, launch, directory)
        return error.code
    except KeyboardInterrupt:
        _record(RunError("interrupted", code=ExitCode.INTERRUPTED), launch, directory)
        if launch.rank == 0:
            print("planc: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception:
        # A bug of planc's own. It must not leave the process to the interpreter's end, which may hang.
        traceback.print_exc()
        return ExitCode.INTERNAL
    return ExitCode.DONE


def _compile(arguments: argparse.Namespace, launch: Launch) -> Compiled:
    """The plan compiled; rank 0 prints its warnings. PlanRefused if it has errors."""
    if arguments.plan.suffix == ".json":
        return _load(arguments.plan, arguments.set)
    # Reached lazily: a compiled artifact runs without the front end.
    from planc.api import check_plan
    from planc.checks.world_size_mismatch import CODE as WORLD_SIZE_MISMATCH
    from planc.cli.plans import render_findings
    from planc.cli.settings import settings_from
    from planc.diagnostics import Severity

    settings, errors = settings_from(arguments.set, os.environ)
    if errors:
        raise RunError("; ".join(errors))
    checked = with_model(partial(check_plan, arguments.plan, settings=settings, world_size=launch.world_size))
    findings = render_findings(checked, stream=sys.stderr).rstrip("\n")
    if checked.graph is None:
        errors_found = {one.code for one in checked.diagnostics if one.severity is Severity.ERROR}
        # Started so, a plan with any other error would only be refused again.
        if checked.plan is not None and errors_found == {WORLD_SIZE_MISMATCH}:
            mesh = checked.plan.mesh
            line = start_with(arguments, world_size=mesh.world_size, devices_per_node=mesh.devices_per_node)
            findings += f"\n\nstart it with: {line}"
        raise PlanRefused(findings)
    if launch.rank == 0 and checked.diagnostics:
        print(findings, file=sys.stderr)
    return Compiled(
        checked.graph,
        arguments.plan.parent,
        checked.source_digests,
        checked.overrides,
        checked.inventory,
        _peak_flops(checked.plan),
        checked.plan.mesh.devices_per_node if checked.plan else None,
    )


def _peak_flops(plan: Plan | None) -> float | None:
    return plan.hardware.gpu.peak_flops if plan is not None and plan.hardware is not None else None


def _work(compiled: Compiled) -> Work | None:
    """What a step computes; None for a compiled plan, which comes without its model's inventory."""
    if compiled.inventory is None:
        return None
    per_step = flops(rank_work(compiled.graph, compiled.inventory)).per_step
    return Work(per_step, compiled.graph.world_size, compiled.peak_flops)


def _load(path: Path, settings: Sequence[str]) -> Compiled:
    """A compiled artifact, which takes no more settings."""
    if settings:
        raise RunError("a compiled plan takes no --set", help="compile the plan again with the setting")
    try:
        artifact = load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    except ArtifactError as error:
        raise RunError(f"{path}: {error}", help="compile the plan again") from error
    return Compiled(graph_of(artifact), path.parent / artifact.base, artifact.sources, artifact.overrides)


def _execute(
    compiled: Compiled, launch: Launch, directory: RunDirectory, arguments: argparse.Namespace
) -> None:
    """Runs the graph on the torch backend."""
    # Imported here, after everything that can be refused without seconds of imports has been.
    import torch.distributed as dist

    from planc.runtime.backends.torch.backend import TorchBackend
    from planc.runtime.backends.torch.mesh import choose_device, connect
    from planc.runtime.backends.torch.reporting_log import close_log
    from planc.runtime.backends.torch.reporting_profile import require_traceable
    from planc.runtime.backends.torch.run_folder import require_shared_folder
    from planc.runtime.backends.torch.session import Paths, Session

    # Training needs it; what was imported stays, and no search has to go through it.
    gc.freeze()
    gc.enable()
    graph = compiled.graph
    digest = plan_hash(graph)
    init = graph.setup[0]
    assert isinstance(init, InitMesh), "verified graphs start with mesh.init"
    device = choose_device(init.backend, launch)
    require_traceable(graph, device)
    store = connect(launch, device=device, timeout_seconds=init.timeout_seconds, digest=digest)
    claimed = display = session = None
    observer: Observer = Silent()
    try:
        if needs_shared_folder(graph):
            require_shared_folder(store, launch, directory.path)
        if launch.rank == 0:
            claimed = directory.claim()
            directory.prepare(compiled.artifact, plan_hash=digest)
            observer = display = _display(compiled, directory, device=device.type, stop=arguments.stop_after)
        paths = Paths(base=compiled.base, run=directory.path)
        _refuse_old_checkpoints(graph, paths.checkpoints)
        session = Session(graph, digest, launch, paths, observer, device, arguments.sample_ids)
        session.work = _work(compiled)
        if launch.world_size > 1:
            session.watch = Watch(graph, launch, store=store, run_folder=directory.path)
            report = partial(_report, launch=launch, directory=directory)
            keep_watch(session.watch, init, report=report, has_nccl=device.type == "cuda")
        last = interpreter.run(graph, TorchBackend(session), stop_after=arguments.stop_after)
        if session.watch is not None:
            session.watch.close()
        if display is not None:
            _close(display, directory, last_step=last, num_steps=graph.num_steps, digest=digest)
    finally:
        if session is not None:
            close_log(session, is_done=sys.exc_info()[0] is None)
        if display is not None:
            display.close()
        if claimed is not None:
            claimed.close()
        # A failing rank must not wait for the others, which may hang in a collective without it.
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


def _close(
    display: RunDisplay, directory: RunDirectory, *, last_step: int, num_steps: int, digest: str
) -> None:
    """Rank 0's last words."""
    display.close()
    state = "done" if last_step == num_steps else "stopped"
    directory.write_status(state, code=ExitCode.DONE, step=last_step, plan_hash=digest)
    text = closing(directory, checkpoint=display.checkpoint, last_step=last_step, num_steps=num_steps)
    print(text, flush=True)


def _display(compiled: Compiled, directory: RunDirectory, *, device: str, stop: int | None) -> RunDisplay:
    """Rank 0's display, after its first lines."""
    # Imported here: the other ranks need no display.
    from planc.cli.progress import RunDisplay

    display = RunDisplay(directory, stop_after=stop)
    if stop is not None and not compiled.graph.save:
        display.noted("nothing will be saved: the plan has no checkpoint block")
    text = banner(compiled.graph, device=device, run_folder=directory.path, overrides=compiled.overrides)
    print(text, flush=True)
    return display


def _refuse_old_checkpoints(graph: Graph, checkpoints: Path) -> None:
    """RunError if a run that starts anew would meet an earlier run's checkpoints."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if graph.save and not resumes and committed_steps(checkpoints):
        raise RunError(
            f"{checkpoints} holds checkpoints of an earlier run, and the plan does not resume",
            help="choose another --run-dir, or set checkpoint.resume = latest",
        )


def _require_step(stop_after: int | None, graph: Graph) -> None:
    """RunError for a step that the plan does not have."""
    if stop_after is not None and stop_after > graph.num_steps:
        raise RunError(
            f"--stop-after {stop_after} is past the plan's last step, {graph.num_steps}",
            help="leave it out to train to the end",
        )


def _rank_hint() -> int:
    """The rank for deciding who reports, before the environment has been read strictly."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _report(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """One error for a person: from rank 0 where all ranks fail alike, else from the rank that failed."""
    _record(error, launch, directory)
    if error.is_shared and launch.rank != 0:
        # torchrun ends all ranks when the first one leaves, so this one lets rank 0 speak. If it is still
        # there after that, rank 0 has not failed, and nobody else will say why.
        time.sleep(_FIRST_WORD_SECONDS + _TURN_SECONDS * launch.local_rank)
    text = _error_text(error)
    print(text, file=sys.stderr)
    _tell_torchrun(text)
    if os.environ.get("PLANC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()


def _record(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Puts a failure into the run folder's status.json."""
    if isinstance(error, FolderInUseError):
        return
    if launch.rank == 0 and directory is not None and directory.path.is_dir():
        # A full disk may be the very failure; it must not hide behind a second one.
        with contextlib.suppress(OSError):
            directory.write_status("failed", code=error.code, error=error.message)


def _error_text(error: RunError) -> str:
    if isinstance(error, PlanRefused):
        return error.message
    where = f"{error.span}: " if error.span else ""
    help = f"\nhelp: {error.help}" if error.help else ""
    return f"planc: error: {where}{error.message}{help}"


def _tell_torchrun(text: str) -> None:
    """Puts an error where torchrun looks for it, so that its summary ends with the reason."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # The format of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
        record = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(record), encoding="utf-8")


def _leave(code: int) -> NoReturn:
    """Ends the process at once, past the interpreter's own end.

    A broken process group's threads could keep a failed rank alive. And a thread of a sound one that frees a
    tensor while the interpreter ends aborts the process: on a busy machine, one finished run in ten.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
