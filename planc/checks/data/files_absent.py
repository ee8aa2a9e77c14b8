"""Files of the data, the tokenizer and a branch that are not on this machine, though their directory is."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from planc.checks.data.tokenizer_file import chat_templates
from planc.checks.support.rule import Findings, Subject, reports
from planc.data_sources.globs import HubDataset, NoFile, without_file
from planc.diagnostics import Code, Severity
from planc.diagnostics.suggest import closest
from planc.hub.names import is_hub
from planc.plan.conversations import Chat, Pairs
from planc.plan.data import AnySource, DatasetSource, FileTokenizer, JsonLines, TextFiles
from planc.plan.spec import Plan
from planc.plan.train import Distillation, Preference

CODE = Code("P738", "files-absent", "no such file on this machine", Severity.NOTE)

_ELSEWHERE = "unless the file is on the run's machines"


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each pattern without a file in a directory that exists, and for each file by name.

    A plan may be checked where its data is not. Nothing is reported if the directory is missing too.
    """
    base, plan = subject.base, subject.plan
    if base is None:
        return
    for path, source in plan.data.sources():
        for found in absent_files(source, base=base):
            if found.is_searched:
                yield CODE.at(
                    plan.span(path),
                    f"no file matches `{found.pattern}`",
                    notes=(f"`{found.directory}` has {found.near or 'no files'}",),
                    help=f"correct the pattern, which starts from `{os.path.abspath(base)}`, {_ELSEWHERE}",
                )
        template = source.template if isinstance(source, Chat | Pairs) else None
        if template is not None and template not in ("auto", *_templates(plan, base=base)):
            yield from _file(plan, path, template, base=base)
    if isinstance(plan.data.tokenizer, FileTokenizer):
        yield from _file(plan, "data.tokenizer", plan.data.tokenizer.path, base=base)
    loss = plan.train.loss
    if isinstance(loss, Preference) and loss.reference is not None and not is_hub(loss.reference):
        yield from _file(plan, "train.loss", loss.reference, base=base, kind="directory")
    if isinstance(loss, Distillation) and not is_hub(loss.teacher):
        yield from _file(plan, "train.loss", loss.teacher, base=base, kind="directory")
    if plan.checkpoint is not None and (branch := plan.checkpoint.branches_from):
        yield from _file(plan, "checkpoint.resume", branch, base=base, kind="directory")


def _templates(plan: Plan, *, base: Path) -> Collection[str]:
    """The names of the tokenizer's own chat templates, as far as they are known."""
    tokenizer = plan.data.tokenizer
    return (isinstance(tokenizer, FileTokenizer) and chat_templates(base / tokenizer.path)) or ()


def absent_files(source: AnySource, *, base: Path) -> Sequence[NoFile]:
    """The patterns of a source that match no file."""
    patterns = source.patterns if isinstance(source, TextFiles | JsonLines | DatasetSource) else ()
    if HubDataset.of(patterns) is not None:
        return ()
    if isinstance(source, DatasetSource):
        patterns = tuple(pattern for pattern in patterns if not (base / pattern).is_dir())
    found = (without_file(pattern, base=base) for pattern in patterns)
    return tuple(one for one in found if one is not None)


def _file(plan: Plan, setting: str, name: str, *, base: Path, kind: str = "file") -> Findings:
    """A finding for a file that a setting names, if it is missing in a directory that exists."""
    if (base / name).exists():
        return
    folder = Path(os.path.abspath((base / name).parent))
    if not folder.is_dir() or _is_configuration(folder):
        return
    near = closest(Path(name).name, sorted(one.name for one in folder.iterdir()))
    correct = f"write `{Path(name).with_name(near).as_posix()}`" if near else "correct the path"
    yield CODE.at(
        plan.span(setting),
        f"no {kind} `{name}`",
        notes=(f"`{folder}` has no `{Path(name).name}`",),
        help=f"{correct}, unless the {kind} is on the run's machines",
    )


def _is_configuration(folder: Path) -> bool:
    """Whether a model's directory has only its configuration: the rest is on the run's machines."""
    return (folder / "config.json").is_file() and not any(folder.glob("*.safetensors"))
