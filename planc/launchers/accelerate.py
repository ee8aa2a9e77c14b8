"""accelerate's command lines. It starts torchrun's agent, so runs are the same as with torchrun."""

from __future__ import annotations

import shlex

from planc.launchers.errors import LaunchError
from planc.launchers.job import Endpoint, Job, require_endpoint

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
