"""Adapters written out in plain PyTorch, and their directory in peft's format.

No tensor of them is constant: a B of zeros would hide whatever reaches A.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

RANK, ALPHA = 4, 6
PREFIX = "base_model.model."
WEIGHTS = "adapter_model.safetensors"
MERGED = 'export "adapter" {}\n\n  export "hf" {\n    merged = true'


class Lora(nn.Module):
    """A linear layer with an adapter, by the names that peft gives their parameters."""

    def __init__(self, layer: nn.Linear, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_A = nn.Linear(*reversed(a.shape), bias=False)
        self.lora_B = nn.Linear(*reversed(b.shape), bias=False)
        self.lora_A.weight, self.lora_B.weight = nn.Parameter(a), nn.Parameter(b)

    def forward(self, rows: Tensor) -> Tensor:
        added = self.lora_B(self.lora_A(rows))
        return F.linear(rows, self.weight, self.bias) + ALPHA / RANK * added


def adapt(model: nn.Module, layers: tuple[str, ...], *, apart: tuple[str, ...]) -> dict[str, Tensor]:
    """Give the model's linear layers whose names end so their adapters, and return these.

    Nothing else is trained but the modules of `apart`.
    """
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(apart))
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and name.endswith(layers) and ".layer" in name:
            a = torch.randn(RANK, layer.in_features, generator=generator).double() / 8
            b = torch.randn(layer.out_features, RANK, generator=generator).double() / 8
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Lora(layer, a, b))
    return {name: one.detach().clone() for name, one in model.named_parameters() if ".lora_" in name}


def write_adapters(folder: Path, adapters: dict[str, Tensor]) -> None:
    folder.mkdir()
    tensors = {f"{PREFIX}{name}": value for name, value in adapters.items()}
    save_file(tensors, folder / WEIGHTS)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["some"]}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="ascii")


def blocks(layers: tuple[str, ...], *, apart: tuple[str, ...]) -> str:
    """The blocks of a plan."""
    rules = "".join(f'  "**.{name}" -> adapted\n' for name in layers)
    whole = "".join(f'  "{name}" -> trained\n' for name in apart)
    adapter = f'adapter {{\n  kind = lora(rank = {RANK}, alpha = {ALPHA})\n  start = "adapters"\n{rules}}}\n'
    return f"\n{adapter}\nfreeze {{\n{whole}}}\n" if apart else f"\n{adapter}"
