"""A `tokenizer.json` as the tokenizers library loads it."""

from __future__ import annotations

from tokenizers import Tokenizer, models

from planc.runtime.data.errors import DataError

_ENDS_OF_DOCUMENT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 (spelled this way by the models that use it)
)
"""The tokens that published causal language models put after each document of their training text."""


def parsed(content: bytes, *, name: str) -> Tokenizer:
    """The tokenizer that `content` describes. Raises DataError if it is invalid, or draws random numbers."""
    try:
        loaded = Tokenizer.from_buffer(content)
    # The library raises bare Exception, whatever is wrong with the file, or panics.
    except BaseException as error:
        raise DataError(
            f"{name} is not a tokenizer.json: {error}", help="write it with the tokenizers library's save()"
        ) from error
    if isinstance(loaded.model, models.BPE) and loaded.model.dropout:
        raise DataError(
            f"{name} drops merges at random (dropout {loaded.model.dropout}), so ranks would disagree",
            help='set "dropout" to null in its "model"',
        )
    # The last user of the file may have saved both in it; either would change documents silently.
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def vocab_size(loaded: Tokenizer) -> int:
    """One more than the largest id."""
    return max(loaded.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_document_id(loaded: Tokenizer, token: str | None, *, name: str) -> int:
    """The id of `token`, or of the only known end of document. Raises DataError."""
    if token is None:
        token = _known_end_of_document(loaded, name=name)
    token_id: int | None = loaded.token_to_id(token)
    if token_id is None:
        raise DataError(f'{name} has no token "{token}"', help="set end_of_document to one of its tokens")
    return token_id


def _known_end_of_document(loaded: Tokenizer, *, name: str) -> str:
    """The only known end of document among the special tokens. Raises DataError for none or several."""
    # Only special ones: some vocabularies hold "</s>" as the HTML tag.
    special = {token.content for token in loaded.get_added_tokens_decoder().values() if token.special}
    found = tuple(token for token in _ENDS_OF_DOCUMENT if token in special)
    if len(found) != 1:
        fault = f"several ends of document: {', '.join(found)}" if found else "no known end of document"
        raise DataError(f"{name} has {fault}", help="set end_of_document to one of its tokens")
    return found[0]
