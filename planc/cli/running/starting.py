"""The command that starts a run with the right number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.launchers.job import Nodes, run_arguments
from planc.launchers.torchrun import on_every_node, on_one_node
from planc.runtime.collectives import SKIP_CHECK


@dataclass(frozen=True, slots=True)
class Options:
    """A plan to run, and how: each field is an option of `planc run`."""

    plan: Path
    set: Sequence[str] = ()
    run_dir: Path | None = None
    stop_after: int | None = None
    sample_ids: bool = False
    skip_collectives_check: bool = False
    allow_change: Sequence[str] = ()
    allow_release: Sequence[str] = ()


def start_with(options: Options, *, world_size: int, devices_per_node: int | None) -> str:
    """One shell line that starts the run of these options on all of its ranks."""
    folder = str(options.run_dir) if options.run_dir else None
    run = run_arguments(str(options.plan), settings=options.set, run_dir=folder)
    stop = ("--stop-after", str(options.stop_after)) if options.stop_after is not None else ()
    allowed = (word for name in options.allow_change for word in ("--allow-change", name))
    releases = (word for pin in options.allow_release for word in ("--allow-release", pin))
    flags = {"--sample-ids": options.sample_ids, SKIP_CHECK: options.skip_collectives_check}
    run = (*run, *stop, *(name for name, is_set in flags.items() if is_set), *allowed, *releases)
    if devices_per_node is None or world_size <= devices_per_node:
        return on_one_node(world_size, run)
    nodes = Nodes(world_size // devices_per_node, devices_per_node)
    return f"{on_every_node(nodes, run)}  (on each node; planc launch prints the commands)"
