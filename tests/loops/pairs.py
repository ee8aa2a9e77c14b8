"""Commands whose output is the input of others: what writes a plan, and what reads one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.cli.main import main
from tests.import_configs.judgement import workspace
from tests.patience import WAIT_SECONDS

TWO = ("--gpus", "2", "--gpu", "h100")
SMALL = ("--sequence-length", "64", "--tokens-per-step", "256", "--steps", "3")
ARGUMENTS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 1,
    "fsdp": "full_shard",
    "save_steps": 1,
    "weight_decay": 0.1,
}
COMMENT = "# Why the rate is what it is.\n"


@dataclass(frozen=True)
class Pair:
    producer: str
    consumer: str
    problem: str
    """Empty if the consumer takes what the producer wrote."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def command(*words: str) -> Done:
    """A command in this process."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(buffer, encoding="utf-8", write_through=True) for buffer in (out, err)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main([*words])
    return Done(code, out.getvalue().decode(), err.getvalue().decode())


def prepared(folder: Path) -> Path:
    """A folder with a model, data and a config, which is where commands run."""
    workspace(folder)
    (folder / "model" / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}', encoding="utf-8")
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("some words about nothing\n" * 2_000, encoding="utf-8")
    rows = (
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}]}
        for n in range(79)
    )
    (folder / "data" / "chats.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    for name, row in ROWS.items():
        lines = (json.dumps(row | {"id": number}) for number in range(40))
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "arguments.json").write_text(json.dumps(ARGUMENTS), encoding="utf-8")
    return folder


ROWS: Mapping[str, Mapping[str, object]] = {
    "preferences": {"prompt": "1 + 1 = ", "chosen": "2", "rejected": "3"},
    "sequence_classification": {"premise": "rain", "hypothesis": "wet", "label": 2},
    "token_classification": {"tokens": ["Ann", "runs"], "ner_tags": ["B", "O"]},
    "embedding": {"question": "who", "answer": "Ann"},
    "seq2seq_lm": {"article": "a long text", "summary": "a text"},
}
"""A row of each task that is not of text alone."""


def _new(purpose: str, data: str, *options: str, model: str = "model") -> Callable[[str], Done]:
    return lambda plan: command("new", model, "--for", purpose, "--data", data, *options, "-o", plan)


def _new_of_rows(purpose: str, *options: str, model: str = "model") -> Callable[[str], Done]:
    return _new(purpose, f"data/{purpose}.jsonl", *options, "--sequence-length", "64", model=model)


def _import(plan: str) -> Done:
    options = ("--data", "data/a.txt", "--sequence-length", "64", "--gpus", "2")
    return command("import", "arguments.json", "--model", "model", *options, "-o", plan)


def _tune(plan: str) -> Done:
    first = _new("pretrain", "data/a.txt", *TWO, *SMALL)(f"before-{plan}")
    return first if first.code else command("tune", f"before-{plan}", *TWO, "-o", plan)


def _resolve(plan: str) -> Done:
    first = _import(f"before-{plan}")
    shown = command("show", f"before-{plan}", "--resolved")
    Path(plan).write_text(shown.out, encoding="utf-8")
    return first if first.code else shown


PRODUCERS: Mapping[str, Callable[[str], Done]] = {
    "new --for pretrain": _new("pretrain", "data/a.txt", *TWO, *SMALL),
    "new --for continue": _new("continue", "data/a.txt", *TWO, *SMALL),
    "new --for adapters": _new("adapters", "data/chats.jsonl", *TWO, "--sequence-length", "64"),
    "new --for chats": _new("chats", "data/chats.jsonl", *TWO, "--sequence-length", "64"),
    "new --for preferences": _new_of_rows("preferences", *TWO),
    "new --for sequence_classification": _new_of_rows("sequence_classification", *TWO),
    "new --for token_classification": _new_of_rows("token_classification", *TWO, model="tiny-bert"),
    "new --for embedding": _new_of_rows("embedding", *TWO, model="tiny-bert"),
    "new --for seq2seq_lm": _new_of_rows("seq2seq_lm", *TWO, model="tiny-bart-encoder-decoder"),
    "new --for masked_lm": _new("masked_lm", "data/a.txt", *TWO, *SMALL, model="tiny-bert"),
    "new on CPUs": _new("pretrain", "data/a.txt", "--gpus", "2", "--gpu", "cpu", *SMALL),
    "import": _import,
    "tune -o": _tune,
    "show --resolved": _resolve,
}


def _diff(plan: str) -> Done:
    shutil.copy(plan, f"copy-{plan}")
    return command("diff", f"copy-{plan}", plan, "--exit-code")


def _compile(plan: str) -> Done:
    first = command("compile", plan, "-o", f"{plan}.json")
    return first if first.code else command("diff", f"{plan}.json", plan, "--exit-code")


def _tune_again(plan: str) -> Done:
    """A search for other devices finds plans, though the plan states what it keeps."""
    return command("tune", plan, "--gpus", "4", "--gpu", "h100")


def _format(plan: str) -> Done:
    return command("fmt", "--check", plan)


def _tune_keeps_comments(plan: str) -> Done:
    text = Path(plan).read_text(encoding="utf-8")
    Path(f"noted-{plan}").write_text(
        text.replace("optimizer {\n", f"optimizer {{\n  {COMMENT}"), encoding="utf-8"
    )
    done = command("tune", f"noted-{plan}", *TWO, "-o", f"tuned-{plan}")
    if done.code == 0 and COMMENT not in Path(f"tuned-{plan}").read_text(encoding="utf-8"):
        return Done(1, "", "the comment is gone")
    return done


CONSUMERS: Mapping[str, Callable[[str], Done]] = {
    "check": lambda plan: command("check", plan),
    "fmt --check": _format,
    "show --layout": lambda plan: command("show", plan, "--layout"),
    "show --resolved": lambda plan: command("show", plan, "--resolved"),
    "estimate": lambda plan: command("estimate", plan, "--gpu", "h100"),
    "diff": _diff,
    "compile": _compile,
    "check --data": lambda plan: command("check", plan, "--data"),
    "data show": lambda plan: command("data", "show", plan),
    "data prepare": lambda plan: command("data", "prepare", plan),
    "sweep --print": lambda plan: command("sweep", plan, "--grid", "model.seed=0..1", "--print"),
    "launch": lambda plan: command("launch", plan, "--nodes", "1"),
    "tune": _tune_again,
    "report": lambda plan: command("report", plan, "-o", f"{plan}.html"),
}


def _run(plan: str) -> Done:
    """One step on one rank, the rest on two ranks from its checkpoint, and a report of the run."""
    folder = f"runs-{plan}"
    run = ("-m", "planc.run", plan, "--run-dir", folder)
    alone = (
        "--set",
        "mesh.dp_shard=1",
        "--set",
        "mesh.devices_per_node=1",
        "--set",
        "checkpoint.save_every=1 steps",
    )
    programs = (
        (sys.executable, *run, *alone, "--stop-after", "1"),
        (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *run),
        (sys.executable, "-m", "planc", "report", folder, "-o", f"{folder}.html"),
    )
    for words in programs:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_SECONDS)
        # A run that is told to stop leaves with the code for that.
        if done.returncode not in ((0, 75) if "--stop-after" in words else (0,)):
            return Done(done.returncode, done.stdout, done.stderr)
    metrics = Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line).get("step") for line in metrics]
    return Done(0 if steps[-1] == 3 else 1, "", f"the run has steps {steps}")


def _after_run(plan: str) -> Done:
    """Every command that reads a run, on the run of `_run`, and those that read an export on its export."""
    folder = f"runs-{plan}"
    for words in (
        ("runs", folder),
        ("diff", folder, plan),
        ("checkpoint", "ls", folder),
        ("checkpoint", "verify", folder),
        ("checkpoint", "convert", folder, "--dcp", f"{folder}-dcp"),
        ("checkpoint", "export", folder, "--hf", f"{folder}-hf"),
        ("eval", folder, "--data", "data/a.txt"),
        ("eval", f"{folder}-hf", "--plan", plan, "--data", "data/a.txt"),
        ("sample", folder, "some words", "--max-new-tokens", "4"),
        ("sample", f"{folder}-hf", "some words", "--max-new-tokens", "4"),
        ("inventory", f"{folder}-hf"),
        ("new", f"{folder}-hf", "--for", "continue", "--data", "data/a.txt", *TWO, "-o", f"next-{plan}"),
        ("check", f"next-{plan}"),
        ("report", folder, "-o", f"{folder}-again.html"),
    ):
        done = command(*words)
        if done.code:
            return Done(done.code, done.out, f"planc {' '.join(words)}: {done.err or done.out}")
    return Done(0, "", "")


RUNS = ("new on CPUs", "import")
"""Producers of plans that CPUs train from random weights in no time."""
SLOW: Mapping[str, Callable[[str], Done]] = {
    "tune -o": _tune_keeps_comments,
    "check --deep": lambda plan: command("check", plan, "--deep"),
    "verify": lambda plan: command("verify", plan),
}


def pairs(folder: Path, *, quick: bool, producers: Sequence[str] = tuple(PRODUCERS)) -> Iterator[Pair]:
    """Every pair in turn."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        for number, producer in enumerate(producers):
            plan = f"{number}.plan"
            written = PRODUCERS[producer](plan)
            if written.code or not Path(plan).exists():
                yield Pair(producer, "itself", _problem(written))
                continue
            consumers = {**CONSUMERS} if quick else {**CONSUMERS, **SLOW}
            if not quick and producer in RUNS:
                consumers |= {"run, resume on two ranks, report": _run, "commands on the run": _after_run}
            for consumer, read in consumers.items():
                yield Pair(producer, consumer, _problem(read(plan)))
    finally:
        os.chdir(before)


def _problem(done: Done) -> str:
    lines: Sequence[str] = (done.err or done.out).strip().splitlines()
    return "" if done.code == 0 else f"exit {done.code}: {' '.join(lines)[:400]}"
