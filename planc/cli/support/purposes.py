"""The purposes of `planc new`: what each is for, and the words of the field that mean one."""

from __future__ import annotations

import re

from planc.diagnostics.suggest import closest
from planc.first_plan.practice import Purpose
from planc.plan.foreign_words import foreign_word

SHORT = {
    Purpose.PRETRAIN: "new weights",
    Purpose.CONTINUE: "pretrain on",
    Purpose.CHATS: "fine-tune",
    Purpose.ADAPTERS: "fine-tune with LoRA",
}
LISTED = ", ".join(f"{one} ({short})" for one, short in SHORT.items())
_PAGES = {
    Purpose.PRETRAIN: """\
Trains new weights, drawn from a seed, on text: `weights = random`, the learning rate and the batch of
published pretraining runs of that size, and 20 tokens for each parameter.
""",
    Purpose.CONTINUE: """\
Trains the model's own weights further on text (continued pretraining): `weights = pretrained`, a third of the
learning rate of pretraining, and one pass over the data.
""",
    Purpose.ADAPTERS: """\
Trains adapters (LoRA) on conversations: as `chats`, with the model's own weights frozen and small matrices in
float32 next to each linear layer of its layers, by QLoRA's rank, alpha, dropout and learning rate.
""",
    Purpose.CHATS: """\
Fine-tunes the model's own weights on conversations (SFT, instruction tuning): `weights = pretrained`,
`source = chat(...)`, `packing = whole`, a loss on the assistant's messages, and three passes over the data.
""",
}
_WORDS = {
    Purpose.PRETRAIN: "pretraining pre_train pre_training scratch from_scratch train training",
    Purpose.CONTINUE: "continued continue_pretraining continual_pretraining cpt midtrain midtraining",
    Purpose.CHATS: "finetune finetuning fine_tune fine_tuning chat instruct instruction instructions "
    "conversation conversations",
    Purpose.ADAPTERS: "adapter lora qlora dora peft low_rank",
}
"""Beyond those that `planc explain` knows, which name the purpose of a plan for them."""
_NAMED = re.compile(r"--for (\w+)")


def purpose_of(text: str) -> Purpose:
    """The purpose of this name. ValueError for another word, with the purpose that it probably means."""
    if text in tuple(Purpose):
        return Purpose(text)
    meant = _meant(text)
    if meant is None:
        raise ValueError(f"`{text}` is none of {', '.join(Purpose)}")
    raise ValueError(f"`{text}` is none of {', '.join(Purpose)}: did you mean `{meant}` ({SHORT[meant]})?")


def purpose_page(topic: str) -> str | None:
    """Return the page of `planc explain` for a purpose; None for another topic."""
    if topic not in tuple(Purpose):
        return None
    example = "chats.jsonl" if Purpose(topic).is_of_chats else "'corpus/*.jsonl'"
    return (
        f"{topic}: a purpose of `planc new`\n\n{_PAGES[Purpose(topic)]}\n"
        f"  planc new MODEL --gpus 8 --gpu h100 --for {topic} --data {example}\n"
    )


def _meant(text: str) -> Purpose | None:
    word = re.sub(r"[\s.-]+", "_", text.strip()).lower()
    for purpose, words in _WORDS.items():
        if word in words.split():
            return purpose
    foreign = foreign_word(word)
    if foreign is not None and (named := _NAMED.search(foreign.also)):
        return Purpose(named[1])
    near = closest(word, Purpose)
    return Purpose(near) if near is not None else None
