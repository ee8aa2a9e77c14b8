"""The data of a draft: the call that reads what the file trains on."""

from __future__ import annotations

from collections.abc import Iterator

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.sizes import Missing
from planc.syntax.write import call, quoted

_DATA = "data/*.txt"
_OF_CHATS = (
    ("train_on", facts.TRAIN_ON),
    ("train_on_end_of_turn", facts.TRAINS_ENDS),
    ("template", facts.TEMPLATE),
)
_CALLS = {".json": "jsonl", ".jsonl": "jsonl", ".parquet": "hf_dataset", ".arrow": "hf_dataset"}


def source_of(draft: Draft) -> str | Missing:
    """The value of `data.source`; missing where the file trains on what a plan can't name."""
    path = draft.take(facts.DATA)
    if path is None and (line := draft.open_lines.get(facts.DATA.name)) is not None:
        return Missing("the file trains on data that planc can't read from here", "pass --data GLOB", line)
    if draft.kind.tells_chats_by_columns and not draft.has(facts.CHAT):
        text = f"documents: {draft.kind.title} tells conversations by their columns, a plan by `chat(...)`"
        draft.added("data.source", text)
    is_chat = bool(draft.take(facts.CHAT))
    if path is None:
        path = "data/*.jsonl" if is_chat else _DATA
        draft.added("data.source", f"the file names no data: `{path}`, or pass --data")
    suffix = path[path.rfind(".") :] if "." in path else ""
    name = "chat" if is_chat else _CALLS.get(suffix, "text")
    arguments = [quoted(path)]
    field = None if name == "text" else draft.take(facts.MESSAGES if is_chat else facts.TEXT_FIELD)
    if field is not None:
        arguments.append(f"field = {quoted(field)}")
    for key, fact in _OF_CHATS if is_chat else ():
        if (value := draft.take(fact)) is not None:
            arguments.append(f"{key} = {quoted(value) if fact is facts.TEMPLATE else value}")
    arguments += _split(draft, name)
    return call(name, arguments)


def _split(draft: Draft, call: str) -> Iterator[str]:
    """The split of the file's own data: files that an option names have others."""
    given = draft.peek(facts.DATA)
    if given is None or given.leaf is None or call not in ("chat", "hf_dataset"):
        return
    split = draft.take(facts.SPLIT)
    if split not in (None, "train"):
        yield f"split = {quoted(split)}"
