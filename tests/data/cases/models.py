"""Cases of model folders: positions beyond the config's, weights with a prefix, two sets of weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.data.cases.case import Case, planc, save_base, write_plan

_TEXT = "the cat sat on the mat and the dog ran over the hill. " * 90


def _scaled(kind: str, **more: object) -> Case:
    def problem(folder: Path) -> str | None:
        rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, **more}
        save_base(folder / "base", max_position_embeddings=64, rope_parameters=rope)
        (folder / "t.txt").write_text(_TEXT, encoding="utf-8")
        write_plan(folder, source='text("t.txt")', tokenizer="base", sequence_length="256")
        answer = planc(folder, "check", "case.plan")
        return None if answer.code == 0 else answer.text[-600:]

    return Case(f"{kind} scaling reaches 256 where max_position_embeddings is 64", problem)


def _beyond(folder: Path) -> str | None:
    save_base(folder / "base", max_position_embeddings=64)
    (folder / "t.txt").write_text(_TEXT, encoding="utf-8")
    write_plan(folder, source='text("t.txt")', tokenizer="base", sequence_length="256")
    answer = planc(folder, "check", "case.plan")
    return None if answer.code and "P704" in answer.text else "256 of 64 positions pass"


def _pretrained(folder: Path) -> None:
    (folder / "t.txt").write_text(_TEXT, encoding="utf-8")
    write_plan(folder, source='text("t.txt")', tokenizer="base")
    text = (folder / "case.plan").read_text(encoding="utf-8")
    (folder / "case.plan").write_text(
        text.replace('hf = "base"', 'hf = "base"\n  weights = pretrained\n  dtype = float32'),
        encoding="utf-8",
    )


def _prefixed(prefix: str) -> Case:
    def problem(folder: Path) -> str | None:
        from safetensors.torch import load_file, save_file

        save_base(folder / "base")
        path = folder / "base" / "model.safetensors"
        save_file(
            {f"{prefix}{name}": value for name, value in load_file(path).items()},
            path,
            metadata={"format": "pt"},
        )
        _pretrained(folder)
        answer = planc(folder, "case.plan", module="planc.run")
        return None if answer.code and f"`{prefix}" in answer.text else answer.text[-600:] or "passes"

    return Case(f"weights whose names begin with {prefix}", problem)


def _two_sets(folder: Path) -> str | None:
    from safetensors.torch import load_file, save_file

    save_base(folder / "base")
    save_base(folder / "only")
    weights = load_file(folder / "base" / "model.safetensors")
    other = {name: value * 2 if value.dim() > 1 else value for name, value in weights.items()}
    shard = "model-00001-of-00001.safetensors"
    save_file(other, folder / "base" / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "base" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    _pretrained(folder)
    losses = []
    for _ in range(2):
        answer = planc(folder, "case.plan", "--run-dir", "run", module="planc.run")
        losses.append(
            [word for line in answer.out.splitlines() if line.startswith("step ") for word in line.split()]
        )
        shutil.rmtree(folder / "run", ignore_errors=True)
        shutil.rmtree(folder / "base")
        shutil.copytree(folder / "only", folder / "base")
    first, second = ([words[words.index("loss") + 1]] if "loss" in words else [] for words in losses)
    return (
        None if first and first == second else f"with both files the loss is {first}, with the one {second}"
    )


CASES = (
    _scaled("yarn", original_max_position_embeddings=64),
    _scaled("linear"),
    _scaled("dynamic"),
    _scaled(
        "llama3", factor=8.0, original_max_position_embeddings=32, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    Case("positions beyond those of a model without scaling", _beyond),
    _prefixed("_orig_mod."),
    _prefixed("module."),
    Case("model.safetensors beside an older index", _two_sets),
)
