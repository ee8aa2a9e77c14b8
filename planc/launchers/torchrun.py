"""torchrun's command lines."""

from __future__ import annotations

import shlex

from planc.launchers.job import Endpoint, Job, Shrinking, require_endpoint
from planc.launchers.nodes import Nodes

_FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""Gives every start of the ranks a new store. In the agent's store ranks find each other by the number of
restarts, which a node that comes back has not counted."""


def torchrun_lines(job: Job, *, endpoint: Endpoint | None) -> tuple[str, ...]:
    """The command of each node, first node first. LaunchError for several nodes without an endpoint."""
    require_endpoint(job, endpoint)
    if endpoint is None:
        more = (*_grace(job), *_restarts(job))
        return (on_one_node(job.nodes.ranks_per_node, job.run, more=more),)
    if job.shrinking is not None:
        lines = (shlex.join(_elastic_words(job, job.shrinking, str(endpoint))),) * job.nodes.num_nodes
        return (*lines, _store_line(endpoint)) if job.meets_elsewhere else lines
    nodes = range(job.nodes.num_nodes)
    return tuple(shlex.join(_words(job, str(endpoint), str(node), more=_grace(job))) for node in nodes)


def on_one_node(num_ranks: int, run: tuple[str, ...], *, more: tuple[str, ...] = ()) -> str:
    """The command for a single machine. `--standalone` finds a free port, so several runs can share it.

    `more` are other options of torchrun.
    """
    ranks = ("--nproc-per-node", str(num_ranks))
    return shlex.join(("torchrun", "--standalone", *ranks, *more, "-m", "planc.run", *run))


def on_every_node(nodes: Nodes, run: tuple[str, ...]) -> str:
    """The command of every node, with NODE and HOST:PORT as placeholders."""
    return shlex.join(_words(Job("", nodes, run), "HOST:PORT", "NODE"))


def _words(job: Job, endpoint: str, node: str, *, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    # Fixed node ranks keep neighbors of a mesh dim on one node, and make the endpoint's node the first.
    nodes = ("--nnodes", str(job.nodes.num_nodes), "--node-rank", node)
    ranks = ("--nproc-per-node", str(job.nodes.ranks_per_node))
    return ("torchrun", *nodes, *ranks, *more, "--rdzv-endpoint", endpoint, *job.module)


def _elastic_words(job: Job, shrinking: Shrinking, endpoint: str) -> tuple[str, ...]:
    # Elastic nodes agree on their ranks: a fixed node rank would wait for its node. Ranks of a node are still
    # neighbors.
    nodes = ("--nnodes", f"{shrinking.min_nodes}:{job.nodes.num_nodes}")
    ranks = ("--nproc-per-node", str(job.nodes.ranks_per_node))
    meet = ("--rdzv-backend", "c10d", "--rdzv-id", job.name, "--rdzv-endpoint", endpoint)
    more = (*_grace(job), *_restarts(job), *(("--rdzv-conf", "is_host=0") if job.meets_elsewhere else ()))
    return ("env", _FRESH_STORE, "torchrun", *nodes, *ranks, *more, *meet, *job.module)


def _store_line(endpoint: Endpoint) -> str:
    """The command of the machine that hosts the store, outside the job's nodes."""
    return shlex.join(("python", "-m", "planc.rendezvous", str(endpoint)))


def _grace(job: Job) -> tuple[str, ...]:
    return ("--shutdown-timeout", str(job.grace_seconds))


def _restarts(job: Job) -> tuple[str, ...]:
    return ("--max-restarts", str(job.shrinking.max_restarts)) if job.shrinking else ()
