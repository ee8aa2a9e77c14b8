"""Prepare chats and text with planc and without, in turns: `python -m tests.data.speed --megabytes 64`.

Both sides get the same tokenizer, the same template, which marks what is trained on, and as many processes.
`datasets` reads JSON Lines into Arrow, then maps `apply_chat_template`, which returns the mask too, over
batches; planc writes its prepared files. Text is tokenized by the tokenizers library in one process, with as
many threads. The ratio is of bytes a second; reading into Arrow does not count. Memory is that of all
processes of a side, pages that they share counted once. Exit code 1 if the ratio is below the goal, or if the
two made different numbers of tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.runtime.cpus import num_cpus
from planc.tables import plural
from tests.bench.data import make_tokenizer, sources
from tests.bench.result import Result, report, write_results
from tests.data.conversing import TEMPLATE

SECTION = "chats"
ROOT = Path(__file__).parents[2]
GOAL = 0.8
MEGABYTES = 64
FILE_BYTES = 64 * 10**6
SIDES = {"chats": ("planc", "datasets"), "text": ("planc", "tokenizers")}
_BATCH_ROWS = 1_000
_SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Made:
    """What one side did: seconds by the wall and of the CPUs. `read` is before the mapping."""

    seconds: float
    cpu_seconds: float
    read_seconds: float
    read_cpu_seconds: float
    num_tokens: int
    num_targets: int
    peak_mb: float = 0.0


def talks() -> Iterator[str]:
    """Conversations of one to six turns about the standard library's sources, each with text of its own."""
    draw = random.Random(0)
    found = sources()
    number = 0
    while True:
        text = next(found)
        start = 0
        while start < len(text):
            messages = [{"role": "system", "content": f"You explain Python. Session {number}."}]
            for _ in range(draw.randint(1, 6)):
                asked, answered = draw.randint(20, 300), int(draw.lognormvariate(6, 0.8))
                messages.append({"role": "user", "content": text[start : start + asked]})
                start += asked
                messages.append({"role": "assistant", "content": text[start : start + answered]})
                start += answered
            number += 1
            yield json.dumps({"messages": messages}, ensure_ascii=False)


def texts() -> Iterator[str]:
    """The answers of the conversations."""
    for talk in talks():
        for message in json.loads(talk)["messages"][2::2]:
            yield json.dumps({"text": message["content"]}, ensure_ascii=False)


def write_rows(folder: Path, rows: Iterator[str], *, num_bytes: int) -> None:
    folder.mkdir(parents=True)
    found, left = rows, num_bytes
    for number in itertools.count():
        if left <= 0:
            return
        with open(folder / f"{number:03}.jsonl", "wb") as file:
            while file.tell() < min(FILE_BYTES, left):
                file.write(next(found).encode() + b"\n")
            left -= file.tell()


def write_tokenizer(folder: Path) -> None:
    folder.mkdir()
    make_tokenizer(folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def clocks() -> tuple[float, float]:
    """Seconds by the wall, and of the CPUs of this process and all that have ended below it."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def between(began: tuple[float, float], ended: tuple[float, float]) -> tuple[float, float]:
    return ended[0] - began[0], ended[1] - began[1]


def by_planc(base: Path, scratch: Path, *, num_processes: int, kind: str) -> Made:
    # Imported where they are used: neither side pays for the other's libraries.
    import filelock  # noqa: F401

    from planc.data_sources.kinds import ChatSource, JsonLinesSource
    from planc.runtime.data.prepared.prepare import prepare
    from planc.runtime.data.prepared.stored_array import StoredArray
    from planc.runtime.data.prepared.wanted import want
    from planc.runtime.data.spec import DataSpec

    os.environ["RAYON_NUM_THREADS"] = str(num_processes)
    patterns = (f"{kind}/*.jsonl",)
    source = ChatSource(patterns) if kind == "chats" else JsonLinesSource(patterns)
    spec = DataSpec(source, "tokenizer", 4_096, 1, "isolate")
    began = clocks()
    prepared = prepare(scratch, want(spec, base=base), name="speed")
    ended = clocks()
    arrays, num_targets = prepared.index.arrays, 0
    if "is_target" in arrays:
        targets = StoredArray(prepared.folder, name="is_target", entry=arrays["is_target"])
        parts = range(0, len(targets), 1 << 20)
        num_targets = sum(int(targets[place : place + (1 << 20)].sum()) for place in parts)
    # planc ends each document, which transformers leaves to the trainer.
    num_tokens = arrays["tokens"].length - prepared.index.num_documents
    return Made(*between(began, ended), 0.0, 0.0, num_tokens, num_targets)


def by_tokenizers(base: Path, scratch: Path, *, num_processes: int, kind: str) -> Made:
    os.environ["RAYON_NUM_THREADS"] = str(num_processes)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(base / "tokenizer" / "tokenizer.json"))
    began = clocks()
    with open(scratch / "ids", "wb") as ids:
        for path in sorted((base / kind).iterdir()):
            with open(path, encoding="utf-8") as rows:
                while found := [json.loads(row)["text"] for row in itertools.islice(rows, _BATCH_ROWS)]:
                    for one in tokenizer.encode_batch_fast(found, add_special_tokens=False):
                        array("I", one.ids).tofile(ids)
        num_tokens = ids.tell() // 4
    return Made(*between(began, clocks()), 0.0, 0.0, num_tokens, 0)


def by_datasets(base: Path, scratch: Path, *, num_processes: int, kind: str) -> Made:
    # One thread for each process: with more, both processes would want all CPUs.
    os.environ["RAYON_NUM_THREADS"] = "1"
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(base / "tokenizer"))

    def tokenized(batch: dict[str, list[object]]) -> dict[str, object]:
        found = tokenizer.apply_chat_template(
            batch["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": found["input_ids"], "is_target": found["assistant_masks"]}

    files = sorted(str(path) for path in (base / kind).iterdir())
    began = clocks()
    rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(scratch))
    read = clocks()
    done = rows.map(tokenized, batched=True, num_proc=num_processes, remove_columns=["messages"])
    ended = clocks()
    num_tokens = num_targets = 0
    for batch in done.with_format("arrow").iter(10_000):
        num_tokens += len(batch["input_ids"].combine_chunks().flatten())
        num_targets += int(batch["is_target"].combine_chunks().flatten().to_numpy().sum())
    return Made(*between(read, ended), *between(began, read), num_tokens, num_targets)


BY_SIDE = {"planc": by_planc, "datasets": by_datasets, "tokenizers": by_tokenizers}


def measured(side: str, base: Path, *, num_processes: int, kind: str) -> Made:
    """One side in a process of its own, with the most memory that it and those below it had."""
    with TemporaryDirectory(dir=base) as scratch:
        options = [side, kind, str(base), scratch, "--processes", str(num_processes)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.data.speed", "--side", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        peak = [0.0]
        is_over = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, peak, is_over))
        sampler.start()
        output, _ = process.communicate()
        is_over.set()
        sampler.join()
        if process.returncode:
            raise SystemExit(f"{side} failed with exit code {process.returncode}")
        return Made(**{**json.loads(output.splitlines()[-1]), "peak_mb": peak[0]})


def _sample(root: int, peak: list[float], is_over: threading.Event) -> None:
    while not is_over.wait(_SAMPLE_SECONDS):
        peak[0] = max(peak[0], sum(map(_held_mb, _family(root))))


def _family(root: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = [root]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _held_mb(process: int) -> float:
    """Megabytes of memory, with a share of the pages that others use too."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")), 0.0)


def results(name: str, megabytes: int, found: dict[str, list[Made]]) -> Iterator[Result]:
    """A row for each side, of its best turn by the wall, and one for the ratio."""
    best = {side: min(made, key=lambda one: one.seconds) for side, made in found.items()}
    for side, made in best.items():
        read = f"{made.read_seconds:.1f}" if made.read_seconds else ""
        speed = f"{megabytes / made.seconds:.2f}"
        cells = (read, f"{made.seconds:.1f}", f"{made.cpu_seconds:.1f}", speed, f"{made.peak_mb:.0f}")
        yield Result(f"{megabytes} MB of {name}, {side}", cells)
    ours, theirs = best.values()
    ratio = theirs.seconds / ours.seconds
    cells = ("", f"{ratio:.2f}", f"{theirs.cpu_seconds / ours.cpu_seconds:.2f}", "", "")
    is_same = (ours.num_tokens, ours.num_targets) == (theirs.num_tokens, theirs.num_targets)
    tokens = f"{plural(ours.num_tokens, 'token')}, {ours.num_targets:_} trained on"
    if not is_same:
        tokens += f"; the other {theirs.num_tokens:_}, {theirs.num_targets:_}"
    goal = f">= {GOAL}" if name == "chats" else ""
    yield Result(f"{megabytes} MB of {name}, ratio", cells, goal, not goal or ratio >= GOAL)
    yield Result(tokens, ("",) * 5, "equal", is_same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of chats")
    parser.add_argument("--text-megabytes", type=int, default=MEGABYTES // 2)
    parser.add_argument("--processes", type=int, default=num_cpus())
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="put the figures into the page of measurements")
    names = ("SIDE", "KIND", "DIR", "SCRATCH")
    parser.add_argument("--side", nargs=4, metavar=names, help="in this process, as JSON")
    options = parser.parse_args()
    if options.side:
        side, kind, base, scratch = options.side
        settings = {"num_processes": options.processes, "kind": kind}
        print(json.dumps(asdict(BY_SIDE[side](Path(base), Path(scratch), **settings))))
        return 0
    rows: list[Result] = []
    with TemporaryDirectory() as name:
        base = Path(name)
        write_tokenizer(base / "tokenizer")
        for kind, made in {"chats": talks, "text": texts}.items():
            megabytes = options.megabytes if kind == "chats" else options.text_megabytes
            if megabytes:
                write_rows(base / kind, made(), num_bytes=megabytes * 10**6)
                rows += results(kind, megabytes, raced(kind, base, options))
    print("seconds to read | to prepare | of CPUs | MB/s | MB held; above 1, planc is faster")
    for one in rows:
        print(one)
    if options.keep:
        write_results(SECTION, rows)
    return report(rows)


def raced(kind: str, base: Path, options: argparse.Namespace) -> dict[str, list[Made]]:
    """What each side does with the data of a kind, in turns."""
    found: dict[str, list[Made]] = {side: [] for side in SIDES[kind]}
    for _ in range(options.turns):
        for side, made in found.items():
            made.append(measured(side, base, num_processes=options.processes, kind=kind))
            print(f"{kind}, {side}: {made[-1]}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
