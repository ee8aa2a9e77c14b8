"""The reasons for the rules of `auto`: what each container's cost, and the next best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planc.plan.style_actions import StyleAction
from planc.solve.choices import Cost
from planc.solve.search import Solution, Solved
from planc.tables import render_table

_HEADER = ("modules", "rules", "whole", "sent", "tried")
_KEY = """\
Rules are tried from the cheapest until `planc check` accepts them. The cheapest divide most attentions, then
leave the fewest elements of matrices whole on every rank, then send the least over tp.

  whole  elements of matrices that every rank has all of
  sent   elements that a rank sends for each token, forward and backward
  tried  how many the checks saw
"""


def auto_text(solution: Solution) -> str:
    """The table of a solution with its runners-up."""
    rows = [row for one in solution.solved for row in _rows(one)]
    return f"{_KEY}\n{render_table([_HEADER, *rows], indent='  ')}"


def auto_data(solution: Solution) -> list[dict[str, Any]]:
    """The same for a machine."""
    return [
        {
            "modules": solved.container,
            "rules": _named(solved.actions),
            **_cost(solved.cost),
            "num_tried": solved.num_tried,
            "refused": solved.refused or None,
            "runner_up": None
            if solved.runner_up_cost is None
            else {"rules": _named(solved.runner_up), **_cost(solved.runner_up_cost)},
        }
        for solved in solution.solved
    ]


def _rows(solved: Solved) -> Iterator[tuple[str, ...]]:
    name = solved.container or "outside of layers"
    yield name, _told(solved, solved.actions), *_figures(solved.cost), f"{solved.num_tried:_}"
    if solved.refused:
        yield "", f"  refused: {solved.refused}", "", "", ""
    if solved.runner_up_cost is not None:
        yield "", f"  next best: {_told(solved, solved.runner_up)}", *_figures(solved.runner_up_cost), ""


def _told(one: Solved, actions: tuple[tuple[str, StyleAction], ...]) -> str:
    """`q_proj, k_proj colwise; o_proj rowwise`, as seen from the container."""
    by_style: dict[str, list[str]] = {}
    for family, action in actions:
        short = "input" if family == one.container else family.removeprefix(f"{one.container}.")
        by_style.setdefault(action.style.name, []).append(short)
    return "; ".join(f"{', '.join(names)} {style}" for style, names in by_style.items()) or "none"


def _named(actions: tuple[tuple[str, StyleAction], ...]) -> Mapping[str, str]:
    return {family: action.style.name for family, action in actions}


def _figures(cost: Cost) -> tuple[str, str]:
    return f"{cost.whole:_}", f"{cost.sent_per_token:_}"


def _cost(cost: Cost) -> Mapping[str, int]:
    return {
        "attentions_whole": cost.attentions,
        "elements_whole": cost.whole,
        "elements_sent_per_token": cost.sent_per_token,
    }
