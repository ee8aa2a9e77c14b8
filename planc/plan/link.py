"""Several files to one: the statements of a plan, its bases and its fragments, as if one file held them.

Layers go from the lowest base up to the plan itself; in each, fragments are below the block that uses them.
A setting that a lower layer has given needs `override`; rules add up, and `bind` finds those that disagree.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from planc.diagnostics import Applicability, Diagnostic, Fix, Label
from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.fragments import Fragments, Uses, read_fragments
from planc.plan.include import ExtensionFile, Files, Layer, Load, read_files
from planc.plan.overrides import Override
from planc.plan.params import words
from planc.plan.scope import Links, OriginStep, Registered, Registry, Scope
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast


@record
class Linked:
    """A plan in one piece. `file` is None where a file is missing or does not parse.

    Spans point into the files that the statements come from. `overrides` give parameters of other files
    another value, the lowest layer first; they come before those of the command line. `sources` are the
    included files by their path below the plan's directory, and `included` has the statement that includes
    each, by file name.
    """

    file: ast.PlanFile | None
    overrides: tuple[Override, ...]
    links: Links
    sources: Mapping[str, SourceFile]
    included: Mapping[str, Span]
    extensions: tuple[ExtensionFile, ...] = ()


def link(file: ast.PlanFile, *, load: Load) -> tuple[Linked, tuple[Diagnostic, ...]]:
    """A plan with all that it extends and uses, and findings."""
    files, is_whole, problems = read_files(file, load=load)
    if not is_whole:
        return Linked(None, (), Links(), files.sources, files.included, files.extensions), problems
    linker = _Linker()
    for layer in files.layers:
        linker.add(layer)
    linked = replace(file, statements=tuple(linker.statements()))
    links = Links(
        linker.origins,
        linker.levels,
        frozenset(linker.idle),
        {source.name: posixpath.dirname(path) for path, source in files.sources.items()},
        frozenset(linker.incomplete),
        _registry(files, linker.scope),
    )
    return (
        Linked(linked, tuple(linker.overrides), links, files.sources, files.included, files.extensions),
        (*problems, *linker.scope.diagnostics),
    )


def _registry(files: Files, scope: Scope) -> Registry:
    """Return the registrations of the plan's own code; a name that two files register is reported."""
    registry: dict[str, dict[str, Registered]] = {}
    for file in files.extensions:
        for declared in file.declarations:
            of_kind = registry.setdefault(declared.kind, {})
            if declared.name in of_kind:
                first = Label(of_kind[declared.name].statement.path.span, "first registered by this file")
                text = f"registers the {declared.kind} `{declared.name}` again"
                help = "rename one of them"
                scope.report(codes.DUPLICATE, file.statement.path.span, text, secondary=(first,), help=help)
                continue
            of_kind[declared.name] = Registered(declared, file.path, file.digest, file.statement)
    return registry


@dataclass(slots=True, eq=False, repr=False)
class _Gathered:
    """A block as its layers make it. `body` has None where a setting was overridden."""

    head: ast.Block
    on: tuple[ast.Name, ...]
    body: list[ast.Statement | _Gathered | None] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """The position of each setting in `body`."""
    nested: dict[tuple[str, str], _Gathered] = field(default_factory=dict)
    """Blocks inside this one, by name and label."""

    def block(self) -> ast.Block:
        body = (one.block() if isinstance(one, _Gathered) else one for one in self.body)
        return replace(self.head, on=self.on, body=tuple(one for one in body if one is not None))


@dataclass(slots=True, eq=False, repr=False)
class _Linker:
    """The state of one link."""

    scope: Scope = field(default_factory=lambda: Scope({}))
    params: list[ast.Param] = field(default_factory=list)
    blocks: dict[str, _Gathered] = field(default_factory=dict)
    others: list[ast.Statement] = field(default_factory=list)
    imports: dict[str, Fragments] = field(default_factory=dict)
    """The imports of all layers, by the name that their parameters carry."""
    overrides: list[Override] = field(default_factory=list)
    origins: dict[Span, tuple[OriginStep, ...]] = field(default_factory=dict)
    levels: dict[Span, int] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    level: int = 0

    def statements(self) -> Iterator[ast.Statement]:
        """Parameters and blocks, then what is misplaced: resolving reports it."""
        yield from self.params
        yield from (gathered.block() for gathered in self.blocks.values())
        yield from self.others

    def add(self, layer: Layer) -> None:
        """Puts a file on top of those below it."""
        self.level += 2  # The fragments that it uses have the level between.
        lower = {param.name.text: param for param in self.params}
        uses = Uses(self._imports(layer), self.scope, set())
        imported = [param for fragments in self.imports.values() for param in fragments.params]
        lower.update({param.name.text: param for param in imported})
        own = [statement for statement in layer.file.statements if isinstance(statement, ast.Param)]
        self.params.extend(own)
        kinds: set[str] = set()
        settings: list[ast.Setting] = []
        for statement in layer.file.statements:
            match statement:
                case ast.Extends() | ast.Import() | ast.Extension() | ast.Param():
                    pass
                case ast.Setting():
                    settings.append(statement)
                case ast.Block(kind, None) if kind.text != "expect" and kind.text not in kinds:
                    kinds.add(kind.text)
                    self._block(statement, uses)
                case _:
                    self.others.append(statement)
        self._override_params(settings, lower, {param.name.text for param in own})
        uses.report_unused()
        self.incomplete.update(uses.incomplete)

    def _imports(self, layer: Layer) -> dict[str, Fragments]:
        """The layer's imports by name; their parameters join the plan's, once for all layers."""
        by_alias: dict[str, Fragments] = {}
        for imported in layer.imports:
            alias = imported.statement.alias
            known = self.imports.get(alias.text)
            if alias.text in BLOCKS:
                text = f"`{alias.text}` is the name of a block"
                self.scope.report(codes.DUPLICATE, alias.span, text, help="choose another name")
                continue
            if known is not None and known.path != imported.path:
                first = Label(known.statement.span, "first given here")
                text = f"the base uses `{alias.text}` for another file"
                help = "choose another name"
                self.scope.report(codes.DUPLICATE, alias.span, text, secondary=(first,), help=help)
                continue
            if known is None:
                known = self.imports[alias.text] = read_fragments(imported, self.scope)
                self.params.extend(known.params)
                self.idle.update(word for block in known.blocks.values() for word in words(block))
            by_alias[alias.text] = replace(known, statement=imported.statement)
        return by_alias

    def _override_params(
        self, settings: list[ast.Setting], lower: Mapping[str, ast.Param], own: set[str]
    ) -> None:
        """Settings at the top level: they give other files' parameters another value."""
        seen: dict[str, Span] = {}
        for setting in settings:
            name = setting.name.text
            if name in lower and name not in own:
                if name in seen:
                    first = Label(seen[name], "first given here")
                    text, help = f"`{name}` is given twice", f"remove one `override {name} = ...`"
                    self.scope.report(codes.DUPLICATE, setting.span, text, secondary=(first,), help=help)
                    continue
                seen[name] = setting.span
                if not setting.override:
                    self._needs_override(setting, lower[name].name.span)
                    continue
                place = f"overridden at {setting.span.file}:{setting.span.line}"
                assignment = ast.Assignment(setting.name, setting.value, setting.span)
                self.overrides.append(Override(assignment, "override", place))
            elif setting.override:
                self._overrides_nothing(setting, lower, own)
            else:
                self.others.append(setting)

    def _overrides_nothing(self, setting: ast.Setting, lower: Mapping[str, ast.Param], own: set[str]) -> None:
        name = setting.name
        kind, _, key = name.text.partition(".")
        if name.text in own:
            text = f"`{name.text}` is this file's own parameter"
            self.scope.report(codes.UNKNOWN_TARGET, name.span, text, help="change its default instead")
            return
        inside = f"write `override {key} = ...` in `{kind}`" if kind in BLOCKS and key else None
        text = "no included file has this parameter"
        self.scope.unknown(codes.UNKNOWN_TARGET, name, tuple(lower), text=text, help=inside)

    def _needs_override(self, setting: ast.Setting, first: Span) -> None:
        name = setting.name.text
        fix = Fix(setting.name.span, f"override {name}", Applicability.UNSAFE)
        help = f"write `override {name} = ...` to change the value"
        label = Label(first, "first given here")
        text = f"`{name}` is given twice"
        self.scope.report(codes.DUPLICATE, setting.span, text, secondary=(label,), help=help, fix=fix)

    def _block(self, block: ast.Block, uses: Uses) -> None:
        """Puts a block, and the fragments that it uses below it, on top of what lower layers gave."""
        gathered = self.blocks.setdefault(block.kind.text, _Gathered(block, block.on))
        self._mesh_dims(gathered, block)
        gathered.head = block
        spliced, origins = uses.expand(block)
        self.origins.update({span: (step,) for span, step in origins.items()})
        self.levels.update({one.span: self.level - 1 for one in spliced if isinstance(one, ast.Rule)})
        self.levels.update({one.span: self.level for one in block.body if isinstance(one, ast.Rule)})
        self._stack(gathered, spliced)
        self._stack(gathered, [one for one in block.body if not isinstance(one, ast.Use)])

    def _mesh_dims(self, gathered: _Gathered, block: ast.Block) -> None:
        if not block.on or not gathered.on:
            gathered.on = block.on or gathered.on
            return
        if {name.text for name in block.on} != {name.text for name in gathered.on}:
            first = Label(gathered.on[0].span.to(gathered.on[-1].span), "first given here")
            span = block.on[0].span.to(block.on[-1].span)
            text = f"the base's `{block.kind.text}` works on other mesh dims"
            help = "remove `on` to keep the base's mesh dims"
            self.scope.report(codes.DUPLICATE, span, text, secondary=(first,), help=help)
            return
        gathered.on = block.on

    def _stack(self, gathered: _Gathered, statements: list[ast.Statement]) -> None:
        """Adds the statements of one layer. What it gives twice itself is left for resolving to report."""
        lower = dict(gathered.places)
        seen: set[str] = set()
        blocks: set[tuple[str, str]] = set()
        for statement in statements:
            if isinstance(statement, ast.Block) and statement.label is not None:
                key = (statement.kind.text, statement.label.value)
                if key in blocks:
                    gathered.body.append(statement)
                else:
                    self._stack_block(gathered, statement)
                blocks.add(key)
                continue
            if not isinstance(statement, ast.Setting):
                gathered.body.append(statement)
                continue
            name = statement.name.text
            place = lower.get(name)
            if place is None:
                gathered.places.setdefault(name, len(gathered.body))
                gathered.body.append(statement)
                continue
            before = gathered.body[gathered.places[name]]
            assert isinstance(before, ast.Setting), "places are those of settings"
            if name not in seen and not statement.override:
                self._needs_override(statement, before.span)
            elif name in seen:
                gathered.body.append(replace(statement, override=False))
            else:
                self._replace(gathered, before, statement)
            seen.add(name)

    def _stack_block(self, gathered: _Gathered, block: ast.Block) -> None:
        """Add a nested block: its settings override those of the lower layers' block with the same label."""
        assert block.label is not None, "only labeled blocks are distinguished"
        key = (block.kind.text, block.label.value)
        inner = gathered.nested.get(key)
        if inner is None:
            inner = gathered.nested[key] = _Gathered(block, block.on)
            gathered.body.append(inner)
        inner.head, inner.on = block, block.on or inner.on
        self._stack(inner, list(block.body))

    def _replace(self, gathered: _Gathered, before: ast.Setting, after: ast.Setting) -> None:
        name = after.name.text
        gathered.body[gathered.places[name]] = None
        gathered.places[name] = len(gathered.body)
        gathered.body.append(replace(after, override=False))
        self.idle.update(words(before))
        step = OriginStep("overrides", before.span, f"overrides {before.span.file}:{before.span.line}")
        earlier = self.origins.get(before.span, ())
        self.origins[after.span] = (*self.origins.get(after.span, ()), step, *earlier)
