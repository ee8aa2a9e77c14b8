"""A tokenizer's folder with a chat template, and conversations, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from planc.runtime.data.chat import Conversation
from planc.runtime.data.chat_rows import Reading, talks

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\n' }}"
    "{% else %}"
    "{{ message['content'] + '<|im_end|>\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, with the marks by which transformers finds answers."""

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Où est le café ?"},
    {"role": "assistant", "content": "Là-bas, à gauche. ☕"},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You are welcome."},
]


def conversation(messages: list[dict[str, Any]], *, origin: str = "here", **settings: Any) -> Conversation:
    """A row's only conversation; `settings` are those of its reading."""
    (talk,) = talks({"messages": messages}, reading=Reading(**settings), origin=origin)
    return Conversation(origin, json.dumps(talk).encode())


def save_tokenizer(
    folder: Path, *, template: str | None = TEMPLATE, in_config: bool = False, has_config: bool = True
) -> Path:
    """A byte-level tokenizer of 310 ids in a folder, with the end of a document in its config.

    Without a config each process that tokenizes is spared the import of transformers, for longer than all
    else takes; then a plan names the end of a document.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([one["content"] for one in TALK] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
        "bos_token": "<|im_start|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if template is not None and in_config:
        config["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if has_config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_talks(path: Path, *talks: list[dict[str, Any]], field: str = "messages") -> None:
    lines = (json.dumps({field: talk}) for talk in talks)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
