"""The public surface: check a plan, compile it, load what was compiled.

Every function returns values and diagnostics; none prints, and none imports torch unless a model has to be
inspected for the first time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from planc.checks import RULES, Subject, run_checks, suppressions
from planc.checks.suppressions import suppress
from planc.diagnostics import Code, Diagnostic, has_errors, in_order
from planc.graph.graph import Graph
from planc.inventory.load import InventoryError, load_inventory
from planc.inventory.schema import Inventory
from planc.lower import compile_graph, draft_graph
from planc.plan import codes as plan_codes
from planc.plan.bind import BoundPlan, bind
from planc.plan.overrides import Override, parse_override
from planc.plan.resolve import resolve
from planc.plan.spec import Plan
from planc.source import SourceFile
from planc.syntax import codes as syntax_codes
from planc.syntax.codes import NOT_TEXT, TOO_LARGE
from planc.syntax.parse import MAX_CHARACTERS, parse

NO_FILE = Code("P100", "no-file", "cannot read the plan")
NO_MODEL = Code("P216", "no-model", "cannot read the model")

CODES: tuple[Code, ...] = (
    NO_FILE,
    NO_MODEL,
    *syntax_codes.CODES,
    *plan_codes.CODES,
    *(code for rule in RULES for code in rule.codes),
    *suppressions.CODES,
)
"""Every code that checking a plan can give."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a plan turned out to be. Each part is None where an error forbade it."""

    sources: Mapping[str, SourceFile]
    diagnostics: tuple[Diagnostic, ...]
    overrides: tuple[str, ...] = ()
    plan: Plan | None = None
    inventory: Inventory | None = None
    bound: BoundPlan | None = None
    graph: Graph | None = None
    source_digests: tuple[tuple[str, str], ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not has_errors(self.diagnostics)

    def draft(self) -> Graph | None:
        """The graph; for a plan that breaks rules, what it would be: to compare with, never to run."""
        return self.graph or (draft_graph(self.bound) if self.bound else None)


def cache_dir() -> Path:
    """Where inventories of models are kept: `$PLANC_CACHE`, else planc's folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PLANC_CACHE") or Path(base) / "planc")


def read_source(path: Path) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
    """A plan's text, or why it cannot be had: only regular UTF-8 files of sane size are read."""
    name = str(path)
    nowhere = SourceFile(name, "").start()
    try:
        status = path.stat()
    except OSError as error:
        return None, (NO_FILE.at(nowhere, f"{name}: {error.strerror}"),)
    if not stat.S_ISREG(status.st_mode):
        return None, (NO_FILE.at(nowhere, f"{name} is not a regular file"),)
    if status.st_size > 4 * MAX_CHARACTERS:
        return None, (TOO_LARGE.at(nowhere, f"{status.st_size} bytes"),)
    try:
        return SourceFile(name, path.read_bytes().decode("utf-8").replace("\r\n", "\n")), ()
    except OSError as error:
        return None, (NO_FILE.at(nowhere, f"{name}: {error.strerror}"),)
    except UnicodeDecodeError as error:
        return None, (NOT_TEXT.at(nowhere, f"byte {error.start} is no UTF-8", help="save it as UTF-8"),)


def check_plan(path: Path, *, settings: Sequence[SourceFile] = (), world_size: int | None = None) -> Checked:
    """A plan with everything that follows from it, up to its graph, and all findings on the way.

    `settings` are overrides as sources: one `path=value` each, named for where they come from.
    """
    source, problems = read_source(path)
    if source is None:
        return Checked({}, problems)
    return check_source(source, base=path.parent, settings=settings, world_size=world_size)


def check_source(
    source: SourceFile, *, base: Path, settings: Sequence[SourceFile] = (), world_size: int | None = None
) -> Checked:
    """As `check_plan`, for a text whose relative paths start at `base`.

    Findings are in the order of the text, without those that a comment suppresses.
    """
    checked = _check(source, base=base, settings=settings, world_size=world_size)
    known = {code.code: code for code in CODES}
    diagnostics = in_order(suppress(source, checked.diagnostics, known=known))
    graph = None if checked.bound is None or has_errors(diagnostics) else compile_graph(checked.bound)
    return replace(checked, diagnostics=diagnostics, graph=graph)


def _check(
    source: SourceFile, *, base: Path, settings: Sequence[SourceFile], world_size: int | None
) -> Checked:
    """All findings in the order of the phases, and everything but the graph."""
    sources = {source.name: source, **{setting.name: setting for setting in settings}}
    diagnostics: list[Diagnostic] = []
    overrides: list[Override] = []
    for setting in settings:
        override, problems = parse_override(
            setting, kind="set" if setting.name.startswith("--set") else "environment"
        )
        diagnostics.extend(problems)
        overrides.extend([override] if override else [])
    file, problems = parse(source)
    diagnostics.extend(problems)
    texts = tuple(override.text for override in overrides)
    if file is None or has_errors(diagnostics):
        return Checked(sources, tuple(diagnostics), texts)
    plan, problems = resolve(file, overrides=overrides)
    diagnostics.extend(problems)
    if plan is None:
        return Checked(sources, tuple(diagnostics), texts)
    try:
        inventory = load_inventory(base / plan.model.hf, cache_dir=cache_dir()).inventory
    except InventoryError as error:
        diagnostics.append(NO_MODEL.at(plan.span("model.hf"), error.message, help=error.help))
        return Checked(sources, tuple(diagnostics), texts, plan)
    bound = bind(plan, inventory)
    diagnostics.extend(run_checks(Subject(bound, world_size)))
    digest = hashlib.sha256(source.text.encode()).hexdigest()
    digests = ((Path(source.name).name, digest),)
    return Checked(sources, tuple(diagnostics), texts, plan, inventory, bound, source_digests=digests)
