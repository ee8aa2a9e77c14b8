"""Cases of configs: what an import must say, or refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.data.cases.case import Answer, Case, planc, save_base

_TRAINER = {"per_device_train_batch_size": 2, "max_steps": 100, "learning_rate": 2e-5}


def _imported(folder: Path, name: str, content: str, *options: str) -> Answer:
    save_base(folder / "base")
    (folder / name).write_text(content, encoding="utf-8")
    return planc(folder, "import", name, "--model", "base", *options)


def _trainer(wrong: Callable[[str], bool], **keys: object) -> Callable[[Path], str | None]:
    def problem(folder: Path) -> str | None:
        content = json.dumps(_TRAINER | keys)
        answer = _imported(folder, "config.json", content, "--gpus", "1", "--sequence-length", "256")
        return answer.text[-600:] if wrong(answer.out) else None

    return problem


def _no_decay(folder: Path) -> str | None:
    content = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    options = ("--gpus", "2", "--sequence-length", "256", "--steps", "10")
    answer = _imported(folder, "config.json", json.dumps(content), *options)
    return None if "weight_decay = 0" in answer.out else answer.text[-600:]


def _trl(folder: Path) -> str | None:
    content = """model_name_or_path: org/base
dataset_name: org/chats
per_device_train_batch_size: 2
max_steps: 100
learning_rate: 2.0e-5
max_length: 512
assistant_only_loss: true
"""
    answer = _imported(folder, "config.yaml", content, "--gpus", "2")
    is_said = (
        "weights = pretrained" in answer.out and "text(" not in answer.out and "attend" not in answer.out
    )
    return None if answer.code or is_said else answer.text[-900:]


def _axolotl(folder: Path) -> str | None:
    content = """base_model: org/base
datasets:
  - path: data/chats.jsonl
    type: chat_template
    field_messages: messages
sequence_len: 256
micro_batch_size: 1
max_steps: 10
learning_rate: 1.0e-4
"""
    answer = _imported(folder, "config.yaml", content, "--gpus", "2")
    return None if answer.code or 'chat("data/chats.jsonl"' in answer.out else answer.text[-900:]


CASES = (
    Case(
        "max_grad_norm 0 turns clipping off",
        _trainer(lambda text: "clip_grad_norm = 1" in text, max_grad_norm=0.0),
    ),
    Case(
        "the Trainer's decay spares norms and biases",
        _trainer(lambda text: "norm" not in text, weight_decay=0.1),
    ),
    Case("DeepSpeed's Adam decays nothing unless told", _no_decay),
    Case("a TRL recipe of chats from pretrained weights", _trl),
    Case("Axolotl's chats are chats", _axolotl),
)
