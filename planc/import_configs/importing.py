"""A config's text as a plan's text, with what became of every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planc.import_configs.detect import Undetected, detect
from planc.import_configs.draft import Imported, draft_of
from planc.import_configs.facts import Fact
from planc.import_configs.json_leaves import json_leaves
from planc.import_configs.kind import Kind, Note
from planc.import_configs.leaf import MAX_BYTES, Leaf, SourceError
from planc.import_configs.lowering import Target, plan_text
from planc.import_configs.registry import BY_NAME
from planc.import_configs.sizes import Missing
from planc.import_configs.toml_leaves import toml_leaves
from planc.import_configs.yaml_leaves import yaml_leaves
from planc.record import record

READERS: Mapping[str, Callable[[str], tuple[Leaf, ...]]] = {
    ".json": json_leaves,
    ".toml": toml_leaves,
    ".yaml": yaml_leaves,
    ".yml": yaml_leaves,
}
"""By the file's suffix."""


@record
class Result:
    """A plan, or what is missing for one; always what became of the file's keys, in the file's order."""

    kind: Kind
    text: str | None
    missing: tuple[Missing, ...]
    imported: tuple[Imported, ...]
    notes: tuple[Note, ...]


def import_config(
    content: bytes, *, name: str, from_kind: str | None, options: Mapping[Fact, Any], target: Target
) -> Result | Undetected:
    """What a config is as a plan. SourceError for a file that can't be read."""
    leaves = read_leaves(content, name=name)
    kind = detect(leaves) if from_kind is None else BY_NAME[from_kind]
    if isinstance(kind, Undetected):
        return kind
    draft = draft_of(kind, leaves, options)
    made = plan_text(draft, target, title=f"Imported from {_shown(name)}, a config of {kind.title}.")
    draft.finish()
    notes = sorted(draft.notes, key=lambda note: (note.line is None, note.line or 0))
    imported = sorted(draft.imported, key=lambda one: one.line)
    text = made if isinstance(made, str) else None
    missing = () if isinstance(made, str) else made
    return Result(kind, text, missing, tuple(imported), tuple(notes))


def read_leaves(content: bytes, *, name: str) -> tuple[Leaf, ...]:
    """The leaves of a file, by its suffix. SourceError for a file that is not a config."""
    if len(content) > MAX_BYTES:
        raise SourceError(f"the file is larger than {MAX_BYTES:_} bytes, which no config is")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError("the file is not UTF-8 text") from None
    if not text.strip():
        raise SourceError("the file is empty")
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if suffix == ".py":
        raise SourceError("a Python config is not run: import its printed JSON, from `--debug.print_config`")
    leaves = READERS.get(suffix, _by_content(text))(text)
    if not leaves or leaves == (Leaf((), (), 1),):
        raise SourceError("the file has no keys")
    return leaves


def _by_content(text: str) -> Callable[[str], tuple[Leaf, ...]]:
    """The reader of a file whose name tells nothing."""
    if text.lstrip().startswith("{"):
        return json_leaves
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return toml_leaves if first.startswith("[") else yaml_leaves


def _shown(name: str) -> str:
    """A file's name for a comment: on one line."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(character if character.isprintable() else "?" for character in last)[:100]
