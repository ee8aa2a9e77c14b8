"""Figures that follow from a plan, at the ends of the lines that they follow from."""

from __future__ import annotations

from collections.abc import Iterator

from planc.figures import needs
from planc.figures import plan as of_plan
from planc.lsp.session import Analysis
from planc.record import record
from planc.syntax import ast


@record
class Hint:
    """Text to show at the end of a line, which counts from 1."""

    line: int
    text: str


def hints(analysis: Analysis) -> Iterator[Hint]:
    """Ranks at the mesh, gradient accumulation at the tokens of a step, peak memory at the device.

    None of a plan with errors: its figures would be of a plan that can't run.
    """
    model = analysis.model
    if model is None or analysis.checked.graph is None:
        return
    graph, estimate = model.graph, model.estimate
    peak = f"about {needs.peak_memory(estimate).text} per rank at the peak"
    for line in _lines(analysis.tree, ("mesh",)):
        yield Hint(line, of_plan.world_size(graph).text)
    for line in _lines(analysis.tree, ("train", "tokens_per_step")):
        yield Hint(line, f"gradient accumulation {of_plan.gradient_accumulation(graph).number}")
    for line in _lines(analysis.tree, ("hardware", "gpu"), ("model",)):
        yield Hint(line, peak)


def _lines(tree: ast.PlanFile, *ways: tuple[str, ...]) -> Iterator[int]:
    """The line of the first of these blocks or settings that the text has; of a block, that of its head.

    Else the line of `extends`: the block is then in a base.
    """
    for kind, *key in ways:
        for block in (statement for statement in tree.statements if isinstance(statement, ast.Block)):
            if block.kind.text != kind:
                continue
            settings = (one for one in block.body if isinstance(one, ast.Setting) and [one.name.text] == key)
            found = next(settings, None)
            yield found.span.end_line if found else block.kind.span.end_line
            return
    yield from (statement.span.line for statement in tree.statements if isinstance(statement, ast.Extends))
