"""The command that starts a run with the right number of ranks."""

from __future__ import annotations

from argparse import Namespace

from planc.launchers.job import Nodes, run_arguments
from planc.launchers.torchrun import on_every_node, on_one_node
from planc.runtime.collectives import SKIP_CHECK


def start_with(arguments: Namespace, *, world_size: int, devices_per_node: int | None) -> str:
    """One shell line that starts the run of `arguments` on all of its ranks."""
    folder = str(arguments.run_dir) if arguments.run_dir else None
    run = run_arguments(str(arguments.plan), settings=arguments.set, run_dir=folder)
    stop = ("--stop-after", str(arguments.stop_after)) if arguments.stop_after is not None else ()
    allowed = (word for name in arguments.allow_change for word in ("--allow-change", name))
    releases = (word for pin in arguments.allow_release for word in ("--allow-release", pin))
    flags = {"--sample-ids": arguments.sample_ids, SKIP_CHECK: arguments.skip_collectives_check}
    run = (*run, *stop, *(name for name, is_set in flags.items() if is_set), *allowed, *releases)
    if devices_per_node is None or world_size <= devices_per_node:
        return on_one_node(world_size, run)
    nodes = Nodes(world_size // devices_per_node, devices_per_node)
    return f"{on_every_node(nodes, run)}  (on each node; planc launch prints the commands)"
