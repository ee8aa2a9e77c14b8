"""A file that is written to be imported, checked by itself."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath

from planc.diagnostics import Diagnostic
from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.fragments import read_fragments
from planc.plan.include import Imported
from planc.plan.partial import OF_ONE_STATEMENT
from planc.plan.resolve import resolve
from planc.plan.scope import Scope
from planc.syntax import ast


def is_preset(file: ast.PlanFile) -> bool:
    """Whether a file holds fragments, and nothing that every plan has of its own or of a base."""
    blocks = [statement for statement in file.statements if isinstance(statement, ast.Block)]
    own = {block.kind.text for block in blocks if block.label is None}
    is_plan = any(isinstance(statement, ast.Extends) for statement in file.statements) or any(
        shape.required and kind in own for kind, shape in BLOCKS.items()
    )
    return not is_plan and any(block.label is not None for block in blocks)


def preset_findings(file: ast.PlanFile) -> tuple[Diagnostic, ...]:
    """The errors of a preset by itself; without any, the finding that it is not a plan."""
    fragments = [statement for statement in file.statements if isinstance(statement, ast.Block)]
    params = tuple(statement for statement in file.statements if isinstance(statement, ast.Param))
    path = PurePath(file.file).name
    scope = Scope({})
    as_written = ast.Import(ast.Text(path, file.span), ast.Name(_alias(path), file.span), file.span)
    read_fragments(Imported(as_written, path, file), scope)
    problems = list(scope.diagnostics)
    for fragment in fragments:
        alone = replace(file, statements=(*params, replace(fragment, label=None)))
        _, found = resolve(alone)
        problems.extend(problem for problem in found if problem.code in OF_ONE_STATEMENT)
    named = next(fragment for fragment in fragments if fragment.label is not None)
    return tuple(dict.fromkeys(problems)) or (_not_a_plan(named, path),)


def _not_a_plan(fragment: ast.Block, path: str) -> Diagnostic:
    assert fragment.label is not None, "the blocks of a preset have labels"
    alias, kind = _alias(path), fragment.kind.text
    use = f"`use {alias}.{fragment.label.value}` in its `{kind}` block"
    return codes.PRESET.at(
        fragment.kind.span.to(fragment.label.span),
        f"a fragment, for the `{kind}` block of a plan",
        notes=("planc found no errors in the file itself",),
        help=f'write `import "{path}" as {alias}` in a plan and {use}, then check that plan',
    )


def _alias(path: str) -> str:
    """A name for an import of the file: its own, where that is a name and no block's."""
    stem = PurePath(path).stem
    return stem if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", stem) and stem not in BLOCKS else "preset"
