"""The trained part of the model: the blocks `adapter` and `freeze` of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.part_readers import ALL_LINEAR
from planc.import_configs.sizes import Missing
from planc.inventory.adapters import is_adaptable
from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, exact_families
from planc.record import record
from planc.syntax.write import call, number, quoted, rule

_BY_PEFT = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "llama", "mistral", "mixtral"), ("q_proj", "v_proj")),
    **dict.fromkeys(("qwen2", "qwen3"), ("q_proj", "v_proj")),
    "phi3": ("qkv_proj",),
}
"""The layers that peft adapts by default, by the type of model."""


@record
class Trained:
    """The statements of both blocks; none for a block that the plan does not have."""

    adapter: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()

    @property
    def spares(self) -> bool:
        """Whether norms and biases may be among what is trained."""
        return not self.adapter or bool(self.freeze)


def trained(draft: Draft, inventory: Inventory | None) -> Trained | Missing:
    """Return the part of the model that a file trains, or what is missing to tell."""
    if draft.take(facts.ADAPTER) is None:
        rules = _freeze(draft, inventory)
        return rules if isinstance(rules, Missing) else Trained(freeze=rules)
    lines = _adapter(draft, inventory)
    also = draft.take(facts.TRAINED) or ()
    if isinstance(lines, Missing):
        return lines
    if not also and _is_apart(draft):
        lines = (*lines[:-1], "dtype = float32", lines[-1])
    return Trained(lines, (rule(_patterns(also, inventory), "trained"),) if also else ())


def _is_apart(draft: Draft) -> bool:
    """Whether adapters are float32 next to a model in bfloat16, as peft keeps them.

    The model is where it computes in bfloat16, whatever is not stated: frozen weights need no more.
    """
    stored, compute = draft.peek(facts.MODEL_DTYPE), draft.peek(facts.PARAM_DTYPE)
    given = stored or compute
    if not draft.kind.adapts_by_peft or given is None or given.value != "bfloat16":
        return False
    draft.give_default(facts.MODEL_DTYPE, "bfloat16", "of frozen weights; peft trains adapters in float32")
    draft.give_default(facts.PARAM_DTYPE, "bfloat16", "the model's")
    return True


def _adapter(draft: Draft, inventory: Inventory | None) -> tuple[str, ...] | Missing:
    if draft.peek(facts.LORA_RANK) is None:
        return _missing(draft, "the rank of its adapters", "write it in the file")
    rank = draft.take(facts.LORA_RANK)
    alpha = draft.take(facts.LORA_ALPHA)
    if alpha is None:
        return _missing(draft, "the alpha of its adapters", "write it in the file")
    arguments = [f"rank = {rank}", f"alpha = {number(alpha)}"]
    if dropout := draft.take(facts.LORA_DROPOUT):
        arguments.append(f"dropout = {number(dropout)}")
    if draft.take(facts.RSLORA):
        arguments.append("rslora = true")
    if draft.take(facts.DORA):
        arguments.append("dora = true")
    names = draft.take(facts.LORA_TARGETS)
    if names is None and draft.kind.adapts_by_peft and inventory is not None:
        names = _BY_PEFT.get(inventory.model_type)
        if names is not None:
            draft.added("adapter", f"{' and '.join(names)}, the default of peft for {inventory.model_type}")
    if names is None:
        return _missing(draft, "open which layers have adapters", "name them in the file")
    patterns = _adapted(names, inventory)
    if isinstance(patterns, str):
        return _missing(draft, patterns, "pass --model DIR, whose layers are known")
    start = draft.take(facts.LORA_START)
    begins = (f"start = {quoted(start)}",) if start else ()
    if draft.take(facts.FOUR_BITS):
        begins = (*begins, "base = nf4")
        draft.added("adapter.base", "float32 scales: what quantizes scales again rounds the base further")
    return f"kind = {call('lora', arguments)}", *begins, rule(patterns, "adapted")


def _missing(draft: Draft, what: str, help: str) -> Missing:
    given = draft.peek(facts.ADAPTER)
    return Missing(f"the file leaves {what}", help, given.leaf if given is not None else None)


def _adapted(names: tuple[str, ...], inventory: Inventory | None) -> tuple[str, ...] | str:
    """Patterns for the layers, or the fault of a name."""
    if inventory is None:
        if names == ALL_LINEAR:
            return "which layers are linear to the model"
        return tuple(f"**.{name}" for name in names)
    linear = [module.fqn for module in inventory.modules if is_adaptable(inventory, module.fqn)]
    if names == ALL_LINEAR:
        return as_patterns(exact_families(inventory, linear))
    for name in names:
        if not any(_is_called(fqn, name) for fqn in linear):
            return f"adapters to `{name}`, which is not a linear layer of the model"
    chosen = (fqn for fqn in linear if any(_is_called(fqn, name) for name in names))
    return as_patterns(exact_families(inventory, chosen))


def _is_called(fqn: str, name: str) -> bool:
    """Whether a name is all of a module's, or its end."""
    return fnmatchcase(fqn, name) or fnmatchcase(fqn, f"*.{name}")


def _freeze(draft: Draft, inventory: Inventory | None) -> tuple[str, ...] | Missing:
    """The rules of a file that trains a part of the model."""
    last, frozen = draft.take(facts.LAST_LAYERS), draft.take(facts.FROZEN) or ()
    also = draft.take(facts.TRAINED) or ()
    if last is None:
        kept = [rule(_patterns(frozen, inventory), "frozen")] if frozen else []
        return (
            *kept,
            *([f"override {rule(_patterns(also, inventory), 'trained')}"] if kept and also else []),
        )
    if inventory is None:
        return Missing("the file trains some layers of the model", "pass --model DIR, whose layers are known")
    layers = [*_layers(inventory, last), *_patterns(also, inventory)]
    every = as_patterns([module.fqn for module in inventory.modules if module.fqn and "." not in module.fqn])
    return rule(every, "frozen"), f"override {rule(layers, 'trained')}"


def _layers(inventory: Inventory, last: int) -> Iterator[str]:
    """Patterns for so many layers of each stack."""
    for block in inventory.blocks:
        numbers = sorted(
            int(number)
            for fqn in inventory.names()
            if fqn.startswith(f"{block}.") and (number := fqn[len(block) + 1 :]).isdecimal()
        )
        chosen = numbers[-last:] if last > 0 else numbers[:-last]
        yield f"{block}.{{{chosen[0]}..{chosen[-1]}}}" if len(chosen) > 1 else f"{block}.{chosen[0]}"


def _patterns(names: Iterable[str], inventory: Inventory | None) -> tuple[str, ...]:
    """Patterns for modules and parameters by the ends of their names."""
    if inventory is None:
        return tuple(name if "." in name else f"**.{name}" for name in names)
    known = (*inventory.names(), *(fqn for fqn, _, _ in inventory.parameters()))
    matches = [fqn for name in names for fqn in known if _is_called(fqn, name)]
    return as_patterns(exact_families(inventory, matches)) if matches else tuple(names)
