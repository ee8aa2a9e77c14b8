"""A model's inventory as text."""

from __future__ import annotations

from planc.figures.plan import parameters
from planc.graph.text import fold, summarise
from planc.inventory.schema import Inventory, Module
from planc.tables import format_number, format_shape, render_table


def inventory_text(inventory: Inventory) -> str:
    """Architecture and sizes, then modules with parameters, attention, ties and the model's own plan."""
    parts = [_head(inventory), _modules(inventory), _attention(inventory)]
    if (images := inventory.images) is not None:
        side = images.patch * images.merge
        parts.append(
            f"image encoder, not trained: {parameters(images.num_parameters).text}, a token for each "
            f"{side} x {side} pixels, in the place of token {images.token}\n"
        )
    if inventory.ties:
        parts.append("tied\n" + "".join(f"  {' = '.join(tie)}\n" for tie in inventory.ties))
    if inventory.tp_plan:
        parts.append("the model's own tensor-parallel plan\n" + render_table(inventory.tp_plan, indent="  "))
    return "\n".join(part for part in parts if part)


def _head(inventory: Inventory) -> str:
    positions = f", {format_number(inventory.max_positions)} positions" if inventory.max_positions else ""
    return (
        f"{inventory.architecture} ({inventory.model_type}), "
        f"{parameters(inventory.num_parameters).text}, vocabulary {format_number(inventory.vocab_size)}, "
        f"hidden size {format_number(inventory.hidden_size)}{positions}\n"
    )


def _modules(inventory: Inventory) -> str:
    owners = [module for module in inventory.modules if module.parameters]
    alike: dict[tuple[object, ...], list[Module]] = {}
    for module in owners:
        alike.setdefault((module.class_name, module.kind, module.parameters), []).append(module)
    rows: dict[str, tuple[str, str, str, str]] = {}
    for members in alike.values():
        shapes = ", ".join(f"{p.name} {format_shape(p.shape)}" for p in members[0].parameters)
        for folded, names in fold([member.fqn for member in members]).items():
            rows[names[0]] = (folded, members[0].class_name, str(members[0].kind), shapes)
    ordered = [rows[module.fqn] for module in owners if module.fqn in rows]
    return render_table(ordered, header=("module", "class", "kind", "parameters"))


def _attention(inventory: Inventory) -> str:
    alike: dict[tuple[int, int, int, int | None], list[str]] = {}
    for attention in inventory.attentions:
        key = (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.window)
        alike.setdefault(key, []).append(attention.fqn)
    rows = [
        (folded, str(heads), str(kv_heads), str(head_dim), str(window) if window else "none")
        for (heads, kv_heads, head_dim, window), fqns in alike.items()
        for folded in summarise(fqns)
    ]
    header = ("attention", "heads", "kv heads", "head dim", "window")
    return render_table(rows, header=header, right=(1, 2, 3, 4)) if rows else ""
