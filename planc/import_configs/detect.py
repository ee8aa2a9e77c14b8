"""The kinds of configs, and which one a file is of: by the keys that only one kind has."""

from __future__ import annotations

from collections.abc import Sequence

from planc.import_configs.kind import Kind
from planc.import_configs.kinds.accelerate import ACCELERATE
from planc.import_configs.kinds.automodel import AUTOMODEL
from planc.import_configs.kinds.axolotl import AXOLOTL
from planc.import_configs.kinds.deepspeed import DEEPSPEED
from planc.import_configs.kinds.llama_factory import LLAMA_FACTORY
from planc.import_configs.kinds.megatron import MEGATRON
from planc.import_configs.kinds.ms_swift import MS_SWIFT
from planc.import_configs.kinds.torchtitan import TORCHTITAN
from planc.import_configs.kinds.training_arguments import TRAINING_ARGUMENTS
from planc.import_configs.kinds.trl import TRL
from planc.import_configs.leaves import Leaf
from planc.record import record

KINDS: tuple[Kind, ...] = (
    *(TORCHTITAN, ACCELERATE, DEEPSPEED, AUTOMODEL, AXOLOTL, TRAINING_ARGUMENTS, TRL),
    *(LLAMA_FACTORY, MS_SWIFT, MEGATRON),
)
BY_NAME = {kind.name: kind for kind in KINDS}


@record
class Undetected:
    """The reason that no kind is chosen, and what was looked for."""

    what: str
    looked_for: tuple[str, ...]
    file: str = ""


def detect(leaves: Sequence[Leaf]) -> Kind | Undetected:
    """The kind with the most marks among the keys, if one has more than any other."""
    found = {kind.name: _num_marks(kind, leaves) for kind in KINDS}
    most = max(found.values())
    best = [kind for kind in KINDS if found[kind.name] == most]
    if most and len(best) == 1:
        return best[0]
    looked = tuple(f"{kind.name}: {', '.join(f'`{mark}`' for mark in kind.marks[:6])}" for kind in KINDS)
    if most:
        names = " and ".join(kind.name for kind in best)
        return Undetected(f"keys of {names} are equally many", looked)
    return Undetected("none of its keys tells the kind", looked)


def _num_marks(kind: Kind, leaves: Sequence[Leaf]) -> int:
    """The marks that some key is or starts with."""
    keys = [leaf.key for leaf in leaves]

    def num_found(marks: Sequence[str]) -> int:
        return sum(any(key == mark or _below(key, mark) for key in keys) for mark in marks)

    own = num_found(kind.marks)
    return own + num_found(kind.extends) if own else 0


def _below(key: str, mark: str) -> bool:
    return key.startswith(mark if mark.endswith((".", "_")) else f"{mark}.")
