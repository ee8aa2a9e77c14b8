"""A `tokenizer.json` as the tokenizers library loads it."""

from __future__ import annotations

from tokenizers import Tokenizer, models

from planc.runtime.data.errors import DataError


def parsed(content: bytes, *, name: str) -> Tokenizer:
    """The tokenizer that `content` describes. Raises DataError if it is invalid, or draws random numbers."""
    try:
        loaded = Tokenizer.from_buffer(content)
    # The library raises bare Exception, whatever is wrong with the file, or panics.
    except BaseException as error:
        raise DataError(
            f"{name} is not a tokenizer.json: {error}", help="write it with the tokenizers library's save()"
        ) from error
    require_no_dropout(loaded, name=name)
    # The last user of the file may have saved both in it; either would change documents silently.
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def require_no_dropout(loaded: Tokenizer, *, name: str) -> None:
    """DataError for a tokenizer that draws random numbers."""
    if isinstance(loaded.model, models.BPE) and loaded.model.dropout:
        raise DataError(
            f"{name} drops merges at random (dropout {loaded.model.dropout}), so ranks would disagree",
            help='set "dropout" to null in its "model"',
        )
