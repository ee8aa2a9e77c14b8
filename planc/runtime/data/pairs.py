"""Pairs of answers to one prompt: two documents in a row, the chosen answer's and the rejected one's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from planc.data_sources.kinds import PairsSource
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import Conversation, contents_of
from planc.runtime.data.chat_rows import Reading
from planc.runtime.data.errors import ChatRowError
from planc.runtime.data.records import split_records
from planc.runtime.data.sampling import Sampling
from planc.runtime.ranks.reads import Reads

_ANSWERS = ("chosen", "rejected")
_KEYS = ("prompt", *_ANSWERS, "tools", "chat_template_kwargs")
_HELP = "write two texts after a prompt, or two lists of messages"


def pairs(
    source: PairsSource,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[Conversation]:
    """Both documents of each row of a source. Raises DataError that names the bad line."""
    bad = bad or BadDocuments()
    records = split_records(source, base=base, reads=reads, bad=bad, sample=sample)
    for origin, record in records:
        for contents in bad.usable(pair_of, record, ignore=source.ignore, origin=origin):
            for content, answer in zip(contents, _ANSWERS, strict=True):
                # What is held out, is so with both answers.
                yield Conversation(f"{origin} ({answer})", content, b"".join(contents))


def pair_of(record: Mapping[str, Any], *, ignore: tuple[str, ...], origin: str) -> tuple[bytes, bytes]:
    """The conversations of a row with its chosen and its rejected answer, in JSON. Raises ChatRowError."""
    row = {key: value for key, value in record.items() if value is not None and key not in ignore}
    unread = [key for key in row if key not in _KEYS]
    if unread:
        names = ", ".join(f'"{key}"' for key in unread)
        raise ChatRowError(
            f"{origin} has keys that planc does not read in pairs: {names}",
            help=f"write `ignore = [{names}]` in `pairs(...)` to train without them",
        )
    for answer in _ANSWERS:
        if answer not in row:
            raise ChatRowError(f'{origin} has no "{answer}"', help="write `prompt`, `chosen` and `rejected`")
        _require_answer(row[answer], origin=f'"{answer}" of {origin}')
    if "prompt" not in row:
        row = _with_prompt(row, origin=origin)
    given: tuple[Any, ...] = row["prompt"], row["chosen"], row["rejected"]
    if len({*map(type, given)}) > 1:
        raise ChatRowError(
            f"{origin} mixes texts with lists of messages",
            help=f'{_HELP}; `ignore = ["prompt"]` reads a prompt from the lists',
        )
    others = {key: row[key] for key in _KEYS[3:] if key in row}
    reading = Reading(ignore=ignore)
    contents = []
    for answer in _ANSWERS:
        talk = {"prompt": row["prompt"], "completion": row[answer], **others}
        contents += contents_of(talk, reading=reading, origin=f"{origin} ({answer})")
    chosen, rejected = contents
    return chosen, rejected


def _require_answer(value: object, *, origin: str) -> None:
    """Raises ChatRowError for an answer without text: its probability would be that of its end alone."""
    if not isinstance(value, str | list):
        raise ChatRowError(f"{origin} is neither a text nor a list of messages", help=_HELP)
    texts = value if isinstance(value, list) else [value]
    if not any(text.strip() if isinstance(text, str) else text for text in map(_text_of, texts)):
        raise ChatRowError(f"{origin} is empty", help="write an answer, or remove the row")


def _text_of(message: object) -> object:
    """A message's text, or the tool calls in its place."""
    if not isinstance(message, dict):
        return message
    keys = ("content", "value", "tool_calls")
    return next((message[key] for key in keys if message.get(key)), None)


def _with_prompt(row: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """The row with the messages with which both answers begin as its prompt. Raises ChatRowError."""
    chosen, rejected = row["chosen"], row["rejected"]
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise ChatRowError(f'{origin} has no "prompt"', help=_HELP)
    both = zip(chosen[:-1], rejected[:-1], strict=False)
    number = sum(1 for _ in takewhile(lambda messages: messages[0] == messages[1], both))
    if number == 0:
        raise ChatRowError(
            f'{origin} has no "prompt", and its answers begin with different messages',
            help="write the messages before both answers as `prompt`",
        )
    return {**row, "prompt": chosen[:number], "chosen": chosen[number:], "rejected": rejected[number:]}
