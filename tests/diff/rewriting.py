"""Ways to write a plan that leave its meaning alone: each gives the plan's files, its own first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from planc.fmt.format import format_source
from planc.source import SourceFile
from planc.syntax import ast
from tests.syntax.reading import covered, parsed

Files = dict[str, str]
Rewrite = Callable[[str], Files]

PLAN, BASE, PRESET = "x.plan", "x-base.plan", "x-preset.plan"


def reformatted(text: str) -> Files:
    """One statement a line whatever its length, without indents, blank lines or comments; then formatted."""
    bare = "\n".join(written(text, statement) for statement in parsed(text).statements)
    found, _ = format_source(SourceFile(PLAN, bare))
    assert found is not None
    return {PLAN: found}


def unformatted(text: str) -> Files:
    """Every block on one line."""
    statements = (written(text, statement, separator=", ") for statement in parsed(text).statements)
    return {PLAN: "\n".join(statements) + "\n"}


def reordered(text: str) -> Files:
    """Blocks, and the statements of each, the other way round."""
    return {PLAN: "\n".join(written(text, one, is_reversed=True) for one in parsed(text).statements[::-1])}


def commented(text: str) -> Files:
    """A comment above every line, and one after it."""
    lines = (f"  # above\n{line}  # beside" if "#" not in line else line for line in text.splitlines())
    return {PLAN: "\n".join(lines) + "\n# the end"}


def extending(text: str) -> Files:
    """Every other statement of every block goes to a base, with all parameters."""
    plan, base = [f'extends "{BASE}"'], []
    of_imports: list[ast.Setting] = []
    for statement in parsed(text).statements:
        match statement:
            case ast.Block(body=body):
                plan.append(block(text, statement, body[::2]))
                base.append(block(text, statement, body[1::2]))
            case ast.Import():
                pass
            case ast.Setting():
                of_imports.append(statement)
            case _:
                base.append(written(text, statement))
    for setting in of_imports:
        # A parameter of an import is set where a fragment of it is used.
        alias = setting.name.text.partition(".")[0]
        part = plan if _uses(alias, "\n".join(plan)) else base
        part.append(written(text, setting))
    return {
        name: "\n".join([*_imports_of(text, "\n".join(lines)), *lines]) + "\n"
        for name, lines in ((PLAN, plan), (BASE, base))
    }


def importing(text: str) -> Files:
    """Every statement that stands for itself goes to a fragment of an imported file, one a block."""
    statements = parsed(text).statements
    params = {statement.name.text for statement in statements if isinstance(statement, ast.Param)}
    plan: list[str] = []
    preset: list[str] = []
    for statement in statements:
        if not isinstance(statement, ast.Block) or statement.kind.text == "expect":
            plan.append(written(text, statement))
            continue
        moved = [one for one in statement.body if _stands_alone(text, one, params)]
        kept = [written(text, one) for one in statement.body if one not in moved]
        if moved:
            kind = statement.kind.text
            preset.append(f'{kind} "{kind}_1" {{\n{_lines(text, moved)}\n}}')
            kept.append(f"use preset.{kind}_1")
        plan.append(f"{head(statement)} {{\n" + "\n".join(kept) + "\n}")
    if preset:
        plan.insert(0, f'import "{PRESET}" as preset')
    return {PLAN: "\n".join(plan) + "\n", PRESET: "\n".join(preset) + "\n"}


REWRITES: tuple[Rewrite, ...] = (reformatted, unformatted, reordered, commented, extending, importing)


def written(text: str, node: ast.Statement, *, separator: str = "\n", is_reversed: bool = False) -> str:
    """A statement as the text has it, a block's statements one after the other."""
    if not isinstance(node, ast.Block):
        return _on_one_line(covered(text, node.span))
    inner = [written(text, one, separator=separator, is_reversed=is_reversed) for one in node.body]
    between = "\n" if separator == "\n" else " "
    return f"{head(node)} {{{between}{separator.join(inner[::-1] if is_reversed else inner)}{between}}}"


def block(text: str, node: ast.Block, body: Sequence[ast.Statement]) -> str:
    """The block with some of its statements; nothing without any."""
    return f"{head(node)} {{\n{_lines(text, body)}\n}}" if body else ""


def head(node: ast.Block) -> str:
    label = f' "{node.label.value}"' if node.label else ""
    on = f" on {', '.join(name.text for name in node.on)}" if node.on else ""
    return f"{node.kind.text}{label}{on}"


def _lines(text: str, body: Sequence[ast.Statement]) -> str:
    return "\n".join(written(text, one) for one in body)


def _on_one_line(text: str) -> str:
    return " ".join(re.sub(r"\s#.*", "", line) for line in text.splitlines())


def _imports_of(text: str, of: str) -> Iterator[str]:
    """The imports that a part of the plan uses."""
    for statement in parsed(text).statements:
        if isinstance(statement, ast.Import) and _uses(statement.alias.text, of):
            yield written(text, statement)


def _uses(alias: str, text: str) -> bool:
    return re.search(rf"\buse {alias}\.", text) is not None


def _stands_alone(text: str, node: ast.Statement, params: set[str]) -> bool:
    """Whether a statement names nothing of the plan around it."""
    if isinstance(node, ast.Use) or getattr(node, "override", False):
        return False
    return not params & set(re.findall(r"\w+", re.sub(r'"[^"]*"', "", written(text, node))))
