"""What a step's files show. Every judge reads files that planc's own commands wrote, and compares figures."""

from __future__ import annotations

import gzip
import json
import math
import re
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.commands import Ran
from tests.gpu.hand import WARMUP_STEPS
from tests.gpu.outcome import Outcome, Verdict

Judge = Callable[[Ran], Outcome]
_WARMUP_STEPS = 3
_COMMUNICATION, _PREEMPTED = 6, 75
"""Exit codes of planc run."""
SAME_LOSS = {"cpu": 1e-6, "cuda": 1e-5}
"""Relative: a resumed run computes the same, but a device's sums have no fixed order."""
NEAR_LOSS = 1e-3
"""Relative, over 12 steps: other kernels, or the same with data elsewhere."""
BFLOAT16_LOSS = 3e-2
SAME_SUMS = {"loss": 1e-5, "grad_norm": 1e-4}
"""Relative, over six steps in float32: the ranks add the same numbers in another order."""
PEAK_ERROR = 0.03
"""Relative: of the peak of the large model."""
NOTICED_SECONDS = 60.0
"""Until a rank ends whose peer was killed."""
MEMORY_ERROR = 0.10
"""Relative: what the documentation promises of estimates is not tighter."""
RACE_GOAL = 0.95
_SAVED = re.compile(r"^saved .*/(step-\d+) (in [\d.]+ s, of which training waited .*)$", re.MULTILINE)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DEEP = re.compile(r"rehearsed memory +([\d.]+) (\w+) reserved.* at most ([\d.]+) (\w+) of it", re.DOTALL)


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


def seconds_a_step(folder: Path, *, warmup_steps: int = _WARMUP_STEPS) -> float:
    """The median after the warm-up."""
    return statistics.median(one["seconds"] for one in metrics(folder)[warmup_steps:])


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


def equal_to_one_rank(reference: str) -> Judge:
    """A judge of each step's loss and gradient norm against those that step `reference` left."""

    def judge(ran: Ran) -> Outcome:
        _require_codes(ran)
        found, expected = (metrics(folder) for folder in _both(ran, reference))
        errors = {name: distance(_series(found, name), _series(expected, name)) for name in SAME_SUMS}
        texts = [
            f"{name} off by {error:.1e} (at most {SAME_SUMS[name]:.0e})" for name, error in errors.items()
        ]
        is_equal = all(error <= SAME_SUMS[name] for name, error in errors.items())
        return _outcome(is_equal, f"{len(found)} steps: {', '.join(texts)}")

    return judge


def near_one_rank(reference: str) -> Judge:
    """A judge of each step's loss, which has bfloat16's rounding, against that of one rank in float32."""

    def judge(ran: Ran) -> Outcome:
        _require_codes(ran)
        found, expected = (losses(folder) for folder in _both(ran, reference))
        error = distance(found, expected)
        text = f"{len(found)} steps: loss off by {error:.1e} (at most {BFLOAT16_LOSS:.0e}, bfloat16)"
        return _outcome(error <= BFLOAT16_LOSS, text)

    return judge


def _both(ran: Ran, reference: str) -> tuple[Path, Path]:
    return ran.folder / "run", ran.folder.parent / reference / "run"


def _series(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines]


def noticed(ran: Ran) -> Outcome:
    """The rank that is left ends by itself, as after a failure of communication."""
    _require_codes(ran)
    found = json.loads((ran.folder / "drill.json").read_text(encoding="utf-8"))
    figures = f"exit codes {found['codes']}, {found['seconds']:.1f} s after the kill"
    is_right = found["codes"] == [_COMMUNICATION, -signal.SIGKILL]
    return _outcome(is_right and found["seconds"] <= NOTICED_SECONDS, figures)


def stopped(ran: Ran) -> Outcome:
    """Both ranks saved and exited with 75, and the run went on as if it had not stopped."""
    _require_codes(ran)
    found = json.loads((ran.folder / "drill.json").read_text(encoding="utf-8"))
    is_right = found["codes"] == [_PREEMPTED] * 2 and found["resumed"] == [0, 0] and found["whole"] == [0]
    figures = f"exit codes {found['codes']} after {found['seconds']:.1f} s, at step {found['step']}"
    if not is_right:
        return _outcome(False, f"{figures}; resumed {found['resumed']}, one rank {found['whole']}")
    error = distance(losses(ran.folder / "stopped"), losses(ran.folder / "whole"))
    return _outcome(error <= NEAR_LOSS, f"{figures}; resumed loss off by {error:.1e} from one rank")


def saved(ran: Ran) -> Outcome:
    """A run that stopped and resumed has the losses of one that did not; its checkpoints are whole.

    Each save behind training has its seconds, and those that training waited, by cause.
    """
    _require_codes(ran)
    whole = ran.folder / "whole"
    error = distance(losses(ran.folder / "stopped"), losses(whole))
    behind = _SAVED.findall(ran.printed(0))
    if not behind:
        raise ValueError("no save was written behind training")
    size = max(_size_bytes(step) for step in (whole / "checkpoints").iterdir())
    texts = [f"{_gib(size)} every 4 steps of {seconds_a_step(whole):.2f} s", *map(" ".join, behind)]
    figures = f"{'; '.join(texts)}; resumed loss off by {error:.1e}"
    return _outcome(error <= SAME_LOSS[ran.site.device], figures)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bytes at the peak by the estimate and by the rehearsal, and the expected seconds of a step."""

    estimated: int
    reserved: float
    allocated: float
    seconds: float | None

    def text(self) -> str:
        text = f"estimate {_gib(self.estimated)}, --deep {_gib(self.reserved)}"
        return text + (f", {self.seconds * 1e3:.4g} ms a step" if self.seconds else "")


def predictions(folder: Path, first: int = 0) -> Predicted:
    """What `planc estimate` and `planc check --deep` printed, as commands `first` and the next."""
    estimate = json.loads((folder / f"{first}.out").read_text(encoding="utf-8"))
    deep = _DEEP.search((folder / f"{first + 1}.out").read_text(encoding="utf-8"))
    if deep is None:
        raise ValueError("check --deep printed no rehearsed memory")
    reserved, allocated = (float(deep[at]) * _UNITS[deep[at + 1]] for at in (1, 3))
    expected = (estimate.get("time") or {}).get("expected") or {}
    seconds = expected.get("expected_step_seconds")
    return Predicted(estimate["facts"]["peak_memory"], reserved, allocated, seconds)


def predicted(ran: Ran) -> Outcome:
    """Both predictions were printed."""
    _require_codes(ran)
    return _outcome(True, predictions(ran.folder, len(ran.codes) - 2).text())


def remembered(ran: Ran) -> Outcome:
    """The measured peak against the estimate and the rehearsal. A CPU's process has no figure to compare."""
    _require_codes(ran)
    found, last = predictions(ran.folder), metrics(ran.folder / "run")[-1]
    return _peaks(
        ran,
        ("estimate", found.estimated, last.get("memory_reserved_bytes")),
        ("--deep", found.reserved, last.get("memory_reserved_bytes")),
        ("--deep allocated", found.allocated, last["memory_bytes"]),
        limit=MEMORY_ERROR,
    )


def stages_remembered(ran: Ran) -> Outcome:
    """Each stage's own peak; the estimate and the rehearsal are of the rank that holds the most."""
    _require_codes(ran)
    found = predictions(ran.folder)
    peaks = [_rank_peak(ran.folder / "run" / "logs" / f"rank-{rank}.jsonl") for rank in (0, 1)]
    pairs = [("estimate", found.estimated, max(peaks)), ("--deep", found.reserved, max(peaks))]
    outcome = _peaks(ran, *pairs, limit=MEMORY_ERROR)
    ranks = ", ".join(f"rank {rank} {_gib(peak)}" for rank, peak in enumerate(peaks))
    return Outcome(outcome.verdict, f"{outcome.figures}; {ranks}")


def _rank_peak(log: Path) -> int:
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if line["event"] == "step"]
    return int(steps[-1].get("memory_reserved_bytes", steps[-1]["memory_bytes"]))


def _peaks(ran: Ran, *pairs: tuple[str, float, int | None], limit: float) -> Outcome:
    """Pairs of a prediction and what was measured."""
    texts, errors = [], []
    for name, expected, measured in pairs:
        text = f"{name} {_gib(expected)}"
        if ran.site.is_cuda and measured:
            errors.append(abs(expected / measured - 1))
            text += f" for {_gib(measured)} measured ({expected / measured - 1:+.1%})"
        texts.append(text)
    return _outcome(all(error <= limit for error in errors), "; ".join(texts))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def beside_by_hand(prediction: str, loop: str | None, *, goal: float) -> Judge:
    """A judge of a run beside a loop by hand: its own, or that of step `loop`; `prediction` is a step too."""

    def judge(ran: Ran) -> Outcome:
        _require_codes(ran)
        work = ran.folder.parent
        by_hand = json.loads((work / (loop or ran.folder.name) / "hand.json").read_text(encoding="utf-8"))
        last = metrics(ran.folder / "run")[-1]
        seconds = seconds_a_step(ran.folder / "run", warmup_steps=WARMUP_STEPS)
        commands = sorted((work / prediction).glob("*.out"), key=lambda path: int(path.stem))
        expected = predictions(work / prediction, len(commands) - 2)
        ratio = by_hand["seconds"] / seconds
        texts = [f"{ratio:.3f} of by hand ({seconds * 1e3:.1f} ms, by hand {by_hand['seconds'] * 1e3:.1f})"]
        peaks = _peaks(
            ran,
            ("estimate", expected.estimated, last.get("memory_reserved_bytes")),
            ("--deep", expected.reserved, last.get("memory_reserved_bytes")),
            limit=PEAK_ERROR,
        )
        texts += [f"by hand {_gib(by_hand['reserved_bytes'])}; {peaks.figures}"]
        if expected.seconds:
            texts.append(f"{expected.seconds * 1e3:.0f} ms expected ({expected.seconds / seconds - 1:+.0%})")
        is_met = not ran.site.is_cuda or (ratio >= goal and peaks.verdict is Verdict.OK)
        return _outcome(is_met, "; ".join(texts))

    return judge


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


def program_ended(ran: Ran) -> Outcome:
    """A program of the user's own: it exits with 0, and its last line is shown."""
    _require_codes(ran)
    return Outcome(Verdict.OK, (ran.printed(0).strip().splitlines() or ["printed nothing"])[-1][:300])
