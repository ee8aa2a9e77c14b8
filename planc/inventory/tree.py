"""The modules of an inventory as a tree in which repeated layers occur once. No torch here.

Siblings with numeric names and equal subtrees share one node, named by their indices: `1..125`, or
`0..4,6..10` where two kinds alternate. A layer's references to its neighbors would differ from layer to
layer, so references are relative, as in a Python import: one dot for each level to climb from the own name,
then the rest of the path. If the path leaves the own one at a numeric name, the number is an offset. Seen
from `model.layers.3.self_attn.o_proj`, `.q_proj` is its sibling; from `model.layers.3.input_layernorm`,
`..-1` is `model.layers.2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter

from planc.inventory.files import InventoryError
from planc.inventory.schema import Attention, Module
from planc.record import record
from planc.vocab import parent_of

# More than any model has: a small file that expands to more is rejected before it fills the memory.
MAX_MODULES = 200_000
MAX_SIBLINGS = 10_000
MAX_DEPTH = 50

_INDICES = re.compile(r"(0|[1-9][0-9]{0,8})(\.\.(0|[1-9][0-9]{0,8}))?")
_REFERENCE = re.compile(r"(\.*)([+-][1-9][0-9]{0,8})?(.*)", re.DOTALL)


@record
class Node:
    """A module, or several equal siblings, and everything below.

    The module's fqn is its own name, and its sources, its draws' and what it returns are relative. The
    attention has no name.
    """

    module: Module
    attention: Attention | None = None
    children: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        return self.module.fqn

    def named(self, name: str) -> Node:
        return replace(self, module=replace(self.module, fqn=name))


_FIELDS = tuple(one.name for one in fields(Module))
_VALUES = attrgetter(*_FIELDS)


def fold(modules: Iterable[Module], *, attentions: Iterable[Attention]) -> Node:
    """The tree of `modules`, whose root (fqn "") is among them."""
    attention_of = {attention.fqn: attention for attention in attentions}
    children_of: dict[str, list[Module]] = {}
    root = None
    for module in modules:
        if module.fqn:
            children_of.setdefault(parent_of(module.fqn), []).append(module)
        else:
            root = module
    assert root is not None, "an inventory lists its root"
    return _fold(root, children_of=children_of, attention_of=attention_of)


def _fold(
    module: Module, *, children_of: dict[str, list[Module]], attention_of: dict[str, Attention]
) -> Node:
    attention = attention_of.get(module.fqn)
    children = (
        _fold(child, children_of=children_of, attention_of=attention_of)
        for child in children_of.get(module.fqn, [])
    )
    return Node(
        _renamed(module, module.fqn.rpartition(".")[2], partial(relative, seen_from=module.fqn)),
        None if attention is None else replace(attention, fqn=""),
        _collapse(tuple(children)),
    )


def _renamed(module: Module, fqn: str, change: Callable[[str], str]) -> Module:
    """The module under another name, with each reference to others changed."""
    draws = tuple(replace(draw, sources=tuple(map(change, draw.sources))) for draw in module.draws)
    sources, returns = tuple(map(change, module.sources)), tuple(map(change, module.returns))
    others = {"fqn": fqn, "sources": sources, "returns": returns, "draws": draws}
    return Module(**dict(zip(_FIELDS, _VALUES(module), strict=True)) | others)


def _collapse(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    if not all(_is_index(node.name) for node in nodes):
        return nodes
    groups: dict[Node, list[int]] = {}
    for node in nodes:
        groups.setdefault(node.named(""), []).append(int(node.name))
    return tuple(node.named(_format_indices(indices)) for node, indices in groups.items())


def unfold(root: Node) -> tuple[tuple[Module, ...], tuple[Attention, ...]]:
    """The modules and attentions of a tree. InventoryError for invalid names or references."""
    modules: list[Module] = []
    attentions: list[Attention] = []
    for fqn, node in _walk(root, fqn=""):
        if len(modules) == MAX_MODULES:
            raise _error(f"more than {MAX_MODULES} modules")
        modules.append(_renamed(node.module, fqn, partial(absolute, seen_from=fqn)))
        if node.attention is not None:
            attentions.append(replace(node.attention, fqn=fqn))
    return tuple(modules), tuple(attentions)


def _walk(node: Node, *, fqn: str) -> Iterator[tuple[str, Node]]:
    yield fqn, node
    if fqn.count(".") > MAX_DEPTH:
        raise _error(f"modules nested more than {MAX_DEPTH} deep")
    prefix = f"{fqn}." if fqn else ""
    for name, child in _named_children(node, fqn=fqn):
        yield from _walk(child, fqn=prefix + name)


def _named_children(node: Node, *, fqn: str) -> list[tuple[str, Node]]:
    """(name, child) with shared nodes repeated; numeric names in their order, as a module list has them."""
    named = [(name, child) for child in node.children for name in _parse_names(child.name, parent=fqn)]
    names = {name for name, _ in named}
    if len(names) != len(named):
        raise _error(f'two children of "{fqn}" have the same name')
    if all(_is_index(name) for name in names):
        named.sort(key=lambda entry: int(entry[0]))
    return named


def relative(fqn: str, *, seen_from: str) -> str:
    """The reference to `fqn` in module `seen_from`."""
    target, own = _segments(fqn), _segments(seen_from)
    shared = 0
    while shared < min(len(target), len(own)) and target[shared] == own[shared]:
        shared += 1
    rest = target[shared:]
    if rest and shared < len(own) and _is_index(rest[0]) and _is_index(own[shared]):
        rest = [f"{int(rest[0]) - int(own[shared]):+d}", *rest[1:]]
    return "." * (len(own) - shared) + ".".join(rest)


def absolute(reference: str, *, seen_from: str) -> str:
    """The fqn that `reference` means in module `seen_from`. InventoryError when it points nowhere."""
    match = _REFERENCE.fullmatch(reference)
    assert match is not None, "every part of the pattern may be empty"
    dots, offset, rest = match.groups()
    own = _segments(seen_from)
    shared = len(own) - len(dots)
    if shared < 0 or (offset and not (dots and _is_index(own[shared]))):
        raise _error(f'"{reference}" in "{seen_from}" points nowhere')
    head = own[:shared]
    if offset:
        head.append(str(int(own[shared]) + int(offset)))
        return ".".join(head) + rest
    return ".".join([*head, rest] if rest else head)


def _segments(fqn: str) -> list[str]:
    return fqn.split(".") if fqn else []


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0")


def _format_indices(indices: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)


def _parse_names(name: str, *, parent: str) -> list[str]:
    """The names of a node: one, unless it is a list of index ranges."""
    matches = [_INDICES.fullmatch(part) for part in name.split(",")]
    if not all(matches):
        if not name or "." in name:
            raise _error(f'"{name}" in "{parent}" is not the name of a module')
        return [name]
    names: list[str] = []
    for match in matches:
        assert match is not None
        first, last = int(match[1]), int(match[3] or match[1])
        if not first <= last < first + MAX_SIBLINGS - len(names):
            raise _error(
                f'"{name}" in "{parent}" is not an ascending range of at most {MAX_SIBLINGS} modules'
            )
        names.extend(map(str, range(first, last + 1)))
    return names


def _error(message: str) -> InventoryError:
    return InventoryError(message, help="write the inventory again: planc inventory DIR --save")
