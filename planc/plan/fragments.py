"""Imported files: parameters and labeled blocks, whose statements replace `use`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planc.diagnostics import Label
from planc.plan import codes
from planc.plan.include import Imported
from planc.plan.scope import OriginStep, Scope
from planc.record import record
from planc.source import Span
from planc.syntax import ast

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@record
class Fragments:
    """An imported file. Its parameters and the words of its fragments carry the import's name."""

    path: str
    statement: ast.Import
    params: tuple[ast.Param, ...]
    blocks: Mapping[str, ast.Block]


def read_fragments(imported: Imported, scope: Scope) -> Fragments:
    """The parameters and fragments of an imported file; what is neither is reported."""
    alias = imported.statement.alias.text
    params: list[ast.Param] = []
    blocks: dict[str, ast.Block] = {}
    for statement in imported.file.statements:
        match statement:
            case ast.Param(name):
                params.append(replace(statement, name=ast.Name(f"{alias}.{name.text}", name.span)))
            case ast.Block(label=ast.Text() as label):
                if _is_sound(statement, label, blocks, scope):
                    body = tuple(_with_alias(inner, alias) for inner in statement.body)
                    blocks[label.value] = replace(statement, body=body)
            case ast.Block(kind):
                text, help = "this fragment has no name", f'write `{kind.text} "name" {{`'
                scope.report(codes.MISPLACED, kind.span, text, help=help)
            case _:
                help = "keep only parameters and fragments (blocks with a name in quotes) in this file"
                scope.report(codes.MISPLACED, statement.span, "not allowed in an imported file", help=help)
    return Fragments(imported.path, imported.statement, tuple(params), blocks)


def _is_sound(block: ast.Block, name: ast.Text, known: Mapping[str, ast.Block], scope: Scope) -> bool:
    """Whether a fragment has a new name and leaves its mesh dims to the block that uses it."""
    if not _NAME.fullmatch(name.value):
        help = "write a name of letters, digits and `_`"
        scope.report(codes.WRONG_TYPE, name.span, "not a valid fragment name", help=help)
        return False
    if name.value in known:
        first = Label(known[name.value].kind.span, "first given here")
        text, help = f"a second fragment `{name.value}`", f'name it otherwise, such as "{name.value}_2"'
        scope.report(codes.DUPLICATE, name.span, text, secondary=(first,), help=help)
        return False
    if block.on:
        text, help = "a fragment takes its mesh dims from the block that uses it", "remove `on`"
        scope.report(codes.MISPLACED, block.on[0].span.to(block.on[-1].span), text, help=help)
        return False
    return True


@dataclass(slots=True, eq=False, repr=False)
class Uses:
    """The imports of one file, and which of them something uses."""

    fragments: Mapping[str, Fragments]
    scope: Scope
    used: set[str]
    incomplete: set[str] = field(default_factory=set)
    """The kinds of blocks that lack a fragment which they use."""

    def expand(self, block: ast.Block) -> tuple[list[ast.Statement], dict[Span, OriginStep]]:
        """The statements of all fragments that a block uses, and how each setting of them came in."""
        statements: list[ast.Statement] = []
        origins: dict[Span, OriginStep] = {}
        seen: dict[str, Span] = {}
        for statement in block.body:
            if not isinstance(statement, ast.Use):
                continue
            name = statement.name.text
            if name in seen:
                first = Label(seen[name], "first used here")
                text, help = f"`{name}` is used twice", f"remove one `use {name}`"
                self.scope.report(codes.DUPLICATE, statement.span, text, secondary=(first,), help=help)
                continue
            seen[name] = statement.span
            body = self._fragment(statement, block)
            if body is None:
                self.incomplete.add(block.kind.text)
                continue
            statements.extend(body)
            step = OriginStep("use", statement.span, f"use {name}")
            origins.update({inner.span: step for inner in _settings(body)})
        return statements, origins

    def _fragment(self, statement: ast.Use, block: ast.Block) -> Sequence[ast.Statement] | None:
        """The statements of the fragment that `use` names, None after a report."""
        alias, dot, name = statement.name.text.partition(".")
        span = statement.name.span
        if not dot:
            text = f"`{alias}` is not an import"
            self.scope.report(codes.UNKNOWN_IMPORT, span, text, help="write `use import_name.fragment_name`")
            self.used.update(self.fragments)
            return None
        if alias not in self.fragments:
            aliases, text = tuple(self.fragments), f"no import is named `{alias}`"
            nothing = None if aliases else f'add `import "..." as {alias}`'
            written = ast.Name(alias, replace(span, end_column=span.column + len(alias)))
            self.scope.unknown(codes.UNKNOWN_IMPORT, written, aliases, text=text, help=nothing)
            # The import that was meant is most likely not unused.
            self.used.update(self.fragments)
            return None
        self.used.add(alias)
        blocks = self.fragments[alias].blocks
        if name not in blocks:
            path = self.fragments[alias].path
            written = ast.Name(name, replace(span, column=span.end_column - len(name)))
            self.scope.unknown(
                codes.UNKNOWN_FRAGMENT, written, tuple(blocks), text=f"`{path}` has no fragment `{name}`"
            )
            return None
        fragment = blocks[name]
        if fragment.kind.text != block.kind.text:
            label = Label(fragment.kind.span, f"a fragment of `{fragment.kind.text}`")
            text = f"not a fragment of `{block.kind.text}`"
            help = f"use it in a `{fragment.kind.text}` block"
            self.scope.report(codes.WRONG_FRAGMENT, span, text, secondary=(label,), help=help)
            return None
        return fragment.body

    def report_unused(self) -> None:
        for alias, fragments in self.fragments.items():
            if alias not in self.used:
                text, help = (
                    f"`{alias}` is never used",
                    f"write `use {alias}.name` in a block, or remove the import",
                )
                self.scope.report(codes.UNUSED_IMPORT, fragments.statement.span, text, help=help)


def _settings(body: Sequence[ast.Statement]) -> Iterator[ast.Setting]:
    """The settings of a block and of those inside it."""
    for statement in body:
        if isinstance(statement, ast.Setting):
            yield statement
        elif isinstance(statement, ast.Block):
            yield from _settings(statement.body)


def _with_alias(statement: ast.Statement, alias: str) -> ast.Statement:
    """A statement of a fragment, its words marked with the import that it comes by."""
    match statement:
        case ast.Setting(value=value):
            return replace(statement, value=_marked(value, alias))
        case ast.Comparison(value=value):
            return replace(statement, value=_marked(value, alias))
        case ast.Rule(action=action):
            marked = _marked(action, alias)
            assert isinstance(marked, ast.Call | ast.Ref), "marking keeps the kind of a value"
            return replace(statement, action=marked)
        case ast.Block(body=body):
            return replace(statement, body=tuple(_with_alias(inner, alias) for inner in body))
        case _:
            return statement


def _marked(value: ast.Value, alias: str) -> ast.Value:
    match value:
        case ast.Ref():
            return replace(value, alias=alias)
        case ast.Call(arguments=arguments):
            marked = tuple(replace(argument, value=_marked(argument.value, alias)) for argument in arguments)
            return replace(value, arguments=marked)
        case ast.Items(values=items):
            return replace(value, values=tuple(_marked(item, alias) for item in items))
        case ast.Arithmetic(operands=operands):
            return replace(value, operands=tuple(_marked(operand, alias) for operand in operands))
        case _:
            return value
