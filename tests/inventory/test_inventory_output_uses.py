"""What the probe sees a model's code do with outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from planc.inventory.probe.output_uses import OutputUses


def watched(act: Callable[[Tensor], Any], *, width: int = 4) -> OutputUses:
    """The uses after `act` on what a linear layer "up" with 4 features gave."""
    uses = OutputUses(lambda tensor: frozenset({"up"}), widths={"up": width})
    output = torch.zeros(1, 2, 4)
    uses.hand_out("up", output)
    with torch.no_grad(), uses:
        act(output)
    return uses


def test_writing_into_an_output_is_seen() -> None:
    assert watched(lambda output: output.add_(1.0)).written == {"up"}


def test_writing_through_a_view_is_seen() -> None:
    assert watched(lambda output: output.view(2, 4).mul_(2.0)).written == {"up"}


def test_writing_into_what_follows_from_an_output_is_not_seen() -> None:
    assert watched(lambda output: (output * 2.0).add_(1.0)).written == set()


def test_a_statistic_of_all_features_is_seen() -> None:
    assert watched(lambda output: output.mean(dim=-1, keepdim=True)).reduced == {"up"}


def test_a_statistic_of_tokens_is_not_seen() -> None:
    assert watched(lambda output: output.mean(dim=1)).reduced == set()


def test_a_statistic_of_single_heads_is_not_seen() -> None:
    assert watched(lambda output: output.view(1, 2, 2, 2).norm(dim=-1)).reduced == set()


class SquareNorm(nn.Module):
    def forward(self, tensor: Tensor) -> Tensor:
        return tensor * tensor.pow(2).mean(dim=-1, keepdim=True).rsqrt()


def test_the_statistic_of_a_norm_is_its_own_affair() -> None:
    uses = OutputUses(lambda tensor: frozenset({"up"}), widths={"up": 4})
    norm = SquareNorm()
    uses.watch_norm(norm)
    with torch.no_grad(), uses:
        norm(torch.ones(1, 2, 4))
    assert uses.reduced == set()
