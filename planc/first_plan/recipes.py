"""Practitioners' recipes, by the purpose of a run and the size of its model.

Every value names its source; docs/how-to/write-a-plan.md has the references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planc.first_plan.purpose import Purpose
from planc.record import record
from planc.tables import format_number

_MILLION, _BILLION = 10**6, 10**9
_ANY = 10**18


@record
class Value:
    """A number for models of up to so many parameters, and whose practice it is."""

    most_parameters: int
    number: float
    source: str


@record
class Warmup:
    """A share of the steps, or a number of steps that is at most a tenth of them."""

    source: str
    percent: float = 0
    most_steps: int = 0

    @property
    def reason(self) -> str:
        size = (
            f"{self.percent:g} % of the steps" if self.percent else f"{format_number(self.most_steps)} steps"
        )
        return f"a warm-up of {size}, as {self.source}"


@record
class Recipe:
    """The settings of a purpose that do not depend on the devices."""

    rates: tuple[Value, ...]
    """Peaks of the learning rate."""
    tokens: tuple[Value, ...]
    """The tokens of a step."""
    length: Value
    """The tokens of a sequence; fewer for a model with fewer positions."""
    warmup: Warmup
    passes: int
    """Over the data; 0 where parameters give the number of tokens."""
    passes_source: str = ""
    schedule: str = "linear"
    min_factor: float = 0.0
    betas: str = "[0.9, 0.999]"
    weight_decay: float = 0.0
    decay_reason: str = ""
    end_source: str = ""
    """Whose schedule it is."""
    third_source: str = ""
    """Whose peak is a third of `rates`; empty where they are the peaks."""
    sequences_per_row: int = 1


_PRETRAINED = Recipe(
    rates=(
        Value(50 * _MILLION, 1e-3, "nanoGPT's smallest models"),
        Value(500 * _MILLION, 6e-4, "GPT-3 125M"),
        Value(3 * _BILLION, 4e-4, "TinyLlama 1.1B"),
        Value(20 * _BILLION, 3e-4, "Llama 2 7B and Llama 3 8B"),
        Value(100 * _BILLION, 1.5e-4, "Llama 2 70B and Llama 3 70B"),
        Value(_ANY, 8e-5, "Llama 3.1 405B"),
    ),
    tokens=(
        Value(50 * _MILLION, 16_384, "nanoGPT's smallest models"),
        Value(1 * _BILLION, 524_288, "GPT-3 up to 760M"),
        Value(5 * _BILLION, 2_097_152, "TinyLlama 1.1B"),
        Value(100 * _BILLION, 4_194_304, "Llama 2"),
        Value(_ANY, 16_777_216, "Llama 3.1 405B"),
    ),
    length=Value(_ANY, 4_096, "Llama 2"),
    warmup=Warmup("Llama 2", most_steps=2_000),
    passes=0,
    schedule="cosine",
    min_factor=0.1,
    betas="[0.9, 0.95]",
    weight_decay=0.1,
    decay_reason="Weight decay and betas as GPT-3 and Llama 2.",
    end_source="Llama 2",
)
_CHATS = Recipe(
    rates=(
        Value(20 * _BILLION, 2e-5, "Alpaca 7B, Llama 2 Chat and Tulu 2 7B"),
        Value(100 * _BILLION, 1e-5, "Tulu 2 70B"),
        Value(_ANY, 2e-6, "Tulu 3 405B"),
    ),
    tokens=(Value(_ANY, 64 * 4_096, "Llama 2 Chat: 64 sequences of 4,096 tokens"),),
    length=Value(_ANY, 4_096, "Llama 2"),
    warmup=Warmup("Alpaca", percent=3),
    passes=3,
    passes_source="Alpaca",
    schedule="cosine",
    decay_reason="No weight decay, as Alpaca and Tulu 2.",
    end_source="Alpaca",
)
_CLASSES = Recipe(
    rates=(
        Value(_BILLION, 2e-5, "BERT on GLUE"),
        Value(20 * _BILLION, 1e-5, "Llama 2's reward models"),
        Value(_ANY, 5e-6, "Llama 2 70B's reward model"),
    ),
    tokens=(Value(_ANY, 32 * 512, "BERT on GLUE: 32 texts"),),
    length=Value(_ANY, 512, "BERT"),
    warmup=Warmup("BERT", percent=10),
    passes=3,
    passes_source="BERT",
    weight_decay=0.01,
    decay_reason="Weight decay as BERT.",
    end_source="BERT",
)
_RECIPES: Mapping[Purpose, Recipe] = {
    Purpose.PRETRAIN: _PRETRAINED,
    Purpose.CONTINUE: replace(
        _PRETRAINED,
        # 1e-4 for 7B, 5e-5 for 34B.
        third_source="Llemma",
        warmup=Warmup("Llemma", most_steps=500),
        passes=1,
    ),
    Purpose.CHATS: _CHATS,
    Purpose.ADAPTERS: replace(
        _CHATS,
        rates=(Value(20 * _BILLION, 2e-4, "QLoRA 7B and 13B"), Value(_ANY, 1e-4, "QLoRA 33B and 65B")),
        tokens=(Value(_ANY, 16 * 4_096, "QLoRA 7B: 16 sequences"),),
        decay_reason="No weight decay, as QLoRA.",
    ),
    Purpose.PREFERENCES: Recipe(
        rates=(Value(_ANY, 5e-7, "Tulu 2 DPO and OLMo 7B"),),
        tokens=(Value(_ANY, 32 * 2 * 2_048, "Tulu 2 DPO: 32 pairs"),),
        length=Value(_ANY, 2_048, "OLMo 7B"),
        warmup=Warmup("Tulu 2 DPO", percent=10),
        passes=3,
        passes_source="Tulu 2 DPO",
        decay_reason="No weight decay, as they.",
        end_source="Tulu 2 DPO",
        sequences_per_row=2,
    ),
    Purpose.SEQUENCE_CLASSIFICATION: _CLASSES,
    Purpose.TOKEN_CLASSIFICATION: _CLASSES,
    Purpose.MASKED_LM: Recipe(
        rates=(Value(_ANY, 1e-4, "BERT"),),
        tokens=(Value(_ANY, 256 * 512, "BERT: 256 sequences of 512 tokens"),),
        length=Value(_ANY, 512, "BERT"),
        warmup=Warmup("BERT", percent=1),
        passes=40,
        passes_source="BERT",
        weight_decay=0.01,
        decay_reason="Weight decay as BERT.",
        end_source="BERT",
    ),
    Purpose.EMBEDDING: Recipe(
        rates=(Value(200 * _MILLION, 5e-5, "supervised SimCSE, base"), Value(_ANY, 1e-5, "SimCSE, large")),
        tokens=(Value(_ANY, 512 * 2 * 128, "supervised SimCSE: 512 pairs"),),
        length=Value(_ANY, 128, "all-mpnet-base-v2"),
        warmup=Warmup("sentence-transformers' examples", percent=10),
        passes=3,
        passes_source="supervised SimCSE",
        decay_reason="No weight decay, as SimCSE.",
        end_source="SimCSE",
        sequences_per_row=2,
    ),
    Purpose.SEQ2SEQ_LM: Recipe(
        rates=(Value(_ANY, 3e-5, "BART on CNN/DailyMail"),),
        tokens=(Value(_ANY, 64 * 1_024, "BART on CNN/DailyMail"),),
        length=Value(_ANY, 1_024, "BART"),
        warmup=Warmup("BART: 500 of 20,000", percent=2.5),
        passes=5,
        passes_source="BART's 20,000 steps on CNN/DailyMail",
        weight_decay=0.01,
        decay_reason="Weight decay as BART.",
        end_source="BART",
    ),
    Purpose.IMAGE_TEXT_TO_TEXT: Recipe(
        rates=(Value(_ANY, 2e-5, "LLaVA-1.5"),),
        tokens=(Value(_ANY, 128 * 2_048, "LLaVA-1.5: 128 conversations"),),
        length=Value(_ANY, 2_048, "LLaVA-1.5"),
        warmup=Warmup("LLaVA-1.5", percent=3),
        passes=1,
        passes_source="LLaVA-1.5",
        schedule="cosine",
        decay_reason="No weight decay, as LLaVA-1.5.",
        end_source="LLaVA-1.5",
    ),
}


def recipe_of(purpose: Purpose) -> Recipe:
    """The settings of a purpose, for models of all sizes."""
    return _RECIPES[purpose]
