"""torchrun's command lines."""

from __future__ import annotations

import shlex

from planc.launch.job import Endpoint, Job, require_endpoint
from planc.launch.nodes import Nodes


def torchrun_lines(job: Job, *, endpoint: Endpoint | None) -> tuple[str, ...]:
    """The command of each node, first node first. LaunchError for several nodes without an endpoint."""
    require_endpoint(job, endpoint)
    if endpoint is None:
        return (on_one_node(job.nodes.ranks_per_node, job.run),)
    nodes = range(job.nodes.num_nodes)
    return tuple(shlex.join(_words(job, str(endpoint), str(node))) for node in nodes)


def on_one_node(num_ranks: int, run: tuple[str, ...]) -> str:
    """The command for a single machine. `--standalone` finds a free port, so that runs side by side do."""
    return shlex.join(
        ("torchrun", "--standalone", "--nproc-per-node", str(num_ranks), "-m", "planc.run", *run)
    )


def on_every_node(nodes: Nodes, run: tuple[str, ...]) -> str:
    """What all nodes' commands have in common, with NODE and HOST:PORT where they differ or are not known."""
    return shlex.join(_words(Job("", nodes, run), "HOST:PORT", "NODE"))


def _words(job: Job, endpoint: str, node: str) -> tuple[str, ...]:
    # Node ranks are fixed rather than agreed upon, so that neighbours of a mesh dim share a node, and the
    # first node is the one that the endpoint names.
    nodes = ("--nnodes", str(job.nodes.num_nodes), "--node-rank", node)
    ranks = ("--nproc-per-node", str(job.nodes.ranks_per_node))
    return ("torchrun", *nodes, *ranks, "--rdzv-endpoint", endpoint, *job.module)
