"""Muon on shards: owners orthogonalize whole matrices, and another optimizer updates the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from planc.optimizers import muon
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.owners import Sharded, on_owners, sharded
from planc.runtime.torch.parallel.packing import Packing


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A parameter of one or more matrices, and its parameter group."""

    name: str
    parameter: Tensor
    group: Mapping[str, Any]
    held: Sharded
    widths: tuple[int, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return muon.part_shapes(self.held.shape, self.widths)


class Muon(Optimizer):
    """torch.optim.Muon's step on whole matrices, wherever their shards are, and `rest` for its own groups.

    The state of both is in one place, and so are their groups: a checkpoint and a schedule see one optimizer.
    A group has every argument of `settings`; `widths` are the rows of the parts of fused matrices.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        settings: muon.Muon,
        *,
        rest: Optimizer | None,
        names: Mapping[Any, str],
        widths: Mapping[str, tuple[int, ...]],
        packings: Mapping[Tensor, Packing],
    ) -> None:
        super().__init__(groups, {"torch_class": settings.torch_class, **settings.arguments})
        self.settings = settings
        self.rest = rest
        self._matrices = [
            _Matrix(
                names[member],
                member,
                group,
                sharded(member, packings.get(member)),
                widths.get(names[member], ()),
            )
            for group in self.param_groups
            for member in group["params"]
        ]
        if rest is not None:
            for group in rest.param_groups:
                group["torch_class"] = type(rest).__name__
            self.param_groups.extend(rest.param_groups)
            self.state = rest.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there already"
        for members in self._rounds():
            self._step_round(members)
        if self.rest is not None:
            self.rest.step()

    def round_bytes(self) -> int:
        """The most that a round makes and frees on this rank, if it owns the first matrix."""
        made = (
            muon.round_elements(
                sum(local_of(member.parameter).numel() for member in members), members[0].shapes
            )
            for members in self._rounds()
        )
        return self.settings.ns_bytes * max(made, default=0)

    def _rounds(self) -> Iterator[list[_Matrix]]:
        """The matrices with gradients: those on ranks of the same mesh dims share rounds."""
        by_groups: dict[tuple[str, ...], dict[str, _Matrix]] = {}
        for member in self._matrices:
            if member.parameter.grad is not None:
                groups = tuple(level.group.group_name for level in member.held.levels)
                by_groups.setdefault(groups, {})[member.name] = member
        for members in by_groups.values():
            levels = next(iter(members.values())).held.levels
            sizes = {name: math.prod(member.held.shape) for name, member in members.items()}
            for names in muon.rounds(sizes, num_owners=math.prod(level.size for level in levels)):
                yield [members[name] for name in names]

    def _step_round(self, members: Sequence[_Matrix]) -> None:
        directions = [self._direction(member) for member in members]

        def computed(number: int, whole: Tensor) -> Tensor:
            return orthogonalized_parts(whole, members[number].widths, steps=self.settings.ns_steps)

        updates = on_owners([member.held for member in members], directions, computed)
        for member, update in zip(members, updates, strict=True):
            self._update(member, update)

    def _direction(self, member: _Matrix) -> Tensor:
        """This rank's part of the momentum, or of what Nesterov's makes of it, as it is sent."""
        state = self.state[member.parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(member.parameter.detach())
        assert member.parameter.grad is not None, "rounds have matrices with gradients"
        gradient, buffer = local_of(member.parameter.grad), local_of(state["momentum_buffer"])
        momentum = self.settings.momentum
        buffer.lerp_(gradient, 1 - momentum)
        moved = gradient.lerp(buffer, momentum) if self.settings.nesterov else buffer
        return moved.to(getattr(torch, self.settings.ns_dtype))

    def _update(self, member: _Matrix, update: Tensor) -> None:
        parameter, lr = local_of(member.parameter.detach()), float(member.group["lr"])
        parameter.mul_(1 - lr * member.group["weight_decay"])
        factors = [lr_factor(shape, self.settings.lr_scale) for shape in member.shapes]
        if len(set(factors)) == 1:
            parameter.add_(update, alpha=-lr * factors[0])
            return
        by_row = torch.tensor(factors, dtype=parameter.dtype, device=parameter.device)
        rows = by_row.repeat_interleave(torch.tensor(member.widths, device=parameter.device))
        shape = [1] * (parameter.ndim - 2) + [-1, 1]
        parameter.addcmul_(update.to(parameter.dtype), member.held.own_part(rows.view(shape)), value=-lr)


def lr_factor(shape: Sequence[int], scale: muon.LearningRateScale) -> float:
    """The factor of the learning rate of a matrix [..., out, in] (torch.optim.Muon, adjust_lr_fn)."""
    rows, columns = shape[-2:]
    if scale == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def orthogonalized_parts(whole: Tensor, widths: Sequence[int], *, steps: int) -> Tensor:
    """Each part of a matrix, or of a stack of them, orthogonalized by itself."""
    if not widths:
        return orthogonalized(whole, steps=steps)
    parts: tuple[Tensor, ...] = torch.split(whole, list(widths), dim=-2)
    return torch.cat([orthogonalized(part, steps=steps) for part in parts], dim=-2)


def orthogonalized(matrix: Tensor, *, steps: int) -> Tensor:
    """An orthogonal matrix near a matrix [out, in], in its dtype; of each in a stack [experts, out, in].

    Newton-Schulz iterations, as torch.optim.Muon's and in the same order: of one matrix, bit for bit.
    """
    a, b, c = muon.COEFFICIENTS
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    moved = matrix.mT if is_tall else matrix
    norm = moved.norm() if moved.ndim == 2 else moved.norm(dim=(-2, -1), keepdim=True)
    moved = moved / norm.clamp(min=muon.EPS)
    product = torch.addmm if moved.ndim == 2 else torch.baddbmm
    for _ in range(steps):
        gram = moved @ moved.mT
        gram_update = product(gram, gram, gram, beta=b, alpha=c)
        moved = product(moved, gram_update, moved, beta=a)
    return moved.mT if is_tall else moved
