"""Differences between the manifests of two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.runtime.checkpoint_format.manifest import Manifest, TensorEntry


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in the first and in the second checkpoint; empty if one lacks it."""

    name: str
    before: str
    after: str


def differences(before: Manifest, after: Manifest) -> tuple[Difference, ...]:
    """Return the changes from `before` to `after`: the run's facts, then its tensors. Values are not read."""
    return (*_of_facts(before, after), *_of_tensors(before, after))


def comparable(before: Manifest, after: Manifest) -> tuple[str, ...]:
    """The tensors that both hold with one shape and dtype, sorted."""
    both = before.tensors.keys() & after.tensors.keys()
    return tuple(sorted(name for name in both if _kind(before.tensors[name]) == _kind(after.tensors[name])))


def _of_facts(before: Manifest, after: Manifest) -> Iterator[Difference]:
    facts = [dict(_facts(manifest)) for manifest in (before, after)]
    for name in dict.fromkeys((*facts[0], *facts[1])):
        first, second = (fact.get(name, "") for fact in facts)
        if first != second:
            yield Difference(name, first, second)


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "step", str(manifest.step)
    yield "samples", str(manifest.progress.samples_consumed)
    yield "seed", str(manifest.progress.seed)
    yield "data", manifest.progress.data_fingerprint[:12]
    yield "model", manifest.model_digest[:12]
    yield "plan", manifest.plan_hash[:12]
    if manifest.base is not None:
        yield "base", f"{manifest.base.path} ({manifest.base.digest[:12]})"
    if manifest.origin is not None:
        yield "branched from", f"{manifest.origin.path} ({manifest.origin.digest[:12]})"
    yield from ((f"mesh {dim}", str(size)) for dim, size in manifest.mesh.items() if size > 1)
    yield "planc", manifest.planc_version
    yield "torch", manifest.torch_version
    yield from ((f"schedule {name}", str(value)) for name, value in manifest.progress.scheduler.items())


def _of_tensors(before: Manifest, after: Manifest) -> Iterator[Difference]:
    for name in sorted(before.tensors.keys() | after.tensors.keys()):
        first, second = (_kind(manifest.tensors.get(name)) for manifest in (before, after))
        if first != second:
            yield Difference(name, first, second)


def _kind(tensor: TensorEntry | None) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor is not None else ""
