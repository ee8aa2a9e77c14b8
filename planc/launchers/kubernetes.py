"""A Kubernetes manifest: an Indexed Job with a pod per node, and the headless Service that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from planc.launchers.job import KILL_SECONDS, Job, LaunchError
from planc.record import record

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_VOLUME = re.compile(r"(?P<claim>[a-z0-9]([-.a-z0-9]*[a-z0-9])?):(?P<mount>/[^:]*)", re.ASCII)
_RESOURCE = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)
_MAX_LABEL = 63
PORT = 29500
"""A port on the first pod, which has its own network."""

_MANIFEST = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  # The pods resolve the first pod before it is ready.
  publishNotReadyAddresses: true
  selector:
    job-name: {name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {num_nodes}
  parallelism: {num_nodes}
  # Ranks can't continue without a lost pod. Delete the Job and apply this file again: the run resumes.
  backoffLimit: 0
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      # A terminated pod has this long to save.
      terminationGracePeriodSeconds: {grace_seconds}
      containers:
        - name: ranks
          image: {image}
          command: ["torchrun"]
          args:
{arguments}
{rest}
"""


@record
class Volume:
    """A PersistentVolumeClaim that all pods share, and its mount path."""

    claim: str
    mount: str


@record
class KubernetesOptions:
    """Facts of a cluster that are not in a plan. `gpu_resource` is None for a run on CPUs.

    `cpus_per_node` are for all ranks of a pod together; None requests none.
    """

    image: str
    gpu_resource: str | None = None
    volume: Volume | None = None
    cpus_per_node: int | None = None


def read_volume(text: str) -> Volume:
    """Read CLAIM:/PATH; ValueError for anything else."""
    match = _VOLUME.fullmatch(text)
    if match is None or not text.isprintable():
        raise ValueError(text)
    return Volume(match["claim"], match["mount"])


def read_resource(text: str) -> str:
    """Read a resource name like `nvidia.com/gpu`; ValueError for anything else."""
    if not _RESOURCE.fullmatch(text):
        raise ValueError(text)
    return text


def kubernetes_manifest(job: Job, options: KubernetesOptions) -> str:
    """The whole manifest as YAML. LaunchError for a name that Kubernetes rejects."""
    _require_name(job)
    arguments = (
        *("--nnodes", str(job.nodes.num_nodes), "--node-rank", "$(JOB_COMPLETION_INDEX)"),
        *("--nproc-per-node", str(job.nodes.ranks_per_node)),
        *("--shutdown-timeout", str(job.grace_seconds)),
        *("--rdzv-endpoint", f"{job.name}-0.{job.name}:{PORT}"),
        # Kubernetes expands $(NAME), and reads $$ as $.
        *(text.replace("$", "$$") for text in job.module),
    )
    return _MANIFEST.format(
        name=_text(job.name),
        num_nodes=job.nodes.num_nodes,
        image=_text(options.image),
        grace_seconds=job.grace_seconds + KILL_SECONDS,
        arguments="\n".join(f"            - {_text(argument)}" for argument in arguments),
        rest="\n".join(_rest(job, options)),
    )


def require_kept(run_dir: str | None, *, volume: Volume | None) -> None:
    """LaunchError unless a run saves to a volume that all pods share and that outlives them."""
    if volume is None:
        raise LaunchError(
            "the plan saves checkpoints, but a pod's disk is lost with the pod",
            help="pass --volume CLAIM:/PATH with storage that all pods share, and a --run-dir below /PATH",
        )
    if run_dir is None or not PurePosixPath(run_dir).is_relative_to(volume.mount):
        where = f"--run-dir {run_dir}" if run_dir else "the run directory"
        raise LaunchError(
            f"the plan saves checkpoints, but {where} is not below {volume.mount}, which all pods share",
            help=f"pass --run-dir {PurePosixPath(volume.mount) / 'NAME'}",
        )


def _require_name(job: Job) -> None:
    longest = f"{job.name}-{job.nodes.num_nodes - 1}"
    if _LABEL.fullmatch(job.name) and len(longest) <= _MAX_LABEL:
        return
    room = _MAX_LABEL - len(longest) + len(job.name)
    near = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).lstrip("-0123456789")[:room].strip("-")
    raise LaunchError(
        f"`{job.name}` is not a valid name for a Kubernetes Service: it must start with a letter, and "
        f"have at most {room} lower-case letters, digits and hyphens",
        help=f"pass --name {near or 'NAME'}",
    )


def _rest(job: Job, options: KubernetesOptions) -> Iterator[str]:
    """The container's other fields and the pod's volumes."""
    if options.cpus_per_node is not None:
        num_threads = max(1, options.cpus_per_node // job.nodes.ranks_per_node)
        yield "          env:"
        yield "            - name: OMP_NUM_THREADS"
        yield f'              value: "{num_threads}"'
    if options.gpu_resource or options.cpus_per_node is not None:
        yield "          resources:"
    if options.cpus_per_node is not None:
        yield "            requests:"
        yield f"              cpu: {options.cpus_per_node}"
    if options.gpu_resource:
        yield "            limits:"
        yield f"              {options.gpu_resource}: {job.nodes.ranks_per_node}"
    yield "          volumeMounts:"
    yield "            - name: shared-memory"
    yield "              mountPath: /dev/shm"
    if options.volume:
        yield "            - name: storage"
        yield f"              mountPath: {_text(options.volume.mount)}"
    yield "      volumes:"
    yield "        # Ranks of a pod exchange data through it; the default is 64 MB."
    yield "        - name: shared-memory"
    yield "          emptyDir:"
    yield "            medium: Memory"
    if options.volume:
        yield "        - name: storage"
        yield "          persistentVolumeClaim:"
        yield f"            claimName: {_text(options.volume.claim)}"


def _text(value: str) -> str:
    """A double-quoted YAML string in ASCII: as in JSON, but YAML has no surrogates."""
    return "".join(
        json.dumps(one)[1:-1] if ord(one) < 0x10000 else f"\\U{ord(one):08x}" for one in value
    ).join('""')
