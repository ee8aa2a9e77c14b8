"""One process that trains what every case trains: `planc verify`'s, with the cases' settings."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig

from planc.plan.optimizer import AdamW, Cosine, Implementation
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.sources import TextSource
from planc.runtime.data.spec import DataSpec
from planc.verify.recipe import Recipe
from planc.verify.reference import Training, snapshot, train
from tests.parity import cases

__all__ = ["Training", "open_samples", "snapshot", "train_reference"]

DATA = DataSpec(TextSource((cases.CORPUS,)), "bytes", cases.SEQUENCE_LENGTH, cases.SHUFFLE_SEED)

NORMS = (
    *("input_layernorm", "post_attention_layernorm"),
    *("self_attn.q_norm", "self_attn.k_norm"),
)
"""Of every layer; a model without the last two has no parameter of that name."""


def train_reference(model_name: str, *, workspace: Path) -> Training:
    """The training that every case with this model must repeat."""
    config = AutoConfig.from_pretrained(workspace / model_name, local_files_only=True)
    norms = [f"model.layers.{layer}.{norm}" for layer in range(config.num_hidden_layers) for norm in NORMS]
    recipe = Recipe(
        base=workspace,
        model=model_name,
        seed=cases.SEED,
        dtype="float32",
        data=DATA,
        global_batch=cases.GLOBAL_BATCH,
        optimizer=AdamW(
            cases.LEARNING_RATE,
            cases.BETAS,
            eps=1e-8,
            weight_decay=cases.WEIGHT_DECAY,
            implementation=Implementation.AUTO,
        ),
        schedule=Cosine(warmup=cases.WARMUP_STEPS, min_factor=cases.MIN_FACTOR),
        total_steps=cases.NUM_STEPS,
        num_steps=cases.NUM_STEPS,
        clip_grad_norm=cases.MAX_NORM,
        decays=tuple((f"{name}.weight", 0.0) for name in (*norms, "model.norm")),
    )
    return train(recipe)


def open_samples(vocab_size: int, *, workspace: Path) -> OpenData:
    """The corpus packed, with its order."""
    return open_data(DATA, base=workspace, model_vocab_size=vocab_size)
