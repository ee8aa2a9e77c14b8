"""The classes of a classifier, by which its head is named and made."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Inventory
from planc.record import record
from planc.vocab import Task


@record
class Classes:
    """The number of classes, of a text or of each word as `task` has it."""

    task: Task
    labels: int

    def __str__(self) -> str:
        return f"{self.task}(labels = {self.labels})"


def classes_of(inventory: Inventory) -> Classes | None:
    """A classifier's classes."""
    return None if inventory.num_labels is None else Classes(inventory.task, inventory.num_labels)


def new_classes_of(inventory: Inventory) -> Classes | None:
    """The classes of a head that config.json's class lacks."""
    return classes_of(inventory) if inventory.new_head else None


HEADS: Mapping[Task, str] = {
    Task.SEQUENCE_CLASSIFICATION: "ForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "ForTokenClassification",
}
"""The end of the names of transformers' classifiers, by task."""
