"""Adapters written out in plain PyTorch for a loop by hand, and the blocks of a plan that starts with them.

No tensor of them is constant: a B of zeros would hide whatever reaches A.
"""

from __future__ import annotations

from torch import Tensor, nn

from tests.parity.test_adapter_parity import WithLora

RANK, ALPHA = 4, 8
WEIGHTS = "adapter_model.safetensors"
MERGED = 'export "adapter" {}\n\n  export "hf" {\n    merged = true'


def adapt(model: nn.Module, layers: tuple[str, ...], *, apart: tuple[str, ...]) -> dict[str, Tensor]:
    """Give the model's linear layers whose names end so their adapters, and return these.

    Nothing else is trained but the modules of `apart`.
    """
    linear = (name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    names = tuple(name for name in linear if name.endswith(layers) and "layer" in name)
    WithLora(names, RANK, ALPHA / RANK)(model)
    for name, parameter in model.named_parameters():
        if name.startswith(apart):
            parameter.requires_grad_()
    return {name: one.detach().clone() for name, one in model.named_parameters() if ".lora_" in name}


def blocks(layers: tuple[str, ...], *, apart: tuple[str, ...]) -> str:
    """The blocks of a plan."""
    rules = "".join(f'  "**.{name}" -> adapted\n' for name in layers)
    whole = "".join(f'  "{name}" -> trained\n' for name in apart)
    adapter = f'adapter {{\n  kind = lora(rank = {RANK}, alpha = {ALPHA})\n  start = "adapters"\n{rules}}}\n'
    return f"\n{adapter}\nfreeze {{\n{whole}}}\n" if apart else f"\n{adapter}"
