"""The dropouts of a module as JSON values: [probability, dimensions, sources]. No torch here."""

from __future__ import annotations

from planc.inventory.json_values import array_of, error_at, items_of, positive_of, strings_of
from planc.inventory.schema import Draw
from planc.vocab import DropoutDim

_DIMS = {dim.value: dim for dim in DropoutDim}


def draw_fields(draws: tuple[Draw, ...]) -> list[list[object]]:
    """What `draws_from` reads."""
    return [[draw.probability, draw.dims, draw.sources] for draw in draws]


def draws_from(value: object, where: str) -> tuple[Draw, ...]:
    """The draws of one module. InventoryError, naming the place, for anything else."""
    return array_of(value, where, of=_draw)


def _draw(value: object, where: str) -> Draw:
    probability, dims, sources = items_of(value, where, number=3)
    if not isinstance(probability, float) or not 0 < probability <= 1:
        raise error_at(where, "not a probability")
    return Draw(probability, array_of(dims, where, of=_dim), strings_of(sources, where))


def _dim(value: object, where: str) -> DropoutDim | int:
    if not isinstance(value, str):
        return positive_of(value, where)
    if value not in _DIMS:
        raise error_at(where, f"not a length or one of {', '.join(_DIMS)}")
    return _DIMS[value]
