"""Words of other tools for what a plan writes otherwise, or does not have: one table."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planc.plan.foreign import Foreign
from planc.plan.foreign_parallelism import MESH, MODEL, OBSERVED, SHARDING
from planc.plan.foreign_training import DATA, OPTIMIZER, TRAIN

FOREIGN: Mapping[str, Foreign] = {
    word: meant
    for group in (DATA, TRAIN, OPTIMIZER, MESH, SHARDING, MODEL, OBSERVED)
    for words, meant in group.items()
    for word in words.split()
}
"""By word, in lower case."""

ARGUMENT_NAME = re.compile(r"(\w+) = <")
"""In a line: the key, or the argument of a call, that takes the word's value."""


def argument_meant(word: str) -> str | None:
    """The argument of a call whose value another tool's word takes."""
    foreign = FOREIGN.get(word.lower())
    found = ARGUMENT_NAME.search(foreign.line) if foreign is not None else None
    return found[1] if found else None
