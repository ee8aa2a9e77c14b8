"""Reference pages from the definitions of blocks, ops and styles, whole or of one word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from typing import Any

from planc.graph.op import Op
from planc.graph.ops import OPS
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.facts import COUNTS, DERIVED, ESTIMATED, FLAGS
from planc.plan.keys import keys, type_of
from planc.plan.types import Variant, calls_of
from planc.styles import BY_NAME, Style
from planc.tables import render_table


def parts(word: str, *, block: str = "") -> str | None:
    """Return the lines of blocks about a word, with where the rest is; None for a word of no block.

    A word that is a key somewhere is explained as that key only, and so on for actions and nested blocks,
    then for values, then for arguments. `block` limits the search to one kind of block.
    """
    for part in (_key, _inside, _value, _argument):
        found = {kind: [*part(shape, word)] for kind, shape in BLOCKS.items() if block in ("", kind)}
        if part is _key and block in ("", "expect"):
            found["expect"] = [_table(row) for row in fact_rows() if row[0] == word]
        texts = [_text(kind, lines) for kind, lines in found.items() if lines]
        if texts:
            return "\n".join(texts)
    return None


def _text(kind: str, lines: list[str]) -> str:
    on = f" on {', '.join(BLOCKS[kind].on)}" if kind in BLOCKS and BLOCKS[kind].on else ""
    body = "\n".join(lines)
    return f"{kind}{on} {{ ... }}\n\n{body}\n\n`planc explain {kind}` shows the whole block\n"


def _key(shape: Shape, word: str) -> Iterator[str]:
    for key in keys(shape.record):
        if key.name == word:
            yield _row(key)
            for name, case in calls_of(type_of(key)).items():
                yield from call_lines(name, case, doc=case.__doc__)


def _inside(shape: Shape, word: str) -> Iterator[str]:
    """A nested block by its name or label, a directive, or an action."""
    for name, labels in shape.nested.items():
        for label, inner in labels.items():
            if word in (name, label):
                yield from call_lines(f'{name} "{label}" {{ ... }}', inner.record, doc=inner.record.__doc__)
    for name, record in shape.directives.items():
        if name == word:
            yield from call_lines(name, record, doc=record.__doc__)
    for name, record in (shape.actions or {}).items():
        if name == word:
            doc = BY_NAME[name].doc if name in BY_NAME else record.__doc__
            yield from call_lines(f'"pattern" -> {name}', record, doc=doc)


def _value(shape: Shape, word: str) -> Iterator[str]:
    """The keys that take a value of this name."""
    for head, one in _fields(shape):
        if f"`{word}`" in type_of(one).describe(mark="`") and one.name != word:
            yield from ([f"  {head}"] if head else [])
            yield _row(one, indent="      " if head else "  ")
            calls = calls_of(type_of(one))
            if word in calls:
                yield from call_lines(word, calls[word], doc=calls[word].__doc__)


def _argument(shape: Shape, word: str) -> Iterator[str]:
    """The arguments of this name, and keys of nested blocks, each under what it belongs to."""
    for head, one in _fields(shape):
        if head and one.name == word:
            yield f"  {head}"
            yield _row(one, indent="      ")


def _fields(shape: Shape) -> Iterator[tuple[str, Field[Any]]]:
    """Every key and argument, with what it belongs to; empty for keys of the block itself."""
    for key in keys(shape.record):
        yield "", key
        for name, case in calls_of(type_of(key)).items():
            yield from ((f"{key.name} = {name}(...)", inner) for inner in keys(case))
    for name, labels in shape.nested.items():
        for label, nested in labels.items():
            yield from ((f'{name} "{label}" {{ ... }}', inner) for inner in keys(nested.record))
    for name, record in (shape.actions or {}).items():
        yield from ((f'"pattern" -> {name}(...)', inner) for inner in keys(record))


def _row(one: Field[Any], *, indent: str = "  ") -> str:
    return _table(key_row(one), indent=indent)


def _table(row: tuple[str, str, str], *, indent: str = "  ") -> str:
    return render_table([row], indent=indent).rstrip()


def op_names() -> dict[str, type[Op]]:
    """Every op by its name in a graph."""
    return {str(_field(op, "op").default): op for op in OPS}


def topics() -> dict[str, tuple[str, ...]]:
    """The topics of `page`, by kind."""
    return {"blocks": (*BLOCKS, "expect"), "ops": tuple(op_names()), "styles": tuple(BY_NAME)}


def blocks_that_mention(word: str) -> tuple[str, ...]:
    """The blocks whose pages contain a word, as the name of a value or in its description."""
    whole = re.compile(rf"\b{re.escape(word)}\b")
    return tuple(kind for kind in BLOCKS if whole.search(page(kind) or ""))


def page(topic: str) -> str | None:
    """The page of a block, an op or a style; None for any other word."""
    if topic == "expect":
        return f"{_EXPECT}\n{render_table(fact_rows(), indent='  ')}"
    if topic in BLOCKS:
        return "\n".join(_block(topic, BLOCKS[topic])) + "\n"
    if topic in BY_NAME:
        return "\n".join(_style(BY_NAME[topic])) + "\n"
    op = op_names().get(topic)
    return "\n".join(_op(op)) + "\n" if op else None


_EXPECT = """\
expect { ... }

Assertions about facts that follow from the plan. `planc check` proves them, and `planc diff` reports the
ones that a change breaks. One comparison per line: ==, !=, <=, >=, < or >, and a number with its unit.
A launch waives those on a fact by name: `--set expect.world_size=waived`, which the run records.

  world_size == 64
  gradient_accumulation == 16
  peak_memory < 60 GiB
"""


def fact_rows() -> tuple[tuple[str, str, str], ...]:
    """Every fact for `expect`, its kind, and its definition."""
    exact = ((name, "a count", text) for name, text in DERIVED.items())
    return (*exact, *((name, f"{_fact_kind(name)}; estimated", text) for name, text in ESTIMATED.items()))


def _fact_kind(name: str) -> str:
    if name in FLAGS:
        return "true or false"
    return "a count" if name in COUNTS else "bytes"


def _block(kind: str, shape: Shape) -> Iterator[str]:
    on = f" on {', '.join(shape.on)}" if shape.on else ""
    yield f"{kind}{on} {{ ... }}"
    yield ""
    yield cleandoc(shape.record.__doc__ or "")
    if keys(shape.record):
        yield ""
        yield render_table([key_row(spec_field) for spec_field in keys(shape.record)], indent="  ").rstrip()
    yield from _variants(shape.record)
    for name, labels in shape.nested.items():
        for label, inner in labels.items():
            yield ""
            yield from call_lines(f'{name} "{label}" {{ ... }}', inner.record, doc=inner.record.__doc__)
    for name, record in shape.directives.items():
        yield ""
        yield from call_lines(name, record, doc=record.__doc__)
    if shape.actions:
        yield ""
        yield '"pattern" -> action'
        for name, record in shape.actions.items():
            yield from call_lines(name, record, doc=BY_NAME[name].doc if name in BY_NAME else record.__doc__)


def key_row(spec_field: Field[Any]) -> tuple[str, str, str]:
    """A key's name, how it is written with its default, and what it means."""
    default = spec_field.metadata["default"]
    kind = type_of(spec_field)
    ending = "required" if default is MISSING else f"default {kind.render(default)}"
    return spec_field.name, f"{kind.describe()}; {ending}", str(spec_field.metadata["doc"])


def _variants(record: type[Any]) -> Iterator[str]:
    for spec_field in keys(record):
        kind = type_of(spec_field)
        if isinstance(kind, Variant):
            yield ""
            yield f"{spec_field.name} ="
            for name, case in kind.cases.items():
                yield from call_lines(name, case, doc=case.__doc__)


def call_lines(name: str, record: type[Any], *, doc: str | None) -> Iterator[str]:
    """The purpose and the arguments of a call."""
    yield f"  {name}  {on_one_line(doc, of=record)}".rstrip()
    if keys(record):
        yield render_table([key_row(spec_field) for spec_field in keys(record)], indent="      ").rstrip()


def on_one_line(doc: str | None, *, of: type[Any]) -> str:
    """A docstring without its line breaks; empty for a generated one."""
    is_made = doc is None or doc == of.__name__ or doc.startswith(f"{of.__name__}(")
    return "" if is_made or doc is None else " ".join(cleandoc(doc).split())


def _op(op: type[Op]) -> Iterator[str]:
    yield f"{_field(op, 'op').default}: an op of stage {op.stage.name.lower()}"
    yield ""
    yield op.summary
    given = [op_field for op_field in fields(op) if op_field.name not in ("op", "span")]
    if given:
        yield ""
        yield render_table([(op_field.name, str(op_field.type)) for op_field in given], indent="  ").rstrip()
    effects = cleandoc((op.effects.__doc__ or "") if "effects" in vars(op) else "")
    example = effects_of(op)
    yield from ("", *example) if example else ("", effects)


def effects_of(op: type[Op]) -> tuple[str, ...]:
    """The resources that an op reads and writes, independent of its fields; none for an op with a body."""
    names = [op_field.name for op_field in fields(op) if op_field.name not in ("op", "span")]
    if "body" in names:
        return ()
    effects = op.touches
    lines = [f"reads {', '.join(effects.reads)}"] if effects.reads else []
    lines += [f"finds {', '.join(effects.finds)}"] if effects.finds else []
    lines += [f"writes {', '.join(effects.writes)}"] if effects.writes else []
    over = [name for name in names if name in _DIM_FIELDS]
    return (*lines, *([f"communicates over the mesh dims in {', '.join(over)}"] if over else []))


_DIM_FIELDS = ("over", "count_over", "vocab_over", "shard_over", "replicate_over", "sizes")


def _style(style: Style) -> Iterator[str]:
    yield f"{style.name}: a tensor-parallel style"
    yield ""
    yield style.doc
    yield ""
    rows = [
        ("for", ", ".join(style.kinds)),
        *([] if style.together else [("such as", style.example)]),
        (
            "parameters",
            ", ".join(f"{n} {p}" for n, p in style.parameters.items()) or "replicated on every rank",
        ),
        ("input", f"{style.input}, computes on {style.computes_on}"),
        ("output", str(style.output)),
    ]
    if style.reduces_parameter_gradients:
        rows.append(("gradients", "reduced over the mesh dim"))
    yield render_table(rows, indent="  ").rstrip()
    actions = BLOCKS["tensor_parallel"].actions or {}
    yield ""
    yield from call_lines(
        style.name, actions[style.name], doc="takes" if style.options else "takes no options"
    )
    yield from ("", style.together.rstrip()) if style.together else ()


def _field(op: type[Op], name: str) -> Field[Any]:
    return next(op_field for op_field in fields(op) if op_field.name == name)
