"""Items that an extension's data source may return for a document: text, token ids, or messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planc.runtime.data.chat import AnyDocument, TokenIds, contents_of, conversations_of
from planc.runtime.data.chat_rows import ROW_KEYS, Reading, hints_of
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.sources import Document, num_utf8_bytes

_IDS, _LABELS = "input_ids", "labels"
_HELP = (
    "return a str; token ids as a list, or as a NumPy array or tensor of one dimension; a list of messages; "
    'or a dict with "text", "input_ids" (and "labels"), "messages", or "prompt" and "completion"'
)


def item_documents(item: object, *, origin: str) -> list[AnyDocument]:
    """The documents of one item: one, or several of a conversation. Raises DataError for another type."""
    match item:
        case str():
            return [Document(origin, item, num_utf8_bytes(item, origin=origin))]
        case Mapping():
            return _of_row(dict(item), origin=origin)
        case [Mapping(), *_]:
            return [*_conversations({"messages": list(item)}, origin=origin)]
        case _:
            return [TokenIds(origin, _ids(item, origin=origin))]


def _of_row(row: dict[str, Any], *, origin: str) -> list[AnyDocument]:
    if "text" in row and isinstance(row["text"], str) and len(row) == 1:
        return item_documents(row["text"], origin=origin)
    if _IDS in row and not {*row} - {_IDS, _LABELS}:
        ids = _ids(row[_IDS], origin=f'"{_IDS}" of {origin}')
        return [TokenIds(origin, ids, _targets(row.get(_LABELS), ids, origin=origin))]
    if _IDS in row or "text" in row:
        known = (_IDS, _LABELS) if _IDS in row else ("text",)
        raise _unread([str(key) for key in row if key not in known], origin=origin)
    if unread := [str(key) for key in row if key not in ROW_KEYS]:
        raise _unread(unread, origin=origin)
    return [*_conversations(row, origin=origin)]


def _unread(keys: Sequence[str], *, origin: str) -> DataError:
    written = ", ".join(f'"{key}"' for key in keys)
    if not keys:
        return DataError(f"{origin} has a text that is not a str", help=_HELP)
    is_one = len(keys) == 1
    return DataError(
        f"{origin} has {'a key' if is_one else 'keys'} that planc does not read: {written}",
        help="; ".join(hints_of(keys)) or f"leave {'it' if is_one else 'them'} out of the dict; {_HELP}",
    )


def _conversations(row: dict[str, Any], *, origin: str) -> Iterator[AnyDocument]:
    yield from conversations_of(contents_of(row, reading=Reading(), origin=origin), origin=origin)


def _ids(value: object, *, origin: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids, [tokens]. Raises DataError unless they are integers from 0 on."""
    is_array = hasattr(value, "__array__") or isinstance(value, Sequence)
    try:
        array = np.asarray(value) if is_array and not isinstance(value, bytes | bytearray) else None
    except (TypeError, ValueError, RuntimeError):
        array = None
    if array is not None and not array.size:
        array = array.astype(np.int64)
    if array is None or array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        kind = type(value).__name__ if array is None else f"{type(value).__name__} of {array.dtype}"
        dims = f" with {array.ndim} dimensions" if array is not None and array.ndim != 1 else ""
        raise DataError(f"{origin} is a {kind}{dims}, not a document", help=_HELP)
    if array.size and int(array.min()) < 0:
        raise DataError(f"{origin} has the token id {int(array.min())}", help="ids start from 0")
    return array.astype(np.int64)


def _targets(labels: object, ids: Any, *, origin: str) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return the mask of trained ids: those whose label is the id itself, and not -100."""
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.shape != ids.shape:
        raise DataError(
            f"{origin} has {len(ids)} ids and labels of shape {list(array.shape)}",
            help="give one label for each id: the id itself, or -100 to leave it out of the loss",
        )
    is_target = array != IGNORED_LABEL
    if (array[is_target] != ids[is_target]).any():
        place = int(np.flatnonzero(is_target & (array != ids))[0])
        raise DataError(
            f"the label of token {place} of {origin} is {int(array[place])}, and its id {int(ids[place])}",
            help="give each id itself as its label, or -100: planc shifts labels by one token",
        )
    flags: np.ndarray[Any, np.dtype[np.bool_]] = is_target
    return flags
