"""A model's use of the positions of its tokens, tried on the meta device. Imports torch, for the probe.

A run gives a model `position_ids`. Some models read them as transformers' own default has them, 0, 1, 2, ...;
some start elsewhere; some ignore them and count their input tokens, which under context parallelism are not
those of the whole sequence. Neither class names nor config fields distinguish these, but a forward does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.forwards import NUM_TOKENS, makes_masks, run_again
from planc.inventory.schema import Positions
from planc.modeling.initialization import small_buffers
from planc.modeling.private import TorchDispatchMode, tree_leaves, tree_map_only

_UNCOUNTED_AT = (3, 5)
"""Positions of the padding token in the trial tokens: not at an end, where models warn about it."""
_NUM_SEQUENCES = 2
"""More than one, to tell a token's position in its sequence from its index in the batch."""


def positions_of(model: PreTrainedModel) -> Positions:
    """Determine how the model, which is on meta, uses positions.

    InventoryError if its default positions are not ones that a run could pass.
    """
    vocab_size, padding_id = model.config.vocab_size, getattr(model.config, "pad_token_id", None)
    if not isinstance(padding_id, int) or not 0 <= padding_id < vocab_size:
        padding_id = None
    tried = _Trials(model)
    ids = _token_ids(vocab_size=vocab_size, padding_id=padding_id)
    places = torch.arange(NUM_TOKENS)
    # Values that code computes once and keeps are computed here, so all later forwards are the same.
    tried.meetings(ids, places)
    given = tried.meetings(ids, places)
    # Masks differ from token to token, but do not show how the layers use positions.
    counts_itself = not makes_masks(model) and _counts_itself(tried)
    default = tried.meetings(ids, None)
    if _keys(default) == _keys(given):
        return Positions(counted_by_model=counts_itself)
    own = _own_positions(default, given)
    for uncounted in (None, padding_id):
        if own is None:
            break
        counted = torch.ones_like(ids) if uncounted is None else (ids != uncounted).long()
        same = counted.cumsum(0) * counted - 1 + int(own[0])
        if torch.equal(same, own) and _keys(tried.meetings(ids, same)) == _keys(default):
            return Positions(first=int(own[0]), uncounted_token=uncounted, counted_by_model=counts_itself)
    raise InventoryError(
        f"{type(model).__name__} does not number its tokens consecutively",
        help="use a model whose positions are consecutive numbers",
    )


class _Trials:
    """Forwards of one model with values for its inputs, and for its small buffers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._known = model, _KnownValues()
        self._buffers = tuple(small_buffers(model))

    def meetings(
        self, ids: Tensor, positions: Tensor | None, *, num_sequences: int = 1
    ) -> Sequence[_Meeting]:
        """The meetings of these token ids [S], and of positions [S] or None, with tensors without values."""
        inputs = {"input_ids": ids} | ({} if positions is None else {"position_ids": positions})
        known = self._known
        known.meetings = []
        for buffer, value in self._buffers:
            known.tell(buffer, value=value.clone())
        told = {}
        for name, one in inputs.items():
            value = one.repeat(num_sequences, 1)
            told[name] = known.tell(torch.empty_like(value, device="meta"), value=value)
        with known:
            run_again(self._model, told)
        return known.meetings


def _token_ids(*, vocab_size: int, padding_id: int | None) -> Tensor:
    """Distinct tokens [S], except for some padding tokens."""
    first = 0 if padding_id is None else padding_id + 1
    ids = (first + torch.arange(NUM_TOKENS)) % vocab_size
    if padding_id is not None:
        ids[list(_UNCOUNTED_AT)] = padding_id
    return ids


def _keys(meetings: Sequence[_Meeting]) -> list[tuple[object, ...]]:
    return [meeting.key for meeting in meetings]


def _counts_itself(tried: _Trials) -> bool:
    """Whether the model numbers the tokens that it sees, whatever their ids and positions.

    If all tokens are equal and at one position, known values differ from token to token only if the model
    counts. Twice as many tokens distinguish the dimension of tokens from another one of the same size.
    """
    found = []
    for length in (NUM_TOKENS, 2 * NUM_TOKENS):
        alike = torch.zeros(length, dtype=torch.long)
        meetings = tried.meetings(alike, alike, num_sequences=_NUM_SEQUENCES)
        found.append(frozenset(_varying(meetings, length=length)))
    return bool(found[0] & found[1])


def _varying(meetings: Sequence[_Meeting], *, length: int) -> Iterator[tuple[int, int, int, bool]]:
    """Dimensions of tokens along which known values differ, with their places among the meetings.

    The last of each four is whether all sequences, of `length`, are in the dimension one after the other.
    """
    for place, meeting in enumerate(meetings):
        for which, value in enumerate(meeting.known):
            for tensor_dim, size in enumerate(value.shape):
                if size == length:
                    counts = _differs(value, tensor_dim) and not _is_of_distances(value, tensor_dim)
                elif size == _NUM_SEQUENCES * length:
                    apart = torch.unflatten(value, tensor_dim, (_NUM_SEQUENCES, length))
                    counts = _differs(apart, tensor_dim + 1) and not _differs(apart, tensor_dim)
                else:
                    continue
                if counts:
                    yield place, which, tensor_dim, size != length


def _differs(value: Tensor, tensor_dim: int) -> bool:
    return bool((value != value.narrow(tensor_dim, 0, 1)).any())


def _is_of_distances(value: Tensor, tensor_dim: int) -> bool:
    """Whether values of pairs of tokens follow from how far apart these are, as in biases of attention.

    Where a document begins makes no difference to those. Whatever a model hands its attention beyond queries,
    keys and values, such as a bias, is recorded of the call.
    """
    length = value.shape[tensor_dim]
    others = [dim for dim, size in enumerate(value.shape) if size == length and dim != tensor_dim]
    return any(
        torch.equal(_along(value, tensor_dim, dim, start=1), _along(value, tensor_dim, dim, start=0))
        for dim in others
    )


def _along(value: Tensor, dim0: int, dim1: int, *, start: int) -> Tensor:
    """All but one of both dimensions, which are of equal length."""
    length = value.shape[dim0] - 1
    return value.narrow(dim0, start, length).narrow(dim1, start, length)


def _own_positions(default: Sequence[_Meeting], given: Sequence[_Meeting]) -> Tensor | None:
    """[S]: the model's default for positions 0, 1, 2, ...; None if none is detected."""
    places = torch.arange(NUM_TOKENS)
    for own, other in zip(default, given, strict=False):
        for value, known in zip(own.known, other.known, strict=False):
            is_given = torch.equal(known.flatten(), places) and known.shape == value.shape
            if is_given and not torch.equal(value, known):
                return value.flatten()
    return None


_FILLED_LIKE = frozenset(
    name for stem in ("zeros", "ones", "full") for name in (f"{stem}_like", f"new_{stem}")
)
"""Ops that use a tensor only as the template of a new one, whose values they set."""
_LARGEST_PATTERN = 2**20
_UNFILLED = ("empty", "new_empty")
"""Prefixes of the names of ops whose results are uninitialized."""


@dataclass(frozen=True, slots=True, eq=False)
class _Meeting:
    """An op that took tensors with and without values; `known` are those with values."""

    op: str
    known: tuple[Tensor, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for meetings of the same op with the same known values."""
        return (self.op, *(_digest(value) for value in self.known))


class _KnownValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, follows known values and collects `meetings`, in the order of the forward.

    Weights have no values on meta, and neither has anything computed from them. Anything that code computes
    from token ids, positions and shapes is computed a second time here, on the CPU. An op on both kinds of
    tensors, such as an embedding looked up by position or a rotation of queries, is a meeting: there known
    values take effect.

    One object serves all forwards of a model: tensors that its code keeps from one to the next stay known.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meetings: list[_Meeting] = []
        # Tensors are kept alive: their identities are the keys.
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def tell(self, tensor: Tensor, *, value: Tensor) -> Tensor:
        """Assign a known value to a meta tensor, and return the tensor."""
        self._known[id(tensor)] = (tensor, value)
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_pattern = _name(func) in _FILLED_LIKE
        values = [_pattern(tensor) if is_pattern else self._value(tensor) for tensor in tensors]
        known = tuple(value for value in values if value is not None)
        if len(known) == len(values) and _has_values(func):
            return self._computed(func, args, kwargs, of=_pattern if is_pattern else self._value)
        if known:
            # A later op may write to the value itself.
            self.meetings.append(_Meeting(str(func), tuple(value.clone() for value in known)))
        result = func(*args, **kwargs)
        self._forget(_written(func, args, kwargs))
        return result

    def _computed(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        of: Callable[[Tensor], Tensor | None],
    ) -> Any:
        """The op's result, with values computed from those `of` its tensors."""
        cpu_args, cpu_kwargs = tree_map_only(Tensor, of, (args, kwargs))
        if "device" in cpu_kwargs:
            cpu_kwargs["device"] = torch.device("cpu")
        try:
            value = func(*cpu_args, **cpu_kwargs)
        except (RuntimeError, IndexError):
            # The CPU lacks a kernel that meta has, such as a histogram of integers.
            return func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value  # A number, read from a tensor.
        result = func(*args, **kwargs)
        for tensor, beside in zip(tree_leaves(result), tree_leaves(value), strict=True):
            if isinstance(tensor, Tensor):
                self.tell(tensor, value=beside)
        return result

    def _value(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_meta:
            return tensor
        entry = self._known.get(id(tensor))
        return None if entry is None else entry[1]

    def _forget(self, written: Iterator[Tensor]) -> None:
        """Forget the values of written tensors, and of all views of them."""
        for value in map(self._value, written):
            if value is None:
                continue
            storage = value.untyped_storage()._cdata
            stale = [key for key, (_, one) in self._known.items() if one.untyped_storage()._cdata == storage]
            for key in stale:
                del self._known[key]


def _name(func: Any) -> str:
    found: str = func._schema.name.removeprefix("aten::")
    return found


def _pattern(tensor: Tensor) -> Tensor | None:
    """A tensor of the same shape and dtype on the CPU; None for a large one, which no position is."""
    is_small = tensor.numel() <= _LARGEST_PATTERN
    return torch.empty(tensor.shape, dtype=tensor.dtype) if is_small else None


def _has_values(func: Any) -> bool:
    return not _name(func).startswith(_UNFILLED) and torch.Tag.nondeterministic_seeded not in func.tags


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that an op writes to."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _digest(value: Tensor) -> tuple[object, ...]:
    content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(value.shape), value.dtype, hashlib.sha256(content).hexdigest()
