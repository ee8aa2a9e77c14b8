"""Tensors of adapters as peft's file has them, as lazy views in both directions.

Of stacked experts, peft's A has the rows of one expert after the other: [experts x rank, in]. Its B has the
experts of each column one after the other: [out, rank x experts].
"""

from __future__ import annotations

from collections.abc import Mapping

from planc.graph.ops import AttachAdapters
from planc.hub.peft_adapter import PREFIX, key_of, names_of_stacks
from planc.runtime.torch.weights.views import View
from planc.vocab import DOWN, UP


def peft_views(adapters: AttachAdapters, views: Mapping[str, View]) -> dict[str, View]:
    """The tensors of the file by peft's names, from those of the model by its own."""
    names = names_of_stacks(adapters.stacked)
    parts = {f"{stack}_{part}": (name, part) for stack, name in names.items() for part in (DOWN, UP)}
    in_file: dict[str, View] = {}
    for parameter, view in views.items():
        if parameter not in parts:
            in_file[key_of(parameter)] = view
            continue
        name, part = parts[parameter]
        if part == UP:
            view = view.transpose(0, 1).transpose(1, 2)
        shape = (view.shape[0], -1) if part == UP else (-1, view.shape[2])
        in_file[f"{PREFIX}{name}.{part}.weight"] = view.reshape(*shape)
    return in_file


def of_experts(view: View, part: str, *, num_experts: int) -> View:
    """A or B of stacked experts as the model has it, from a tensor of the file."""
    if part == DOWN:
        return view.reshape(num_experts, -1, view.shape[1])
    return view.reshape(view.shape[0], -1, num_experts).transpose(1, 2).transpose(0, 1)
