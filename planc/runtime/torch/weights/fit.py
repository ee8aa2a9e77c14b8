"""Whether a checkpoint's tensors fit a model: what is missing, and which part of the names is in the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from planc.runtime.errors import RunError
from planc.runtime.torch.weights.conversion import Conversion, to_checkpoint, to_model
from planc.runtime.torch.weights.views import View, leaf
from planc.tables import plural

WRAPPERS = ("_orig_mod.", "module.", "base_model.model.", "language_model.")
"""Prefixes of tensor names by torch.compile, data parallelism, adapters and multimodal models."""
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint's tensors by name, without a part that was removed; `others` never had it."""

    views: Mapping[str, View]
    others: frozenset[str] = frozenset()

    @property
    def has_part(self) -> bool:
        return len(self.others) < len(self.views)


def stripped(stored: Mapping[str, View], part: str) -> Stored:
    """The tensors without a part of their names, wherever it is. RunError if two would have one name."""
    pattern = re.compile(rf"(?:^|(?<=\.)){re.escape(part)}")
    names = {key: pattern.sub("", key) for key in stored}
    if len(set(names.values())) < len(names):
        twice = next(name for name in names.values() if list(names.values()).count(name) > 1)
        first, second, *_ = (key for key, name in names.items() if name == twice)
        raise RunError(
            f"without `{part}`, {first} and {second} have the same name",
            help="correct `model.strip`, or remove one of the two from the files",
        )
    others = frozenset(key for key, name in names.items() if key == name)
    return Stored({names[key]: view for key, view in stored.items()}, others)


def converted(model: PreTrainedModel, stored: Mapping[str, View], *, strip: str | None) -> Conversion:
    """The model's tensors from those stored, without a part of their names if the plan strips one.

    Tensors without that part for which the model has no place, such as those of an image encoder, are left
    out, and listed among those ignored. RunError if no name has the part.
    """
    if strip is None:
        return to_model(model, stored)
    kept = stripped(stored, strip)
    if not kept.has_part:
        raise RunError(
            f"`strip` removes `{strip}`, which no tensor has in its name, such as {next(iter(stored))}",
            help="remove `strip` from `model`",
        )
    found = to_model(model, kept.views)
    found.ignored.extend(key for key in found.unexpected if key in kept.others)
    found.unexpected[:] = [key for key in found.unexpected if key not in kept.others]
    return found


def refuse_misfit(
    folder: Path,
    model: PreTrainedModel,
    *,
    aliases: Mapping[str, str],
    conversion: Conversion,
    stored: Mapping[str, View],
    strip: str | None,
) -> None:
    """RunError that lists the tensors that the files lack, have in another shape, or have in excess.

    If all that is wrong is a part of the names, the message is of that part.
    """
    problems = _problems(model, aliases=aliases, conversion=conversion, stored=stored)
    if not problems:
        return
    part = None if strip else _part_in_the_way(model, aliases=aliases, stored=stored)
    if part is not None:
        named = [key for key in stored if part in key]
        raise RunError(
            f"{plural(len(named), 'tensor')} in {folder} have `{part}` in their names, unlike the model: "
            f"{named[0]}",
            help=f'write `strip = "{part}"` in `model` to read them without it',
        )
    raise RunError(
        f"the weights in {folder} do not fit the model: {'; '.join(problems)}",
        help=_help(model, folder, lacking={*model.state_dict()} - {*conversion.views, *aliases}),
    )


def _help(model: PreTrainedModel, folder: Path, *, lacking: Set[str]) -> str:
    """The words for what to do. A pooler alone is lacking where the files hold an embedding's export."""
    masked = MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(model.config.model_type)
    if masked and lacking and all(".pooler." in name for name in lacking):
        line = f'"architectures": ["{masked}"]'
        return f"write `{line}` in {folder}/config.json for a new pooler: files of embeddings have none"
    return "check that config.json and the safetensors files belong to the same model"


def _part_in_the_way(
    model: PreTrainedModel, *, aliases: Mapping[str, str], stored: Mapping[str, View]
) -> str | None:
    """The part of names without which the tensors fit: a known wrapper's, or what all names begin with."""
    for part in dict.fromkeys((*WRAPPERS, *_shared_starts(list(stored)))):
        try:
            found = converted(model, stored, strip=part)
        except RunError:
            continue
        views = stripped(stored, part).views
        if not _problems(model, aliases=aliases, conversion=found, stored=views):
            return part
    return None


def _shared_starts(keys: Sequence[str]) -> Iterator[str]:
    """`a.`, `a.b.`, ...: what all names begin with."""
    parts = keys[0].split(".") if keys else []
    for end in range(1, len(parts)):
        start = ".".join(parts[:end]) + "."
        if not all(key.startswith(start) for key in keys):
            return
        yield start


def _problems(
    model: PreTrainedModel,
    *,
    aliases: Mapping[str, str],
    conversion: Conversion,
    stored: Mapping[str, View],
) -> list[str]:
    """A line for each kind of what does not fit."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    present = {aliases.get(name, name) for name in conversion.views}
    optional = {*aliases, *present, *(getattr(model, "_keys_to_ignore_on_save", None) or ())}
    missing = [name for name in wanted if name not in conversion.views and name not in optional]
    misshapen = [name for name, view in conversion.views.items() if view.shape != wanted[name]]
    parts = _absent_parts(model, {name: wanted[name] for name in (*missing, *misshapen)}, stored=stored)
    absent = [key for name in missing for key in parts[name] or [name]]
    others = [key for name in misshapen for key in parts[name]]
    shapes = [
        f"{name} has shape {list(conversion.views[name].shape)}, the model {list(wanted[name])}"
        for name in misshapen
        if not parts[name]
    ]
    lines = [
        listed(conversion.problems, most=_MAX_LISTED, by="; "),
        _told("missing", [*absent, *others]),
        listed(shapes, most=_MAX_LISTED, by="; "),
        _told("unexpected", conversion.unexpected),
    ]
    return [one for one in lines if one]


def _told(what: str, names: Sequence[str]) -> str:
    return f"{what} {listed(names, most=_MAX_LISTED)}" if names else ""


def _absent_parts(
    model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], *, stored: Mapping[str, View]
) -> dict[str, list[str]]:
    """The missing parts of each tensor of the model of which a checkpoint has only some."""
    held = {
        name: leaf(name, shape=shape, read=lambda block: torch.empty(0)) for name, shape in shapes.items()
    }
    parts: dict[str, list[str]] = {name: [] for name in shapes}
    for key, view in to_checkpoint(model, held).items():
        for name in view.sources:
            parts[name].append(key)
    absent = {name: [key for key in keys if key not in stored] for name, keys in parts.items()}
    return {name: keys if len(keys) < len(parts[name]) else [] for name, keys in absent.items()}


def listed(items: Sequence[str], *, most: int, by: str = ", ") -> str:
    """The first `most` items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{by.join(items[:most])}{more}"
