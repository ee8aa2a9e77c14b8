"""The `checkpoint` block: saves, where a run starts, and exports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from planc.hub.names import is_repository
from planc.plan import codes
from planc.plan.epochs import EPOCHS
from planc.plan.keys import key, keyed
from planc.plan.model_source import Repository
from planc.plan.nested import nested
from planc.plan.quantities import SECONDS, STEPS
from planc.plan.scalars import Bool, Choice, Int, Path, Quantity, Text
from planc.plan.scope import Scope
from planc.plan.types import Optional, Variant
from planc.record import record
from planc.syntax import ast
from planc.vocab import DType

_BRANCH = re.compile(r"(?!refs/)[A-Za-z0-9][\w-]*([./][\w-]+)*", re.ASCII)


@record
class _Branch:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text: str | None = Text().convert(value, scope)
        if text is None or _BRANCH.fullmatch(text):
            return text
        what = f'"{text}" is not the name of a branch'
        scope.report(
            codes.WRONG_ARGUMENTS, value.span, what, help='write a name such as `"main"` or `"v1.0"`'
        )
        return None

    def describe(self, *, mark: str = "") -> str:
        return "a branch in quotes"

    def render(self, value: str) -> str:
        return Text().render(value)


@keyed
class _HubPush:
    """A model repository of the Hugging Face Hub, created by the first push."""

    repository: str = key(Repository(), doc="the repository, as in `org/name`", positional=True)
    private: bool = key(
        Bool(), unsaid=True, doc="whether the repository is private; a push to one that differs is refused"
    )
    revision: str = key(_Branch(), unsaid="main", doc="the branch; the push creates one that is missing")


def _written(text: str) -> tuple[str, bool]:
    """The call to write for a repository in quotes."""
    return f'hub("{text}")', is_repository(text)


_PUSH = Optional(Variant({"hub": _HubPush}, "push", from_text=_written))


class WhenBusy(StrEnum):
    WAIT = "wait"
    SKIP = "skip"


@record
class SyncSave:
    """Training waits until a save is complete."""


@keyed
class AsyncSave:
    """A thread copies the state during the next step, whose optimizer waits for it, and writes the copy."""

    when_busy: WhenBusy = key(
        Choice(WhenBusy), unsaid=WhenBusy.WAIT, doc="what to do if the previous save is still running"
    )


class Resume(StrEnum):
    LATEST = "latest"
    NONE = "none"


@record
class OrPath:
    """A word of a choice, or a path in quotes."""

    inner: Choice

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        written, _ = scope.lookup(value)
        # A word of the choice in quotes is a slip, which the choice reports.
        if isinstance(written, ast.Text) and written.value not in tuple(self.inner.choices):
            return Path().convert(value, scope)
        return self.inner.convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"{self.inner.describe(mark=mark)}, or {Path().describe()}"

    def render(self, value: str) -> str:
        return self.inner.render(value) if isinstance(value, StrEnum) else Path().render(value)


class FrozenBase(StrEnum):
    NAMED = "named"
    STORED = "stored"


class ExportTime(StrEnum):
    END = "end"


class ExportedWeights(StrEnum):
    TRAINED = "trained"
    EMA = "ema"


def _weights() -> Any:
    """The key of the weights that an export has."""
    return key(
        Choice(ExportedWeights),
        unsaid=ExportedWeights.TRAINED,
        doc="those of the last step, or their moving averages (`train.ema_decay`)",
    )


def _push() -> Any:
    """The key of the repository that an export is pushed to."""
    return key(
        _PUSH,
        unsaid=None,
        doc="the repository of the Hugging Face Hub that rank 0 pushes the export to, once it is written",
        example='hub("org/name")',
    )


@record
class Seconds:
    """An interval by the clock."""

    number: int

    def __str__(self) -> str:
        return Quantity(SECONDS).render(self.number)


@record
class StepsOrTime:
    """An interval in steps, or by the clock."""

    low: int = 1

    def convert(self, value: ast.Value, scope: Scope) -> int | Seconds | None:
        written, _ = scope.lookup(value)
        unit = written.unit if isinstance(written, ast.Number) else None
        if unit is not None and unit.text in SECONDS:
            number = Quantity(SECONDS, low=self.low).convert(value, scope)
            return None if number is None else Seconds(number)
        if unit is None or unit.text in STEPS or unit.text.lower() in EPOCHS:
            return Quantity(STEPS, low=self.low).convert(value, scope)
        text = f"expected {self.describe(mark='`')}"
        scope.unknown(codes.WRONG_UNIT, unit, (*STEPS, *SECONDS), text=text)
        return None

    def describe(self, *, mark: str = "") -> str:
        return f"{Quantity(STEPS).describe(mark=mark)}, or {Quantity(SECONDS).describe(mark=mark)}"

    def render(self, value: int | Seconds) -> str:
        return Quantity(STEPS).render(value) if isinstance(value, int) else str(value)


@keyed
class HfExport:
    """Export the weights as a directory that transformers loads: `export/hf` in the run directory."""

    when: ExportTime = key(Choice(ExportTime), unsaid=ExportTime.END, doc="after the last step")
    dtype: DType | None = key(
        Optional(Choice(DType)), unsaid=None, doc="dtype of the exported weights; none is `model.dtype`"
    )
    merged: bool = key(Bool(), unsaid=False, doc="add to each adapted layer's weight what its adapter does")
    weights: ExportedWeights = _weights()
    push: _HubPush | None = _push()


@keyed
class AdapterExport:
    """Export the adapters as a directory that peft loads: `export/adapter` in the run directory."""

    when: ExportTime = key(Choice(ExportTime), unsaid=ExportTime.END, doc="after the last step")
    weights: ExportedWeights = _weights()
    push: _HubPush | None = _push()


@keyed
class CheckpointSpec:
    """When to save training state, how many checkpoints to keep, and where a run starts."""

    save_every: int | Seconds | None = key(
        Optional(StepsOrTime()),
        unsaid=None,
        doc="steps between saves, or time by the clock of rank 0: the step that is under way then is saved",
        example="500 steps",
    )
    save_last: bool = key(Bool(), unsaid=True, doc="also save after the last step")
    keep_last: int = key(Int(1), unsaid=3, doc="number of checkpoints to keep")
    mode: SyncSave | AsyncSave = key(
        Variant({"sync": SyncSave, "async": AsyncSave}, "save mode"),
        unsaid=SyncSave(),
        doc="whether training waits for the save, or only for the copy",
    )
    resume: Resume | str = key(
        OrPath(Choice(Resume)),
        unsaid=Resume.LATEST,
        doc="latest: continue from the last checkpoint in the run directory. A path: the same, but a new run "
        "starts from a checkpoint of another run, or from the last one in its directory",
    )
    base: FrozenBase = key(
        Choice(FrozenBase),
        unsaid=FrozenBase.NAMED,
        doc="named: checkpoints leave out frozen pretrained parameters, and name the files that have them",
    )
    export: Mapping[str, HfExport | AdapterExport] = nested(
        {"hf": HfExport, "adapter": AdapterExport}, doc="the weights in another library's format"
    )

    @property
    def save_steps(self) -> int | None:
        """The steps between saves; None if the clock decides, or only the end."""
        return self.save_every if isinstance(self.save_every, int) else None

    @property
    def save_seconds(self) -> int | None:
        """The time between saves; None if the number of steps decides, or only the end."""
        return self.save_every.number if isinstance(self.save_every, Seconds) else None

    @property
    def resumes(self) -> bool:
        """True if a run continues from the last checkpoint in its directory."""
        return self.resume is not Resume.NONE

    @property
    def branches_from(self) -> str | None:
        """The checkpoint, or the run directory, of another run from which a new run starts."""
        return None if isinstance(self.resume, Resume) else self.resume
