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


IMAGE_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% elif message['content'] is string %}"
    "{{ message['content'] + '<|im_end|>' }}"
    "{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "{{ '<|im_end|>' }}"
    "{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, with the tokens that Qwen's vision-language models have around an image."""

_IMAGE_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}


def image_model(folder: Path) -> None:
    """A small Qwen2.5-VL with weights, tokenizer, chat template and the settings of its images."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    folder.mkdir(parents=True)
    save_tokenizer(folder, template=IMAGE_TEMPLATE)
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens([*_IMAGE_TOKENS.values()])
    tokenizer.save(file)
    text = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": tokenizer.token_to_id("<|im_start|>"),
        "eos_token_id": tokenizer.token_to_id("<|endoftext|>"),
    }
    encoder = {"depth": 2, "num_heads": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config={**encoder, "fullatt_block_indexes": [1]},
        **{name: tokenizer.token_to_id(token) for name, token in _IMAGE_TOKENS.items()},
    )
    torch.manual_seed(0)
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    transformers.Qwen2VLImageProcessorPil().save_pretrained(folder)


_COLORS = {
    "red": (200, 30, 30),
    "green": (30, 160, 30),
    "blue": (30, 30, 200),
    "yellow": (230, 220, 40),
}


def image_rows(path: Path) -> None:
    """Sixteen conversations about the color of a sign, and the images of the signs."""
    from PIL import Image

    folder = path.parent / "images"
    folder.mkdir(parents=True)
    rows = []
    for number in range(16):
        color = [*_COLORS][number % len(_COLORS)]
        image = folder / f"{number}.png"
        Image.new("RGB", (40 + number, 64 - number), _COLORS[color]).save(image)
        question = [{"type": "image"}, {"type": "text", "text": f"What color is sign {number}?"}]
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"It is {color}."},
        ]
        rows.append({"image": image.relative_to(path.parents[1]).as_posix(), "messages": messages})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


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
    "image-model": image_model,
    "image-rows": image_rows,
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
