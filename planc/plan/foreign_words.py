"""Words of other tools for what a plan writes otherwise, or does not have: one table."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from planc.plan.foreign import Foreign

ARGUMENT_NAME = re.compile(r"(\w+) = <")
"""A name in a line: the key, or the argument of a call, that takes the word's value."""


@functools.cache
def foreign_words() -> Mapping[str, Foreign]:
    """Foreign words by themselves, in lower case."""
    # Only a plan with an unknown word needs the tables.
    from planc.plan.foreign_field import FIELD
    from planc.plan.foreign_parallelism import MESH, MODEL, OBSERVED, SHARDING
    from planc.plan.foreign_training import DATA, OPTIMIZER, TRAIN

    return {
        word: meant
        for group in (DATA, TRAIN, OPTIMIZER, MESH, SHARDING, MODEL, OBSERVED, FIELD)
        for words, meant in group.items()
        for word in words.split()
    }


def foreign_word(word: str) -> Foreign | None:
    """Look up a word, in any case."""
    return foreign_words().get(word.lower())


def argument_meant(word: str) -> str | None:
    """The argument of a call whose value another tool's word takes."""
    foreign = foreign_word(word)
    found = ARGUMENT_NAME.search(foreign.line) if foreign is not None else None
    return found[1] if found else None
