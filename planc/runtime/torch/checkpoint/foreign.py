"""Whether tensors of another program are those of a model, by the names that planc gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.torch.checkpoint.chunks import is_bitwise_equal
from planc.runtime.torch.checkpoint.tensors import tensor_names
from planc.vocab import parent_of

_MODEL, _OPTIMIZER = "model.", "optimizer."
_MAX_LISTED = 20

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The shapes of a model's tensors by name, the parameters among them, and the owners of tied names."""

    shapes: Shapes
    parameters: frozenset[str]
    ties: Mapping[str, str]


def names_of(model: nn.Module) -> ModelNames:
    """The names of a model that is not sharded."""
    owners = tensor_names(model)
    every = model.state_dict(keep_vars=True).items()
    return ModelNames(
        shapes={name: tuple(tensor.shape) for tensor, name in owners.items()},
        parameters=frozenset(name for name, _ in model.named_parameters()),
        ties={name: owners[tensor] for name, tensor in every if owners[tensor] != name},
    )


def without_ties(
    sources: Mapping[str, str], model: ModelNames, *, read: Callable[[str], Tensor]
) -> dict[str, str]:
    """The sources by name, tied tensors once. CheckpointError if tied tensors differ."""
    untied = dict(sources)
    for tied, owner in model.ties.items():
        source = untied.pop(f"{_MODEL}{tied}", None)
        if source is None:
            continue
        first = untied.setdefault(f"{_MODEL}{owner}", source)
        if first != source and not is_bitwise_equal(read(first), read(source)):
            raise CheckpointError(
                f"{first} and {source} differ, which the model ties",
                help="set tie_word_embeddings to false in the model's config.json, or remove one of the two",
            )
    return untied


def refuse_misfit(shapes: Shapes, model: ModelNames) -> None:
    """CheckpointError that lists the names and shapes that a run with this model could not resume from."""
    problems = list(_problems(shapes, model))
    if problems:
        more = [f"and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        raise CheckpointError(
            "the tensors are not those of the model\n" + "\n".join(problems[:_MAX_LISTED] + more),
            help=_renaming(shapes, model) or "pass the directory of its model: --model DIR",
        )


def _problems(shapes: Shapes, model: ModelNames) -> Iterator[str]:
    wanted = {f"{_MODEL}{name}": shape for name, shape in model.shapes.items()}
    for name, shape in wanted.items():
        if name not in shapes:
            yield f"{name} is missing"
        elif shapes[name] != shape:
            yield f"{name} has shape {list(shapes[name])}, the model {list(shape)}"
    for name, shape in shapes.items():
        parameter = parent_of(name.removeprefix(_OPTIMIZER))
        if name in wanted:
            continue
        if not name.startswith(_OPTIMIZER) or parameter not in model.parameters:
            yield f"{name} is not of the model"
        elif shape not in ((), (1,), model.shapes[parameter]):
            yield f"{name} has shape {list(shape)}, its parameter {list(model.shapes[parameter])}"


def _renaming(shapes: Shapes, model: ModelNames) -> str | None:
    """The option that gives tensors the model's names, if they all have one prefix too many or too few."""
    first = next(iter(model.shapes))
    for name in shapes:
        prefix = name.removesuffix(first)
        if name.endswith(first) and all(f"{prefix}{one}" in shapes for one in model.shapes):
            return f"rename the prefix of their names: --rename {prefix}={_MODEL}"
    return None
