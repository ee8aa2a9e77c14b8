"""Activation checkpointing: what is kept, what is computed again, and that neither shows in a gradient."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from planc.runtime.torch.training.recompute import recompute
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Record, Task, train_rank
from tests.rehearsal.allocations import peak_growth

MM, ATTENTION = "aten.mm.default", "aten._scaled_dot_product_flash_attention_for_cpu.default"
RECOMPUTATIONS: tuple[Literal["full", "selective"], ...] = ("full", "selective")


class Attending(nn.Module):
    """Four linear layers without biases, around an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value, out = self.layers
        heads = (layer(hidden).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (query, key, value))
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        result: Tensor = out(attended.transpose(1, 2).flatten(-2)).tanh()
        return result


class Counting(TorchDispatchMode):
    """Counts the operations that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(op)] += 1
        return op(*args, **(kwargs or {}))


def in_backward(mode: Literal["full", "selective"] | None) -> Counter[str]:
    """What the backward of two such modules runs."""
    torch.manual_seed(0)
    model = nn.Sequential(Attending(), Attending())
    for module in model if mode else ():
        recompute(module, mode=mode)
    loss = model(torch.ones(2, 8, 16, requires_grad=True)).square().sum()
    with Counting() as counting:
        loss.backward()
    return counting.calls


def test_backward_repeats_every_second_matmul_and_no_attention() -> None:
    plain, full, selective = (in_backward(mode) for mode in (None, *RECOMPUTATIONS))
    assert full[MM] - plain[MM] == 2 * 4
    assert selective[MM] - plain[MM] == 2 * 2
    assert (full[ATTENTION], selective[ATTENTION]) == (2, 0)


def cases(shape: str, mesh: dict[str, int]) -> tuple[Case, ...]:
    """A mesh that keeps everything, that recomputes everything, and that recomputes selectively."""
    model, size = ("llama-deep", 2) if "pp" in mesh else ("llama", None)
    modes = (*RECOMPUTATIONS, "offload") if "pp" not in mesh else ("full", "offload")
    plain = Case(shape, "none", mesh, model=model, micro_batch=size)
    return (plain, *(replace(plain, variant=mode, recomputes=True, recomputation=mode) for mode in modes))


def trained(case: Case, *, workspace: Path, folder: Path) -> Record:
    graph = compile_case(case, workspace=workspace)
    task = Task(graph, workspace, folder / case.variant, stop_after=2)
    return run_ranks(train_rank, case.world_size, task, init=False)[0]


SHAPES: tuple[tuple[str, dict[str, int]], ...] = (
    ("1", {}),
    ("CP2·TP2", {"cp": 2, "tp": 2}),
    ("PP2·DP2", {"pp": 2, "dp_shard": 2}),
)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("shape", "mesh"), SHAPES)
def test_gradients_and_weights_are_the_same_bits(
    shape: str, mesh: dict[str, int], workspace: Path, tmp_path: Path
) -> None:
    plain, *others = (trained(case, workspace=workspace, folder=tmp_path) for case in cases(shape, mesh))
    for other in others:
        assert all(torch.equal(other.gradients[name], one) for name, one in plain.gradients.items())
        assert all(torch.equal(other.final[name], one) for name, one in plain.final.items())


def test_the_less_is_recomputed_the_more_is_held(workspace: Path, tmp_path: Path) -> None:
    plain, full, selective, offload = (
        run_ranks(
            peak_growth,
            1,
            Task(compile_case(case, workspace=workspace), workspace, tmp_path / case.variant),
            init=False,
        )[0]
        for case in cases("1", {})
    )
    assert full < selective < plain
    assert offload < plain
