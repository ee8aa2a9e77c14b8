"""Writes SPEED.md from what the benchmarks measured last: `python -m tests.bench.page`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench import data, footprint, loading, overhead, start, syncs, throughput
from tests.bench.result import Result, read_results
from tests.bench.start_rank import PARTS
from tests.data import speed

PAGE = Path(__file__).parent / "SPEED.md"
_INTRODUCTION = """\
What planc costs compared with the same training written by hand. `make bench` measures it and writes this
page.

Whatever else a machine does must affect both sides equally. So they run in the same processes, in turns, and
goals are for CPU time, which other work affects least; wall-clock seconds are given too.
Figures of a small model on CPUs show what the runtime itself takes: on accelerators steps are longer,
and its share smaller. Nothing here was measured on a GPU."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page; `columns` are of the results' cells."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]


SECTIONS = (
    Section(
        throughput.SECTION,
        "Tokens a second",
        "planc against [by_hand.py](../../examples/by_hand.py), which has the same parts of PyTorch, and "
        "against [straightforward.py](../../examples/straightforward.py), which holds the whole model on "
        "every rank and sums each gradient by itself, and against transformers' own tensor parallelism "
        "([tp_plan.py](../../tests/bench/tp_plan.py)), without clipping, which it can't do: by the same "
        "rules, and by those that planc finds. A mixture of experts races transformers' own expert "
        "parallelism ([ep_plan.py](../../tests/bench/ep_plan.py)), without clipping too. Whole replicas race "
        "DistributedDataParallel by hand, under accelerate and under HF Trainer "
        "([replicas.py](../../tests/bench/replicas.py)); these two shard no "
        "model on CPUs. A ratio above 1 means that planc is faster. It is of the means of the middle half "
        "of both sides' blocks of steps; the interval in brackets holds 95 of 100 such races (bootstrap). "
        "The goal is for the one by CPU time."
        "\n\nFSDP gathers the weights that the straightforward script holds, so with dp_shard planc sends up "
        "to three times its bytes (next table); with dp_replicate both hold the whole model. Pipelines race "
        "[torch.distributed.pipelining](../../tests/bench/pipelining.py), whose stages call the model's own "
        "forward on fewer layers, as planc's do, or a Llama's layers one by one. The latter is code for "
        "this model alone, and does less for every micro-batch: that shows with 1 M parameters and 128 "
        "tokens.",
        ("planc tokens/s", "its tokens/s", "ratio by wall clock", "by CPU time"),
    ),
    Section(
        footprint.SECTION,
        "Memory and messages while training",
        "The same races, but each side alone in its own processes. First, megabytes of the rank that holds "
        f"most: its peak in {footprint.NUM_STEPS} steps after a first one, beyond what it held after its "
        "imports. It is the kernel's mark (VmHWM), reset before these steps, without pages of mapped files. "
        "Freed blocks of 64 KiB or more go back to the system at once, so what the allocator would keep for "
        "later does not count. Then, megabytes that a rank sends in a step, the mean over ranks: what the "
        "kernel counts for the process's own TCP connections (TCP_INFO), which gloo uses between ranks on "
        "one machine too. gloo sends a reduce-scatter as an all-reduce: twice the bytes of a ring. The goal "
        "is for rivals that hold the same shards.",
        ("planc MB", "its MB", "planc MB sent a step", "its MB sent"),
    ),
    Section(
        overhead.SECTION,
        "Interpretation",
        "Microseconds of CPU time for a step of the quickstart with two micro steps, beyond its ops.",
        ("µs a step",),
    ),
    Section(
        syncs.SECTION,
        "Waits for the device",
        "How often the host waits for the device in a usual step of three micro-batches, which clips, is "
        "guarded and is logged. Steps are the runtime's own, on a device in name only "
        "([what it can't see](../../tests/bench/fake_device.py)).",
        ("waits a step",),
    ),
    Section(
        start.SECTION,
        "From torchrun to the first step",
        f"Seconds on {start.SHAPE.world_size} ranks, {start.SHAPE.name}: by the clock until the slowest rank "
        "is there, and CPU time per rank, part by part. `floor` imports PyTorch and transformers, "
        "and does nothing; by_hand counts as model all that it sets up.",
        ("clock", "processor", *PARTS),
    ),
    Section(
        loading.SECTION,
        "Memory while loading",
        "Megabytes of the rank that holds most, for a model of 1.2 GB: the most allocated beyond what the "
        "process had before, the shard that stays, and the most of mapped files; then seconds by the clock, "
        "and CPU time of both ranks.",
        ("allocated", "shard", "mapped", "clock", "CPU"),
    ),
    Section(
        data.SECTION,
        "Data",
        "Text of which a BPE tokenizer makes sequences of 2_048 tokens with isolated documents: prepared in "
        "files by `planc data prepare`, then opened by a start that finds it prepared, and by one that "
        "tokenizes it in memory, as a rank does with small data. Seconds until the first batch, megabytes of "
        "text a second, milliseconds to read a rank's step of 16 sequences, and megabytes that the process "
        "held at most beyond its imports.",
        ("seconds", "MB/s", "ms a step", "MB held"),
    ),
    Section(
        speed.SECTION,
        "Chats",
        "Conversations in JSON Lines, rendered by a ChatML template that marks answers, and tokenized "
        "with the mask of what is trained on: prepared by planc, and by `datasets.map` over "
        "`apply_chat_template`, with one process for each CPU, in turns "
        "([speed.py](../../tests/data/speed.py)). Then text, prepared by planc and tokenized by the "
        "tokenizers library in one process, with one thread for each CPU. Seconds to read the files into "
        "Arrow first, seconds to prepare, CPU seconds, megabytes a second, and the megabytes that all "
        "processes held. A ratio above 1 means that planc is faster, without the reading. `python -m "
        "tests.data.speed --keep` measures it.",
        ("read", "seconds", "CPU", "MB/s", "MB held"),
    ),
)


def page(results: Mapping[str, Sequence[Result]], *, date: str) -> str:
    """The page of these results, measured at `date` with the versions that are installed."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    parts = [f"# Speed\n\n{date}, {versions}, {machine}.\n\n{_INTRODUCTION}"]
    parts += [_section(one, results[one.name]) for one in SECTIONS if one.name in results]
    return "\n\n".join(parts) + "\n"


def _section(section: Section, rows: Sequence[Result]) -> str:
    lines = [
        f"| | {' | '.join(section.columns)} | goal | |",
        f"|---|{'---|' * len(section.columns)}---|---|",
        *(f"| {one.name} | {' | '.join(one.cells)} | {one.goal} | {one.verdict} |" for one in rows),
    ]
    return f"## {section.title}\n\n{section.text}\n\n" + "\n".join(lines)


def main() -> int:
    results = read_results()
    PAGE.write_text(page(results, date=datetime.now(UTC).date().isoformat()), encoding="utf-8")
    missed = [f"{name}: {one.name}" for name, rows in results.items() for one in rows if not one.is_met]
    print(f"MISSED: {'; '.join(missed)}" if missed else "every goal is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
