"""Recorded initializations: parts are those of a whole tensor, and what can't be recorded is drawn whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from planc.modeling import initialization
from planc.modeling.initialization import draw
from planc.modeling.placed_draws import NotInPartsError, Values

MODELS = Path(__file__).parents[2] / "plans" / "models"
NAMES = ("deepseek-v3", "gemma3n", "gpt2", "llama4", "mamba", "opt-flattened", "qwen3-moe")


class OneLinear(PreTrainedModel):
    """A model whose one linear module is initialized as subclasses say."""

    def __init__(self, rows: int = 600, columns: int = 300) -> None:
        super().__init__(PreTrainedConfig())
        self.linear = nn.Linear(columns, rows, bias=False)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            self.set_weight(module.weight)

    def set_weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight)


class Arithmetic(OneLinear):
    def set_weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight)
        weight.mul_(0.5).add_(1.0)
        weight.data[3:5, 10:20].uniform_(2.0, 3.0)
        weight.data[7].zero_()
        weight /= 3


class Truncated(OneLinear):
    def set_weight(self, weight: Tensor) -> None:
        nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)


class OnlyOnDevices(OneLinear):
    """As some models of transformers, it leaves out tensors on meta."""

    def set_weight(self, weight: Tensor) -> None:
        nn.init.zeros_(weight)
        if weight.device.type != "meta":
            nn.init.normal_(weight, mean=5.0)


class Orthogonal(OneLinear):
    def set_weight(self, weight: Tensor) -> None:
        nn.init.orthogonal_(weight)


class Normed(OneLinear):
    """It computes with what it draws."""

    def set_weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight)
        weight.div_(weight.norm())


class Transposed(OneLinear):
    def set_weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight)
        weight.t()[0].fill_(9.0)
        weight.t()[:2].normal_()


class Counted(OneLinear):
    """It asks for a value."""

    def set_weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight)
        if weight[0, 0].item() != 0:
            weight.mul_(2)


class Computed(OneLinear):
    """Another tensor of the same size is drawn and copied."""

    def set_weight(self, weight: Tensor) -> None:
        weight.copy_(torch.rand(weight.shape))


def on_meta(model: type[OneLinear]) -> OneLinear:
    with torch.device("meta"):
        return model()


def tiny(name: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(MODELS / f"tiny-{name}", local_files_only=True)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def drawn(model: PreTrainedModel, *, num_parts: int) -> Mapping[str, Tensor]:
    """Every tensor, filled by parts along its last and then its first dimension."""
    like = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, Tensor] = {}

    def keep(name: str, values: Values) -> None:
        if name not in like:
            return
        out = found[name] = torch.full_like(like[name], 77, device="cpu")
        for dim in sorted({0, out.dim() - 1}) if out.dim() else ():
            everything = [slice(0, size) for size in out.shape]
            ends = [out.shape[dim] * part // num_parts for part in range(num_parts + 1)]
            out.fill_(77)
            for first, last in itertools.pairwise(ends):
                block = (*everything[:dim], slice(first, last), *everything[dim + 1 :])
                values.fill(out[block], block)
        if not out.dim():
            values.fill(out, ())

    draw(model, seed=3, keep=keep)
    return found


def whole(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Tensor]:
    """Every tensor, of modules that are initialized whole."""

    class Refusing(initialization.Recording):
        def values(self) -> dict[str, Values]:
            raise NotInPartsError

    with monkeypatch.context() as patched:
        patched.setattr(initialization, "Recording", Refusing)
        return drawn(model, num_parts=1)


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    differing = [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])]
    assert differing == []


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_model_are_those_of_a_whole_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(drawn(tiny(name), num_parts=3), whole(tiny(name), monkeypatch))


IN_PARTS = (OneLinear, Arithmetic, Truncated, OnlyOnDevices)
IN_ONE = (Orthogonal, Normed, Transposed, Counted, Computed)


@pytest.mark.parametrize("model", [*IN_PARTS, *IN_ONE])
def test_parts_of_a_tensor_are_those_of_the_whole(
    model: type[OneLinear], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drawn(on_meta(model), num_parts=7)
    assert_equal(found, whole(on_meta(model), monkeypatch))
    assert not (found["linear.weight"] == 77).any()


@pytest.mark.parametrize("model", IN_PARTS)
def test_what_is_drawn_in_parts_is_not_named(model: type[OneLinear]) -> None:
    assert draw(on_meta(model), seed=0, keep=lambda *_: None) == ()


@pytest.mark.parametrize("model", IN_ONE)
def test_what_every_rank_draws_whole_is_named(model: type[OneLinear]) -> None:
    assert draw(on_meta(model), seed=0, keep=lambda *_: None) == ("linear.weight",)


def test_an_orthogonal_matrix_is_orthogonal() -> None:
    weight = drawn(on_meta(Orthogonal), num_parts=2)["linear.weight"]
    assert torch.allclose(weight.t() @ weight, torch.eye(300), atol=1e-5)


def test_no_two_tensors_have_the_same_draws() -> None:
    tensors = drawn(tiny("llama4"), num_parts=1)
    normal = [tensor.flatten()[:4] for tensor in tensors.values() if tensor.dim() > 1]
    scales = torch.stack([one / one.abs().max() for one in normal])
    assert len({tuple(row.tolist()) for row in scales}) == len(normal)
