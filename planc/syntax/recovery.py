"""All syntax errors of a text in one run: each statement is parsed alone and gives one finding at most."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from typing import assert_never

from lark import Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from planc.diagnostics import Diagnostic, Label, in_order
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast, codes
from planc.syntax.blocks import Fault, Node, outline
from planc.syntax.budget import span_at
from planc.syntax.build import Builder
from planc.syntax.grammar import parser
from planc.syntax.islands import Island, Kind, islands
from planc.syntax.messages import syntax_error

MAX_PROBLEMS = 50
_MORE = f"only the first {MAX_PROBLEMS} errors are shown"


@record
class Recovered:
    """The readable part of a text that does not parse.

    `file` has the statements that parse, in blocks whose braces pair. `doubtful_names` are the words in all
    others: one of them may be a parameter's name.
    """

    problems: tuple[Diagnostic, ...]
    file: ast.PlanFile
    doubtful_names: frozenset[str]


def recover(source: SourceFile, error: UnexpectedInput) -> Recovered:
    """The findings on a text that stopped the parser with `error`, and its sound part."""
    pieces = islands(source.text)
    reader = _Reader(source, [0, *accumulate(len(line) + 1 for line in source.lines)])
    for kind, run in groupby(pieces, key=lambda island: island.kind):
        if kind is Kind.STATEMENT:
            reader.read_statements(tuple(run))
        elif kind is Kind.HEADER:
            for head in run:
                if head.tokens[0].text != "{":
                    reader.read_statements((head,))
    shape = outline(pieces, faulty=frozenset(reader.problems))
    # What the parser has read before it stopped was sound, whatever it looks like by itself. Only of an open
    # bracket it learns late.
    cut_off = _after_faulty_heads(pieces, reader.problems)
    statements = (
        problem
        for start, problem in reader.problems.items()
        if start not in cut_off
        and (problem.code is codes.UNCLOSED or problem.primary.span.line >= reader.line_of(error))
    )
    faults = sorted(shape.faults, key=lambda found: found[1].start)[: MAX_PROBLEMS + 1]
    braces = (_brace_problem(source, fault, island) for fault, island in faults)
    problems = in_order((*statements, *braces)) or (syntax_error(error, source),)
    sound = tuple(_statements(shape.nodes, reader))
    return Recovered(
        _capped(problems),
        ast.PlanFile(source.name, sound, source.whole()),
        frozenset(_doubtful_names(shape.nodes, reader)),
    )


def _after_faulty_heads(found: Sequence[Island], problems: Mapping[int, Diagnostic]) -> frozenset[int]:
    """The islands on the line of a faulty head, after its brace: most likely parts of one statement."""
    return frozenset(
        after.start
        for head, after in pairwise(found)
        if head.kind is Kind.HEADER and head.start in problems and not after.is_first
    )


@dataclass(slots=True)
class _Reader:
    """Statements and problems by the start of their island; `line_starts` are offsets of lines."""

    source: SourceFile
    line_starts: Sequence[int]
    statements: dict[int, list[ast.Statement]] = field(default_factory=dict)
    problems: dict[int, Diagnostic] = field(default_factory=dict)

    def read_statements(self, run: Sequence[Island]) -> None:
        """Parses a run of islands as one text; where that fails, what is before, at and after the place."""
        while run and len(self.problems) <= MAX_PROBLEMS:
            tree, excerpt = self._parse(run)
            if not isinstance(tree, UnexpectedInput):
                self._keep(run, tree)
                return
            if len(run) == 1:
                problem = syntax_error(tree, excerpt)
                self.problems[run[0].start] = _moved(problem, self._line(run[0].start) - 1)
                return
            at = self._failed_at(run, tree)
            self.read_statements(run[:at])
            self.read_statements(run[at : at + 1])
            run = run[at + 1 :]

    def _failed_at(self, run: Sequence[Island], error: UnexpectedInput) -> int:
        """The island at which the parser stopped; the middle one where a bracket kept it going to the end."""
        if _is_at_end(error):
            return len(run) // 2
        line = self._line(run[0].start) + error.line - 1
        offset = self.line_starts[line - 1] + error.column - 1
        return max(0, bisect_right(run, offset, key=lambda island: island.start) - 1)

    def span(self, island: Island) -> Span:
        """The place of an island that is one character."""
        line = self._line(island.start)
        column = island.start - self.line_starts[line - 1] + 1
        return Span(self.source.name, line, column, line, column + 1)

    def line_of(self, error: UnexpectedInput) -> int:
        """The line that the parser stopped in; past the end of the text it has none of its own."""
        return len(self.line_starts) if _is_at_end(error) else error.line

    def _parse(self, run: Sequence[Island]) -> tuple[Tree[Token] | UnexpectedInput, SourceFile]:
        """The tree of some islands' text, whose first line is their first line with spaces before them."""
        start, end = run[0].start, run[-1].end
        text = " " * (start - self.line_starts[self._line(start) - 1]) + self.source.text[start:end]
        if run[-1].kind is not Kind.HEADER and self.source.text.find("\n", end) >= 0:
            text += "\n"
        excerpt = SourceFile(self.source.name, text)
        try:
            closed = text + "}" if run[-1].kind is Kind.HEADER else text
            return parser().parse(closed, start="start"), excerpt
        except UnexpectedInput as error:
            return error, excerpt

    def _keep(self, run: Sequence[Island], tree: Tree[Token]) -> None:
        starts = [island.start for island in run]
        _move_down(tree, self._line(starts[0]) - 1)
        for statement in Builder(self.source.name).statements(tree.children):
            offset = self.line_starts[statement.span.line - 1] + statement.span.column - 1
            island = starts[bisect_right(starts, offset) - 1]
            self.statements.setdefault(island, []).append(statement)

    def _line(self, offset: int) -> int:
        return bisect_right(self.line_starts, offset)


def _is_at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _move_down(tree: Tree[Token], num_lines: int) -> None:
    """Adds to every line number in a tree."""
    for subtree in tree.iter_subtrees():
        tokens = (child for child in subtree.children if isinstance(child, Token))
        for token in tokens:
            if token.line is not None and token.end_line is not None:
                token.line, token.end_line = token.line + num_lines, token.end_line + num_lines
        if not subtree.meta.empty:
            subtree.meta.line += num_lines
            subtree.meta.end_line += num_lines


def _moved(problem: Diagnostic, num_lines: int) -> Diagnostic:
    primary = Label(_below(problem.primary.span, num_lines), problem.primary.text)
    fix = problem.fix and replace(problem.fix, span=_below(problem.fix.span, num_lines))
    return replace(problem, primary=primary, fix=fix)


def _below(span: Span, num_lines: int) -> Span:
    return replace(span, line=span.line + num_lines, end_line=span.end_line + num_lines)


def _brace_problem(source: SourceFile, fault: Fault, island: Island) -> Diagnostic:
    token = island.tokens[-1]
    place = token.start + len(token.text.rstrip()) - 1 if token.kind == "open" else token.start
    span = span_at(source, place, 1)
    text = f"found `{source.text[place]}`"
    match fault:
        case Fault.UNCLOSED:
            return codes.UNCLOSED.at(span, "this block is never closed", help="add its `}`")
        case Fault.UNOPENED:
            return codes.UNOPENED.at(span, "no block is open here", help="remove it, or add the block's `{`")
        case Fault.WRONG_BRACKET:
            return codes.UNEXPECTED_TOKEN.at(span, text, help="end the block with `}`")
        case Fault.BRACE_ON_NEXT_LINE:
            help = "move `{` to the line of the block's name"
            return codes.UNEXPECTED_TOKEN.at(span, text, help=help)
        case Fault.STRAY_BRACE:
            return codes.UNEXPECTED_TOKEN.at(span, text, help="write the block's name before `{`")
        case Fault.NO_BRACE:
            end = span_at(source, island.end, 1)
            help = f"write the block as `{island.tokens[0].text} {{ ... }}`"
            return codes.UNEXPECTED_TOKEN.at(end, "found end of line", help=help)
        case _:
            assert_never(fault)


def _capped(problems: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    if len(problems) <= MAX_PROBLEMS:
        return problems
    *kept, last = problems[:MAX_PROBLEMS]
    return (*kept, replace(last, notes=(*last.notes, _MORE)))


def _statements(nodes: Sequence[Node], reader: _Reader) -> Iterator[ast.Statement]:
    """The statements that parse, blocks with what they hold. Blocks whose braces are a guess are left out."""
    for node in nodes:
        statements = reader.statements.get(node.head.start, [])
        if node.head.kind is Kind.STATEMENT and not node.children:
            yield from statements
        elif node.is_sound and node.closer and len(statements) == 1 and isinstance(statements[0], ast.Block):
            body = tuple(_statements(node.children, reader))
            end = reader.span(node.closer)
            yield replace(statements[0], body=body, span=statements[0].span.to(end))


def _doubtful_names(nodes: Sequence[Node], reader: _Reader, *, is_sound: bool = True) -> Iterator[str]:
    for node in nodes:
        if not (is_sound and node.is_sound) or node.head.start in reader.problems:
            yield from (token.text for token in node.head.tokens if token.kind == "word")
        yield from _doubtful_names(node.children, reader, is_sound=is_sound and node.is_sound)
