"""Data sources: documents by index, or as a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

DATA_SOURCE = Kind("data_source", "data.source", passes=())
DataSource = TypeVar("DataSource", bound=Callable[..., Any])


def data_source(name: str) -> Callable[[DataSource], DataSource]:
    """Register a data source: `data { source = NAME(argument = value) }` in a plan that names the file.

    A data source is a class with `__len__` and `__getitem__`, whose documents are those of the indices from 0
    on, or a function that yields documents in the order of the data. Its parameters are keyword-only, and get
    their values in the plan. A document is a str; token ids, as a list, an array or a tensor of one
    dimension; a list of messages; or a dict as a row of `chat` has it, or with "input_ids" and "labels": -100
    leaves a token out of the loss. All documents of a source are of one kind. They are packed, shuffled and
    resumed as those of files are. Whoever resumes a run needs the same code.

    Before the first step, planc asks for some documents twice, in another order, and in another process: a
    document must depend on nothing but its index, or its place in the stream.
    """
    return lambda target: mark(DATA_SOURCE, target, name)
