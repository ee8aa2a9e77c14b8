"""One process that trains a plain module, with torch and numpy alone, as the reference of plans."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from planc.api import check_plan
from planc.graph.graph import Graph
from planc.source import SourceFile
from planc.verify.compare import worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.ranks import Record, Task, train_rank

TOLERANCE = 1e-5
LEARNING_RATE, MAX_NORM = 1e-2, 1.0
END = 256


@dataclass
class ByHand:
    """The losses and norms of each step, the gradients of the first, and the parameters after the last."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    each: list[dict[str, Tensor]] = field(default_factory=list)
    """The gradients of each step."""
    final: dict[str, Tensor] = field(default_factory=dict)


def train(
    model: nn.Module,
    sequences: Sequence[Tensor],
    *,
    steps: int,
    batch: int,
    seed: int = 0,
    by_name: bool = False,
    value: Callable[[Tensor, Tensor], Tensor] | None = None,
    update: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
) -> ByHand:
    """AdamW on sequences [length + 1], in the order that the documents of planc state.

    `value` gives the values of tokens of another loss; `update` makes another optimizer.

    A model is called with tokens and positions, or `by_name` with tokens alone, as those of transformers.
    """
    found, order = ByHand(), _order(len(sequences), seed)
    update = update or partial(torch.optim.AdamW, lr=LEARNING_RATE, weight_decay=0.01)
    optimizer = update(list(model.parameters()))
    for _ in range(steps):
        tokens = torch.stack([sequences[next(order)] for _ in range(batch)])
        inputs = tokens[:, :-1]
        output = model(input_ids=inputs) if by_name else model(inputs, *positions_of(model, inputs))
        logits = getattr(output, "logits", output)
        loss = (value or cross_entropy)(logits.flatten(0, 1), tokens[:, 1:].flatten()).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        found.gradients = found.gradients or gradients
        found.each.append(gradients)
        found.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        found.losses.append(loss.item())
    found.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    return found


def positions_of(model: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    """The positions of tokens, for a model that takes them."""
    takes = "position_ids" in inspect.signature(model.forward).parameters
    return (torch.arange(inputs.shape[1]).expand_as(inputs),) if takes else ()


def _order(num_sequences: int, seed: int) -> Iterator[int]:
    """Epoch after epoch, each sorted by raw PCG64 numbers that are seeded with (shuffle_seed, epoch)."""
    epoch = 0
    while True:
        keys = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(num_sequences)
        yield from np.argsort(keys, kind="stable").tolist()
        epoch += 1


def sequences_of(texts: Sequence[str], *, length: int) -> list[Tensor]:
    """The bytes of documents end to end, each with its end, cut into sequences with the token after them."""
    stream = torch.tensor([token for text in texts for token in (*text.encode(), END)])
    starts = range(0, len(stream) - length, length)
    return [stream[start : start + length + 1] for start in starts]


def compiled(path: Path, *settings: str) -> Graph:
    """The graph of a plan, whose own code may run."""
    sources = [SourceFile(f"--set {one}", one) for one in settings]
    checked = check_plan(path, settings=sources, runs_extensions=True)
    assert checked.graph is not None, [
        (one.code.code, one.primary.text, one.help) for one in checked.diagnostics
    ]
    return checked.graph


def trained(graph: Graph, *, base: Path, folder: Path, **task: Any) -> Sequence[Record]:
    """The records of the ranks of a graph."""
    return run_ranks(train_rank, graph.world_size, Task(graph, base, folder, **task), init=False)


def require_equal(records: Sequence[Record], expected: ByHand) -> None:
    """Every loss and norm, every gradient of the first step, and every parameter after the last."""
    metrics = records[0].metrics
    assert worst_relative([step.loss for step in metrics], expected.losses) < TOLERANCE
    assert worst_relative([step.grad_norm for step in metrics], expected.norms) < TOLERANCE
    name, distance = worst_gradient(records[0].gradients, expected.gradients)
    assert distance < TOLERANCE, name
    assert records[0].gradients.keys() == expected.gradients.keys()
    # The first steps of Adam turn a rounding of a gradient near zero into one of the learning rate.
    name, distance = worst_gradient(records[0].final, expected.final)
    assert distance < 1e-3, (name, distance)
