"""The dropout of one run on one rank: the step's keys, the batch's tokens, and each draw's mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planc.graph.ops import Draw
from planc.modeling.initialization import derived_seed
from planc.runtime.torch.copies import to_device
from planc.runtime.torch.dropout.masks import drop, dropped, row_hashes
from planc.runtime.torch.dropout.positions import Places, Tokens, places_of
from planc.runtime.torch.parallel.transfers import Ranks

_STRIDE = 2
"""The keys are 16 bytes apart: compiled code copies inputs that are aligned to less."""


@dataclass(slots=True, eq=False)
class Masking:
    """All draws of a model. `begin` comes before every forward in training.

    Nothing counts across modules, so a module that runs again in backward draws the same masks.
    """

    positions: Tensor
    """[S]: the positions in a sequence that this rank holds, int64 on the device."""
    sequence_length: int
    has_queue: bool = False
    """Whether the device works later than it is asked to."""
    draws: list[AttachedDraw] = field(default_factory=list)
    tokens: Tokens | None = None
    """The tokens of the current micro-batch, as `seen`."""
    seen: dict[object, Places] = field(default_factory=dict)
    """Most draws have the same."""
    _keys: Tensor | None = None
    _step: int = -1

    def begin(self, *, step: int, samples: range) -> None:
        """Start a forward on these samples of a step, which are numbered within it."""
        device = self.positions.device
        if self._keys is None:
            self._keys = torch.empty((len(self.draws), _STRIDE), dtype=torch.int64, device=device)
            for draw, key in zip(self.draws, self._keys, strict=True):
                draw.key = key[0]
        if step != self._step:
            # In place: compiled code holds each key as an input.
            keys = [draw.key_at(step) for draw in self.draws]
            self._keys[:, 0] = to_device(torch.tensor(keys), device, has_queue=self.has_queue)
            self._step = step
        numbers = torch.arange(samples.start, samples.stop, device=device)
        self.tokens = Tokens(numbers, self.positions, self.sequence_length)
        self.seen = {}

    def recall(self) -> Callable[[], None]:
        """A function that sets all of this as it is now: backward may compute modules again."""
        tokens, seen = self.tokens, self.seen

        def set_again() -> None:
            self.tokens, self.seen = tokens, seen

        return set_again

    def places(self, shape: torch.Size, draw: Draw, ranks: Ranks) -> Places:
        """Return the global positions of the elements of a tensor that has this shape here."""
        assert self.tokens is not None, "a forward in training begins with its tokens"
        if torch.compiler.is_compiling():
            # Compiled code that runs again in backward can't cache.
            return places_of(shape, draw, tokens=self.tokens, ranks=ranks)
        key = (shape, draw.dims, draw.layout)
        if key not in self.seen:
            self.seen[key] = places_of(shape, draw, tokens=self.tokens, ranks=ranks)
        return self.seen[key]


@dataclass(slots=True, eq=False)
class AttachedDraw:
    """One dropout of one module, on one rank."""

    draw: Draw
    masking: Masking
    ranks: Ranks
    name: tuple[int, str, int]
    """The seed, the module and the draw's number in it."""
    key: Tensor | None = None
    """[]: of the current step."""

    def key_at(self, step: int) -> int:
        seed, fqn, number = self.name
        return derived_seed(seed, "dropout", step, fqn, number)

    def __call__(self, value: Tensor) -> Tensor:
        """Dropout of a tensor that this rank holds its part of."""
        draw = self.draw
        if draw.probability == 1.0:
            return value * 0.0
        assert self.key is not None, "a forward in training begins with its keys"
        with torch.no_grad():
            places = self.masking.places(value.shape, draw, self.ranks)
            hashes = row_hashes(self.key, samples=places.samples, rows=places.rows)
            mask = dropped(hashes, columns=places.columns, probability=draw.probability)
        return drop(value, mask, probability=draw.probability)
