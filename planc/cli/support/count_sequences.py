"""The sequences of a plan's training data, for plans that count epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planc.graph.ops import Mixture, OpenData
from planc.graph.sources import AnySource
from planc.hub.user_dirs import data_dir

if TYPE_CHECKING:
    # Only plans that count epochs wait for numpy.
    from planc.runtime.data.prepared.folder import Prepared
    from planc.runtime.data.prepared.wanted import Wanted

Find = Callable[["Wanted"], "Prepared | None"]
_ANY_VOCABULARY = 1 << 40
"""Whether the model has every token id is another check's question."""


def count_known(ops: Sequence[AnySource], base: Path, *, runs_extensions: bool = False) -> int | None:
    """The sequences of data that is small or prepared; None for other data, and for data with an error.

    A run reports what is wrong with it. Data that the plan's own code makes is unknown unless that may run.
    """
    from planc.runtime.data.errors import DataError
    from planc.runtime.data.prepared.folder import find

    try:
        return _count(ops, base, lambda wanted: find(data_dir(), wanted), runs_extensions=runs_extensions)
    except (DataError, ImportError):
        return None


def count_prepared(
    ops: Sequence[AnySource],
    base: Path,
    *,
    name: str,
    say: Callable[[str], None],
    runs_extensions: bool,
) -> int | None:
    """The sequences of data, which is prepared now if it must be. RunError if it can't be used.

    None for data that the plan's own code makes, unless that may run.
    """
    from planc.runtime.data.errors import DataError, DataStorageError
    from planc.runtime.data.prepared.prepare import prepare
    from planc.runtime.errors import ExitCode, RunError

    try:
        return _count(
            ops,
            base,
            lambda wanted: prepare(data_dir(), wanted, name=name, say=say),
            runs_extensions=runs_extensions,
        )
    except DataError as error:
        code = ExitCode.STORAGE if isinstance(error, DataStorageError) else ExitCode.INPUT
        raise RunError(error.message, code=code, help=error.help) from error


def _count(ops: Sequence[AnySource], base: Path, find: Find, *, runs_extensions: bool) -> int | None:
    from planc.runtime.data.open import open_in_memory, open_prepared
    from planc.runtime.data.ops import data_spec
    from planc.runtime.data.prepared.wanted import want

    (training,) = (op for op in ops if isinstance(op, OpenData))
    total = 0
    for op in ops:
        if isinstance(op.source, Mixture):
            continue
        wanted = want(data_spec(op, training=training), base=base, runs_extensions=runs_extensions)
        if wanted.stays_in_memory:
            opened = open_in_memory(wanted, model_vocab_size=_ANY_VOCABULARY)
        elif (prepared := find(wanted)) is not None:
            opened = open_prepared(prepared, wanted, model_vocab_size=_ANY_VOCABULARY)
        else:
            return None
        total += opened.dataset.num_sequences
    return total
