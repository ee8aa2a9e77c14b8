"""The block that each statement belongs to, and the braces that are missing or too many.

If braces do not pair, indentation shows the intent, as it does to a reader. If a text has none, the
braces alone count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from planc.record import record
from planc.syntax.islands import Island, Kind

_MAX_LOOK_BACK = 100
_MAX_LOOK_AHEAD = 200


class Fault(StrEnum):
    """A fault of a block's braces."""

    UNCLOSED = "unclosed"
    UNOPENED = "unopened"
    NO_BRACE = "no brace"
    BRACE_ON_NEXT_LINE = "brace on the next line"
    STRAY_BRACE = "stray brace"
    WRONG_BRACKET = "wrong bracket"


@dataclass(slots=True)
class Node:
    """A statement or a block. `is_sound` is False where its braces, and so its contents, are a guess."""

    head: Island
    children: list[Node] = field(default_factory=list)
    closer: Island | None = None
    is_sound: bool = True


@record
class Outline:
    """All statements in their blocks, and the islands at which braces are at fault."""

    nodes: tuple[Node, ...]
    faults: tuple[tuple[Fault, Island], ...]


def outline(islands: Sequence[Island], *, faulty: frozenset[int]) -> Outline:
    """The blocks of a text. `faulty` are the starts of islands that do not parse: those are reported."""
    braces = [at for at, one in enumerate(islands) if one.is_first and one.kind is not Kind.STATEMENT]
    builder = _Builder(islands, braces, faulty)
    for at in range(len(islands)):
        builder.take(at)
    builder.end()
    return Outline(tuple(builder.roots), tuple(builder.faults))


@dataclass(slots=True)
class _Open:
    """A block that is being read. `needs_brace` is False where indentation alone holds it together."""

    node: Node
    is_reported: bool
    needs_brace: bool = True
    lasts_to: int = -1
    """Up to this island it is known to continue, however little some of its lines are indented."""

    @property
    def indent(self) -> int:
        return self.node.head.indent

    @property
    def is_indented(self) -> bool:
        """Whether its contents stand deeper than its head."""
        heads = (child.head for child in self.node.children)
        return any(head.indent > self.indent for head in islice((head for head in heads if head.is_first), 1))


@dataclass(slots=True)
class _Builder:
    """The state of one pass over the islands."""

    islands: Sequence[Island]
    braces: Sequence[int]
    """The islands with a brace that start their line."""
    faulty: frozenset[int]
    roots: list[Node] = field(default_factory=list)
    stack: list[_Open] = field(default_factory=list)
    faults: list[tuple[Fault, Island]] = field(default_factory=list)

    def take(self, at: int) -> None:
        island = self.islands[at]
        self._close_dedented(at)
        if island.kind is Kind.CLOSER:
            self._take_closer(at)
        elif island.kind is Kind.HEADER:
            self._take_header(island)
        else:
            self._add(Node(island))
            if self._opens_without_brace(at):
                if island.start not in self.faulty:
                    self.faults.append((Fault.NO_BRACE, island))
                self.stack.append(_Open(self._siblings()[-1], is_reported=True, needs_brace=False))
                self.stack[-1].node.is_sound = False

    def end(self) -> None:
        while self.stack:
            self._close_unclosed(is_seen=False)

    def _siblings(self) -> list[Node]:
        return self.stack[-1].node.children if self.stack else self.roots

    def _add(self, node: Node) -> None:
        self._siblings().append(node)

    def _take_header(self, island: Island) -> None:
        is_lone = island.tokens[0].text == "{"
        siblings = self._siblings()
        if is_lone and siblings and siblings[-1].head.names_a_block and not siblings[-1].closer:
            node = siblings[-1]
            if node.head.start not in self.faulty:
                self.faults.append((Fault.BRACE_ON_NEXT_LINE, island))
            node.is_sound = False
        else:
            if is_lone:
                self.faults.append((Fault.STRAY_BRACE, island))
            node = Node(island, is_sound=not is_lone and island.start not in self.faulty)
            self._add(node)
        self.stack.append(_Open(node, is_reported=is_lone or island.tokens[-1].text in ("(", "[")))

    def _opens_without_brace(self, at: int) -> bool:
        """Whether a word and deeper lines after it are a block that lacks its brace."""
        island, following = self.islands[at], self._after(at)
        return (
            island.names_a_block
            and following is not None
            and following.kind is not Kind.CLOSER
            and following.is_first
            and following.tokens[0].text != "{"
            and following.indent > island.indent
        )

    def _after(self, at: int) -> Island | None:
        return self.islands[at + 1] if at + 1 < len(self.islands) else None

    def _close_dedented(self, at: int) -> None:
        """Ends blocks whose brace is missing, seen by a line that stands no deeper than their head."""
        island = self.islands[at]
        while self.stack and island.is_first and island.indent <= self.stack[-1].indent:
            top = self.stack[-1]
            if island.kind is Kind.CLOSER and island.indent == top.indent:
                return
            is_guess = not top.is_indented and top.node.head.start not in self.faulty
            if is_guess or not self._is_missing_closer(at):
                return
            self._close_unclosed(is_seen=top.is_indented)

    def _is_missing_closer(self, at: int) -> bool:
        """Whether the block on top has ended before this line, whatever the braces say."""
        island, indent = self.islands[at], self.stack[-1].indent
        if island.kind is Kind.CLOSER:
            return any(outer.indent == island.indent for outer in self.stack[:-1])
        if island.kind is Kind.HEADER:
            closer = self._closer_after(at, island.indent)
            following = None if closer is None else self._after(closer)
            return following is None or following.kind is not Kind.CLOSER or following.indent != indent
        if at > self.stack[-1].lasts_to:
            self.stack[-1].lasts_to = self._closer_after(at, indent) or -1
        return at > self.stack[-1].lasts_to

    def _closer_after(self, at: int, indent: int) -> int | None:
        """The brace that closes the block at this indent, unless the head of another block comes first."""
        start = bisect_right(self.braces, at)
        for index in self.braces[start : start + _MAX_LOOK_AHEAD]:
            if self.islands[index].indent <= indent:
                return index if self.islands[index].kind is Kind.CLOSER else None
        return None

    def _close_unclosed(self, *, is_seen: bool) -> None:
        """End a block without its brace. After a faulty head the brace may be another's, unless `is_seen`."""
        top = self.stack.pop()
        is_block = is_seen or top.node.head.start not in self.faulty
        if top.needs_brace:
            top.node.is_sound = False
            if is_block and not top.is_reported:
                self.faults.append((Fault.UNCLOSED, top.node.head))

    def _close(self, closer: Island) -> None:
        self.stack.pop().node.closer = closer

    def _take_closer(self, at: int) -> None:
        island = self.islands[at]
        if not self.stack:
            self._report_unopened(at)
        elif island.tokens[0].text in (")", "]"):
            self._take_wrong_closer(island)
        elif self._is_premature(at):
            self.faults.append((Fault.UNOPENED, island))
        else:
            self._close(island)

    def _take_wrong_closer(self, island: Island) -> None:
        top = self.stack[-1]
        if island.indent != top.indent:
            self.faults.append((Fault.UNOPENED, island))
            return
        if top.node.head.tokens[-1].text not in ("(", "["):
            self.faults.append((Fault.WRONG_BRACKET, island))
        self._close(island)

    def _is_premature(self, at: int) -> bool:
        """Whether the block on top continues after this brace: the text after it is indented as before."""
        island, top, following = self.islands[at], self.stack[-1], self._after(at)
        if following is None or not top.is_indented:
            return False
        goes_on = following.kind is not Kind.CLOSER and following.is_first and following.indent > top.indent
        closes_next = following.kind is Kind.CLOSER and following.is_first and following.indent == top.indent
        if island.is_first and island.indent <= top.indent:
            return goes_on and self._closer_after(at, top.indent) is not None
        return goes_on or closes_next

    def _report_unopened(self, at: int) -> None:
        """A brace too many; or the word before it lacks the brace that opens."""
        last = self.roots[-1] if self.roots else None
        for node in reversed(self.roots[-_MAX_LOOK_BACK:]):
            if node.head.kind is not Kind.STATEMENT:
                break
            if len(node.head.tokens) == 1 and node.head.names_a_block and node is not last:
                self.faults.append((Fault.NO_BRACE, node.head))
                return
        self.faults.append((Fault.UNOPENED, self.islands[at]))
