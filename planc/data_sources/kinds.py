"""The kinds of data sources, and their base."""

from __future__ import annotations

from dataclasses import field as field_of
from dataclasses import fields
from typing import Any, ClassVar, Literal

from planc.data_sources.globs import HubDataset
from planc.extend.reference import Extension
from planc.record import record


@record
class SourceKind:
    """One kind of data source, with its arguments by their names in plans. Subclasses add `kind`, its name.

    `patterns`, if it has them, are globs of the plan author's files, which must exist before a run starts.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    libraries: ClassVar[tuple[str, ...]] = ()
    """Libraries whose versions may change what is read."""
    fingerprint_order: ClassVar[tuple[str, ...]] = ()
    """The arguments as fingerprints have them, if not in the order of the fields: checkpoints keep these."""

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """The names of the arguments, in the order of fingerprints."""
        return cls.fingerprint_order or tuple(field.name for field in fields(cls) if field.name != "kind")

    @property
    def hub(self) -> HubDataset | None:
        """The dataset of the Hub that it reads; None for sources in files."""
        return None

    @property
    def reads_local_files(self) -> bool:
        """Whether its patterns match files of the plan's author."""
        return bool(getattr(self, "patterns", ())) and self.hub is None

    def __str__(self) -> str:
        """`jsonl(data/*.jsonl, field text)`: its patterns, then its other arguments that say something."""
        patterns = getattr(self, "patterns", ())
        others = ((name, getattr(self, name)) for name in self.argument_names() if name != "patterns")
        texts = (
            f"{name} {', '.join(value) if isinstance(value, tuple) else value}"
            for name, value in others
            if value
        )
        return f"{getattr(self, 'kind')}({', '.join((*patterns, *texts))})"  # noqa: B009  # of every subclass


TrainOn = Literal["answers", "last_answer", "all"]
Thinking = Literal["last", "all"]
EndOfTurn = Literal["auto", "true", "false"]


@record
class TextSource(SourceKind):
    """UTF-8 files, one document each. `patterns` are globs relative to a base directory (`**` any depth).

    An empty file is a document without characters, as in `datasets`.
    """

    patterns: tuple[str, ...]
    kind: Literal["text"] = field_of(default="text", kw_only=True)


@record
class JsonLinesSource(SourceKind):
    """Files of one JSON object per line, or of one list; each object's `field` is a document."""

    patterns: tuple[str, ...]
    field: str = "text"
    kind: Literal["jsonl"] = field_of(default="jsonl", kw_only=True)
    fingerprint_order: ClassVar[tuple[str, ...]] = ("field", "patterns")


@record
class Rows(SourceKind):
    """A kind that reads rows of the files of `patterns`, or of a dataset on the Hub."""

    patterns: tuple[str, ...]

    @property
    def hub(self) -> HubDataset | None:
        return HubDataset.of(self.patterns)


@record
class HfDatasetSource(Rows):
    """Local files and dataset directories; each record's `field` is a document.

    `patterns` are globs of files relative to a base directory, directories, or one `hf://datasets/...`.
    `split` is a split or a part of one, as `datasets` writes it; `subset` is a configuration of a directory.
    """

    field: str = "text"
    split: str = "train"
    subset: str | None = None
    kind: Literal["hf_dataset"] = field_of(default="hf_dataset", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")
    fingerprint_order: ClassVar[tuple[str, ...]] = ("field", "patterns", "split", "subset")


@record
class ChatSource(Rows):
    """Records of conversations: messages, each with a role and a content, or a prompt and its completion.

    `field` is the key of the messages; None for `messages`, `conversations`, or `prompt` and `completion`,
    whichever a row has. `train_on` "answers" trains on what the assistant writes, "last_answer" on its last
    message, "all" on the whole text. `thinking` "last" renders a conversation once, as its template does,
    which may leave the reasoning of earlier turns out; "all" renders it once for each turn. `template` is the
    name of a template of the tokenizer, or the path of a file; "auto" is what transformers would use, "none"
    that rows need none. `train_on_end_of_turn` "auto" trains on an end that the template marks, and on any
    that a template without marks writes. `date` is the day that templates take for today's. `patterns`,
    `split` and `subset` are those of a HfDatasetSource.
    """

    field: str | None = None
    train_on: TrainOn = "answers"
    thinking: Thinking = "last"
    template: str = "auto"
    date: str | None = None
    train_on_end_of_turn: EndOfTurn = "auto"
    ignore: tuple[str, ...] = ()
    split: str = "train"
    subset: str | None = None
    kind: Literal["chat"] = field_of(default="chat", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("jinja2",)
    fingerprint_order: ClassVar[tuple[str, ...]] = (
        *("field", "train_on", "train_on_end_of_turn", "thinking", "template", "date", "ignore"),
        *("patterns", "split", "subset"),
    )

    @property
    def trains_ends(self) -> bool | None:
        """Whether the end of a turn is trained on; None for what the template decides."""
        return None if self.train_on_end_of_turn == "auto" else self.train_on_end_of_turn == "true"


@record
class ImageChatSource(ChatSource):
    """Records of conversations as of a ChatSource, each with one image under the key `image`: a path, or the
    content of a file."""

    image: str = "image"
    kind: Literal["image_chat"] = field_of(default="image_chat", kw_only=True)  # type: ignore[assignment]
    fingerprint_order: ClassVar[tuple[str, ...]] = (*ChatSource.fingerprint_order, "image")


@record
class PairsSource(Rows):
    """Records of a prompt with two answers, `chosen` and `rejected`: texts, or lists of messages.

    Each is two documents in a row: the prompt with the chosen answer, then with the rejected one. Only the
    answers are trained on. The arguments are those of a ChatSource.
    """

    template: str = "auto"
    date: str | None = None
    ignore: tuple[str, ...] = ()
    split: str = "train"
    subset: str | None = None
    kind: Literal["pairs"] = field_of(default="pairs", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("jinja2",)


@record
class LabeledSource(Rows):
    """Records of a text and the number of its class, below `num_labels`, or one of the classes' `names`.

    With `by_word` a text is a list of words, and has a list of their classes. With `pair`, the key of a
    second text, both have one class. `patterns`, `split` and `subset` are those of a HfDatasetSource.
    """

    num_labels: int
    names: tuple[str, ...] = ()
    field: str = "text"
    label: str = "label"
    split: str = "train"
    subset: str | None = None
    by_word: bool = False
    pair: str | None = None
    kind: Literal["labeled"] = field_of(default="labeled", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")


@record
class MatchedSource(Rows):
    """Records of two texts that belong together. Each is two documents in a row, the query
    and its positive.

    `patterns`, `split` and `subset` are those of a HfDatasetSource.
    """

    query: str = "query"
    positive: str = "positive"
    ignore: tuple[str, ...] = ()
    split: str = "train"
    subset: str | None = None
    kind: Literal["matched"] = field_of(default="matched", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")


@record
class MappedSource(Rows):
    """Records of an input and its target, both texts. Each is two documents in a row.

    `patterns`, `split` and `subset` are those of a HfDatasetSource.
    """

    input: str = "input"
    target: str = "target"
    ignore: tuple[str, ...] = ()
    split: str = "train"
    subset: str | None = None
    kind: Literal["mapped"] = field_of(default="mapped", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")


@record
class HfHubSource(SourceKind):
    """A dataset on the Hub at one commit. `revision` is the commit's 40 hexadecimal digits."""

    repository: str
    revision: str
    split: str = "train"
    subset: str | None = None
    field: str = "text"
    kind: Literal["hf_hub"] = field_of(default="hf_hub", kw_only=True)
    libraries: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")

    @property
    def hub(self) -> HubDataset | None:
        return HubDataset(self.repository, self.revision)


@record
class PythonStdlibSource(SourceKind):
    """The `*.py` files of the running interpreter's standard library: real text on every machine."""

    kind: Literal["python_stdlib"] = field_of(default="python_stdlib", kw_only=True)


@record
class ExtensionSource(SourceKind):
    """The documents of a data source that a plan's own code registers."""

    code: Extension
    kind: Literal["extension"] = field_of(default="extension", kw_only=True)

    def __str__(self) -> str:
        return str(self.code)


RowSource = JsonLinesSource | ChatSource | HfDatasetSource | HfHubSource | LabeledSource
"""Sources of rows, each a record by its keys."""


@record
class TransformedSource(SourceKind):
    """The rows of a source, each replaced by what a row transform of a plan's own code returns."""

    source: RowSource
    code: Extension
    kind: Literal["transformed"] = field_of(default="transformed", kw_only=True)

    @property
    def hub(self) -> HubDataset | None:
        return self.source.hub

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the rows' files; a dataset of the Hub may have none."""
        return getattr(self.source, "patterns", ())

    def __str__(self) -> str:
        return f"transformed({self.source}, by {self.code})"


Source = (
    TextSource
    | JsonLinesSource
    | ChatSource
    | ImageChatSource
    | PairsSource
    | HfDatasetSource
    | HfHubSource
    | LabeledSource
    | MatchedSource
    | MappedSource
    | PythonStdlibSource
    | ExtensionSource
    | TransformedSource
)


def untransformed(source: Source) -> Source:
    """The source that reads the rows of a transformed one; any other itself."""
    return source.source if isinstance(source, TransformedSource) else source
