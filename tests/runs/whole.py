"""Whole runs of rows, as users start them, and what they trained against the same plan in one process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from planc.api import check_source
from planc.source import SourceFile
from tests.data.images import save_image, save_settings
from tests.inventories import save_inventory
from tests.launch.processes import Outcome, start, without_torchrun
from tests.runs.plans import (
    CORPUS,
    IMAGES,
    MODELS,
    PAIRS,
    QUESTIONS,
    SAVED_STEP,
    STORED,
    TARGETS,
    TEACHER,
    TEXTS,
    WORDS,
    Row,
    on_one_rank,
    plan_text,
    world_size,
)

_CHANGES: Mapping[str, Mapping[str, object]] = {
    "tiny-llama": {"intermediate_size": 256},
    "tiny-gpt2": {"attn_pdrop": 0.0, "n_layer": 4},
}
"""What more plans need: blocks of 64 inputs, dropout that fused attention has, and layers for stages."""
_LIMITS = {"float32": 5e-4, "bfloat16": 5e-2, "computed in bfloat16": 5e-2}
"""Relative errors of a loss and a gradient norm, after steps in which rounding has grown."""


@dataclass(slots=True)
class Workspace:
    """A folder in which rows run, and what was trained in it on one rank."""

    folder: Path
    models: Path
    on_one_rank: dict[str, list[tuple[float, float]] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in MODELS:
            folder = Path(shutil.copytree(self.models / name, self.folder / name))
            if name in _CHANGES:
                path = folder / "config.json"
                config = json.loads(path.read_text(encoding="utf-8"))
                path.write_text(json.dumps({**config, **_CHANGES[name]}), encoding="utf-8")
                (folder / "inventory.json").unlink()
                save_inventory(folder)
        texts = (" ".join(f"word{n * (n + i) % 977}" for n in range(i % 7 + 3)) for i in range(500))
        self._write(CORPUS, ({"text": text} for text in texts))
        rows = (
            {"prompt": f"{n}? ", "chosen": "yes" * (n % 5 + 1), "rejected": "no" * (n % 3 + 1)}
            for n in range(40)
        )
        self._write(PAIRS, rows)
        questions = ({"query": f"{n} + {n}?", "positive": f"It is {2 * n}."} for n in range(64))
        self._write(QUESTIONS, questions)
        self._write(TARGETS, ({"input": f"{n} + {n}?", "target": f"It is {2 * n}."} for n in range(64)))
        self._write_images("tiny-qwen2.5-vl")
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(self.folder / "tiny-llama")
        AutoModelForCausalLM.from_config(config).save_pretrained(self.folder / TEACHER)
        words = [[f"word{n * (n + i) % 97}" for n in range(i % 5 + 3)] for i in range(90)]
        self._write(TEXTS, ({"text": " ".join(row), "label": len(row) % 3} for row in words))
        classes = [[len(word) % 3 for word in row] for row in words]
        self._write(WORDS, ({"words": row, "classes": of} for row, of in zip(words, classes, strict=True)))

    def _write_images(self, model: str) -> None:
        """Rows with images, and the weights of the model that sees them."""
        for number in range(16):
            save_image(self.folder / f"{number}.png", seed=number)
        self._write(
            IMAGES,
            ({"image": f"{n % 16}.png", "prompt": f"{n}?", "completion": f"It is {2 * n}."} for n in range(64)),
        )
        save_settings(self.folder / model)
        torch.manual_seed(0)
        whole = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(self.folder / model))
        save_file(whole.state_dict(), self.folder / model / "model.safetensors")

    def _write(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (self.folder / name).write_text(text, encoding="utf-8")

    def accepts(self, row: Row) -> bool:
        source = SourceFile("whole.plan", plan_text(row))
        return check_source(source, base=self.folder, world_size=world_size(row)).graph is not None

    def problem(self, row: Row) -> str:
        """The way in which an accepted row does not train as one process does; empty if it does."""
        outcomes = self._run(row)
        bad = next((outcome for outcome in outcomes if outcome.code), None)
        if bad is not None:
            return f"ends with {bad.code}: {_last_words(bad)}"
        losses, expected = self._losses(), self._expected(row)
        if expected is None:
            return ""
        limit = _LIMITS[row["dtype"]]
        for step, (own, other) in enumerate(zip(losses, expected, strict=True), start=1):
            for name, value, wanted in zip(("loss", "gradient norm"), own, other, strict=True):
                if not abs(value - wanted) <= limit * abs(wanted):
                    return f"line {step}: {name} {value}, on one rank {wanted}"
        return ""

    def _expected(self, row: Row) -> list[tuple[float, float]] | None:
        """The lines of one process; None if `check` refuses the plan there."""
        alone = on_one_rank(row)
        key = plan_text(alone)
        if key not in self.on_one_rank:
            sound = self.accepts(alone) and not any(outcome.code for outcome in self._run(alone))
            self.on_one_rank[key] = self._losses() if sound else None
        return self.on_one_rank[key]

    def _run(self, row: Row) -> list[Outcome]:
        """All ranks of the run, whose last part begins from a checkpoint if the row has one."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        path = self.folder / "whole.plan"
        path.write_text(plan_text(row), encoding="utf-8")
        if row["loss"] == "distilled":
            shutil.rmtree(self.folder / STORED, ignore_errors=True)
            stored = start(sys.executable, "-m", "planc", "teacher", str(path))
            if stored.code:
                return [stored]
        arguments = (str(path), "--run-dir", str(self.folder / "run"))
        ranks = world_size(row)
        if row["saves"].startswith("resumed"):
            first = without_torchrun(*[(*arguments, "--stop-after", str(SAVED_STEP))] * ranks)
            if any(outcome.code for outcome in first):
                return first
        return without_torchrun(*[arguments] * ranks)

    def _losses(self) -> list[tuple[float, float]]:
        lines = (self.folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = (json.loads(line) for line in lines)
        return [(step["loss"], step["grad_norm"]) for step in steps]


def _last_words(outcome: Outcome) -> str:
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["nothing was said"])[0]
