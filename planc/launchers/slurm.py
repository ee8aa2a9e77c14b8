"""A batch script for Slurm."""

from __future__ import annotations

import re
import shlex

from planc.launchers.job import KILL_SECONDS, Job, LaunchError
from planc.record import record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_OPTION = re.compile(r"(?P<name>[a-z][a-z-]*)=(?P<value>[A-Za-z0-9._:,/@+%\[\]-]+)", re.ASCII)
_OWN = ("job-name", "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "cpus-per-task")

_SCRIPT = """\
#!/bin/bash
{directives}
set -euo pipefail

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Two jobs may share a node, so each has its own port.
port=$((20000 + SLURM_JOB_ID % 10000))
export OMP_NUM_THREADS={num_threads}

# One agent per node. Only the node knows its number, so its shell fills it in.
srun --cpus-per-task={cpus_per_node} --kill-on-bad-exit=1 \\
    bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun \\
    --nnodes {num_nodes} --nproc-per-node {ranks_per_node} --rdzv-endpoint "$head_node:$port" \\
    --shutdown-timeout {grace_seconds} \\
    {module}
"""


@record
class SlurmOptions:
    """Facts of a cluster that are not in a plan. `cpus_per_node` are for all ranks of a node together.

    `directives` are sbatch options as NAME=VALUE: time, partition, account.
    """

    cpus_per_node: int
    directives: tuple[str, ...] = ()


def slurm_script(job: Job, options: SlurmOptions, *, uses_devices: bool) -> str:
    """The whole script. LaunchError for a name or a directive that sbatch would misread."""
    if not _NAME.fullmatch(job.name):
        raise LaunchError(
            f"`{job.name}` is not a valid name for a Slurm job",
            help="pass --name with letters, digits, . _ or -",
        )
    nodes = job.nodes
    return _SCRIPT.format(
        directives="\n".join(
            f"#SBATCH --{directive}" for directive in _directives(job, options, uses_devices)
        ),
        num_threads=max(1, options.cpus_per_node // nodes.ranks_per_node),
        cpus_per_node=options.cpus_per_node,
        num_nodes=nodes.num_nodes,
        ranks_per_node=nodes.ranks_per_node,
        module=shlex.join(job.module),
        grace_seconds=job.grace_seconds,
    )


def _directives(job: Job, options: SlurmOptions, uses_devices: bool) -> tuple[str, ...]:
    nodes = job.nodes
    # Slurm sends this signal before the time limit, to the job's steps, which have the ranks. After `scancel`
    # and at preemption the cluster's KillWait and GraceTime apply.
    given = tuple(_directive(text) for text in options.directives)
    has_signal = any(one.startswith("signal=") for one in given)
    signal = () if has_signal else (f"signal=TERM@{job.grace_seconds + KILL_SECONDS}",)
    gpus = (f"gpus-per-node={nodes.ranks_per_node}",) if uses_devices else ()
    return (
        f"job-name={job.name}",
        f"nodes={nodes.num_nodes}",
        "ntasks-per-node=1",
        *gpus,
        f"cpus-per-task={options.cpus_per_node}",
        *signal,
        *given,
    )


def _directive(text: str) -> str:
    match = _OPTION.fullmatch(text)
    if match is None:
        raise LaunchError(
            f"--sbatch {text!r} does not have the form NAME=VALUE",
            help="write it like --sbatch time=24:00:00",
        )
    if match["name"] in _OWN:
        raise LaunchError(f"--sbatch {text} is set from the plan", help="leave it out")
    return text
