"""The entry point of a run: `torchrun --nproc-per-node N -m planc.run PLAN`, or one process without torchrun.

Every rank compiles the plan itself; ranks compare the graph's hash before they do anything together.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.graph.graph import Graph, plan_hash
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.launch import Launch, read_launch, require_free_port, require_world_size
from planc.runtime.run_directory import RunDirectory

DESCRIPTION = "Run a plan, or a compiled plan, on this process's rank."
EPILOG = """examples:
  torchrun --nproc-per-node 4 -m planc.run plans/quickstart.plan
  python -m planc.run plans/quickstart.plan --set mesh.dp_shard=1 --set mesh.tp=1

exit codes: 0 done, 2 bad input, 4 storage, 5 numerics, 6 communication, 7 corrupt checkpoint; they are also in
the run folder's status.json, since torchrun returns 1 for every failure."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What is run: the graph, the artifact that is stored beside the results, and lines for the banner."""

    graph: Graph
    artifact: str
    base: Path
    origins: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, help="a .plan file, or an artifact of `planc compile`")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a param or a setting"
    )
    parser.add_argument("--run-dir", type=Path, help="where results go (default: runs/<plan's name>)")
    parser.add_argument(
        "--stop-after", type=int, metavar="STEP", help="end early, after this step, and save as the plan says"
    )
    parser.add_argument(
        "--sample-ids", action="store_true", help="write each step's sample ids into metrics.jsonl"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="planc.run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return run_command(parser.parse_args(argv))


def run_command(arguments: argparse.Namespace) -> int:
    """The exit code of a run."""
    launch = Launch(rank=_rank_hint())
    directory: RunDirectory | None = None
    try:
        launch = read_launch(os.environ)
        compiled = _compile(arguments, launch)
        if compiled is None:
            return ExitCode.INPUT
        graph = compiled.graph
        require_world_size(launch, wanted=graph.world_size, mesh=_mesh_text(graph), plan=str(arguments.plan))
        require_free_port(launch)
        path = arguments.run_dir or Path("runs") / graph.name
        directory = RunDirectory(path)
        _execute(compiled, launch, directory, arguments)
    except RunError as error:
        _report(error, launch, directory)
        return error.code
    except KeyboardInterrupt:
        return 130
    return ExitCode.DONE


def _compile(arguments: argparse.Namespace, launch: Launch) -> Compiled | None:
    """The plan compiled, or None after its findings were printed by rank 0."""
    if arguments.plan.suffix == ".json":
        return _load(arguments.plan, arguments.set)
    # Reached lazily: a compiled artifact runs without the front end.
    from planc.api import check_plan
    from planc.cli.settings import settings_from
    from planc.diagnostics.human import HumanRenderer
    from planc.graph.artifact import dump

    settings, errors = settings_from(arguments.set, os.environ)
    if errors:
        raise RunError("; ".join(errors))
    checked = check_plan(arguments.plan, settings=settings, world_size=launch.world_size)
    if launch.rank == 0 and checked.diagnostics:
        renderer = HumanRenderer(checked.sources, colour=sys.stderr.isatty() and "NO_COLOR" not in os.environ)
        print(renderer.render(checked.diagnostics), file=sys.stderr)
        if launch.world_size == 1 and checked.plan is not None and checked.plan.mesh.world_size != 1:
            count = checked.plan.mesh.world_size
            print(f"start it with: torchrun --nproc-per-node {count} -m planc.run {arguments.plan}", file=sys.stderr)
    if checked.graph is None:
        return None
    artifact = dump(checked.graph, sources=checked.source_digests, overrides=checked.overrides)
    return Compiled(checked.graph, artifact, arguments.plan.parent, checked.overrides)


def _load(path: Path, settings: Sequence[str]) -> Compiled:
    """A compiled artifact, which takes no more settings."""
    from planc.graph.artifact import ArtifactError, graph_of, load

    if settings:
        raise RunError("a compiled plan takes no --set", help="compile the plan again with the setting")
    try:
        text = path.read_text(encoding="utf-8")
        artifact = load(text)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    except ArtifactError as error:
        raise RunError(f"{path}: {error}", help="compile the plan again") from error
    return Compiled(graph_of(artifact), text, path.parent, artifact.overrides)


def _execute(
    compiled: Compiled, launch: Launch, directory: RunDirectory, arguments: argparse.Namespace
) -> None:
    """Runs the graph on the torch backend."""
    # Imported here, after everything that can be refused without seconds of imports has been.
    import torch.distributed as dist

    from planc.runtime.backends.torch.backend import TorchBackend
    from planc.runtime.backends.torch.mesh import choose_device, connect
    from planc.runtime.backends.torch.session import Paths, Session
    from planc.runtime.interpreter import run
    from planc.runtime.observer import Observer, Silent

    graph = compiled.graph
    digest = plan_hash(graph)
    init = graph.setup[0]
    device = choose_device(init.backend, launch)
    connect(launch, device=device, timeout_seconds=init.timeout_seconds, digest=digest)
    display = None
    observer: Observer = Silent()
    try:
        if launch.rank == 0:
            from planc.cli.progress import RunDisplay

            directory.prepare(compiled.artifact)
            observer = display = RunDisplay(directory)
            print(_banner(compiled, digest, device.type, directory), flush=True)
        paths = Paths(base=compiled.base, run=directory.path)
        _refuse_old_checkpoints(graph, paths.checkpoints)
        session = Session(graph, digest, launch, paths, observer, device, arguments.sample_ids)
        last = run(graph, TorchBackend(session), stop_after=arguments.stop_after)
        if display is not None:
            display.close()
            directory.write_status("done", code=ExitCode.DONE, step=last, plan_hash=digest)
            print(_closing(directory, display.checkpoint), flush=True)
    finally:
        if display is not None:
            display.close()
        # A failing rank must not wait for the others, which may hang in a collective without it.
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


def _refuse_old_checkpoints(graph: Graph, checkpoints: Path) -> None:
    """RunError if a run that starts anew would meet an earlier run's checkpoints."""
    from planc.graph.ops import ResumeCheckpoint
    from planc.runtime.checkpoints.layout import committed_steps

    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if graph.save and not resumes and committed_steps(checkpoints):
        raise RunError(
            f"{checkpoints} holds checkpoints of an earlier run, and the plan does not resume",
            help="choose another --run-dir, or set checkpoint.resume = latest",
        )


def _mesh_text(graph: Graph) -> str:
    """`dp_shard=2 tp=2`; dims of one rank are left out."""
    return " ".join(f"{mesh_dim}={size}" for mesh_dim, size in graph.mesh if size > 1) or "of one rank"


def _banner(compiled: Compiled, digest: str, device: str, directory: RunDirectory) -> str:
    """What is about to run, before it runs."""
    graph = compiled.graph
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    lines = [
        f"planc run {graph.name}  plan_hash {digest[:12]}",
        f"  mesh       {_mesh_text(graph)}  ({graph.world_size} ranks, {device}, {backend})",
        *_layout_lines(graph),
        f"  run folder {directory.path}",
        *(f"  override   {text}" for text in compiled.origins),
    ]
    return "\n".join(lines)


def _layout_lines(graph: Graph) -> list[str]:
    from planc.graph.ops import AttachAttention, FullyShard, ShardTensorParallel

    divided = sum(len(op.modules) for op in graph.setup if isinstance(op, ShardTensorParallel))
    units = sum(len(op.groups) for op in graph.setup if isinstance(op, FullyShard))
    attention = next(op for op in graph.setup if isinstance(op, AttachAttention))
    lines = [f"  layout     {divided} modules divided over tp, {units} FSDP units"]
    if attention.over:
        lines.append(f"  context    {attention.kind} attention over cp, {attention.balance} balance")
    return lines


def _closing(directory: RunDirectory, checkpoint: Path | None) -> str:
    """Where everything is, and how far the loss has come since the run's first step."""
    lines = ["done"]
    losses = directory.losses()
    if losses:
        (first, first_loss), (last, last_loss) = losses[0], losses[-1]
        lines.append(f"  loss       {first_loss:.4f} (step {first}) -> {last_loss:.4f} (step {last})")
    lines.append(f"  metrics    {directory.path / 'metrics.jsonl'}")
    if checkpoint is not None:
        lines.append(f"  checkpoint {checkpoint}")
    return "\n".join(lines)


def _rank_hint() -> int:
    """The rank for deciding who reports, before the environment has been read strictly."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _report(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """One error for a person: from rank 0 where all ranks fail alike, else from the rank that failed."""
    if launch.rank == 0 and directory is not None and directory.path.is_dir():
        directory.write_status("failed", code=error.code, error=error.message)
    if error.is_shared and launch.rank != 0:
        return
    where = f"{error.span}: " if error.span else ""
    print(f"planc: error: {where}{error.message}", file=sys.stderr)
    if error.help:
        print(f"help: {error.help}", file=sys.stderr)
    if os.environ.get("PLANC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()


def _exit(code: int) -> None:
    """Leaves at once: threads of a broken process group must not keep a failed rank alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _exit(main())
