"""How plans name a dataset of the Hugging Face Hub in place of files."""

from __future__ import annotations

from collections.abc import Sequence

from planc.record import record

PREFIX = "hf://datasets/"


@record
class HubDataset:
    """A dataset of the Hub at one commit."""

    repository: str
    revision: str

    @property
    def name(self) -> str:
        """The dataset in messages."""
        return f"{self.repository}@{self.revision[:12]}"

    @staticmethod
    def of(patterns: Sequence[str]) -> HubDataset | None:
        """The dataset that a source's only pattern names, as `hf://datasets/org/name@commit`."""
        if len(patterns) != 1 or not patterns[0].startswith(PREFIX):
            return None
        repository, _, revision = patterns[0].removeprefix(PREFIX).partition("@")
        return HubDataset(repository, revision)
