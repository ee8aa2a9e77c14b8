"""A compiled plan as a file: canonical JSON for reviewers to read and for runs to execute."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from planc import __version__
from planc.graph import graph as graphs
from planc.graph.graph import AnyOp, Graph, plan_hash
from planc.graph.verify import verify
from planc.strict_json import loads
from planc.vocab import MeshDim

FORMAT_VERSION = 4
"""2: `tp.shard` lists what happens at the edges of its modules. 3: the mesh has pp.
4: sources and optimizers hold their own arguments alone."""

_Op = Annotated[AnyOp, Field(discriminator="op")]
_STRICT: Any = {"extra": "forbid", "strict": True}


class ArtifactError(ValueError):
    """A file that is not a compiled plan, or not one that this version of planc can run."""


@dataclass(frozen=True, slots=True)
class GraphFile:
    """`Graph`, as JSON types it."""

    __pydantic_config__: ClassVar[Any] = _STRICT

    name: str
    mesh: tuple[tuple[MeshDim, int], ...]
    num_steps: int
    setup: tuple[_Op, ...]
    step: tuple[_Op, ...]
    save: tuple[_Op, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A graph with its origin: digests of its source files, and the overrides."""

    __pydantic_config__: ClassVar[Any] = _STRICT

    format_version: int
    planc_version: str
    plan_hash: str
    sources: tuple[tuple[str, str], ...]
    """(file name, SHA-256)."""
    overrides: tuple[str, ...]
    base: str
    """The directory that the graph's relative paths start at, relative to the artifact's directory."""
    graph: GraphFile


_ADAPTER = TypeAdapter(Artifact)


def base_between(artifact_folder: Path, *, plan_folder: Path) -> str:
    """The path from an artifact's directory to its plan's, links resolved: `../plans`, or `.` for the same.

    It has forward slashes on every system, and is absolute if the two are on different drives.
    """
    folder = str(plan_folder.resolve())
    with contextlib.suppress(ValueError):
        folder = os.path.relpath(folder, artifact_folder.resolve())
    return folder.replace(os.sep, "/")


def dump(
    graph: Graph, *, sources: tuple[tuple[str, str], ...], overrides: tuple[str, ...], base: str = "."
) -> str:
    """The artifact's text: sorted sources, two-space JSON, a newline at the end.

    The graph has paths as the plan writes them, and `base` is the directory they start from, so plan_hash
    does not depend on the artifact's place.
    """
    file = GraphFile(graph.name, graph.mesh, graph.num_steps, graph.setup, graph.step, graph.save)
    artifact = Artifact(
        FORMAT_VERSION, __version__, plan_hash(graph), tuple(sorted(sources)), overrides, base, file
    )
    return _ADAPTER.dump_json(artifact, indent=2).decode() + "\n"


def load(text: str) -> Artifact:
    """The artifact in `text`, its graph verified and its hash recomputed; ArtifactError otherwise."""
    try:
        # Of two fields with one name the adapter takes the last, a reviewer may read the first.
        _require_format(loads(text))
        artifact = _ADAPTER.validate_json(text)
    except ArtifactError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"not a compiled plan: {where or 'document'}: {first['msg']}") from None
    except ValueError as error:
        raise ArtifactError(f"not a compiled plan: {error}") from None
    graph = graph_of(artifact)
    violations = verify(graph)
    if violations:
        raise ArtifactError(f"the graph is not sound: {violations[0]}")
    if graphs.plan_hash(graph) != artifact.plan_hash:
        raise ArtifactError("plan_hash does not match the graph: the file was changed after it was compiled")
    return artifact


def _require_format(content: Any) -> None:
    """ArtifactError for another format, whose fields are not known here."""
    found = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(found, int) and found != FORMAT_VERSION:
        raise ArtifactError(f"format version {found}; this planc reads version {FORMAT_VERSION}")


def artifact_schema() -> dict[str, Any]:
    """The JSON Schema of an artifact. What no schema can say is `load`'s to refuse: an unsound graph, a
    plan_hash of another one."""
    return _ADAPTER.json_schema()


def graph_of(artifact: Artifact) -> Graph:
    """The graph that an artifact holds."""
    file = artifact.graph
    return Graph(file.name, file.mesh, file.num_steps, file.setup, file.step, file.save)
