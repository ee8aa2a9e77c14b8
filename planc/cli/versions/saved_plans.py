"""The plan that saved a checkpoint, from the checkpoint, or from its run directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from planc.graph.artifact import Artifact, ArtifactError, load
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.verify import read_plan_text
from planc.runtime.files.plain_files import read_utf8
from planc.runtime.files.run_files import KEPT_PLANS, MAX_PLAN_BYTES

_HASH = re.compile(r"[0-9a-f]{1,64}")


class NoSavedPlanError(ValueError):
    """The plan that saved a checkpoint is unavailable; the message continues `the plan ...`."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A compiled plan, and the directory where its `base` starts."""

    artifact: Artifact
    folder: Path


def saved_plan(checkpoint: Path, manifest: Manifest) -> SavedPlan:
    """The plan that saved `checkpoint`, even if that was moved. NoSavedPlanError if it is lost.

    CorruptCheckpointError if the checkpoint's own plan has changed since it was saved.
    """
    text, folder = read_plan_text(checkpoint, manifest=manifest), checkpoint
    if text is None:
        text, folder = _kept_by_run(checkpoint, manifest.plan_hash)
    try:
        artifact = load(text)
    except ArtifactError as error:
        raise NoSavedPlanError(f"cannot be read: {error}") from error
    if artifact.plan_hash != manifest.plan_hash:
        raise NoSavedPlanError(f"is not the one in {folder}, which is {artifact.plan_hash[:12]}")
    return SavedPlan(artifact, folder)


def _kept_by_run(checkpoint: Path, plan_hash: str) -> tuple[str, Path]:
    folder = checkpoint.resolve().parents[1] / KEPT_PLANS
    if not _HASH.fullmatch(plan_hash):
        raise NoSavedPlanError("is not kept here")
    try:
        return read_utf8(folder / f"{plan_hash}.json", max_bytes=MAX_PLAN_BYTES), folder
    except FileNotFoundError as error:
        raise NoSavedPlanError("is not kept here") from error
    except OSError as error:
        raise NoSavedPlanError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoSavedPlanError("cannot be read: it is not UTF-8 text") from error
