"""The tokens at a document's start and end: as the plan says, or as the tokenizer adds them itself.

And the token that hides another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, product

from planc.hub.tokenizer_files import MASK_TOKENS
from planc.runtime.data.encoding.loaded import LoadedTokenizer
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
_PROBES = ("a", "The", "0 1", "x y z")
"""Texts to see what a tokenizer puts around them; a small vocabulary may have no token for some."""

Ids = tuple[int, ...]
Marked = tuple[tuple[int, int], ...]
"""Tokens with their types, `token_type_ids`."""


def begin_of_document(loaded: LoadedTokenizer, setting: str | None) -> Ids:
    """The ids before each text: of a token, what "auto" is for this tokenizer, or none. Raises DataError."""
    if setting is None:
        return ()
    if setting != "auto":
        return (_id_of(loaded, setting, key="begin_of_document"),)
    return around(loaded)[0]


def end_of_document(loaded: LoadedTokenizer, token: str | None) -> int:
    """The id of `token`, or the tokenizer's own end. Raises DataError.

    Its own end is its end of a sequence, else the only known end of document, else the token that it puts
    after a text.
    """
    token = token or loaded.special_tokens.get("eos_token")
    if token is not None:
        return _id_of(loaded, token, key="end_of_document")
    # Only special ones: some vocabularies hold "</s>" as the HTML tag.
    ends = tuple(token for token in _ENDS_OF_DOCUMENT if token in loaded.special)
    if len(ends) == 1:
        return loaded.ids[ends[0]]
    after = around(loaded)[1]
    if not ends and len(after) == 1:
        return after[0]
    fault = f"several ends of document: {', '.join(ends)}" if ends else "no known end of document"
    raise DataError(f"{loaded.name} has {fault}", help="set end_of_document to one of its tokens")


def mask_of(loaded: LoadedTokenizer) -> int | None:
    """The id of the tokenizer's mask token, or of the only known one among its special tokens."""
    own = loaded.special_tokens.get("mask_token")
    known = [token for token in MASK_TOKENS if token in loaded.special] if own is None else [own]
    return loaded.ids.get(known[0]) if len(known) == 1 else None


def around(loaded: LoadedTokenizer) -> tuple[Ids, Ids]:
    """The ids that the tokenizer itself puts before and after a text. Raises DataError."""
    affixes: set[tuple[Ids, Ids] | None] = set()
    for text in _PROBES:
        [plain], whole = loaded.encode([text]), loaded.encode_whole(text)
        places = range(len(whole) - len(plain) + 1)
        before = next((n for n in places if whole[n : n + len(plain)] == [*plain]), None)
        if before is None:
            affixes.add(None)
        elif plain:
            affixes.add((tuple(whole[:before]), tuple(whole[before + len(plain) :])))
    [only] = affixes if len(affixes) == 1 else [None]
    if affixes and only is None:
        raise DataError(
            f"{loaded.name} puts different tokens around different texts",
            help="set begin_of_document and end_of_document to tokens, or begin_of_document to none",
        )
    return only or ((), ())


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens around two texts with their types, and the types of both texts."""

    before: Marked
    between: Marked
    after: Marked
    types: tuple[int, int]

    def of(self, first: Sequence[int], second: Sequence[int]) -> tuple[Marked, list[int]]:
        """The tokens of two texts with their types, and where each of both starts and ends."""
        kinds = zip((first, second), self.types, strict=True)
        texts = [tuple((token, kind) for token in text) for text, kind in kinds]
        parts = (self.before, texts[0], self.between, texts[1], self.after)
        ends = [*accumulate(map(len, parts))]
        return tuple(chain(*parts)), ends[:4]


def around_pairs(loaded: LoadedTokenizer, *, begin: str | None, end: str | None) -> Frame:
    """The tokens that the tokenizer itself puts around two texts; before or after both, those of the plan.

    DataError unless they are the same around all texts.
    """
    readings: list[set[Frame]] = []
    for pair in pairwise(_PROBES):
        texts = loaded.encode(pair)
        if all(map(len, texts)):
            marked = tuple(zip(*loaded.encode_pair(*pair), strict=True))
            readings.append({*_frames(marked, texts)})
    frames = set.intersection(*readings) if readings else set()
    if len(frames) != 1:
        raise DataError(
            f"{loaded.name} puts different tokens around different pairs of texts",
            help="use a tokenizer with a template for pairs, or put both texts into one field",
        )
    frame = frames.pop()
    if begin != "auto":
        before = begin_of_document(loaded, begin)
        frame = replace(frame, before=tuple((token, frame.types[0]) for token in before))
    if end is not None:
        frame = replace(frame, after=((end_of_document(loaded, end), frame.types[1]),))
    return frame


def _frames(marked: Marked, texts: Sequence[Sequence[int]]) -> Iterator[Frame]:
    """Every reading of the tokens of two texts as these texts with others around them."""
    tokens = [token for token, _ in marked]
    starts = ([at for at in range(len(tokens)) if tokens[at : at + len(text)] == [*text]] for text in texts)
    for start, other in product(*starts):
        end, other_end = start + len(texts[0]), other + len(texts[1])
        kinds = [{kind for _, kind in part} for part in (marked[start:end], marked[other:other_end])]
        if end <= other and all(len(types) == 1 for types in kinds):
            of_both = kinds[0].pop(), kinds[1].pop()
            yield Frame(marked[:start], marked[end:other], marked[other_end:], of_both)


_WORDS = ("The", "first", "words", "of", "Sydney")


def require_like_text(loaded: LoadedTokenizer) -> None:
    """DataError for a tokenizer to which words that are given apart are others than those in a text."""
    [(apart, _)], [in_text] = loaded.of_words([_WORDS]), loaded.encode([" ".join(_WORDS)])
    if [*apart] != [*in_text]:
        raise DataError(
            f"{loaded.name} tokenizes words that are given apart unlike those of a text",
            help='set "add_prefix_space": true in tokenizer_config.json, as for the pretrained model',
        )


def marks_of_pairs(loaded: LoadedTokenizer, frame: Frame) -> str:
    """Describe the tokens around two texts, with the types of both if they differ."""
    tokens = {number: token for token, number in loaded.ids.items()}
    before, between, after = (
        _shown(tokens, [token for token, _ in part]) for part in (frame.before, frame.between, frame.after)
    )
    first, second = frame.types
    types = f", with the types {first} and {second}" if first != second else ""
    order = " ".join(filter(None, (before, "TEXT", between, "SECOND TEXT", after)))
    return f"pairs are {order}{types}"


def marks(loaded: LoadedTokenizer, *, begin: Ids, end: Ids, has_template: bool) -> str:
    """Describe the tokens at the start and end of documents; empty without any."""
    tokens = {number: token for token, number in loaded.ids.items()}
    if not end:
        return f"documents begin with {_shown(tokens, begin)}" if begin else ""
    if not begin:
        return f"documents end with {_shown(tokens, end)}"
    chats = "; conversations begin as their template writes them" if has_template else ""
    return f"documents begin with {_shown(tokens, begin)} and end with {_shown(tokens, end)}{chats}"


def _shown(tokens: dict[int, str], ids: Sequence[int]) -> str:
    return " ".join(f"{tokens.get(number, '?')} ({number})" for number in ids)


def _id_of(loaded: LoadedTokenizer, token: str, *, key: str) -> int:
    if token not in loaded.ids:
        raise DataError(f'{loaded.name} has no token "{token}"', help=f"set {key} to one of its tokens")
    return loaded.ids[token]
