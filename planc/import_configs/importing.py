"""A config's text as a plan's text, with what became of every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from planc.import_configs import facts
from planc.import_configs.commands import command_leaves
from planc.import_configs.detect import BY_NAME, Undetected, detect
from planc.import_configs.draft import Draft, Imported, Part, draft_of
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
    ".sh": command_leaves,
    ".bash": command_leaves,
    ".slurm": command_leaves,
}
"""Readers by the file's suffix."""


class UnusedAcceptance(ValueError):
    """An accepted name that covers nothing."""


@record
class Result:
    """A plan, or what is missing for one; always what became of the file's keys, in the file's order."""

    kind: Kind
    job: str
    """The kind of training."""
    text: str | None
    """None if anything is missing or refused."""
    missing: tuple[Missing, ...]
    refused: tuple[Note, ...]
    """Keys without which something else would be trained, and that nobody accepted."""
    imported: tuple[Imported, ...]
    notes: tuple[Note, ...]


def import_config(
    files: Mapping[str, bytes],
    *,
    from_kind: str | None,
    options: Mapping[Fact, Any],
    target: Target,
    accepted: Sequence[str] = (),
) -> Result | Undetected:
    """Translate the files of one training to a plan. SourceError for other files.

    `files` are contents by name, and `from_kind` is the kind of the first. `accepted` are keys, or tables of
    them, that the plan may train without. UnusedAcceptance for one that stops nothing.
    """
    read: list[Part] = []
    for name, content in files.items():
        try:
            leaves = tuple(replace(leaf, file=name) for leaf in read_leaves(content, name=name))
        except SourceError as error:
            raise SourceError(error.message, error.line, file=name) from None
        kind = detect(leaves) if from_kind is None or read else BY_NAME[from_kind]
        if isinstance(kind, Undetected):
            return replace(kind, file=name)
        read.append(Part(name, kind, leaves))
    parts = _ordered(read)
    draft = draft_of(parts, options)
    for part in parts:
        draft.notes += part.kind.checks({leaf.key: leaf for leaf in part.leaves}, target.inventory)
    shown = " and ".join(f"{_shown(part.file)}, a config of {part.kind.title}" for part in parts)
    made = plan_text(draft, target, title=f"Imported from {shown}.")
    draft.finish()
    order = {part.file: index for index, part in enumerate(parts)}
    notes = sorted(draft.notes, key=lambda note: (note.line is None, order.get(note.file, 0), note.line or 0))
    imported = sorted(draft.imported, key=lambda done: (order.get(done.file, 0), done.line))
    missing = () if isinstance(made, str) else made
    refused = _refused(notes, accepted)
    text = made if isinstance(made, str) and not refused else None
    return Result(draft.kind, _job_of(draft), text, missing, refused, tuple(imported), tuple(notes))


def _ordered(parts: Sequence[Part]) -> list[Part]:
    """The file that names the training first. SourceError for two of them, or for two of one kind."""
    ordered = sorted(parts, key=lambda part: part.kind.is_part)
    for first, second in pairwise(ordered):
        if first.kind is second.kind or not second.kind.is_part:
            titles = (
                f"{first.kind.title} and {second.kind.title}"
                if first.kind is not second.kind
                else first.kind.title
            )
            raise SourceError(f"{first.file} and {second.file} are configs of two trainings, by {titles}")
    return ordered


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
    if text.startswith("#!"):
        return command_leaves
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return toml_leaves if first.startswith("[") else yaml_leaves


def _shown(name: str) -> str:
    """A file's name for a comment: on one line."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(character if character.isprintable() else "?" for character in last)[:100]


def _job_of(draft: Draft) -> str:
    """The training in one phrase: what is changed, from which weights, on what."""
    is_chat, is_pretrained = _is(draft, facts.CHAT), _is(draft, facts.PRETRAINED)
    prefers = _is(draft, facts.PAIRS)
    data = "pairs of answers" if prefers else "conversations" if is_chat else "documents"
    if _is(draft, facts.ADAPTER):
        return f"trains adapters on {data}"
    if prefers:
        return f"fine-tunes on {data}"
    if is_chat:
        what = "fine-tunes" if is_pretrained else "trains random weights"
    else:
        what = "trains published weights further" if is_pretrained else "pretrains random weights"
    is_partial = _is(draft, facts.LAST_LAYERS) or _is(draft, facts.FROZEN)
    return f"{what}, some of them, on {data}" if is_partial else f"{what} on {data}"


def _is(draft: Draft, fact: Fact) -> bool:
    given = draft.peek(fact)
    return given is not None and bool(given.value)
