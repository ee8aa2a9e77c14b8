"""What a step's files show. Every judge reads files that planc's own commands wrote, and compares figures."""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.commands import Ran
from tests.gpu.outcome import Outcome, Verdict

Judge = Callable[[Ran], Outcome]
_WARMUP_STEPS = 3
SAME_LOSS = {"cpu": 1e-6, "cuda": 1e-5}
"""Relative: a resumed run computes the same, but a device's sums have no fixed order."""
NEAR_LOSS = 1e-3
"""Relative, over 12 steps: other kernels, or the same with data elsewhere."""
BFLOAT16_LOSS = 3e-2
MEMORY_ERROR = 0.10
"""Relative: what the documentation promises of estimates is not tighter."""
RACE_GOAL = 0.95
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DEEP = re.compile(r"rehearsed memory +([\d.]+) (\w+) reserved.* at most ([\d.]+) (\w+) of it", re.DOTALL)
_SAVED = re.compile(r"in ([\d.]+) s, of which training waited ([\d.]+) s")


def judged(judge: Judge, ran: Ran) -> Outcome:
    """The outcome, with files that are missing or not as expected counted as a failure."""
    if ran.is_timeout:
        return Outcome(Verdict.TIMEOUT, f"command {len(ran.codes)} did not end in time")
    try:
        return judge(ran)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return Outcome(Verdict.FAILED, f"{type(error).__name__}: {error}; {ran.last_error()}")


def _outcome(is_met: bool, figures: str) -> Outcome:
    return Outcome(Verdict.OK if is_met else Verdict.DIFFERS, figures)


def _require_codes(ran: Ran, *allowed: int) -> None:
    """ValueError with the first command that failed."""
    for index, code in enumerate(ran.codes):
        if code not in (allowed or (0,)):
            raise ValueError(f"command {index + 1} exited with {code}")


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, the last of each step."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [*{one["step"]: one for one in map(json.loads, lines) if "loss" in one}.values()]


def losses(folder: Path) -> list[float]:
    found = [one["loss"] for one in metrics(folder)]
    if not found or not all(map(math.isfinite, found)):
        raise ValueError(f"{folder.name}: losses are not finite")
    return found


def seconds_a_step(folder: Path) -> float:
    """The median after the warm-up."""
    return statistics.median(one["seconds"] for one in metrics(folder)[_WARMUP_STEPS:])


def tokens_a_second(folder: Path) -> float:
    return metrics(folder)[-1]["tokens"] / seconds_a_step(folder)


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest relative difference; infinite between runs of unequal length."""
    if len(first) != len(second):
        return math.inf
    return max(abs(one - other) / abs(other) for one, other in zip(first, second, strict=True))


def doctor(ran: Ran) -> Outcome:
    """No errors, except for releases that the user allows."""
    _require_codes(ran, 0, 1)
    report = json.loads(ran.printed(0))
    allowed = {pin.partition("==")[0] for pin in ran.site.allowed}
    errors = [
        f"{one['name']}: {', '.join(one['codes'])}"
        for one in report["checks"]
        if one["status"] == "error" and one["name"] not in allowed
    ]
    backends = ", ".join(name for name, is_here in report["backends"].items() if is_here)
    has_nccl = bool(report["backends"]["nccl"]) or not ran.site.is_cuda
    return _outcome(not errors and has_nccl, "; ".join(errors) or f"backends {backends}; no errors")


def verified(ran: Ran) -> Outcome:
    """Every plan equal to one process, in all items."""
    _require_codes(ran, 0, 1)
    reports = [json.loads(ran.printed(index)) for index in range(len(ran.codes))]
    items = [(_mesh(report), item) for report in reports for item in report["items"]]
    differing = [f"{mesh}: {item['item']} {item['detail']}" for mesh, item in items if not item["ok"]]
    worst = max(item["error"] or 0.0 for _, item in items)
    meshes = "; ".join(map(_mesh, reports))
    return _outcome(not differing, "; ".join(differing) or f"{meshes}: equal, worst error {worst:.1e}")


def _mesh(report: Any) -> str:
    sizes = report["ran"]["mesh"].items()
    return " · ".join(f"{name} {size}" for name, size in sizes if size > 1) or "1 rank"


def kernel(ran: Ran) -> Outcome:
    """Each kernel of attention against a softmax in float64, and PyTorch's answers against the table."""
    _require_codes(ran, 0, 1)
    found = json.loads((ran.folder / "kernel.json").read_text(encoding="utf-8"))
    worst = max(found["results"], key=lambda one: one["error"] / one["limit"])
    agreeing = sum(one["agrees"] for one in found["answers"])
    figures = f"{len(found['results'])} results, the worst {worst['name']} {worst['error']:.1e}"
    is_met = worst["error"] <= worst["limit"] and agreeing == len(found["answers"])
    return _outcome(is_met, f"{figures}; {agreeing} of {len(found['answers'])} answers as in the table")


def trained(ran: Ran) -> Outcome:
    """The loss falls, and the memory is the device's."""
    _require_codes(ran)
    found, last = losses(ran.folder / "run"), metrics(ran.folder / "run")[-1]
    kind = "allocated" if ran.site.is_cuda else "process"
    speed = f"{tokens_a_second(ran.folder / 'run'):,.0f} tokens/s"
    figures = f"loss {found[0]:.4f} to {found[-1]:.4f}, {speed}"
    return _outcome(found[-1] < found[0] and last["memory_kind"] == kind, figures)


def balanced(ran: Ran) -> Outcome:
    """As `trained`, and every layer's experts have as many choices as the tokens of a step make."""
    outcome = trained(ran)
    load = metrics(ran.folder / "run")[-1]["expert_load"]
    totals = {sum(counts) for counts in load.values()}
    figures = f"{outcome.figures}; {len(load)} layers of {totals} choices"
    return _outcome(outcome.verdict is Verdict.OK and len(totals) == 1 and 0 not in totals, figures)


def saved(ran: Ran) -> Outcome:
    """A run that stopped and resumed has the losses of one that did not; its checkpoints are whole."""
    _require_codes(ran)
    error = distance(losses(ran.folder / "stopped"), losses(ran.folder / "whole"))
    times = _SAVED.findall(ran.printed(0))
    if not times:
        raise ValueError("no save was written behind training")
    took, waited = (max(float(one[index]) for one in times) for index in (0, 1))
    figures = f"save {took:.2f} s, training waited {waited:.2f} s; resumed loss off by {error:.1e}"
    return _outcome(error <= SAME_LOSS[ran.site.device], figures)


def profiled(ran: Ran) -> Outcome:
    """A trace with the device's kernels, and on CUDA a snapshot of its memory."""
    _require_codes(ran)
    folder = ran.folder / "run" / "profile"
    with gzip.open(folder / "step-2-rank-0.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    kernels = sum(one.get("cat") == "kernel" for one in events)
    snapshots = [path.stat().st_size for path in folder.glob("*-memory.pickle")]
    is_met = bool(events) if not ran.site.is_cuda else bool(kernels and any(snapshots))
    figures = f"{len(events):,} events, {kernels:,} kernels, {len(snapshots)} memory snapshots"
    return _outcome(is_met, figures)


def near_plain(ran: Ran) -> Outcome:
    """Another way to compute the same: its losses are near those of the plain run."""
    return _near_plain(ran, limit=NEAR_LOSS)


def near_plain_bfloat16(ran: Ran) -> Outcome:
    """The same in bfloat16, whose rounding is in the losses."""
    return _near_plain(ran, limit=BFLOAT16_LOSS)


def _near_plain(ran: Ran, *, limit: float) -> Outcome:
    _require_codes(ran)
    plain, other = ran.folder / "plain", ran.folder / "run"
    error = distance(losses(other), losses(plain))
    speeds = f"{tokens_a_second(other):,.0f} tokens/s, plain {tokens_a_second(plain):,.0f}"
    peaks = [metrics(one)[-1]["memory_bytes"] / 2**20 for one in (other, plain)]
    figures = f"losses off by {error:.1e}; {speeds}; peak {peaks[0]:,.0f} MiB, plain {peaks[1]:,.0f}"
    return _outcome(error <= limit, figures)


def remembered(ran: Ran) -> Outcome:
    """The measured peak against the estimate and the rehearsal. A CPU's process has no figure to compare."""
    _require_codes(ran)
    estimated = json.loads(ran.printed(0))["facts"]["peak_memory"]
    deep = _DEEP.search(ran.printed(1))
    if deep is None:
        raise ValueError("check --deep printed no rehearsed memory")
    reserved, allocated = (float(deep[at]) * _UNITS[deep[at + 1]] for at in (1, 3))
    last = metrics(ran.folder / "run")[-1]
    pairs = [("estimate", estimated, "memory_reserved_bytes"), ("--deep", reserved, "memory_reserved_bytes")]
    pairs.append(("--deep allocated", allocated, "memory_bytes"))
    texts, errors = [], []
    for name, expected, key in pairs:
        text = f"{name} {expected / 2**20:,.0f} MiB"
        if ran.site.is_cuda:
            errors.append(abs(expected / last[key] - 1))
            text += f" for {last[key] / 2**20:,.0f} measured ({expected / last[key] - 1:+.1%})"
        texts.append(text)
    return _outcome(all(error <= MEMORY_ERROR for error in errors), "; ".join(texts))


def raced(ran: Ran) -> Outcome:
    """planc's tokens a second against the loop by hand, in turns in one process."""
    _require_codes(ran, 0, 1)
    rows = json.loads((ran.folder / "race.json").read_text(encoding="utf-8"))["throughput"]
    ratios = [float(row["cells"][2].partition(" ")[0]) for row in rows]
    texts = [f"{row['name']}: {row['cells'][0]} for {row['cells'][1]}, {row['cells'][2]}" for row in rows]
    return _outcome(min(ratios) >= RACE_GOAL or not ran.site.is_cuda, "; ".join(texts))


def timed(ran: Ran) -> Outcome:
    """The measured step in the interval that the time model gives, before and after calibration."""
    if ran.site.gpu is None:
        return Outcome(Verdict.SKIPPED, f"planc knows no peaks of {ran.site.names[0]}")
    _require_codes(ran)
    texts_of_both = (ran.printed(len(ran.codes) - 2), ran.printed(len(ran.codes) - 1))
    before, after = (json.loads(text)["time"]["expected"] for text in texts_of_both)
    measured = seconds_a_step(ran.folder / "run")
    texts = [f"measured {measured * 1e3:.4g} ms"]
    for name, one in (("expected", before), ("calibrated", after)):
        low, high = one["fast_seconds"] * 1e3, one["slow_seconds"] * 1e3
        texts.append(f"{name} {one['expected_step_seconds'] * 1e3:.4g} ms ({low:.4g} to {high:.4g})")
    is_inside = before["fast_seconds"] <= measured <= before["slow_seconds"]
    return _outcome(is_inside or not ran.site.is_cuda, "; ".join(texts))
