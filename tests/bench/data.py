"""What data costs, in memory and prepared: `python -m tests.bench.data`.

The text is the standard library's own sources, again and again with other names in it, in files of a few
megabytes. The tokenizer is a BPE of 8_192 tokens, trained on the same. Each figure has its own process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from planc.data_sources.kinds import TextSource
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.open import OpenData, open_in_memory, open_prepared
from planc.runtime.data.prepared.folder import find
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import stdlib_files
from planc.runtime.data.spec import DataSpec
from tests.bench.result import Result, report, write_results

SECTION = "data"
ROOT = Path(__file__).parents[2]
SPEC = DataSpec(TextSource(("text/*.txt",)), "tokenizer.json", 2_048, 1, "isolate", "<|endoftext|>")
MEGABYTES = (20, 200)
WAYS = {"prepare": "prepared", "start": "a start once prepared", "memory": "a start in memory"}
FILE_BYTES = 4 * 10**6
NUM_STEPS = 50
MAX_START_SECONDS = 1.0
MAX_GROWTH_MB = 32.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds until the data is there, then of one step, and megabytes: before, and the most there were."""

    seconds: float
    step_seconds: float
    before_mb: float
    peak_mb: float

    @property
    def held_mb(self) -> float:
        return self.peak_mb - self.before_mb


def peak_mb() -> float:
    """The most memory of this process, and of the largest that it started and that has ended."""
    both = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(both) * 1024 / 1e6


def steps(data: OpenData) -> float:
    """Seconds of a step, of those after the first."""
    loader = BatchLoader(BatchSource(data.dataset, data.order, 32, 4, 2, 0))
    loader.next_step()
    began = time.perf_counter()
    for _ in range(NUM_STEPS):
        loader.next_step()
    return (time.perf_counter() - began) / NUM_STEPS


def measure(what: str, base: Path) -> Measured:
    """In this process: `prepare`, a `start` with what is prepared, or `memory`, without."""
    # Imported when it is first needed, as a run imports it before.
    import filelock  # noqa: F401

    before, began = peak_mb(), time.perf_counter()
    wanted = want(SPEC, base=base)
    if what == "prepare":
        prepare(base / "prepared", wanted, name="bench")
        return Measured(time.perf_counter() - began, 0.0, before, peak_mb())
    if what == "start":
        prepared = find(base / "prepared", wanted)
        assert prepared is not None
        data = open_prepared(prepared, wanted, model_vocab_size=8_192)
    else:
        data = open_in_memory(wanted, model_vocab_size=8_192)
    BatchLoader(BatchSource(data.dataset, data.order, 32, 4, 2, 0)).next_step()
    seconds = time.perf_counter() - began
    return Measured(seconds, steps(data), before, peak_mb())


def measured(what: str, base: Path) -> Measured:
    """As `measure`, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.data", "--measure", what, str(base)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def sources() -> Iterator[str]:
    """The standard library's modules, again and again; each time with other names."""
    texts = [path.read_text(encoding="utf-8", errors="ignore") for _, path in stdlib_files()]
    number = 0
    while True:
        for text in texts:
            yield text.replace("self", f"self_{number}").replace("return", f"return {number} or")
        number += 1


def make_text(folder: Path, *, num_bytes: int) -> None:
    folder.mkdir(parents=True)
    total = number = 0
    found = sources()
    while total < num_bytes:
        parts, size = [], 0
        while size < min(FILE_BYTES, num_bytes - total):
            parts.append(next(found))
            size += len(parts[-1].encode())
        (folder / f"{number:04}.txt").write_text("".join(parts), encoding="utf-8")
        total, number = total + size, number + 1


def make_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8_192,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in zip(range(200), sources(), strict=False)), trainer)
    tokenizer.save(str(path))


def rows(found: Mapping[int, Mapping[str, Measured]]) -> Iterator[Result]:
    """The rows of all sizes. Of the larger ones, the memory beyond that of the smallest is a goal."""
    least = min(found)
    for megabytes, by_way in found.items():
        for what, name in WAYS.items():
            one, small = by_way[what], found[least][what]
            speed = f"{megabytes / one.seconds:.2f}" if what != "start" else ""
            step = f"{1000 * one.step_seconds:.1f}" if one.step_seconds else ""
            cells = (f"{one.seconds:.2f}", speed, step, f"{one.held_mb:.0f}")
            goals = []
            if what == "start":
                goals.append((f"<= {MAX_START_SECONDS:.0f} s", one.seconds <= MAX_START_SECONDS))
            if what != "memory" and megabytes > least:
                text = f"<= {MAX_GROWTH_MB:.0f} MB more than of {least} MB"
                goals.append((text, one.held_mb - small.held_mb <= MAX_GROWTH_MB))
            goal = ", ".join(text for text, _ in goals)
            yield Result(f"{megabytes} MB, {name}", cells, goal, all(is_met for _, is_met in goals))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "DIR"), help="in this process, as JSON")
    parser.add_argument("--megabytes", type=int, nargs="*", default=MEGABYTES)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asdict(measure(options.measure[0], Path(options.measure[1])))))
        return 0
    found = {}
    with TemporaryDirectory() as name:
        make_tokenizer(Path(name) / "tokenizer.json")
        for megabytes in options.megabytes:
            base = Path(name) / str(megabytes)
            make_text(base / "text", num_bytes=megabytes * 10**6)
            (base / "tokenizer.json").hardlink_to(Path(name) / "tokenizer.json")
            found[megabytes] = {what: measured(what, base) for what in WAYS}
    results = list(rows(found))
    for one in results:
        print(one)
    if tuple(options.megabytes) == MEGABYTES:
        write_results(SECTION, results)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
