"""The purposes of a run, and the rows that each is trained on."""

from __future__ import annotations

from enum import StrEnum

from planc.vocab import Task


class Rows(StrEnum):
    """The kinds of rows; the value is the call that reads them, `text` and `hf_dataset` apart."""

    TEXTS = "jsonl"
    CHATS = "chat"
    PREFERENCES = "pairs"
    LABELED_TEXTS = "labeled"
    LABELED_WORDS = "labeled words"
    MATCHED = "matched"
    MAPPED = "mapped"
    IMAGE_CHATS = "image_chat"

    @property
    def call(self) -> str:
        """The source that reads such rows."""
        return self.value.partition(" ")[0]

    @property
    def has_messages(self) -> bool:
        """True for rows that a chat template renders."""
        return self in (Rows.CHATS, Rows.PREFERENCES, Rows.IMAGE_CHATS)


class Purpose(StrEnum):
    """The purpose of a run; the value is the word of the command line, for some that of a task."""

    PRETRAIN = "pretrain"
    CONTINUE = "continue"
    CHATS = "chats"
    ADAPTERS = "adapters"
    PREFERENCES = "preferences"
    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"
    MASKED_LM = "masked_lm"
    EMBEDDING = "embedding"
    SEQ2SEQ_LM = "seq2seq_lm"
    IMAGE_TEXT_TO_TEXT = "image_text_to_text"

    @property
    def rows(self) -> Rows:
        """The rows that it is trained on."""
        return _ROWS.get(self, Rows.TEXTS)

    @property
    def task(self) -> Task:
        """The task of the model."""
        return next((task for task in Task if task.value == self.value), Task.CAUSAL_LM)

    @property
    def packs_chats(self) -> bool:
        """True if several conversations share a sequence."""
        return self.rows is Rows.CHATS

    @property
    def has_new_weights(self) -> bool:
        """True if it starts from a seed, and not from the model's own weights."""
        return self in (Purpose.PRETRAIN, Purpose.MASKED_LM)

    @property
    def is_in_epochs(self) -> bool:
        """True if each row is a sequence or two: the length of a run is then in passes over the rows."""
        return self.rows is not Rows.TEXTS and not self.packs_chats


_ROWS = {
    Purpose.CHATS: Rows.CHATS,
    Purpose.ADAPTERS: Rows.CHATS,
    Purpose.PREFERENCES: Rows.PREFERENCES,
    Purpose.SEQUENCE_CLASSIFICATION: Rows.LABELED_TEXTS,
    Purpose.TOKEN_CLASSIFICATION: Rows.LABELED_WORDS,
    Purpose.EMBEDDING: Rows.MATCHED,
    Purpose.SEQ2SEQ_LM: Rows.MAPPED,
    Purpose.IMAGE_TEXT_TO_TEXT: Rows.IMAGE_CHATS,
}
