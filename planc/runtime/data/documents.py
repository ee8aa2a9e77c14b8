"""The documents of any source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument, ChatSource, ChatTemplate, conversations
from planc.runtime.data.errors import DataError
from planc.runtime.data.hf_datasets import HfDatasetSource, HfHubSource, dataset_documents
from planc.runtime.data.sources import documents
from planc.runtime.data.spec import Source
from planc.runtime.data.tokenizers import TokenizerFiles
from planc.runtime.ranks.reads import Reads


def source_documents(
    source: Source, *, base: Path, reads: Reads | None = None, bad: BadDocuments | None = None
) -> Iterator[AnyDocument]:
    """The documents of any source, always in the same order. Raises DataError."""
    match source:
        case ChatSource():
            return conversations(source, base=base, reads=reads, bad=bad)
        case HfDatasetSource() | HfHubSource():
            return dataset_documents(source, base=base, reads=reads, bad=bad)
        case _:
            return documents(source, base=base, reads=reads, bad=bad)


def template_of(tokenizer: TokenizerFiles) -> ChatTemplate:
    """The template that conversations need. Raises DataError if there is none."""
    if tokenizer.chat_template is None:
        raise DataError(
            f"the tokenizer {tokenizer.name} has no chat template",
            help="use one with a chat_template.jinja, or a chat_template in tokenizer_config.json",
        )
    return tokenizer.chat_template
