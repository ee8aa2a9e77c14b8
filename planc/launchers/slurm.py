"""A batch script for Slurm."""

from __future__ import annotations

import re
import shlex

from planc.launchers.errors import LaunchError
from planc.launchers.job import KILL_SECONDS, Job
from planc.record import record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_OPTION = re.compile(r"(?P<name>[a-z][a-z-]*)=(?P<value>[A-Za-z0-9._:,/@+%\[\]-]+)", re.ASCII)
_OWN = ("job-name", "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "cpus-per-task")

_SCRIPT = """\
#!/bin/bash
{directives}
set -euo pipefail

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Two jobs may share a node: each has a port of its own.
port=$((20000 + SLURM_JOB_ID % 10000))
export OMP_NUM_THREADS={num_threads}

# An agent a node. Only there is the node's number known, so the shell there fills it in.
srun --cpus-per-task={cpus_per_node} --kill-on-bad-exit=1 \\
    bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun \\
    --nnodes {num_nodes} --nproc-per-node {ranks_per_node} --rdzv-endpoint "$head_node:$port" \\
    --shutdown-timeout {grace_seconds} \\
    {module}
"""


@record
class SlurmOptions:
    """What a plan cannot know of a cluster. `cpus_per_node` are for all ranks of a node together.

    `directives` are options of sbatch, NAME=VALUE: time, partition, account.
    """

    cpus_per_node: int
    directives: tuple[str, ...] = ()


def slurm_script(job: Job, options: SlurmOptions, *, uses_devices: bool) -> str:
    """The whole script. LaunchError for a name or a directive that sbatch would read as something else."""
    if not _NAME.fullmatch(job.name):
        raise LaunchError(
            f"{job.name!r} is no name for a job of Slurm", help="give --name with letters, digits, . _ or -"
        )
    nodes = job.nodes
    return _SCRIPT.format(
        directives="\n".join(f"#SBATCH --{one}" for one in _directives(job, options, uses_devices)),
        num_threads=max(1, options.cpus_per_node // nodes.ranks_per_node),
        cpus_per_node=options.cpus_per_node,
        num_nodes=nodes.num_nodes,
        ranks_per_node=nodes.ranks_per_node,
        module=shlex.join(job.module),
        grace_seconds=job.grace_seconds,
    )


def _directives(job: Job, options: SlurmOptions, uses_devices: bool) -> tuple[str, ...]:
    nodes = job.nodes
    # Before the time limit, to the steps of the job rather than to its shell: the ranks are in a step. After
    # `scancel` and at preemption the cluster's KillWait and GraceTime decide.
    given = tuple(_directive(text) for text in options.directives)
    is_told = any(one.startswith("signal=") for one in given)
    told = () if is_told else (f"signal=TERM@{job.grace_seconds + KILL_SECONDS}",)
    gpus = (f"gpus-per-node={nodes.ranks_per_node}",) if uses_devices else ()
    return (
        f"job-name={job.name}",
        f"nodes={nodes.num_nodes}",
        "ntasks-per-node=1",
        *gpus,
        f"cpus-per-task={options.cpus_per_node}",
        *told,
        *given,
    )


def _directive(text: str) -> str:
    found = _OPTION.fullmatch(text)
    if found is None:
        raise LaunchError(f"--sbatch {text!r} is not NAME=VALUE", help="write it as --sbatch time=24:00:00")
    if found["name"] in _OWN:
        raise LaunchError(f"--sbatch {text} is the plan's to say", help="leave it out")
    return text
