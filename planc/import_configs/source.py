"""The data of a draft: the call that reads what the file trains on."""

from __future__ import annotations

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.sizes import Missing

_DATA = "data/*.txt"
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
    call = "chat" if is_chat else _CALLS.get(suffix, "text")
    arguments = [quoted(path)]
    field = None if call == "text" else draft.take(facts.MESSAGES if is_chat else facts.TEXT_FIELD)
    if field is not None:
        arguments.append(f"field = {quoted(field)}")
    if is_chat and (messages := draft.take(facts.TRAIN_ON)) is not None:
        arguments.append(f"train_on = {messages}")
    return f"{call}({', '.join(arguments)})"


def quoted(text: str) -> str:
    """A text as a plan has it, which knows no escapes: the readers refuse quotes."""
    return f'"{text}"'
