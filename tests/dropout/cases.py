"""Meshes with dropout: their plans, and planc's ranks against the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from planc.api import Checked, check_source
from planc.source import SourceFile
from tests.dist.pool import run_ranks
from tests.dropout import reference
from tests.dropout.architectures import dropping_config
from tests.dropout.reference import Trained
from tests.models.architectures import architectures
from tests.parity.ranks import Record, Task, train_rank

RATES = {"gpt2": {"resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.25}}
SIZES = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 264,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 48,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 264,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 258,
        "dropout": 0.2,
        "attention_dropout": 0.25,
    },
}
SIZES["gpt2"] |= RATES["gpt2"]
SIZES["gpt2-untied"] = SIZES["gpt2"] | {"tie_word_embeddings": False, "n_layer": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """A mesh, and what a plan does on it. Rates of the model are set to 0 by `without`."""

    name: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    blocks: str = ""
    model: str = "gpt2"
    attention: str = "eager"
    without: tuple[str, ...] = ()
    micro_batch: int = 2
    steps: int = reference.NUM_STEPS

    @property
    def world_size(self) -> int:
        product = 1
        for size in self.mesh.values():
            product *= size
        return product

    @property
    def config(self) -> dict[str, object]:
        known = SIZES.get(self.model)
        sizes = known if known is not None else dropping_config(self.model, architectures()[self.model])
        return sizes | dict.fromkeys(self.without, 0.0)

    def plan(self, *, dtype: str) -> str:
        mesh = "".join(f"  {mesh_dim} = {size}\n" for mesh_dim, size in self.mesh.items())
        return (
            f'model {{\n  hf = "model"\n  weights = pretrained\n  seed = {reference.SEED}\n'
            f"  dtype = {dtype}\n  attention = {self.attention}\n}}\nmesh {{\n{mesh}}}\n{self.blocks}"
            f'data {{\n  source = text("{reference.CORPUS}")\n  tokenizer = bytes\n'
            f"  sequence_length = {reference.SEQUENCE_LENGTH}\n  micro_batch = {self.micro_batch}\n"
            f"  shuffle_seed = {reference.SHUFFLE_SEED}\n}}\n"
            f"optimizer {{\n  kind = adamw(lr = {reference.LEARNING_RATE}, betas = [0.9, 0.95], "
            f"eps = {reference.EPS}, weight_decay = 0)\n  clip_grad_norm = 1e9\n}}\n"
            f"train {{\n  steps = {self.steps}\n"
            f"  tokens_per_step = {reference.GLOBAL_BATCH * reference.SEQUENCE_LENGTH}\n}}\n"
        )


def prepare(config: Mapping[str, object], folder: Path) -> None:
    """Config, weights and text in a folder."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    reference.write_corpus(folder)
    reference.write_weights(folder / "model")


def checked(case: Case, folder: Path, *, dtype: str = "float64") -> Checked:
    return check_source(SourceFile("dropout.plan", case.plan(dtype=dtype)), base=folder)


def expected(folder: Path, *, dtype: str = "float64") -> Trained:
    """The reference's own process."""
    (found,) = run_ranks(reference.train, 1, folder, dtype)
    return found


def ranks_of(case: Case, folder: Path, *, dtype: str = "float64") -> list[Record]:
    """What planc's ranks did."""
    graph = checked(case, folder, dtype=dtype).graph
    assert graph is not None, checked(case, folder, dtype=dtype).diagnostics
    with TemporaryDirectory(prefix="planc-dropout-") as name:
        return run_ranks(train_rank, case.world_size, Task(graph, folder, Path(name)), init=False)


def errors(records: list[Record], trained: Trained) -> dict[str, float]:
    """Relative distances of losses, and of the worst gradient and the worst final parameter."""
    first = records[0]
    assert first.gradients.keys() == trained.gradients.keys()
    losses = zip(first.metrics, trained.losses, strict=True)
    return {
        "loss": max(abs(one.loss - other) / abs(other) for one, other in losses),
        "gradient": _worst(first.gradients, trained.gradients),
        "final": _worst(first.final, trained.final),
    }


def _worst(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest distance, to a parameter's own norm but at least a thousandth of all."""
    whole = torch.stack([one.double().norm() for one in wanted.values()]).norm()
    return max(
        float((actual[name].double() - one.double()).norm() / max(one.double().norm(), whole * 1e-3))
        for name, one in wanted.items()
    )
