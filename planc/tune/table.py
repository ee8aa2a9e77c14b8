"""A search's result as a table, as data, and as a plan with comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planc.figures import needs, times
from planc.figures.figure import Figure
from planc.fmt.format import format_source
from planc.source import SourceFile
from planc.tables import plural, render_table
from planc.tune.choice import Recompute, Rules
from planc.tune.search import Proposal, Search, reasons

_HEADER = (
    "",
    "mesh",
    "micro batch",
    "recompute",
    "peak",
    "tokens/s/device",
    "interval",
    "at most",
    "limit",
    "gives up",
)


def result_text(search: Search, proposals: tuple[Proposal, ...]) -> str:
    """The best plans, the fastest first, and how many were looked at."""
    heading = (
        f"{search.base.name}: {plural(search.num_devices, 'device')} ({search.device.name}), "
        f"{search.base.tokens_per_step:_} tokens per step"
    )
    looked = f"{search.num_meshes:_} meshes, {plural(search.scorer.num_scored, 'plan')} scored"
    if not proposals:
        every = set(reasons(search).values())
        why = every.pop() if len(every) == 1 else "--explain prints why"
        return f"{heading}\n{looked}; none fits and passes the check: {why}\n"
    rows = [_row(number, one, search) for number, one in enumerate(proposals, 1)]
    table = render_table(rows, header=_HEADER, right=(0, 2, 4, 5, 6, 7), indent="  ")
    source = proposals[0].times.expected
    assert source is not None, "the search requires an expectation"
    return f"{heading}\n{table}{looked}; speeds by {source.source}\n"


def _row(number: int, proposal: Proposal, search: Search) -> tuple[str, ...]:
    expected, bound = proposal.times.expected, proposal.times.bound
    assert expected is not None and bound is not None, "the search requires both"
    step = proposal.times.step
    ranks = step.world_size
    low, high = (
        Figure("", float(side.value) / ranks, side.unit).number
        for side in (
            times.slow_tokens_per_second(step, expected),
            times.fast_tokens_per_second(step, expected),
        )
    )
    return (
        str(number),
        proposal.choice.mesh.text,
        str(proposal.choice.micro_batch),
        str(proposal.choice.recompute),
        needs.peak_memory(proposal.found).text,
        times.expected_tokens_per_second_per_device(step, expected).number,
        f"{low} to {high}",
        times.most_tokens_per_second_per_device(step, bound).number,
        expected.limit,
        ", ".join(given_up(proposal)) or "nothing",
    )


def given_up(proposal: Proposal) -> Iterator[str]:
    """Yield the costs of a proposal's speed or fit."""
    choice = proposal.choice
    if choice.recompute is not Recompute.NONE:
        executed = proposal.found.flops.executed_per_token / proposal.found.flops.per_token - 1
        yield f"{100 * executed:.0f} % more FLOPs"
    if choice.recompute is Recompute.OFFLOAD:
        yield "host memory for the inputs of layers"
    if not choice.reshard:
        yield "memory for gathered layers"
    if choice.in_chunks:
        yield "one rounding a chunk of the head's gradient"
    if choice.is_compiled:
        yield "time to compile at each start"
    if choice.ep > 1:
        yield f"even loads of experts on {choice.ep} ranks"
    if choice.mesh.rules not in (Rules.NONE, Rules.GIVEN):
        yield f"a rule for every sharded layer ({choice.mesh.rules})"
    if choice.mesh.pp > 1:
        yield f"a bubble of {_bubble(proposal)} ({choice.schedule})"
    if choice.rotate:
        yield f"attention over ranks ({choice.rotate})"


def _bubble(one: Proposal) -> str:
    expected = one.times.expected
    assert expected is not None, "the search requires an expectation"
    return f"{100 * expected.bubble_seconds / expected.step_seconds:.0f} %"


def reasons_text(search: Search) -> str:
    """List the reasons against other meshes, one a line; one line for a reason that all share."""
    rows = list(reasons(search).items())
    if len(rows) > 1 and len({reason for _, reason in rows}) == 1:
        rows = [("all of them", rows[0][1])]
    return f"\nNOT AMONG THEM\n{render_table(rows, indent='  ')}" if rows else ""


def result_data(search: Search, proposals: tuple[Proposal, ...], *, explain: bool) -> dict[str, Any]:
    """Everything that the table shows, in full precision."""
    document: dict[str, Any] = {
        "format_version": 1,
        "plan": search.base.name,
        "num_devices": search.num_devices,
        "device": search.device.name,
        "tokens_per_step": search.base.tokens_per_step,
        "num_meshes": search.num_meshes,
        "num_scored": search.scorer.num_scored,
        "proposals": [_data(one) for one in proposals],
    }
    return document | ({"reasons": dict(reasons(search))} if explain else {})


def _data(proposal: Proposal) -> Mapping[str, Any]:
    expected, bound, step = proposal.times.expected, proposal.times.bound, proposal.times.step
    assert expected is not None and bound is not None, "the search requires both"
    choice = proposal.choice
    figures = (
        needs.peak_memory(proposal.found),
        times.expected_step_seconds(expected),
        times.expected_tokens_per_second_per_device(step, expected),
        times.slow_tokens_per_second(step, expected),
        times.fast_tokens_per_second(step, expected),
        times.most_tokens_per_second_per_device(step, bound),
    )
    return {
        "mesh": {str(name): size for name, size in choice.mesh.sizes},
        "tensor_parallel": str(choice.mesh.rules),
        "micro_batch": choice.micro_batch,
        "recompute": str(choice.recompute),
        "reshard_after_forward": choice.reshard,
        "rotate": choice.rotate,
        "schedule": choice.schedule,
        "loss_in_chunks": choice.in_chunks,
        "compiled": choice.is_compiled,
        "expert_parallel": choice.ep,
        **{figure.name: figure.value for figure in figures},
        "limit": expected.limit,
        "gives_up": [*given_up(proposal)],
    }


def written_plan(one: Proposal, search: Search, *, by: str = "Found by planc tune") -> str:
    """A proposal's plan, formatted, with comments that say why; the first begins with `by`."""
    comments = dict(_comments(one, search))
    comments[""] = f"{by} {comments['']}"
    lines: list[str] = [f"# {comments.pop('')}"]
    for line in one.text.splitlines():
        kind = re.match(r"(\w+)[^\n]*\{$", line)
        if kind and kind.group(1) in comments:
            lines.append(f"# {comments[kind.group(1)]}")
        lines.append(line)
    text = "\n".join(lines) + "\n"
    formatted, _ = format_source(SourceFile(search.base.name, text))
    assert formatted is not None, "a proposal passed the check"
    return formatted


def _comments(proposal: Proposal, search: Search) -> Iterator[tuple[str, str]]:
    """Lines by block; the first is of the whole plan."""
    choice, expected = proposal.choice, proposal.times.expected
    assert expected is not None, "the search requires an expectation"
    mesh, share = choice.mesh, proposal.found.memory.peak.num_bytes / search.device.memory_bytes
    rate = times.expected_tokens_per_second_per_device(proposal.times.step, expected).text
    peak = needs.peak_memory(proposal.found).text
    yield (
        "",
        (
            f"for {plural(search.num_devices, 'device')} ({search.device.name}): "
            f"{rate} expected, {peak} at the peak, {100 * share:.0f} % of the device."
        ),
    )
    inside = "tp stays inside a node. " if mesh.tp > 1 else ""
    yield "mesh", f"{inside}The largest part of a step is expected to be {expected.limit}."
    if choice.schedule:
        yield "pipeline", f"Its busiest ranks are expected to wait for others {_bubble(proposal)} of a step."
    if mesh.tp > 1 and mesh.rules is not Rules.GIVEN:
        yield (
            "tensor_parallel",
            "Rules that planc's checks accept for this model, the cheapest that it found.",
        )
    if choice.ep > 1:
        yield "expert_parallel", f"{choice.ep} ranks send tokens to the experts of each other."
    reshard = "gathered again in backward" if choice.reshard else "kept gathered from forward to backward"
    yield "fsdp", f"Layers are {reshard}."
    if choice.recompute is not Recompute.NONE:
        executed = proposal.found.flops.executed_per_token / proposal.found.flops.per_token - 1
        why = f"{100 * executed:.0f} % more FLOPs make room for a micro batch of {choice.micro_batch}"
        place = " Inputs of layers wait in host memory." if choice.recompute is Recompute.OFFLOAD else ""
        yield "activation_checkpoint", f"Recomputation: {why}.{place}"
    if choice.is_compiled:
        yield "compile", "Layers are compiled, which takes time at each start."
    if choice.rotate:
        yield "context_parallel", f"Sequences over {mesh.cp} ranks, by {choice.rotate}."
