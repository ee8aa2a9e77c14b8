"""What a page's reader would bring along: small models with weights, tokenizers, data.

A page asks for it in a comment: `<!-- run\\nprepare weights models/base\\n-->`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.data.conversing import TALK, save_talks, save_tokenizer
from tests.plans import PLANS

_CONFIG = PLANS / "models" / "tiny-llama" / "config.json"


def weights(folder: Path, *, vocabulary: int | None = None) -> None:
    """A model's folder with random weights, as transformers saves them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(_CONFIG.parent)
    config.vocab_size = vocabulary or config.vocab_size
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def chat_model(folder: Path) -> None:
    """A model's folder with weights, a tokenizer and its chat template."""
    folder.mkdir(parents=True)
    save_tokenizer(folder)
    weights(folder, vocabulary=320)


def chats(path: Path) -> None:
    """Sixty-four short conversations."""
    path.parent.mkdir(exist_ok=True)
    save_talks(path, *[TALK] * 64)


def text(path: Path) -> None:
    """Text that lies beside a plan."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"This is line {number} of a text.\n" for number in range(4000)))


def labeled(path: Path) -> None:
    """Rows of a text and a class."""
    path.parent.mkdir(exist_ok=True)
    names = ("negative", "neutral", "positive")
    rows = ({"text": f"A {names[number % 3]} place.", "label": names[number % 3]} for number in range(12))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def text_pairs(path: Path) -> None:
    """Rows of two texts and a class."""
    path.parent.mkdir(exist_ok=True)
    names = ("entailment", "neutral", "contradiction")
    rows = (
        {"premise": f"{number} ranks train.", "hypothesis": "Some ranks train.", "label": names[number % 3]}
        for number in range(12)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def matched(path: Path) -> None:
    """Rows of a question and its answer."""
    path.parent.mkdir(exist_ok=True)
    rows = (
        {"question": f"How many ranks has mesh {number}?", "answer": f"It has {2 * number}."}
        for number in range(16)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def mapped(path: Path) -> None:
    """Rows of an article and its summary."""
    path.parent.mkdir(exist_ok=True)
    rows = (
        {"article": f"Mesh {number} has {number} ranks, and all of them train.", "summary": f"{number} ranks"}
        for number in range(1, 17)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def words(path: Path) -> None:
    """Rows of words and their classes."""
    path.parent.mkdir(exist_ok=True)
    row = {"tokens": ["Anna", "lives", "in", "Sydney"], "ner_tags": ["B-PER", "O", "O", "B-LOC"]}
    other = {"tokens": ["It", "is", "big", "."], "ner_tags": ["O"] * 4}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (row, other) * 6))


def nan_weights(folder: Path) -> None:
    """Weights with a value that is not finite."""
    from safetensors.torch import load_file, save_file

    weights(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


PREPARED: dict[str, Callable[[Path], None]] = {
    "weights": weights,
    "chat-model": chat_model,
    "chats": chats,
    "text": text,
    "labeled": labeled,
    "words": words,
    "matched": matched,
    "mapped": mapped,
    "text_pairs": text_pairs,
    "nan-weights": nan_weights,
}


def prepare(command: str, folder: Path) -> None:
    """Runs `prepare WHAT WHERE`."""
    _, what, where = command.split()
    PREPARED[what](folder / where)
