"""Conversations: messages, which a chat template renders as text, and prompts with their completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from planc.data_sources.kinds import ChatSource, ImageChatSource, PairsSource
from planc.hub.tokenizer_files import DEFAULT_TEMPLATE, TOOLS_TEMPLATE
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat_rows import Reading, talks
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.data.image_files import image_in, named, require_image
from planc.runtime.data.records import Rows, split_records
from planc.runtime.data.sampling import Sampling
from planc.runtime.data.sources import Document, TextPair, Words
from planc.runtime.ranks.reads import Reads

if TYPE_CHECKING:
    # The process that tokenizes reads this module, and should have neither its memory nor its threads.
    import numpy as np
    import numpy.typing as npt

START, STOP, CHANGED = "\ufdd0", "\ufdd1", "\ufdd2"
"""A template's marks around an answer, and one that changes a text: noncharacters, which Unicode keeps out of
all text."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template's text and its file. `special_tokens` are the variables it may use, such as `eos_token`.

    They are the loaded tokenizer's, so they are empty until it is loaded. `date` is today, in ISO 8601.
    `trains_ends` is whether the end of a turn is trained on; None for what the template marks, or writes.
    """

    origin: str
    text: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    date: str | None = None
    trains_ends: bool | None = None


_MAX_DECODED = 256
"""Images of a sample that are decoded: a second or two."""

Templates = Mapping[str, ChatTemplate]
"""Templates by name: `tool_use` is for conversations with tools if it exists, and `default` for all
others."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that no template has rendered yet, and where it came from."""

    origin: str
    content: bytes
    """The conversation that `chat_rows.talks` makes of the row, as JSON."""
    whole: bytes = b""
    """The content with all turns, if this has some of them: what is held out, is so with all of its turns."""
    image: bytes = b""
    """The content of the file of its image, if it has one."""
    image_leads: bool = False
    """Whether its image precedes its text, of which no template writes any."""

    @property
    def num_bytes(self) -> int:
        return len(self.content)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A document that is tokenized already, [tokens]. `is_target` marks those trained on; None for all."""

    origin: str
    ids: npt.NDArray[np.int64]
    is_target: npt.NDArray[np.bool_] | None = None

    @property
    def content(self) -> bytes:
        targets = b"" if self.is_target is None else self.is_target.tobytes()
        return self.ids.astype("<i8").tobytes() + targets

    @property
    def num_bytes(self) -> int:
        """Four bytes for each id: there is no text."""
        return 4 * len(self.ids)


AnyDocument = Document | TextPair | Words | Conversation | TokenIds


def conversations(
    source: ChatSource,
    *,
    base: Path,
    rows: Rows = iter,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[Conversation]:
    """The conversations of a source. Raises DataError that names the bad line."""
    bad = bad or BadDocuments()
    trains_end = source.trains_ends is not False
    key = source.image if isinstance(source, ImageChatSource) else None
    reading = Reading(source.field, source.train_on, source.thinking, source.ignore, trains_end, key)
    records = split_records(source, base=base, reads=reads, bad=bad, sample=sample)
    read = partial(_read, reading=reading, base=base, sampled=None if sample is None else count())
    for origin, record in rows(records):
        for contents, image in bad.usable(read, record, origin=origin):
            for talk in conversations_of(contents, origin=origin):
                # Rows with the same words and other images are held out each by itself.
                if key is None:
                    yield talk
                    continue
                whole, leads = talk.whole + named(record[key]), isinstance(record.get("prompt"), str)
                yield replace(talk, whole=whole, image=image, image_leads=leads)


def _read(
    record: Mapping[str, object],
    *,
    reading: Reading,
    base: Path,
    sampled: Iterator[int] | None,
    origin: str,
) -> tuple[list[bytes], bytes]:
    """The conversations of a record, and its image, if it has one. Raises DataError.

    Of a sample, whose images `sampled` counts, the first ones are decoded.
    """
    key = reading.image
    if key is not None:
        require_image(record, key=key, origin=origin)
    contents = contents_of(record, reading=reading, origin=origin)
    if key is None:
        return contents, b""
    is_decoded = sampled is None or next(sampled) < _MAX_DECODED
    is_sample = sampled is not None
    return contents, image_in(
        record, key=key, base=base, origin=origin, is_sample=is_sample, is_decoded=is_decoded
    )


def conversations_of(contents: Sequence[bytes], *, origin: str) -> Iterator[Conversation]:
    """A row's conversations, of which the last has all turns."""
    for content in contents:
        yield Conversation(origin, content, contents[-1])


def contents_of(record: Mapping[str, object], *, reading: Reading, origin: str) -> list[bytes]:
    """The conversations of a record in JSON. Raises DataError."""
    texts = [json.dumps(talk, ensure_ascii=False) for talk in talks(record, reading=reading, origin=origin)]
    if any(mark in text for mark in (START, STOP, CHANGED) for text in texts):
        raise DataError(
            f"{origin} contains U+FDD0, U+FDD1 or U+FDD2, which no text may contain", help="remove them"
        )
    # A template may leave out what holds a lone surrogate: the text that it makes is checked.
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def source_templates(
    source: ChatSource | PairsSource,
    own: Templates,
    *,
    tokenizer: str,
    base: Path,
    reads: Reads | None = None,
) -> Templates:
    """The templates that a source uses, of which `own` are its tokenizer's; none if rows need none.

    Raises DataError for one that does not exist.
    """
    if source.template == "none":
        return {}
    if source.template == "auto":
        templates = {name: own[name] for name in (DEFAULT_TEMPLATE, TOOLS_TEMPLATE) if name in own}
        if own and not templates:
            raise DataError(
                f"the tokenizer {tokenizer} has no chat template `{DEFAULT_TEMPLATE}`",
                help=f'name one of its own in `chat(..., template = "NAME")`: {", ".join(own)}',
            )
        if not templates:
            raise DataError(
                f"the tokenizer {tokenizer} has no chat template",
                help="use one with a chat_template.jinja, or a chat_template in tokenizer_config.json; or "
                'name a file in `chat(..., template = "chat_template.jinja")`; `none` reads texts alone',
            )
    else:
        templates = {DEFAULT_TEMPLATE: _named_template(source.template, own, base=base, reads=reads)}
    trains_ends = source.trains_ends if isinstance(source, ChatSource) else None
    return {name: replace(one, date=source.date, trains_ends=trains_ends) for name, one in templates.items()}


def _named_template(name: str, own: Templates, *, base: Path, reads: Reads | None) -> ChatTemplate:
    """The tokenizer's template of this name, or else that of a file. Raises DataError."""
    if name in own:
        if (base / name).is_file():
            raise DataError(
                f"`{name}` is a template of the tokenizer, and a file", help=f"write `./{name}` for the file"
            )
        return own[name]
    if own and not (base / name).exists():
        raise DataError(
            f"the tokenizer has no chat template `{name}`, and there is no such file",
            help=f"its templates are {', '.join(own)}",
        )
    content = read_regular_file(base / name, name=name, reads=reads)
    try:
        return ChatTemplate(name, content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {error.reason}", help="restore the file") from error
