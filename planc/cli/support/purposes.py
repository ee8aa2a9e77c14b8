"""The purposes of `planc new`: what each is for, and the words of the field that mean one."""

from __future__ import annotations

import re

from planc.cli.support.exits import UsageError
from planc.diagnostics.suggest import closest
from planc.first_plan.purpose import Purpose, Rows
from planc.inventory.known import KINDS
from planc.inventory.schema import Inventory
from planc.plan.foreign_words import foreign_word

SHORT = {
    Purpose.PRETRAIN: "new weights",
    Purpose.CONTINUE: "pretrain on",
    Purpose.CHATS: "fine-tune",
    Purpose.ADAPTERS: "fine-tune with LoRA",
    Purpose.PREFERENCES: "DPO",
    Purpose.SEQUENCE_CLASSIFICATION: "texts with classes",
    Purpose.TOKEN_CLASSIFICATION: "words with classes",
    Purpose.MASKED_LM: "pretrain an encoder",
    Purpose.EMBEDDING: "pairs of texts",
    Purpose.SEQ2SEQ_LM: "inputs with targets",
    Purpose.IMAGE_TEXT_TO_TEXT: "chats with images",
}
LISTED = ", ".join(f"{purpose} ({short})" for purpose, short in SHORT.items())
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
    Purpose.PREFERENCES: """\
Fine-tunes a model that was trained on conversations on pairs of a better and a worse answer (DPO): rows have
`prompt`, `chosen` and `rejected`; 32 pairs a step, three passes over the data.
""",
    Purpose.SEQUENCE_CLASSIFICATION: """\
Trains a classifier of texts or of pairs of texts, with a new head where the model has none. The classes are
those of the rows: the names under `label`, or numbers from 0 on. By BERT's practice on GLUE.
""",
    Purpose.TOKEN_CLASSIFICATION: """\
Trains a classifier of words (named entities): rows have a list of words and a list of their classes. By
BERT's practice.
""",
    Purpose.MASKED_LM: """\
Trains new weights of an encoder on text whose tokens are hidden, by BERT's practice: 256 sequences of 512
tokens a step, 40 passes over the data. `weights = pretrained` in the plan starts from the model's own.
""",
    Purpose.EMBEDDING: """\
Trains vectors of texts by contrast: rows have a query and its positive, and the positives of other rows in a
group are the negatives. By the practice of supervised SimCSE.
""",
    Purpose.SEQ2SEQ_LM: """\
Fine-tunes an encoder-decoder on inputs with targets, such as articles with summaries, by BART's practice.
""",
    Purpose.IMAGE_TEXT_TO_TEXT: """\
Fine-tunes the language model of a model that sees images on conversations with an image each, by LLaVA-1.5's
practice. The encoder of images stays as it is.
""",
}
_WORDS = {
    Purpose.PRETRAIN: "pretraining pre_train pre_training scratch from_scratch train training",
    Purpose.CONTINUE: "continued continue_pretraining continual_pretraining cpt midtrain midtraining",
    Purpose.CHATS: "finetune finetuning fine_tune fine_tuning chat instruct instruction instructions "
    "conversation conversations",
    Purpose.ADAPTERS: "adapter lora qlora dora peft low_rank",
    Purpose.PREFERENCES: "preference dpo rlhf alignment pairs",
    Purpose.SEQUENCE_CLASSIFICATION: "classification classifier classes classify text_classification glue "
    "nli sentiment labeled",
    Purpose.TOKEN_CLASSIFICATION: "ner entities words tagging pos",
    Purpose.MASKED_LM: "mlm masked bert fill_mask",
    Purpose.EMBEDDING: "embeddings contrastive retrieval sentence_transformers simcse matched",
    Purpose.SEQ2SEQ_LM: "seq2seq summarization translation encoder_decoder targets mapped",
    Purpose.IMAGE_TEXT_TO_TEXT: "image images vision vlm multimodal image_chat",
}
"""Beyond those that `planc explain` knows, which name the purpose of a plan for them."""
_EXAMPLES = {Rows.TEXTS: "'corpus/*.jsonl'", Rows.CHATS: "chats.jsonl"}
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
    example = _EXAMPLES.get(Purpose(topic).rows, "rows.jsonl")
    return (
        f"{topic}: a purpose of `planc new`\n\n{_PAGES[Purpose(topic)]}\n"
        f"  planc new MODEL --gpus 8 --gpu h100 --for {topic} --data {example}\n"
    )


def require_task(inventory: Inventory, purpose: Purpose) -> None:
    """UsageError for a model whose class is of another task than the purpose."""
    if inventory.task is purpose.task or (purpose is Purpose.IMAGE_TEXT_TO_TEXT and inventory.images):
        return
    own = [other.value for other in Purpose if other.task is inventory.task]
    kind = KINDS[inventory.task]
    raise UsageError(f"{inventory.architecture} is {kind}: pass --for {' or '.join(own)}")


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
