"""Names for repeated modules, so one finding covers all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from planc.inventory.schema import Inventory


def family(inventory: Inventory, fqn: str) -> str:
    """`model.layers.*.mlp` for `model.layers.3.mlp`; a name outside of repeated blocks is its own family."""
    for block in inventory.blocks:
        if fqn.startswith(f"{block}."):
            _, _, rest = fqn[len(block) + 1 :].partition(".")
            return f"{block}.*.{rest}" if rest else f"{block}.*"
    return fqn


def layer_of(inventory: Inventory, fqn: str) -> str:
    """The layer that a module or a family is in, itself included; empty outside of layers."""
    for block in inventory.blocks:
        if fqn.startswith(f"{block}."):
            return f"{block}.{fqn[len(block) + 1 :].partition('.')[0]}"
    return ""


def families(inventory: Inventory, fqns: Iterable[str]) -> tuple[str, ...]:
    """Each family once, in the order of first appearance."""
    return tuple(dict.fromkeys(family(inventory, fqn) for fqn in fqns))


def exact_families(inventory: Inventory, fqns: Iterable[str]) -> tuple[str, ...]:
    """Patterns for exactly these modules or parameters: `model.layers.31` if not every layer is included."""
    named: dict[str, list[str]] = {}
    for fqn in dict.fromkeys(fqns):
        named.setdefault(family(inventory, fqn), []).append(fqn)
    known = (*inventory.names(), *(fqn for fqn, _, _ in inventory.parameters()))
    sizes = Counter(family(inventory, fqn) for fqn in dict.fromkeys(known))
    found: list[str] = []
    for pattern, members in named.items():
        is_whole = pattern in members or len(members) >= sizes[pattern]
        found.extend([pattern] if is_whole else _numbered(pattern, members))
    return tuple(found)


def _numbered(pattern: str, members: Sequence[str]) -> Iterator[str]:
    """`model.layers.{0..3}.mlp` and `model.layers.7.mlp`, for members of `model.layers.*.mlp`."""
    head, _, tail = pattern.partition("*")
    numbers = [fqn.removeprefix(head).partition(".")[0] for fqn in members]
    if not all(number.isdecimal() for number in numbers):
        yield from members
        return
    for run in runs([int(number) for number in numbers]).split(", "):
        yield f"{head}{f'{{{run}}}' if '..' in run else run}{tail}"


def as_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Patterns for families, with siblings in one pattern: `model.layers.*.mlp.{gate_proj,up_proj}`."""
    by_parent: dict[str, list[str]] = {}
    for name in names:
        parent, _, last = name.rpartition(".")
        by_parent.setdefault(parent, []).append(last)
    patterns = []
    for parent, children in by_parent.items():
        last = children[0] if len(children) == 1 else _alternatives(children)
        patterns.append(f"{parent}.{last}" if parent else last)
    return tuple(patterns)


def _alternatives(names: Sequence[str]) -> str:
    """`{q,k,v}_proj`: the ending that all names share is written once."""
    words = [name.split("_") for name in names]
    shared = 0
    while all(len(parts) > shared + 1 and parts[-1 - shared] == words[0][-1 - shared] for parts in words):
        shared += 1
    suffix = "_" + "_".join(words[0][-shared:]) if shared else ""
    return f"{{{','.join(name.removesuffix(suffix) for name in names)}}}{suffix}"


def quoted(names: Iterable[str]) -> str:
    """`a`, `b` and `c`, in backticks."""
    texts = [f"`{name}`" for name in names]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def runs(numbers: Sequence[int]) -> str:
    """`0..3, 5` for 0, 1, 2, 3, 5."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}..{high}" for low, high in ranges)
