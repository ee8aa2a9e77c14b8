"""The input of `planc run`: a plan compiled here, or an artifact, with its models of the Hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.running.run_errors import PlanRefused
from planc.cli.running.starting import Options, start_with
from planc.estimate.flops import flops
from planc.estimate.rank_work import rank_work
from planc.graph.artifact import ArtifactError, base_between, dump, graph_of, load
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import BuildModel, ComputeReference, LoadWeights
from planc.graph.sources import training_data
from planc.hub.names import is_hub, parse_hub
from planc.inventory.schema import Inventory
from planc.runtime.errors import RunError
from planc.runtime.fetch import require_model
from planc.runtime.process import Launch
from planc.runtime.ranks.reads import Reads
from planc.runtime.throughput import Work

if TYPE_CHECKING:
    # The front end, which a compiled artifact runs without.
    # A compiled plan runs without the front end.
    from planc.api import Checked
    from planc.inventory.load import OnProbe
    from planc.plan.spec import Plan


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph to run, where its relative paths start, and what it was compiled from."""

    graph: Graph
    base: Path
    sources: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    inventory: Inventory | None = None
    """The model's inventory, if the plan was compiled here."""
    peak_flops: float | None = None
    """Peak FLOP/s of the plan's device."""
    devices_per_node: int | None = None
    """The number in the plan's mesh; None if it has none."""
    num_spares: int = 0
    """The number of ranks beyond the smaller mesh of an elastic plan; they are the last ranks."""

    def artifact(self, folder: Path) -> str:
        """The artifact's text for a file in `folder`."""
        base = base_between(folder, plan_folder=self.base)
        return dump(self.graph, sources=self.sources, overrides=self.overrides, base=base)

    def reads(self) -> Reads:
        """Return this rank's reads so far, to compare across ranks."""
        reads = Reads()
        data = training_data(self.graph)
        if data.epochs:
            # The steps follow from it, and with them the graph.
            reads.add("sequences", "the number of sequences in an epoch", str(data.num_sequences))
        reads.add("graph", "compiled plan", plan_hash(self.graph))
        for name, digest in self.sources:
            reads.add("source", name, digest)
        reads.add("override", "the plan's override", " ".join(self.overrides) or "none")
        for op in self.graph.setup:
            if isinstance(op, BuildModel):
                reads.add("file", f"{op.path}/config.json", op.config_digest)
        return reads


def compiled_for(options: Options, launch: Launch) -> Compiled:
    """Compile the plan; rank 0 prints its warnings. PlanRefused if it has errors."""
    if options.plan.suffix == ".json":
        return load_compiled(options.plan, options.set)
    # Imported lazily: a compiled artifact runs without the front end.
    from planc.checks.mesh.world_size_mismatch import CODE as WORLD_SIZE_MISMATCH
    from planc.cli.support.plans import announce_probe, render_errors
    from planc.diagnostics import Severity

    announce = announce_probe if launch.rank == 0 else None
    say = partial(_say, launch)
    checked = checked_for(
        options, world_size=launch.world_size, on_probe=announce, say=say, runs_extensions=True
    )
    findings = render_errors(checked, stream=sys.stderr).rstrip("\n")
    if checked.graph is None:
        errors_found = {
            diagnostic.code for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR
        }
        # A plan with any other error would still be rejected.
        if checked.plan is not None and errors_found == {WORLD_SIZE_MISMATCH}:
            mesh = checked.plan.mesh
            line = start_with(options, world_size=mesh.world_size, devices_per_node=mesh.devices_per_node)
            findings += f"\n\nstart it with: {line}"
        raise PlanRefused(findings, diagnostics=checked.diagnostics)
    if launch.rank == 0 and checked.diagnostics:
        print(findings, file=sys.stderr)
    compiled = of_checked(checked, checked.graph, base=options.plan.parent)
    return replace(compiled, num_spares=max(0, launch.world_size - checked.graph.world_size))


def checked_for(
    options: Options,
    *,
    world_size: int | None,
    on_probe: OnProbe | None,
    say: Callable[[str], None],
    runs_extensions: bool,
) -> Checked:
    """Check a plan whose data is prepared if its steps depend on it, and its model's config downloaded.

    Its own code runs only if `runs_extensions`. RunError if either fails, or if the environment has a
    malformed size.
    """
    # Imported lazily, as above.
    from planc.api import check_plan
    from planc.cli.support.count_sequences import count_prepared
    from planc.cli.support.settings import settings_from

    settings, errors = settings_from(options.set, os.environ)
    if errors:
        raise RunError("; ".join(errors))
    count = partial(count_prepared, name=options.plan.stem, say=say, runs_extensions=runs_extensions)
    return with_model(
        partial(
            check_plan,
            options.plan,
            settings=settings,
            world_size=world_size,
            on_probe=on_probe,
            count=count,
            runs_extensions=runs_extensions,
        )
    )


def of_checked(checked: Checked, graph: Graph, *, base: Path) -> Compiled:
    """A plan without errors, whose relative paths start at `base`, as a run takes it."""
    return Compiled(
        graph,
        base,
        checked.source_digests,
        checked.overrides,
        checked.inventory,
        _peak_flops(checked.plan),
        checked.plan.mesh.devices_per_node if checked.plan else None,
    )


def _say(launch: Launch, text: str) -> None:
    if launch.local_rank == 0:
        print(f"planc: data: {text}", file=sys.stderr, flush=True)


def _peak_flops(plan: Plan | None) -> float | None:
    return plan.hardware.gpu.peak_flops if plan is not None and plan.hardware is not None else None


def work_of(compiled: Compiled) -> Work | None:
    """The work of a step; None for a compiled plan, which has no inventory of its model."""
    if compiled.inventory is None:
        return None
    per_step = flops(rank_work(compiled.graph, compiled.inventory)).per_step
    return Work(per_step, compiled.graph.world_size, compiled.peak_flops)


def load_compiled(path: Path, settings: Sequence[str]) -> Compiled:
    """Load a compiled artifact; RunError for settings, which it can't take."""
    if settings:
        raise RunError("a compiled plan takes no --set", help="compile the plan again with the setting")
    try:
        artifact = load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    except ArtifactError as error:
        raise RunError(f"{path}: {error}", help="compile the plan again") from error
    return Compiled(graph_of(artifact), path.parent / artifact.base, artifact.sources, artifact.overrides)


def with_model(check: Callable[[], Checked]) -> Checked:
    """Run `check`, and again after downloading a Hub model's config.json if that was missing.

    RunError if the download fails.
    """
    checked = check()
    if checked.plan is None or checked.inventory is not None or not is_hub(checked.plan.model.hf):
        return checked
    require_model(parse_hub(checked.plan.model.hf), with_weights=False, say=print_progress)
    return check()


def require_models(graph: Graph) -> None:
    """Download the missing files of a Hub model that a run reads. RunError if that fails."""
    built = {op.path for op in graph.setup if isinstance(op, BuildModel)}
    loaded = {op.path for op in graph.setup if isinstance(op, LoadWeights | ComputeReference) and op.path}
    for path in sorted(filter(is_hub, built | loaded)):
        require_model(parse_hub(path), with_weights=path in loaded, say=print_progress)


def print_progress(text: str) -> None:
    print(f"planc: {text}", file=sys.stderr, flush=True)
