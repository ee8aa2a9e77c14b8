"""A model class of a plan's own whose step would differ from the class's: refused, with the reason."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planc.inventory.files import InventoryError
from planc.inventory.schema import Inventory
from planc.modeling.initialization import started
from planc.modeling.own_class import config_of, model_class_of
from tests.own_code.test_own_model import probed, problems, write

HEAD = "        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)\n"
EMBED = "nn.Embedding(config.vocab_size, config.hidden_size"
LAYERS = "nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))"
SUM = "hidden = hidden + self.attention("
RETURN = "return self.head(self.norm(hidden))"

REFUSED = {
    "a hook on a gradient": (
        HEAD,
        f"{HEAD}        self.embed.weight.register_hook(lambda gradient: gradient * 0.1)\n",
        "`embed.weight` of Gated has a hook",
    ),
    "max_norm": (EMBED, f"{EMBED}, max_norm=1.0", "has `max_norm`"),
    "sparse": (EMBED, f"{EMBED}, sparse=True", "has `sparse`"),
    "scale_grad_by_freq": (EMBED, f"{EMBED}, scale_grad_by_freq=True", "has `scale_grad_by_freq`"),
    "the same layer again": (
        LAYERS,
        "nn.ModuleList([Layer(config)] * config.num_hidden_layers)",
        "`layers.1` of Gated is `layers.0` again",
    ),
    "a parameter without dimensions": (
        HEAD,
        f"{HEAD}        self.scale = nn.Parameter(torch.ones(()))\n",
        "`scale` of Gated has no dimension",
    ),
    "a mean over the batch": (
        RETURN,
        "return self.head(self.norm(hidden - hidden.mean(0, keepdim=True)))",
        "depend on the other sequences",
    ),
    "random numbers": (
        RETURN,
        "return self.head(self.norm(hidden + torch.randn_like(hidden)))",
        "called again with the same tokens",
    ),
    "a batch norm": (
        HEAD,
        f"{HEAD}        self.norm = Rows(config.hidden_size)\n",
        "changes its buffer `norm.running_mean`",
    ),
    "later tokens of long sequences": (
        RETURN,
        "later = hidden.mean(1, keepdim=True) if hidden.shape[1] > 40 else 0\n"
        "        return self.head(self.norm(hidden + later))",
        "not causal: with 512 tokens",
    ),
    "a backward that fails": (SUM, "hidden += self.attention(", "the backward of Gated fails: RuntimeError"),
}
ROWS = """

class Rows(nn.BatchNorm1d):
    def forward(self, hidden):
        return super().forward(hidden.transpose(1, 2)).transpose(1, 2)


@model("gated")"""


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """The example's plan with other code."""
    path = write(folder, mesh="one", weights="random")
    text = (folder / "gated.py").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "gated.py").write_text(text.replace('\n\n@model("gated")', ROWS))
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_class_whose_step_would_differ_is_refused(name: str, tmp_path: Path) -> None:
    old, new, reason = REFUSED[name]
    changed(tmp_path, (old, new))
    with pytest.raises(InventoryError, match=reason):
        probed(tmp_path)


LLAMA = """import torch
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from planc.extend import model


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.weight, mean=1.0, std=0.1)

    def forward(self, hidden):
        return hidden * self.weight


class GatedLayer(LlamaDecoderLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.gate = Gate(config.hidden_size)

    def forward(self, hidden_states, **kwargs):
        return self.gate(super().forward(hidden_states, **kwargs))


@model("gated")
class GatedLlama(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        layers = (GatedLayer(config, number) for number in range(config.num_hidden_layers))
        self.model.layers = nn.ModuleList(layers)
        self.post_init()
"""


def test_changed_class_of_transformers_keeps_its_attention_and_starts_its_own_modules(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one", weights="random")
    (tmp_path / "gated.py").write_text(LLAMA)
    path.write_text(path.read_text().replace("attention = eager", "attention = sdpa"))
    assert problems(path) == {}
    inventory = probed(tmp_path)
    assert not inventory.own_attentions and not unset(inventory)
    assert {attention.fqn for attention in inventory.attentions} == {
        "model.layers.0.self_attn",
        "model.layers.1.self_attn",
    }


ZEROS = "        nn.init.zeros_(self.head.weight)\n"
ONES = "        self.head.weight = nn.Parameter(torch.ones_like(self.head.weight))\n"
SCALED = "        for layer in self.layers:\n            layer.down.weight.data.mul_(0.1)\n"
APPLIED = (
    "        self.apply(self.start)\n\n    def start(self, module):\n"
    "        if isinstance(module, nn.Linear):\n            nn.init.normal_(module.weight, std=0.005)\n"
)
HOOK = APPLIED.replace("start", "_init_weights")
RESET = "        self.reset_parameters()\n\n    def reset_parameters(self):\n"
STARTS = {
    "zeros": (ZEROS, {"head.weight"}),
    "scaled": (SCALED, {"layers.0.down.weight", "layers.1.down.weight"}),
    "another head": (ONES, {"head.weight"}),
    "zeros by its own method": (RESET + ZEROS, set()),
    "scaled by its own method": (RESET + SCALED, set()),
    "by _init_weights": (HOOK, set()),
    "as it is": ("", set()),
}  # fmt: skip


def unset(inventory: Inventory) -> set[str]:
    return {f"{module.fqn}.{name}" for module in inventory.modules for name in module.unset}


@pytest.mark.parametrize("name", STARTS)
def test_values_that_the_constructor_sets_over_those_of_modules_are_unset(name: str, tmp_path: Path) -> None:
    code, names = STARTS[name]
    changed(tmp_path, (HEAD, HEAD + code))
    assert unset(probed(tmp_path)) == names


def test_all_linear_layers_of_another_start_are_unset(tmp_path: Path) -> None:
    changed(tmp_path, (HEAD, HEAD + APPLIED))
    names = unset(probed(tmp_path))
    assert "head.weight" in names and "layers.0.attention.query.weight" in names
    assert not any("norm" in name or "bias" in name or "embed" in name for name in names)


def test_a_plan_that_draws_such_weights_is_refused_and_one_that_loads_them_is_not(tmp_path: Path) -> None:
    path = changed(tmp_path, (HEAD, HEAD + ZEROS))
    text, help = problems(path)["P720"]
    assert "`head.weight` starts from what `__init__` writes" in text
    assert "reset_parameters" in help and "weights = pretrained" in help
    path.write_text(path.read_text().replace("weights = random", "weights = pretrained"))
    assert "P720" not in problems(path)


def test_init_weights_is_called_after_reset_parameters(tmp_path: Path) -> None:
    changed(tmp_path, (HEAD, HEAD + HOOK))
    own: Any = runpy.run_path(str(tmp_path / "gated.py"))["Gated"]
    values = vars(SimpleNamespace(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1))
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 100.0}
    kind = model_class_of(own, name="gated", arguments={})
    start = dict(started(kind(config_of(kind, values))))
    assert float(start["head.weight"].std()) == pytest.approx(0.005, rel=0.1)
    # The method leaves norms and embeddings to their own.
    assert torch.equal(start["norm.weight"], torch.ones(16))
    assert float(start["embed.weight"].std()) == pytest.approx(1.0, rel=0.1)
