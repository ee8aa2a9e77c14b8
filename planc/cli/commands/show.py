"""`planc show`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from planc.capacity.draft import Draft
from planc.cli.support import options, plans
from planc.cli.support.exits import UsageError
from planc.cli.support.terminal import write_view
from planc.estimate.layout import layouts
from planc.graph.graph import Graph, plain, plan_hash
from planc.graph.ops import BuildModel
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.graph.text import to_mermaid, to_text
from planc.plan.bind import BoundPlan
from planc.show.auto import auto_data, auto_text
from planc.show.estimate import collectives_data, collectives_text, convention_text, memory_data, memory_text
from planc.show.layout import layout_data, layout_text, other_dtypes_text
from planc.show.mesh import mesh_data, mesh_text
from planc.show.origin import origin_data, origin_text
from planc.show.overview import overview
from planc.show.passes import passes_data, passes_text
from planc.show.pipeline import pipeline_data, pipeline_text
from planc.show.resolved import resolved_text
from planc.solve import is_solved
from planc.solve.search import Solution
from planc.solve.solve import solve
from planc.tables import render_table

DESCRIPTION = """\
Show what a plan means, as read from the execution graph. Without a view, show an overview. A plan that breaks
its `expect` block, or does not fit its device, is shown before these errors; the exit code is 1."""

EPILOG = """\
examples:
  planc show llama.plan
  planc show llama.plan --layout
  planc show llama.plan --memory --gpu h100
  planc show llama.plan --resolved --set tp_size=8 > llama_tp8.plan
  planc show llama.plan --graph mermaid"""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser)
    view = parser.add_mutually_exclusive_group()
    for name, text in (
        ("resolved", "the plan with all defaults filled in; a valid plan with the same plan_hash"),
        ("layout", "placements, local shape and bytes of every parameter"),
        ("memory", "memory per rank by purpose, and its peak"),
        ("collectives", "collectives per rank and step, with bytes"),
        ("mesh", "mesh coordinates of every rank"),
        ("pipeline", "stages with their modules, and the schedule of a step as a drawing"),
        ("auto", "why `auto` has the rules that planc found for it, with the next best"),
        ("origin", "the file and line that each value comes from"),
        ("passes", "the passes that made the graph, in order, with what each removed and changed"),
    ):
        view.add_argument(f"--{name}", dest="view", action="store_const", const=name, help=text)
    view.add_argument(
        "--graph",
        choices=("text", "mermaid", "json"),
        metavar="AS",
        help="the execution graph as text, mermaid or json",
    )
    options.add_set_argument(parser)
    options.add_gpu_argument(parser)
    options.add_output_format_argument(parser, note="; --resolved has text only")


def run(arguments: Namespace) -> int:
    """Exits as `check` does. A plan that only does not fit, or breaks `expect`, is shown all the same."""
    checked = plans.check(arguments.plan, settings=plans.settings(arguments))
    draft = plans.require_figures(checked)
    bound, graph = draft.bound, draft.graph
    if arguments.graph is not None:
        sys.stdout.write(_graph(graph, arguments.graph))
    elif arguments.output_format == "json":
        sys.stdout.write(_json(arguments.view, draft))
    elif arguments.view == "resolved":
        sys.stdout.write(resolved_text(bound))
    else:
        write_view(_text(arguments.view, draft), stream=sys.stdout)
    return plans.finish(checked)


def _graph(graph: Graph, output_format: str) -> str:
    match output_format:
        case "text":
            return to_text(graph)
        case "mermaid":
            return to_mermaid(graph)
        case _:
            return json.dumps({"plan_hash": plan_hash(graph), **plain(graph)}, indent=2) + "\n"


def _solution(bound: BoundPlan) -> Solution:
    """The search behind `auto`, with the next best of each choice."""
    if not is_solved(bound.plan, bound.model):
        raise UsageError("--auto explains rules that planc found; this plan has none of them, see --resolved")
    return solve(bound.plan, bound.model, with_runner_up=True)


def _pipeline(graph: Graph) -> Pipeline:
    if (found := pipeline_of(graph)) is None:
        raise UsageError("--pipeline draws a pipeline; this plan has none, because its mesh has pp = 1")
    return found


def _build(graph: Graph) -> BuildModel:
    return next(op for op in graph.setup if isinstance(op, BuildModel))


def _text(view: str | None, draft: Draft) -> str:
    bound, graph = draft.bound, draft.graph
    match view:
        case "layout":
            return layout_text(layouts(graph, bound.inventory)) + other_dtypes_text(_build(graph))
        case "memory":
            device = bound.plan.hardware.gpu if bound.plan.hardware else None
            return f"{convention_text(draft.estimate)}\n{memory_text(draft.estimate, device=device)}"
        case "collectives":
            return f"{convention_text(draft.estimate)}\n{collectives_text(draft.estimate)}"
        case "mesh":
            return mesh_text([size for _, size in graph.mesh])
        case "pipeline":
            return pipeline_text(_pipeline(graph))
        case "origin":
            return origin_text(bound.plan)
        case "auto":
            return auto_text(_solution(bound))
        case "passes":
            return passes_text(bound)
        case _:
            rows = render_table([*overview(bound, graph, draft.estimate)], indent="  ")
            return f"{bound.plan.name}  {plan_hash(graph)[:12]}\n{rows}"


def _json(view: str | None, draft: Draft) -> str:
    bound, graph = draft.bound, draft.graph
    document: dict[str, Any] = {"format_version": 1, "plan_hash": plan_hash(graph)}
    match view:
        case "layout":
            document["parameters"] = layout_data(layouts(graph, bound.inventory))
            others = graph.other_dtypes.items()
            document["other_dtypes"] = {name: str(dtype) for name, dtype in others}
        case "memory":
            document["memory"] = memory_data(draft.estimate)
        case "collectives":
            document["collectives"] = collectives_data(draft.estimate)
        case "mesh":
            document |= mesh_data([size for _, size in graph.mesh])
        case "pipeline":
            document["pipeline"] = pipeline_data(_pipeline(graph))
        case "origin":
            document["settings"] = origin_data(bound.plan)
        case "auto":
            document["auto"] = auto_data(_solution(bound))
        case "passes":
            document["passes"] = passes_data(bound)
        case "resolved":
            raise UsageError("--resolved prints a plan, which has no JSON form; use --origin or --graph json")
        case _:
            document["overview"] = dict(overview(bound, graph, draft.estimate))
    return json.dumps(document, indent=2) + "\n"
