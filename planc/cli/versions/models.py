"""Models of plans at a git revision: config.json and inventory.json as that revision has them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.api import Checked, check_source
from planc.cli.support.exits import UsageError
from planc.cli.support.plans import announce_probe
from planc.cli.versions.git import git, top_folder
from planc.diagnostics import Diagnostic, Label
from planc.hub.names import is_hub
from planc.hub.user_dirs import cache_dir
from planc.inventory.files import CONFIG_NAME, INVENTORY_NAME
from planc.inventory.known import KnownModels
from planc.plan.include import Load
from planc.plan.link import link
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax import ast

MODEL_FILES = (CONFIG_NAME, INVENTORY_NAME)
"""The files of a model that decide what a plan means."""

INDEX = ":0"
"""Git's name for the index where it takes a revision."""


@dataclass(slots=True)
class ModelsAt:
    """The models of one revision. `base` is the directory in the working tree where their paths start.

    Files that planc reads are copied to `copies`. `note` names a model that the revision does not have, which
    is read as it is now.
    """

    revision: str
    base: Path
    top: Path
    copies: Path
    places: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The name to show for each copied directory."""
    note: str = ""

    def place(self, hf: str) -> str:
        """The path of a model's directory at this revision; a commit of the Hub is the same at all."""
        if is_hub(hf):
            return hf
        if hf not in self.places:
            self.places[hf] = self._copied(hf) or hf
        return self.places[hf]

    def known(self) -> KnownModels:
        """The models as checks read them."""
        return KnownModels(self.base, cache_dir(), on_probe=self._announce, place=self.place)

    def named(self, checked: Checked) -> Checked:
        """The result of a check, its findings with names of the revision instead of copies."""
        return replace(checked, diagnostics=tuple(map(self._named, checked.diagnostics)))

    def _copied(self, hf: str) -> str | None:
        for folder in model_folders(hf, base=self.base, top=self.top):
            found = {name: self._content(f"{folder}/{name}") for name in MODEL_FILES}
            if any(content is not None for content in found.values()):
                copy = self.copies / f"{len(self.names)}"
                copy.mkdir()
                for name, content in found.items():
                    if content is not None:
                        (copy / name).write_bytes(content)
                self.names[str(copy)] = f"{self.revision}:{folder}"
                return str(copy)
        place = "the index" if self.revision == INDEX else f"git at {self.revision}"
        self.note = f"model {hf} is not in {place} and is read as it is now"
        return None

    def _content(self, path: str) -> bytes | None:
        try:
            return git("cat-file", "blob", f"{self.revision}:{path}")
        except UsageError:
            return None

    def _announce(self, folder: Path) -> AbstractContextManager[None]:
        return announce_probe(Path(self.names.get(str(folder), folder)))

    def _named(self, finding: Diagnostic) -> Diagnostic:
        copy = next((copy for copy in self.names if copy in finding.primary.text), None)
        if copy is None:
            return finding
        text = finding.primary.text.replace(copy, self.names[copy])
        # Its help would be a command for the copy, and no command changes a revision.
        return replace(finding, primary=Label(finding.primary.span, text), help=None)


@contextmanager
def models_at(revision: str, *, base: Path) -> Iterator[ModelsAt]:
    """The models of a revision, for as long as their files are read."""
    with TemporaryDirectory(prefix="planc-") as copies:
        yield ModelsAt(revision, base, top_folder(), Path(copies))


def check_at(
    revision: str,
    source: SourceFile,
    *,
    base: Path,
    load: Load,
    settings: Sequence[SourceFile],
    world_size: int | None,
) -> tuple[Checked, str]:
    """A plan of a revision, checked with its model of that revision, and a note if git does not have that."""
    with models_at(revision, base=base) as models:
        checked = check_source(
            source, base=base, settings=settings, world_size=world_size, load=load, models=models.known()
        )
        return models.named(checked), models.note


def model_of(file: ast.PlanFile, *, load: Load) -> str | None:
    """`model.hf` of a parsed plan; None for a plan with errors."""
    linked, _ = link(file, load=load)
    if linked.file is None:
        return None
    plan, _ = resolve(linked.file, overrides=linked.overrides, links=linked.links)
    return plan.model.hf if plan else None


def model_folders(hf: str, *, base: Path, top: Path) -> tuple[str, ...]:
    """Return paths of a local model in a repository, from its top: as written, and behind symbolic links."""
    if is_hub(hf):
        return ()
    start = base.resolve()
    places = (Path(os.path.normpath(start / hf)), (start / hf).resolve())
    root = top.resolve()
    return tuple(
        dict.fromkeys(place.relative_to(root).as_posix() for place in places if place.is_relative_to(root))
    )


def model_files(hf: str | None, *, base: Path, top: Path) -> tuple[str, ...]:
    """The paths of a model's files in its repository, whether they exist or not."""
    folders = model_folders(hf, base=base, top=top) if hf else ()
    return tuple(f"{folder}/{name}" for folder in folders for name in MODEL_FILES)
