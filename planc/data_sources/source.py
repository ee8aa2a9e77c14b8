"""The base of data sources, and of those whose files Hugging Face's library reads."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from planc.data_sources.hub_datasets import HubDataset
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
        return cls.fingerprint_order or tuple(one.name for one in fields(cls) if one.name != "kind")

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
