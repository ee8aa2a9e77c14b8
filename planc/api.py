"""The public surface: check a plan, compile it, load what was compiled.

Every function returns values and diagnostics; none prints, and none imports torch unless a model has to be
inspected for the first time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from planc.capacity.draft import Draft, data_ops
from planc.checks import RULES, Subject, run_checks
from planc.checks.phases import Phase, phase_of
from planc.checks.support import suppressions
from planc.checks.support.suppressions import suppress
from planc.data_view import codes as data_codes
from planc.deep_check import codes as deep_codes
from planc.devices.hardware import Demand
from planc.diagnostics import Code, Diagnostic, Label, Severity, has_errors, in_order
from planc.graph.graph import Graph
from planc.graph.sources import AnySource
from planc.hub.user_dirs import cache_dir
from planc.inventory.files import InventoryError
from planc.inventory.known import KnownModels
from planc.inventory.load import OnProbe
from planc.inventory.schema import Inventory
from planc.own_model.probing import probe_own
from planc.plan import codes as plan_codes
from planc.plan.bind import BoundPlan, bind
from planc.plan.elastic_meshes import shrinking_note, smaller_plans, started_on
from planc.plan.include import Load
from planc.plan.link import Linked, link
from planc.plan.model_source import other_source
from planc.plan.overrides import Override, parse_override
from planc.plan.partial import findings_of
from planc.plan.preset import is_preset, preset_findings
from planc.plan.resolve import resolve
from planc.plan.settle import is_counted, settled
from planc.plan.spec import Plan, Weights
from planc.record import record
from planc.solve import automatic
from planc.source import SourceFile, Span, tree_root
from planc.syntax import codes as syntax_codes
from planc.syntax.budget import LARGE_HELP, MAX_CHARACTERS
from planc.syntax.codes import NOT_TEXT, TOO_LARGE
from planc.syntax.parse import read

MAX_FINDINGS = 200
"""More than anyone reads; only an adversarial text has more."""
NO_FILE = Code("P100", "no-file", "cannot read the plan")
_NO_FILE_HELP = "check the path, which is relative to the current directory"
NO_MODEL = Code("P216", "no-model", "cannot read the model")
CODES: tuple[Code, ...] = (
    NO_FILE,
    NO_MODEL,
    *syntax_codes.CODES,
    *plan_codes.CODES,
    *dict.fromkeys(code for rule in RULES for code in rule.codes),
    *suppressions.CODES,
    *deep_codes.CODES,
    *data_codes.CODES,
)
"""Every code that checking a plan can report."""


CountSequences = Callable[[Sequence[AnySource], Path], int | None]
"""The sequences of what ops read, the last of which opens the training data; None if they are unknown."""


@record
class Checked:
    """The result of checking a plan. Each part is None if an error prevented it."""

    sources: Mapping[str, SourceFile]
    diagnostics: tuple[Diagnostic, ...]
    overrides: tuple[str, ...] = ()
    plan: Plan | None = None
    inventory: Inventory | None = None
    bound: BoundPlan | None = None
    graph: Graph | None = None
    source_digests: tuple[tuple[str, str], ...] = field(default=())
    included: Mapping[str, Span] = field(default_factory=dict)
    """Files that the plan extends or imports, by the name of their source: the statement that names each."""
    draft: Draft | None = None
    """The plan's lowering. Of a plan that breaks rules it is there to compare with, never to run."""

    @property
    def ok(self) -> bool:
        return not has_errors(self.diagnostics)


def read_source(path: Path) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
    """A plan's text, or why it can't be read: only regular UTF-8 files of reasonable size are."""
    name = str(path)
    nowhere = SourceFile(name, "").start()
    try:
        status = path.stat()
    except OSError as error:
        return None, (NO_FILE.at(nowhere, f"{name}: {error.strerror}", help=_NO_FILE_HELP),)
    if not stat.S_ISREG(status.st_mode):
        return None, (
            NO_FILE.at(nowhere, f"{name} is not a regular file", help="pass the path of a `.plan` file"),
        )
    if status.st_size > 4 * MAX_CHARACTERS:
        return None, (TOO_LARGE.at(nowhere, f"{status.st_size} bytes", help=LARGE_HELP),)
    try:
        content = path.read_bytes()
    except OSError as error:
        return None, (NO_FILE.at(nowhere, f"{name}: {error.strerror}", help=_NO_FILE_HELP),)
    try:
        return SourceFile(name, content.decode("utf-8").replace("\r\n", "\n")), ()
    except UnicodeDecodeError as error:
        return None, (_not_utf8(name, content, error.start),)


def _not_utf8(name: str, content: bytes, offset: int) -> Diagnostic:
    """The finding at the first byte that is not UTF-8."""
    before = content[:offset].decode("utf-8")
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    span = Span(name, line, column, line, column + 1)
    is_utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = "this is UTF-16" if is_utf16 else f"byte {offset} is not UTF-8"
    return NOT_TEXT.at(span, text, help="save the file as UTF-8")


def check_plan(
    path: Path,
    *,
    settings: Sequence[SourceFile] = (),
    world_size: int | None = None,
    on_probe: OnProbe | None = None,
    count: CountSequences | None = None,
    runs_extensions: bool = False,
) -> Checked:
    """A plan with everything that follows from it, up to its graph, and all findings on the way.

    `settings` are overrides as sources: one `path=value` each, named for where they come from. A model that
    is seen for the first time takes seconds: `on_probe` gets its directory, and is entered while that lasts.
    `count` counts the sequences of the training data, for plans whose steps depend on them. `runs_extensions`
    permits building a model class of the plan's own code, once.
    """
    source, problems = read_source(path)
    if source is None:
        return Checked({}, problems)
    if source.text.startswith("{") and '"plan_hash"' in source.text:
        text = f"{path} is a compiled plan, not a .plan file"
        return Checked({}, (NO_FILE.at(source.start(), text, help="pass it to `planc run` or `planc diff`"),))
    return check_source(
        source,
        base=path.parent,
        settings=settings,
        world_size=world_size,
        on_probe=on_probe,
        count=count,
        runs_extensions=runs_extensions,
    )


def check_source(
    source: SourceFile,
    *,
    base: Path,
    settings: Sequence[SourceFile] = (),
    world_size: int | None = None,
    load: Load | None = None,
    models: KnownModels | None = None,
    on_probe: OnProbe | None = None,
    count: CountSequences | None = None,
    runs_extensions: bool = False,
) -> Checked:
    """Check a text as `check_plan` does a file; its relative paths start at `base`.

    Files that the plan includes are read by `load`, and its model by `models`, or else from `base`. Findings
    are in the order of the text, without those that a comment suppresses; MAX_FINDINGS at most, errors first.
    """
    load = load or local_files(base, plan=source.name)
    permitted = partial(probe_own, base=base) if runs_extensions else None
    models = models or KnownModels(base, cache_dir(), on_probe=on_probe, probe_own=permitted)
    launch = _Launch(base, tuple(settings), world_size, models, count)
    checked = _check(source, launch, load=load)
    found = _capped(_with_tried_fixes(source, checked, launch, load=load))
    diagnostics = in_order(_with_way(one, checked.included) for one in found)
    graph = None if checked.draft is None or has_errors(diagnostics) else checked.draft.compiled
    return replace(checked, diagnostics=diagnostics, graph=graph)


def _with_tried_fixes(
    source: SourceFile, checked: Checked, launch: _Launch, *, load: Load
) -> tuple[Diagnostic, ...]:
    """The findings that no comment suppresses; a fix is safe if the plan with it checks no worse."""
    findings = _suppressed(source, checked)
    if not any(one.fix is not None and one.fix.is_safe for one in findings):
        return findings
    # Most plans have nothing to fix, and checking them should not pay for this import.
    from planc.diagnostics.fixes import Files, Trial, confirmed

    def again(texts: Mapping[str, SourceFile]) -> Trial:
        changed = texts[source.name]
        trial = _check(changed, replace(launch, models=known), load=_changed(load, texts))
        # A fix is not to blame for a model that is not known yet.
        found = tuple(one for one in _suppressed(changed, trial) if one.code is not NO_MODEL)
        return Trial(found, _reached(trial))

    known = launch.models.as_known()
    names = (source.name, *checked.included)
    return confirmed(
        Trial(findings, _reached(checked)),
        files=Files({name: checked.sources[name] for name in names}, source.name),
        check=again,
        phase_of=lambda one: phase_of(one.code),
        shared_phases=frozenset({Phase.SYNTAX, Phase.LINK, Phase.RESOLVE}),
    )


def _changed(load: Load, texts: Mapping[str, SourceFile]) -> Load:
    """Reads included files as `texts` has them."""

    def read(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        source, problems = load(path, span)
        return (texts.get(source.name, source) if source else None), problems

    return read


def _capped(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    if len(diagnostics) <= MAX_FINDINGS:
        return diagnostics
    by_weight = sorted(diagnostics, key=lambda one: (one.severity is not Severity.ERROR, one.primary.span))
    *kept, last = by_weight[:MAX_FINDINGS]
    more = f"findings not shown: {len(diagnostics) - MAX_FINDINGS}"
    return (*kept, replace(last, notes=(*last.notes, more)))


def local_files(base: Path, *, plan: str) -> Load:
    """Reads what `plan` includes, by paths from `base`, its folder, never out of its tree."""

    def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        root, file = tree_root(base), Path(os.path.normpath(base.resolve() / path))
        if not file.is_relative_to(root):
            text, help = f"`{path}` is above `{root.name}`", "put a file `planc.toml` into the folder of both"
            return None, (plan_codes.NOT_BELOW_ROOT.at(span, text, help=help),)
        try:
            is_below = file.resolve(strict=True).is_relative_to(root)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
            reason = error.strerror if isinstance(error, OSError) else "symbolic links form a cycle"
            help = "check the path, which is relative to the file that includes it"
            return None, (plan_codes.CANNOT_INCLUDE.at(span, f"{path}: {reason}", help=help),)
        if not is_below:
            text, help = f"`{path}` is a symbolic link out of it", "copy the file into the plan's folder"
            return None, (plan_codes.NOT_BELOW_ROOT.at(span, text, help=help),)
        source, problems = read_source(file)
        if source is None:
            return None, tuple(_at_include(problem, path, span) for problem in problems)
        return SourceFile(os.path.normpath(Path(plan).parent / path), source.text), ()

    return load


def _at_include(problem: Diagnostic, path: str, span: Span) -> Diagnostic:
    """A finding about a whole file, at the statement that names the file."""
    code = plan_codes.CANNOT_INCLUDE if problem.code is NO_FILE else problem.code
    return replace(problem, code=code, primary=Label(span, f"{path}: {problem.primary.text}"))


def _with_way(diagnostic: Diagnostic, included: Mapping[str, Span]) -> Diagnostic:
    """The finding, with a note on how an included file is included."""
    file = diagnostic.primary.span.file
    if file not in included:
        return diagnostic
    span = included[file]
    return replace(diagnostic, notes=(*diagnostic.notes, f"`{file}` is included at {span.file}:{span.line}"))


def _suppressed(source: SourceFile, checked: Checked) -> tuple[Diagnostic, ...]:
    """The findings that no comment suppresses. In an included file a comment may be for another plan."""
    known = {code.code: code for code in CODES}
    diagnostics: Sequence[Diagnostic] = checked.diagnostics
    for name in checked.included:
        found = suppress(checked.sources[name], diagnostics, known=known)
        diagnostics = [one for one in found if one.code is not suppressions.UNUSED]
    return suppress(source, diagnostics, known=known)


@record
class _Launch:
    """Everything that a plan is checked with, in addition to its text."""

    base: Path
    settings: tuple[SourceFile, ...]
    world_size: int | None
    models: KnownModels
    count: CountSequences | None = None


def _reached(checked: Checked) -> Phase:
    """The last phase that ran."""
    if checked.bound is not None:
        return Phase.MODEL if has_errors(checked.diagnostics) else Phase.SOUND
    phases = (phase_of(diagnostic.code) for diagnostic in checked.diagnostics)
    return max((phase for phase in phases if phase < Phase.MODEL), default=Phase.RESOLVE)


def _check(source: SourceFile, launch: _Launch, *, load: Load) -> Checked:
    """All findings in the order of the phases, and everything but the graph."""
    settings = launch.settings
    sources = {source.name: source, **{setting.name: setting for setting in settings}}
    diagnostics: list[Diagnostic] = []
    overrides: list[Override] = []
    for setting in settings:
        override, problems = parse_override(
            setting, kind="set" if setting.name.startswith("--set") else "environment"
        )
        diagnostics.extend(problems)
        overrides.extend([override] if override else [])
    reading = read(source)
    file = reading.file
    diagnostics.extend(reading.problems)
    if reading.recovered is not None:
        diagnostics.extend(findings_of(reading.recovered, source))
    checked = Checked(sources, tuple(diagnostics), tuple(override.text for override in overrides))
    if file is None or has_errors(diagnostics):
        return checked
    if is_preset(file):
        return replace(checked, diagnostics=(*checked.diagnostics, *preset_findings(file)))
    linked, problems = link(file, load=load)
    checked = _with_files(checked, source, linked, problems)
    if linked.file is None:
        return checked
    plan, problems = resolve(linked.file, overrides=(*linked.overrides, *overrides), links=linked.links)
    checked = replace(checked, diagnostics=(*checked.diagnostics, *problems))
    if plan is None or has_errors(checked.diagnostics):
        return checked
    return _against_model(replace(checked, plan=plan), plan, launch)


def _with_files(
    checked: Checked, source: SourceFile, linked: Linked, problems: Sequence[Diagnostic]
) -> Checked:
    included = linked.sources
    texts = {Path(source.name).name: source.text, **{path: one.text for path, one in included.items()}}
    digests = tuple((path, hashlib.sha256(text.encode()).hexdigest()) for path, text in texts.items())
    return replace(
        checked,
        sources={**checked.sources, **{one.name: one for one in included.values()}},
        diagnostics=(*checked.diagnostics, *problems),
        included=linked.included,
        source_digests=digests,
    )


def _against_model(checked: Checked, plan: Plan, launch: _Launch) -> Checked:
    """A plan without fault in itself, held against its model."""
    base, world_size = launch.base, launch.world_size
    try:
        model, task = plan.model, plan.model.task
        known = partial(launch.models.get, model.hf, own=model.architecture, task=task.task)
        inventory = known(with_weights=model.weights is Weights.PRETRAINED, classes=task.classes)
    except InventoryError as error:
        help = other_source(plan.model.hf, base=base) or error.help
        problem = NO_MODEL.at(plan.span("model.hf"), error.message, help=help)
        return replace(checked, diagnostics=(*checked.diagnostics, problem))
    plan = settled(plan, launch.count(data_ops(plan), base) if launch.count and is_counted(plan) else None)
    smaller_or_same = started_on(plan, world_size)
    # A launch that fills one of the smaller meshes has as many ranks as it takes.
    started = world_size if smaller_or_same is plan else None
    plan = smaller_or_same
    bound = bind(plan, inventory, automatic(plan, inventory))
    draft = Draft(bound)
    subject = Subject(bound, started, draft.estimated_facts, lambda: draft.demand, lambda: draft.pairs, base)
    problems = tuple(run_checks(subject))
    smaller = () if has_errors(problems) else _of_smaller(plan, inventory, base=base)
    diagnostics = (*checked.diagnostics, *problems, *smaller)
    with_model = replace(checked, inventory=bound.inventory, bound=bound, draft=draft)
    return replace(with_model, plan=plan, diagnostics=diagnostics)


def _of_smaller(plan: Plan, inventory: Inventory, *, base: Path) -> Iterator[Diagnostic]:
    """The errors of the plan on its smaller meshes, each finding once."""
    seen: set[tuple[Code, Span]] = set()
    meshes = (plan, *smaller_plans(plan))
    for smaller in meshes[1:]:
        bound = bind(smaller, inventory, automatic(smaller, inventory))
        note = shrinking_note(smaller)
        subject = Subject(bound, demand=_demand_of(bound), base=base, meshes=meshes)
        for finding in run_checks(subject):
            if finding.severity is Severity.ERROR and (finding.code, finding.primary.span) not in seen:
                seen.add((finding.code, finding.primary.span))
                yield replace(finding, notes=(*finding.notes, note), fix=None)


def _demand_of(bound: BoundPlan) -> Callable[[], Demand | None]:
    """The figures of a plan on its device, made when they are first asked for."""
    draft = Draft(bound)
    return lambda: draft.demand
