"""Differences between pipelines: the schedule, each stage's modules, and the time that ranks are idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from planc.diff.difference import Change, Group
from planc.diff.fact import Fact, compare
from planc.diff.side import Side
from planc.figures.plan import bubble
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.graph.text import summarise


def compare_pipelines(old: Side, new: Side) -> Iterator[Change]:
    """The schedule and the bubble, then the stages."""
    num_stages = max(one.num_stages if one else 0 for one in map(_pipeline, (old, new)))
    stages = (
        Fact(Group.LAYOUT, f"stage {stage}", "pipeline", _modules(stage)) for stage in range(num_stages)
    )
    facts = (
        Fact(Group.LAYOUT, "pipeline", "pipeline.schedule", _schedule),
        *stages,
        Fact(Group.LAYOUT, "weights in two stages", "pipeline", _ties),
        Fact(Group.TIME, "bubble, if stages take equal time", "pipeline", _bubble),
    )
    return compare(facts, old, new)


def _pipeline(side: Side) -> Pipeline | None:
    return pipeline_of(side.graph)


def _schedule(side: Side) -> str | None:
    pipeline = _pipeline(side)
    return None if pipeline is None else pipeline.schedule


def _modules(stage: int) -> Callable[[Side], Any]:
    def read(side: Side) -> str | None:
        pipeline = _pipeline(side)
        has_stage = pipeline is not None and stage < pipeline.num_stages
        return ", ".join(summarise(pipeline.split.stages[stage])) if pipeline and has_stage else None

    return read


def _ties(side: Side) -> str | None:
    pipeline = _pipeline(side)
    ties = pipeline.split.ties if pipeline is not None else ()
    return ", ".join(" = ".join(tie) for tie in ties) or None


def _bubble(side: Side) -> str | None:
    pipeline = _pipeline(side)
    return None if pipeline is None else bubble(pipeline).text
