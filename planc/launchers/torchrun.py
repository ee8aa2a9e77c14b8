"""Command lines of torchrun, and of accelerate, which starts torchrun's agent: their runs are the same."""

from __future__ import annotations

import shlex

from planc.launchers.job import Endpoint, Job, LaunchError, Nodes, Shrinking, require_endpoint

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


# Explicit, or else accelerate would read them from its configuration file.
_EXPLICIT = ("--mixed_precision", "no", "--dynamo_backend", "no")


def accelerate_lines(job: Job, *, endpoint: Endpoint | None) -> tuple[str, ...]:
    """The command of each node. LaunchError for several nodes without an endpoint, and for one rank."""
    require_endpoint(job, endpoint)
    num_nodes = job.nodes.num_nodes
    world_size = num_nodes * job.nodes.ranks_per_node
    if world_size == 1:
        raise LaunchError(
            "accelerate sets no rank for a single process", help="run `python -m planc.run PLAN`"
        )
    # Its default is one fixed port; 0 finds a free one, which works for a single node only.
    meets: tuple[str, ...] = ("--main_process_port", "0")
    if endpoint is not None:
        host = endpoint.host.strip("[]")
        meets = ("--main_process_ip", host, "--main_process_port", str(endpoint.port))
    return tuple(
        shlex.join(
            (
                *("env", f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={job.grace_seconds}"),
                *("accelerate", "launch", "--multi_gpu", "--num_processes", str(world_size)),
                *("--num_machines", str(num_nodes), "--machine_rank", str(node)),
                *meets,
                *_EXPLICIT,
                *job.module,
            )
        )
        for node in range(num_nodes)
    )
