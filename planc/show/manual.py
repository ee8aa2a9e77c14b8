"""The language's reference as Markdown, from the same definitions as `planc explain`, and its grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from typing import Any

from planc.diagnostics import Code
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.keys import keys, type_of
from planc.plan.quantities import BYTES, SECONDS, STEPS
from planc.plan.style_actions import STYLE_ACTIONS
from planc.plan.types import Variant, calls_of
from planc.show.reference import effects_of, fact_rows, on_one_line, op_names
from planc.styles import STYLES, Style
from planc.syntax.budget import MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS, MAX_TOKENS
from planc.syntax.grammar import grammar_text
from planc.tables import render_table

_DEFINITION = re.compile(r"^[?!]?(\w+): (.*)$", re.MULTILINE)
_WORD = re.compile(r"/(\w+)\(\?!\S*/|(\"\w+\")")
"""A terminal that is one word, alone or with a negative lookahead."""
_STRINGS = re.compile(r'("[^"]*")')


def readable_rules() -> str:
    """Every rule of the grammar on its own line, with words in place of their terminals."""
    definitions = dict(_DEFINITION.findall(grammar_text()))
    words = {name: found for name, body in definitions.items() if (found := _word(body))}
    rules = [(name, body) for name, body in definitions.items() if not _is_terminal(name)]
    return render_table([(_plain(name, words), _plain(body, words)) for name, body in rules])


def readable_terminals() -> str:
    """Every terminal that is not one word, as a regular expression or its alternatives."""
    definitions = _DEFINITION.findall(grammar_text())
    rows = [(_plain(name, {}), body) for name, body in definitions if _is_terminal(name) and not _word(body)]
    return render_table(rows)


def _is_terminal(name: str) -> bool:
    return name.isupper()


def _word(body: str) -> str:
    match = _WORD.fullmatch(body)
    return (match[2] or f'"{match[1]}"') if match else ""


def _plain(body: str, words: dict[str, str]) -> str:
    return "".join(_plain_parts(body, words))


def _plain_parts(body: str, words: dict[str, str]) -> Iterator[str]:
    """Names without Lark's leading underscore; quoted text is unchanged."""
    for part in _STRINGS.split(body):
        if part.startswith('"'):
            yield part
        else:
            yield re.sub(r"\w+", lambda name: words.get(name[0], name[0].removeprefix("_")), part)


_PAGES = "planc/diagnostics/explain"


def manual(*, codes: Sequence[Code]) -> Iterator[str]:
    """The lines of every section; `codes` are all codes."""
    for section in (_syntax(), _blocks(), _facts(), _units(), _styles(), _ops(), _codes(codes)):
        yield from section
        yield ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; no lines without rows."""
    if not rows:
        return
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    """Markdown that can't end its cell, with markup only in backticks."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


def _syntax() -> Iterator[str]:
    yield from _SYNTAX.format(
        rules=readable_rules().rstrip(), terminals=readable_terminals().rstrip()
    ).splitlines()
    yield ""
    limits = (
        ("characters of a file", f"{MAX_CHARACTERS:_}"),
        ("tokens of a file", f"{MAX_TOKENS:_}"),
        ("open brackets", str(MAX_DEPTH)),
        ("digits of a number", str(MAX_DIGITS)),
    )
    yield from table(("limit", "at most"), limits)


_SYNTAX = """\
## Syntax

Statements end with their line, or with a comma. Inside ( ) and [ ], lines may end anywhere. `#` starts a
comment until the end of the line. The order of statements never matters. In the rules, `[x]` and `x?` may be
left out and `x*` may be repeated.

```text
{rules}
```

```text
{terminals}
```

| part of a pattern | matches |
| --- | --- |
| `name` | the child of that name |
| `*` | any one segment, or part of one |
| `**` | any number of segments, including none |
| `{{q,k,v}}` | each alternative; one that matches nothing is an error |
| `{{0..30}}` | each number, both ends included |

A parameter has the type `int`, `float`, `string` or `bool`; numbers can have a range: `int(1..8)`. A bare
word in a value is a parameter's name, or one of the setting's choices. `override` before a setting
or a rule states that it replaces another rule, or one of a base or a fragment. `--set` and the environment
set values by their dotted path: `mesh.tp=4`."""


def _blocks() -> Iterator[str]:
    yield "## Blocks"
    for kind, shape in BLOCKS.items():
        yield ""
        yield f"### {kind}"
        yield ""
        on = f" on {', '.join(shape.on)}" if shape.on else ""
        yield f"`{kind}{on} {{ ... }}`{', required' if shape.required else ''}"
        yield ""
        yield from _block(shape)


def _block(shape: Shape) -> Iterator[str]:
    yield on_one_line(shape.record.__doc__, of=shape.record)
    yield from _keys(shape.record)
    for spec_field in keys(shape.record):
        kind = type_of(spec_field)
        if cases := calls_of(kind):
            yield ""
            yield f"`{spec_field.name}` {'is one of' if isinstance(kind, Variant) else 'takes these calls'}:"
            yield from _calls(cases)
    if shape.directives:
        yield ""
        yield "A statement of one word, or a call:"
        yield from _calls(shape.directives)
    if shape.actions is STYLE_ACTIONS:
        yield ""
        yield '`"pattern" -> style`, or `["pattern", "pattern"] -> style`, with the [styles](#styles).'
    elif shape.actions:
        yield ""
        yield '`"pattern" -> action`, or `["pattern", "pattern"] -> action`, with the actions:'
        yield from _calls(shape.actions)
    for name, labels in shape.nested.items():
        for label, inner in labels.items():
            yield ""
            yield f'`{name} "{label}" {{ ... }}` inside the block:'
            yield ""
            yield from _block(inner)


def _keys(record: type[Any]) -> Iterator[str]:
    if keys(record):
        yield ""
    yield from table(("key", "value", "default", "meaning"), [_key(found) for found in keys(record)])


def _key(spec_field: Field[Any]) -> tuple[str, str, str, str]:
    default, kind = spec_field.metadata["default"], type_of(spec_field)
    written = "required" if default is MISSING else f"`{kind.render(default)}`"
    return f"`{spec_field.name}`", kind.describe(), written, str(spec_field.metadata["doc"])


def _calls(cases: Mapping[str, type[Any]]) -> Iterator[str]:
    """The purpose and arguments of each call."""
    for name, record in cases.items():
        doc = on_one_line(record.__doc__, of=record)
        yield ""
        yield f"- `{name}`{f': {_cell(doc)}' if doc else ''}"
        arguments = [_key(found) for found in keys(record)]
        if arguments:
            yield ""
            yield from (f"  {row}" for row in table(("argument", "value", "default", "meaning"), arguments))


def _facts() -> Iterator[str]:
    yield "### expect"
    yield ""
    yield "`expect { ... }`"
    yield ""
    yield "Assertions about facts that follow from the plan, one comparison per line, with `==`, `!=`, `<=`,"
    yield "`>=`, `<` or `>`. `planc check` proves them; `planc diff` reports the ones that a change breaks. A"
    yield "launch waives those on a fact by name: `--set expect.world_size=waived`, which the run records."
    yield ""
    rows = [(f"`{name}`", kind, text) for name, kind, text in fact_rows()]
    yield from table(("fact", "kind", "meaning"), rows)


def _units() -> Iterator[str]:
    yield "## Units"
    yield ""
    rows = (
        ("steps", ", ".join(f"`{unit}`" for unit in STEPS)),
        ("time", ", ".join(f"`{unit}`" for unit in SECONDS)),
        ("memory", ", ".join(f"`{unit}`" for unit in BYTES)),
    )
    yield from table(("of", "written"), rows)


def _styles() -> Iterator[str]:
    yield "## Styles"
    yield ""
    yield "The actions of `tensor_parallel`: the placements of a module's parameters, of its input, of its"
    yield "computation, and of its output. Parameters that are not listed are replicated on every rank."
    yield ""
    header = ("style", "for", "parameters", "input", "computes on", "output", "options")
    yield from table(header, [_style(style) for style in STYLES])
    yield ""
    yield from table(("style", "what it does"), [(f"`{style.name}`", style.doc) for style in STYLES])
    yield ""
    options = {_key(found): None for record in STYLE_ACTIONS.values() for found in keys(record)}
    yield from table(("option", "value", "default", "meaning"), list(options))


def _style(style: Style) -> tuple[str, ...]:
    placed = ", ".join(f"{name} `{placement}`" for name, placement in style.parameters.items())
    summed = "gradients reduced over tp" if style.reduces_parameter_gradients else ""
    return (
        f"`{style.name}`",
        ", ".join(style.kinds),
        "; ".join(part for part in (placed, summed) if part),
        f"`{style.input}`",
        f"`{style.computes_on}`",
        f"`{style.output}`",
        ", ".join(f"`{option}`" for option in style.options),
    )


def _ops() -> Iterator[str]:
    yield "## Ops"
    yield ""
    yield "`planc show --graph` prints them, a run executes them, and `planc explain OP` lists their fields."
    yield ""
    rows = [
        (f"`{name}`", op.stage.name.lower(), op.summary, "; ".join(effects_of(op)))
        for name, op in op_names().items()
    ]
    yield from table(("op", "stage", "what it does", "effects"), rows)


def _codes(codes: Sequence[Code]) -> Iterator[str]:
    yield "## Diagnostics"
    yield ""
    yield "`planc explain CODE` prints a page with an example that fails and one that passes."
    yield ""
    rows = [
        (f"[{code.code}]({_PAGES}/{code.code}.md)", str(code.severity), f"`{code.name}`", code.summary)
        for code in sorted(codes, key=lambda code: code.code)
    ]
    yield from table(("code", "severity", "name", "summary"), rows)
