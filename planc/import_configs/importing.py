"""A config's text as a plan's text, with what became of every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planc.import_configs.detect import BY_NAME, Undetected, detect
from planc.import_configs.draft import Imported, draft_of
from planc.import_configs.facts import Fact
from planc.import_configs.kind import Kind, Note, NoteKind
from planc.import_configs.leaves import MAX_BYTES, Leaf, SourceError, json_leaves, toml_leaves, yaml_leaves
from planc.import_configs.lowering import Target, plan_text
from planc.import_configs.sizes import Missing
from planc.record import record

READERS: Mapping[str, Callable[[str], tuple[Leaf, ...]]] = {
    ".json": json_leaves,
    ".toml": toml_leaves,
    ".yaml": yaml_leaves,
    ".yml": yaml_leaves,
}
"""Readers by the file's suffix."""


class UnusedAcceptance(ValueError):
    """An accepted name that covers nothing."""


@record
class Result:
    """A plan, or what is missing for one; always what became of the file's keys, in the file's order."""

    kind: Kind
    text: str | None
    """None if anything is missing or refused."""
    missing: tuple[Missing, ...]
    refused: tuple[Note, ...]
    """Keys without which something else would be trained, and that nobody accepted."""
    imported: tuple[Imported, ...]
    notes: tuple[Note, ...]


def import_config(
    content: bytes,
    *,
    name: str,
    from_kind: str | None,
    options: Mapping[Fact, Any],
    target: Target,
    accepted: Sequence[str] = (),
) -> Result | Undetected:
    """What a config is as a plan. SourceError for a file that can't be read.

    `accepted` are keys, or tables of them, that the plan may train without. UnusedAcceptance for one that
    stops nothing.
    """
    leaves = read_leaves(content, name=name)
    kind = detect(leaves) if from_kind is None else BY_NAME[from_kind]
    if isinstance(kind, Undetected):
        return kind
    draft = draft_of(kind, leaves, options)
    made = plan_text(draft, target, title=f"Imported from {_shown(name)}, a config of {kind.title}.")
    draft.finish()
    notes = sorted(draft.notes, key=lambda note: (note.line is None, note.line or 0))
    imported = sorted(draft.imported, key=lambda one: one.line)
    missing = () if isinstance(made, str) else made
    refused = _refused(notes, accepted)
    text = made if isinstance(made, str) and not refused else None
    return Result(kind, text, missing, refused, tuple(imported), tuple(notes))


def _refused(notes: Sequence[Note], accepted: Sequence[str]) -> tuple[Note, ...]:
    """The changes that no accepted name covers."""
    changes = [note for note in notes if note.kind is NoteKind.CHANGED]
    for name in accepted:
        if not any(_covers(name, note.key) for note in changes):
            raise UnusedAcceptance(f"--accept {name}: no key of this name stops the import")
    return tuple(note for note in changes if not any(_covers(name, note.key) for name in accepted))


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


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
