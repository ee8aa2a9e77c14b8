"""The rehearsal of a checked graph: failures, communication, memory, and a comparison with the estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from planc.deep_check.cache import load, save
from planc.deep_check.codes import ESTIMATE_DIFFERS, EXTENSION_NOT_RUN, REHEARSAL_FAILED
from planc.diagnostics import Diagnostic
from planc.estimate.collectives import as_called
from planc.estimate.result import Estimate
from planc.graph.extensions import extensions_of
from planc.graph.graph import Graph
from planc.record import record
from planc.runtime.rehearsal.findings import Failure, Measured, Rehearsal
from planc.source import Span
from planc.tables import plural
from planc.vocab import GroupDim

_MAX_MESSAGE_LINES = 6
_MAX_DIFFERENCES = 5

Counted = Counter[tuple[str, tuple[GroupDim, ...], int | None]]
"""Numbers of collectives by (kind, mesh dims, bytes of the input)."""


@record
class Deep:
    """The findings of a rehearsal, and the rehearsal itself."""

    diagnostics: tuple[Diagnostic, ...]
    rehearsal: Rehearsal
    is_cached: bool


def own_code(graph: Graph, *, nowhere: Span) -> tuple[Diagnostic, ...]:
    """A finding for each part of the plan's own code, which a rehearsal without permission would run."""
    return tuple(
        EXTENSION_NOT_RUN.at(
            op.span or nowhere,
            f"`{extension.entry}` is code in {extension.file}",
            help=f"read {extension.file}, then add `--run-extensions`",
        )
        for op, extension in extensions_of(graph)
    )


def check_deep(
    graph: Graph,
    *,
    base: Path,
    estimate: Estimate,
    cache_dir: Path,
    nowhere: Span,
    said: Callable[[str], None] = lambda text: None,
) -> Deep:
    """Rehearse a graph, or load its earlier rehearsal with the same libraries from the cache.

    If the plan has code of its own, the caller has permission to run it. Relative paths start at `base`;
    findings without a line of the plan are at `nowhere`; `said` is called with the name of each slow stage.
    ValueError if this process has a process group, RunError if the model can't be built. Imports torch.
    """
    rehearsal = load(graph, cache_dir=cache_dir)
    is_cached = rehearsal is not None
    if rehearsal is None:
        said("loading torch")
        # torch takes seconds to import, and only a rehearsal needs it.
        from planc.runtime.rehearsal.rehearse import rehearse

        # Of a pipeline, the rank that needs the most memory is measured.
        stage = estimate.place.pp_rank if estimate.place else 0
        rehearsal = rehearse(graph, base=base, measured_stage=stage, report=said)
        save(rehearsal, graph=graph, cache_dir=cache_dir)
    return _judged(rehearsal, estimate=estimate, nowhere=nowhere, is_cached=is_cached)


def cached_deep(graph: Graph, *, estimate: Estimate, cache_dir: Path, nowhere: Span) -> Deep | None:
    """An earlier rehearsal of this graph with the installed libraries; None without one. Imports no torch."""
    rehearsal = load(graph, cache_dir=cache_dir)
    if rehearsal is None:
        return None
    return _judged(rehearsal, estimate=estimate, nowhere=nowhere, is_cached=True)


def _judged(rehearsal: Rehearsal, *, estimate: Estimate, nowhere: Span, is_cached: bool) -> Deep:
    diagnostics = [*_failures(rehearsal, nowhere)]
    if rehearsal.measured is not None:
        of_rank = estimate.ranks[estimate.place.pp_rank] if estimate.place else estimate
        diagnostics.extend(_differences(rehearsal.measured, of_rank, nowhere))
    return Deep(tuple(diagnostics), rehearsal, is_cached)


def _failures(rehearsal: Rehearsal, nowhere: Span) -> Iterator[Diagnostic]:
    """One finding for each line of the plan that fails, on the first rank that it fails on."""
    first: dict[Span, Failure] = {}
    for failure in rehearsal.failures:
        first.setdefault(failure.span or nowhere, failure)
    for span, failure in first.items():
        lines = failure.message.strip().splitlines()
        ranks = [other.rank for other in rehearsal.failures if (other.span or nowhere) == span]
        yield REHEARSAL_FAILED.at(
            span,
            lines[0],
            notes=(*lines[1:_MAX_MESSAGE_LINES], f"fails on {_ranks(ranks, rehearsal)}"),
            help=failure.help
            or "this is PyTorch's message; run `planc show --layout` for each module's input and output",
        )


def _ranks(ranks: list[int], rehearsal: Rehearsal) -> str:
    if len(ranks) == len(rehearsal.ranks):
        return "every rehearsed rank"
    tried = ", ".join(map(str, rehearsal.ranks))
    return f"rank {', '.join(map(str, ranks))}, of the rehearsed ranks {tried}"


def _differences(measured: Measured, estimate: Estimate, nowhere: Span) -> Iterator[Diagnostic]:
    """Collectives that the closed form and the rehearsal count differently: a bug in planc."""
    predicted, counted = predicted_collectives(estimate), counted_collectives(measured)
    if predicted == counted:
        return
    keys = [key for key in {**predicted, **counted} if predicted[key] != counted[key]]
    notes = tuple(
        f"{kind} over {', '.join(over)}, {plural(num_bytes or 0, 'byte')} each: "
        f"estimated {predicted[kind, over, num_bytes]}, rehearsed {counted[kind, over, num_bytes]}"
        for kind, over, num_bytes in keys[:_MAX_DIFFERENCES]
    )
    many = f"{len(keys)} kinds of collectives of a step differ"
    text = many if len(keys) > 1 else "one kind of collective of a step differs"
    help = "trust the rehearsal, and please report this plan: the estimate is wrong"
    yield ESTIMATE_DIFFERS.at(nowhere, text, notes=notes, help=help)


def predicted_collectives(estimate: Estimate) -> Counted:
    """The estimate's collectives of a step."""
    return as_called(estimate.collectives, knows_routing=True)


def counted_collectives(measured: Measured) -> Counted:
    """The rehearsal's collectives of a step."""
    found: Counted = Counter()
    for one in measured.sent:
        found[one.kind, one.over, one.input_bytes] += one.count
    return found
