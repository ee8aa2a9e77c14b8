"""Route the operations of a chat template through its environment, where Jinja itself does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

MAX_SUMS = 16
"""In an expression, before each of them is looked at."""


class Guard(NodeTransformer):
    """Rewrites a template: its parts go through `items`, `kept`, `added` and `joined` of the environment."""

    def __init__(self) -> None:
        self._is_inside, self._has_many_sums = False, False

    def visit(self, node: nodes.Node, *arguments: Any, **named: Any) -> Any:
        if self._is_inside or not isinstance(node, nodes.Expr):
            return super().visit(node, *arguments, **named)
        self._is_inside, self._has_many_sums = True, _num_sums(node) > MAX_SUMS
        try:
            return super().visit(node, *arguments, **named)
        finally:
            self._is_inside = False

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through("items", [node.iter])
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        may_share = isinstance(node.target, nodes.NSRef) and not isinstance(node.node, nodes.Const)
        is_kept = may_share or _num_sums(node.node) > 0
        self.generic_visit(node)
        if is_kept:
            node.node = _through("kept", [node.node])
        return node

    def visit_With(self, node: nodes.With) -> nodes.With:
        self.generic_visit(node)
        node.values = [_through("kept", [value]) for value in node.values]
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.defaults = [_through("kept", [value]) for value in node.defaults]
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:
        sums = [_num_sums(one) > 0 for one in node.args]
        named = [_num_sums(one) > 0 for one in node.kwargs]
        self.generic_visit(node)
        node.args = [
            _through("kept", [one]) if has else one for one, has in zip(node.args, sums, strict=True)
        ]
        for one, has in zip(node.kwargs, named, strict=True):
            one.value = _through("kept", [one.value]) if has else one.value
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        self.generic_visit(node)
        return _through("added", [node.left, node.right]) if self._has_many_sums else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _through("joined", node.nodes) if self._has_many_sums else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return node if node.ctx != "load" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._literal(node, [pair.value for pair in node.items])

    def _literal(self, node: nodes.Expr, items: Iterable[nodes.Expr]) -> nodes.Expr:
        is_constant = all(isinstance(one, nodes.Const) for one in items)
        self.generic_visit(node)
        return node if is_constant else _through("kept", [node])


def _num_sums(node: nodes.Node) -> int:
    """The number of sums of texts in an expression, with all of its parts."""
    found = [*node.find_all(nodes.Add), *node.find_all(nodes.Concat), node]
    return sum(_own_sums(one) for one in found)


def _own_sums(node: nodes.Node) -> int:
    match node:
        case nodes.Add():
            return 1
        case nodes.Concat():
            return len(node.nodes)
        case _:
            return 0


def _through(method: str, arguments: Sequence[nodes.Node]) -> nodes.Filter:
    """The call of a filter that no template can name: Jinja compiles it to a plain call."""
    first, *others = arguments
    found = nodes.Filter(first, private(method), others, [], None, None)
    return found.set_lineno(first.lineno, override=True)  # type: ignore[return-value]


def private(method: str) -> str:
    """The name of the filter by which a template calls a method of the environment."""
    return f"planc {method}"
