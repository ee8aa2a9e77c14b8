"""The inputs of a plan's prepared data, before any of it is tokenized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planc.data_sources import kinds
from planc.hub.tokenizer_files import DEFAULT_TEMPLATE, TOOLS_TEMPLATE
from planc.runtime.data.chat import Templates, source_templates
from planc.runtime.data.extended.probe import probed
from planc.runtime.data.extended.registered import loaded
from planc.runtime.data.fingerprint import description
from planc.runtime.data.prepared.index import Layout, Recipe
from planc.runtime.data.prepared.source_files import FileState, digest_of_states, source_files
from planc.runtime.data.spec import DataSpec, Packing
from planc.runtime.data.tokenizers import TokenizerFiles, read_tokenizer
from planc.runtime.ranks.reads import Reads

MAX_BYTES_IN_MEMORY = 1 << 22
"""Text that takes a second or two to tokenize, at every start."""
MAX_BYTES_OF_BYTES = 1 << 25
"""The limit of MAX_BYTES_IN_MEMORY, for the bytes tokenizer."""

_LAYOUTS: Mapping[Packing, Layout] = {
    "attend": "joined",
    "isolate": "joined",
    "whole": "whole",
    "none": "cut",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plan's data: its settings, its tokenizer's files, and the state of its source's files."""

    spec: DataSpec
    base: Path
    tokenizer: TokenizerFiles
    files: tuple[FileState, ...]
    recipe: Recipe

    @property
    def stays_in_memory(self) -> bool:
        """Whether every rank tokenizes it at every start, because that takes no time to speak of.

        A dataset of the Hub or an extension does not, because its size is unknown until it is read, nor do
        rows with images, which are in other files.
        """
        if isinstance(self.spec.source, kinds.ExtensionSource) or self.spec.images is not None:
            return False
        limit = MAX_BYTES_OF_BYTES if self.tokenizer.is_bytes else MAX_BYTES_IN_MEMORY
        return self.spec.source.hub is None and self.size_bytes <= limit

    @property
    def size_bytes(self) -> int:
        """All files of the source; 0 for one that is not in files, or whose files are code."""
        if isinstance(self.spec.source, kinds.ExtensionSource):
            return 0
        return sum(file.size_bytes for file in self.files)

    @property
    def key(self) -> str:
        """Hexadecimal digits that differ for data made in another way."""
        return hashlib.sha256(self.recipe.model_dump_json().encode()).hexdigest()[:16]

    @property
    def state(self) -> str | None:
        """A hash of the state of all files; None if it shows nothing, as times are made up."""
        return digest_of_states(self.files) if all(file.has_own_times for file in self.files) else None

    def now(self) -> Wanted:
        """The same data with the state of its files as it is now."""
        files = source_files(self.spec.source, base=self.base)
        return Wanted(self.spec, self.base, self.tokenizer, files, self.recipe)


def want(spec: DataSpec, *, base: Path, reads: Reads | None = None, runs_extensions: bool = False) -> Wanted:
    """The data of a spec, of which only the tokenizer's files are read; paths are relative to `base`.

    The code of a plan's own source runs here for some documents, and must be allowed to. Raises DataError.
    """
    tokenizer = read_tokenizer(
        spec.tokenizer,
        base=base,
        end_of_document=spec.end_of_document,
        begin_of_document=spec.begin_of_document,
        reads=reads,
    )
    templates: Templates = {}
    source, own = kinds.untransformed(spec.source), tokenizer.chat_templates
    if isinstance(source, kinds.ChatSource | kinds.PairsSource):
        templates = source_templates(source, own, tokenizer=tokenizer.name, base=base, reads=reads)
    elif isinstance(source, kinds.ExtensionSource):
        templates = {name: own[name] for name in (DEFAULT_TEMPLATE, TOOLS_TEMPLATE) if name in own}
    tokenizer = replace(
        tokenizer,
        chat_templates=templates,
        has_classes=spec.has_classes,
        by_word=spec.by_word,
        by_pair=spec.by_pair,
    )
    seen = ""
    if isinstance(spec.source, kinds.ExtensionSource | kinds.TransformedSource):
        loaded(spec.source.code, base=base, is_allowed=runs_extensions)
        seen = probed(spec.source, base=base)
        if reads is not None:
            reads.add("text", spec.source.code.entry, seen)
    recipe = _recipe(spec, tokenizer, seen=seen)
    return Wanted(spec, base, tokenizer, source_files(spec.source, base=base), recipe)


def _recipe(spec: DataSpec, tokenizer: TokenizerFiles, *, seen: str) -> Recipe:
    """`seen` is a digest of some documents of an extension, which may read more than its own file."""
    source = [*description(spec.source), *filter(None, (seen,))]
    digests = [] if tokenizer.is_bytes else [("tokenizer", tokenizer.digest)]
    if tokenizer.chat_templates:
        texts = {name: template.text for name, template in tokenizer.chat_templates.items()}
        text = json.dumps([texts.get(DEFAULT_TEMPLATE), texts.get(TOOLS_TEMPLATE)])
        digests.append(("chat template", hashlib.sha256(text.encode()).hexdigest()))
    libraries = (*kinds.untransformed(spec.source).libraries, *tokenizer.libraries)
    layout = _LAYOUTS[spec.packing]
    is_joined = layout == "joined"
    return Recipe(
        source=tuple(source),
        layout=layout,
        sequence_length=None if is_joined else spec.sequence_length,
        too_long=None if is_joined else spec.too_long,
        held_out=None if spec.held_out is None else spec.held_out.text,
        tokenizer=tuple(digests),
        images=None if spec.images is None else f"{spec.images.token} {spec.images.shape!r}",
        end_of_document=tokenizer.end_of_document,
        begin_of_document=tokenizer.begin_of_document,
        versions=tuple((name, _version(name)) for name in sorted(libraries)),
    )


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        # What needs it reports that it is missing.
        return "not installed"
