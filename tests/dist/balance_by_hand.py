"""The losses that balance experts, written down from their definitions: plain torch, one process.

All is in float64, here and in the runs that are compared. The model's own code computes norms and softmax in
float32, whose rounding would hide anything finer, and its kernel for experts has no float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe import modeling_qwen3_moe

from planc.graph.op import Op
from planc.graph.ops import MaterialiseWeights
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.verify.ranks import Record, Task, train_rank


def _softmax(values: Tensor, *, dim: int, dtype: torch.dtype) -> Tensor:
    return values.softmax(dim)


class _Wide:
    """The name `torch` of a model's code: norms and softmax compute in float64, rotary embeddings as ever."""

    float32 = torch.float64
    nn = SimpleNamespace(functional=SimpleNamespace(softmax=_softmax, one_hot=F.one_hot))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def float64_model() -> Iterator[None]:
    """Inside, experts compute in a loop, and once `widen` is called norms, softmax and routers in float64."""
    code: Any = modeling_qwen3_moe
    own = code.Qwen3MoeExperts.forward
    code.Qwen3MoeExperts.forward = own.__wrapped__
    try:
        yield
    finally:
        code.torch, code.Qwen3MoeExperts.forward = torch, own


def widen() -> None:
    """Not before a model is built: its rotary frequencies are float32."""
    code: Any = modeling_qwen3_moe
    code.torch = _Wide()


def _widen_built(state: State, op: Op, position: Position) -> None:
    if isinstance(op, MaterialiseWeights):
        widen()


def trained_rank(rank: int, world_size: int, task: Task) -> Record:
    """What one rank of planc's own run records, in float64 all through."""
    with float64_model():
        return train_rank(rank, world_size, replace(task, before_op=_widen_built))


class ByHand:
    """A step of the model in one forward, with the logits and choices of its routers."""

    def __init__(self, folder: Path, inputs: Tensor, labels: Tensor) -> None:
        """`inputs` and `labels` are [sequences of the step, length], in the step's order."""
        self.labels = labels
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        )
        self.routes: list[tuple[Tensor, Tensor]] = []
        for name, module in self.model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self._keep)
        with float64_model():
            widen()
            logits = self.model(input_ids=inputs, use_cache=False).logits
        self.loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    def _keep(self, module: nn.Module, arguments: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
        sequences, length = self.labels.shape
        logits, _, chosen = output
        self.routes.append((logits.view(sequences, length, -1), chosen.view(sequences, length, -1)))

    def switch(self, *, sets: Sequence[Sequence[int]], pooled: bool) -> Tensor:
        """The mean over sets of E * sum of f_e * p_e: of each router's tokens, or of all routers'."""
        layers = [[one] for one in self.routes] if not pooled else [self.routes]
        return torch.stack(
            [torch.stack([self._of_set(layer, list(one)) for one in sets]).mean() for layer in layers]
        ).sum()

    def _of_set(self, routes: Sequence[tuple[Tensor, Tensor]], sequences: list[int]) -> Tensor:
        is_label = self.labels[sequences] != -100
        logits = torch.cat([one[sequences][is_label] for one, _ in routes])
        chosen = torch.cat([one[sequences][is_label] for _, one in routes])
        num_experts = logits.shape[-1]
        shares = [(chosen == expert).any(-1).double().mean() for expert in range(num_experts)]
        means = [logits.softmax(-1)[:, expert].mean() for expert in range(num_experts)]
        return num_experts * torch.stack([f * p for f, p in zip(shares, means, strict=True)]).sum()

    def z(self) -> Tensor:
        """The mean square of the logsumexp, summed over routers."""
        is_label = self.labels != -100
        return torch.stack([one[is_label].logsumexp(-1).square().mean() for one, _ in self.routes]).sum()

    def gradients(self, added: Tensor) -> dict[str, Tensor]:
        """Of the cross entropy with what is added to it."""
        self.model.zero_grad()
        (self.loss + added).backward(retain_graph=True)
        return {name: one.grad.clone() for name, one in self.model.named_parameters() if one.grad is not None}
