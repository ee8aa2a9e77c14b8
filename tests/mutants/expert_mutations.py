"""Mutations of experts: on which ranks they are, what balances them, and what is next to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

from tests.mutants.draft import Block, Draft, Rule
from tests.mutants.model_mutations import ARCHITECTURES, of_architecture, replace_rules
from tests.mutants.mutant import Edited
from tests.mutants.plan_mutations import MAX_WORLD, closed_batch
from tests.mutants.shrink import Config

NUMBERS = ("num_local_experts", "num_experts", "n_routed_experts")
"""The fields of configs that hold the number of experts."""
EXPERTS, MLP = "model.layers.*.mlp.experts", "model.layers.*.mlp"
DISPATCHED = (
    EXPERTS,
    EXPERTS,
    "model.layers.0.mlp.experts",
    "model.layers.1.mlp.experts",
    MLP,
    f"{MLP}.gate",
)
UNITS: tuple[tuple[str, ...], ...] = (
    (EXPERTS,),
    (MLP,),
    ("model.layers.*",),
    (EXPERTS, "lm_head"),
    ("model.layers.*.self_attn",),
    ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts"),
)
_SHARDED = Rule(("input_ids", "labels", "position_ids"), "Shard", (("", "1"),))
_SHARD, _WHOLE = "Shard(1)", "Replicate()"
_GATHER = (("input", _SHARD), ("desired", _WHOLE), ("output", _SHARD))
_NEXT_TO_EXPERTS = tuple(
    Rule((pattern,), action, arguments, override=True)
    for pattern in (f"{MLP}.gate", f"{MLP}.router", f"{MLP}.shared_expert_gate")
    for action, arguments in (
        ("replicate", ()),
        ("sequence_parallel", ()),
        ("rowwise", (("input", _SHARD), ("output", _SHARD))),
        ("rowwise_split_input", (("output", _SHARD),)),
        ("prepare_input_output", _GATHER),
    )
) + tuple(
    Rule((pattern,), action, arguments, override=True)
    for pattern, action, arguments in (
        (MLP, "prepare_input_output", _GATHER),
        (EXPERTS, "moe_tp_experts", ()),
        (f"{MLP}.shared_expert.*_proj", "sequence_parallel", ()),
        (f"{MLP}.shared_experts.*_proj", "sequence_parallel", ()),
        (f"{MLP}.shared_experts", "prepare_input_output", _GATHER),
        ("model.layers.0.post_attention_layernorm", "replicate", ()),
        ("model.layers.*.self_attn.o_proj", "sequence_parallel", ()),
    )
)
"""Rules for what computes next to experts, of which a model has some."""
MIXTURES = tuple(one for one in ARCHITECTURES if {*NUMBERS} & {*one[2]})
ADJACENT = ("dp_replicate", "cp", "tp", "pp", "dp_shard", "dp_shard")


def experts(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Experts on several ranks: how many, over which mesh dim, which modules, in which units."""
    edited = _on_ranks(_mixture(draft, config, random))
    notes = [edited.note] if edited.note else []
    for change in random.sample(_CHANGES, k=random.choice((1, 1, 2))):
        edited = change(edited, random)
        notes.append(edited.note)
    return replace(edited, note="; ".join(notes))


def on_tp(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Experts on ranks of tp, which have shards of sequences: at times next to a rule or a change more."""
    edited = _mixture(draft, config, random)
    mesh = {"dp_shard": 2, "tp": 2, **random.choice(({"cp": 2}, {"pp": 2}, {}, {}, {"tp": 4, "dp_shard": 1}))}
    draft = edited.draft
    for kind in ("expert_parallel", "tensor_parallel", "context_parallel", "pipeline"):
        draft = draft.without(kind)
    for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp"):
        draft = draft.setting("mesh", name, mesh.get(name, 1))
    on = random.choice((("dp_shard", "tp"), ("dp_shard", "cp", "tp"), ("dp_shard", "cp", "tp"), ("tp",)))
    auto = random.choice((*["auto(sequence_parallel = true)"] * 4, "auto(solve)"))
    rules = tuple(random.sample(_NEXT_TO_EXPERTS, k=random.choice((0, 0, 1, 2))))
    blocks = [Block("tensor_parallel", ("tp",), directives=(auto,), rules=rules)]
    blocks.append(Block("expert_parallel", on, (("size", random.choice(("2", "4", "4", "8"))),), ("auto",)))
    draft = Draft((*draft.blocks, *blocks, *_beside(mesh)))
    units = ("dp_shard", "cp") if "cp" in mesh else ("dp_shard",)
    draft = draft.edit("fsdp", lambda block: replace(block, on=units))
    draft = draft.edit("expect", lambda block: replace(block, comparisons=()))
    notes = [edited.note, f"expert_parallel on {', '.join(on)} in {mesh}, {auto}", *map(str, rules)]
    edited = replace(edited, draft=closed_batch(draft, times=random.choice((1, 2))))
    if random.random() < 0.4:
        edited = random.choice((_size, _number, _fsdp, _recomputed, _modules))(edited, random)
        notes.append(edited.note)
    return replace(edited, note="; ".join(filter(None, notes)))


def balance(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another balance, with one micro-batch in a step or two; at times of experts on several ranks."""
    edited = _mixture(draft, config, random)
    if draft.mesh()["dp_shard"] > 1 and random.random() < 0.5:
        edited = _on_ranks(edited)
    over = random.choice(("sequence", "micro_batch", "step"))
    layers = random.choice(("each", "each", "pooled"))
    losses = (f"switch(coefficient = 0.5, over = {over}, layers = {layers})", "bias(update = 0.05)", "none")
    loss = random.choice((losses[0], *losses))
    settings = (("loss", loss), ("z_loss", random.choice(("none", "0.1"))))
    draft = Draft((*edited.draft.without("balance").blocks, Block("balance", settings=settings)))
    times = random.choice((1, 2))
    draft = draft.edit("expect", lambda block: replace(block, comparisons=()))
    note = f"{edited.note} loss = {loss}, z_loss = {settings[1][1]}, {times} micro steps".strip()
    return replace(edited, draft=closed_batch(draft, times=times), note=note)


def capacity(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Experts that take a part of their tokens, on several ranks or on one, next to something else."""
    edited = _on_ranks(_mixture(draft, config, random))
    size, number = random.choice((1, 2)), random.choice(("0.25", "0.5", "0.75", "1.1", "1.25", "4.0"))
    draft = edited.draft.setting("expert_parallel", "size", size)
    draft = draft.setting("expert_parallel", "capacity", number)
    draft = draft.setting("data", "micro_batch", random.choice((1, 2)))
    draft = draft.edit("expect", lambda block: replace(block, comparisons=()))
    notes = f"{edited.note} capacity = {number} on {size}".strip()
    edited = replace(edited, draft=closed_batch(draft, times=random.choice((1, 2))), note=notes)
    if random.random() < 0.6:
        edited = random.choice((_mesh, _mesh, _fsdp, _recomputed, _modules))(edited, random)
    return replace(edited, note=f"{notes}; {edited.note}" if edited.note != notes else notes)


def _mixture(draft: Draft, config: Config, random: Random) -> Edited:
    """A plan of a model with experts, which is its own or another."""
    if {*NUMBERS} & {*config}:
        return Edited(draft, config, "")
    model = random.choice(MIXTURES)
    draft = draft.edit("tensor_parallel", replace_rules)
    return Edited(draft, of_architecture(config, *model), model[0])


def _on_ranks(edited: Edited) -> Edited:
    """With experts on two ranks, if they are not on several."""
    draft = edited.draft
    if draft.get("expert_parallel") is not None:
        return edited
    block = Block("expert_parallel", ("dp_shard",), (("size", "2"),), ("auto",))
    return replace(edited, draft=Draft((*draft.blocks, block)))


def _size(edited: Edited, random: Random) -> Edited:
    size = random.choice((1, 2, 2, 3, 4, 8))
    return replace(edited, draft=edited.draft.setting("expert_parallel", "size", size), note=f"ep {size}")


def _over(edited: Edited, random: Random) -> Edited:
    on = random.choice((("tp",), ("cp",), ("dp_shard", "cp"), ("dp_shard", "tp"), ("dp_replicate",), ("pp",)))
    draft = edited.draft.edit("expert_parallel", lambda block: replace(block, on=on))
    if "tp" in on and draft.get("tensor_parallel") is None:
        draft = _with_tp(draft.setting("mesh", "dp_shard", 2).setting("mesh", "tp", 2), random)
        draft = draft.edit("expect", lambda block: replace(block, comparisons=()))
        draft = closed_batch(draft, times=2)
    return replace(edited, draft=draft, note=f"expert_parallel on {', '.join(on)}")


def _beside(mesh: Mapping[str, int]) -> Iterator[Block]:
    """The blocks of mesh dims that have several ranks."""
    if mesh.get("cp", 1) > 1:
        settings = (("rotate", "allgather"), ("load_balancer", "none"))
        yield Block("context_parallel", ("cp",), settings, rules=(_SHARDED,))
    if mesh.get("pp", 1) > 1:
        yield Block("pipeline", ("pp",))


def _with_tp(draft: Draft, random: Random) -> Draft:
    auto = random.choice(("auto(solve)", "auto(sequence_parallel = true)"))
    return Draft((*draft.blocks, Block("tensor_parallel", ("tp",), directives=(auto,))))


def _modules(edited: Edited, random: Random) -> Edited:
    rules = tuple(Rule((one,), "dispatch") for one in random.sample(DISPATCHED, k=random.choice((1, 1, 2))))
    draft = edited.draft.edit("expert_parallel", lambda block: replace(block, directives=(), rules=rules))
    return replace(edited, draft=draft, note="; ".join(map(str, rules)))


def _number(edited: Edited, random: Random) -> Edited:
    name = next(one for one in NUMBERS if one in edited.config)
    number = random.choice((2, 3, 5, 6, 8))
    config = {**edited.config, name: number}
    return replace(edited, config=config, note=f"{name} = {number}")


def _mesh(edited: Edited, random: Random) -> Edited:
    name = random.choice(ADJACENT)
    draft = edited.draft.setting("mesh", "dp_shard", 2)
    draft = draft.setting("mesh", name, 4 if name == "dp_shard" else 2)
    if draft.world_size() > MAX_WORLD:
        return replace(edited, note="the same mesh")
    if name == "cp" and draft.get("context_parallel") is None:
        draft = Draft((*draft.blocks, *_beside({"cp": 2})))
        draft = draft.edit("fsdp", lambda block: replace(block, on=("dp_shard", "cp")))
    if name == "tp" and draft.get("tensor_parallel") is None:
        draft = _with_tp(draft, random)
    if name == "pp" and draft.get("pipeline") is None:
        draft = Draft((*draft.blocks, *_beside({"pp": 2})))
    draft = draft.edit("expect", lambda block: replace(block, comparisons=()))
    return replace(edited, draft=closed_batch(draft, times=2), note=f"{name} = {draft.mesh()[name]}")


def _fsdp(edited: Edited, random: Random) -> Edited:
    draft = edited.draft
    if draft.get("fsdp") is None or random.random() < 0.15:
        return replace(edited, draft=draft.without("fsdp"), note="without fsdp")
    match random.choice(("unit", "unit", "unit", "on", "offload")):
        case "on":
            draft = draft.edit("fsdp", lambda block: replace(block, on=(random.choice(("cp", "tp")),)))
            return replace(edited, draft=draft, note=f"fsdp on {draft.block('fsdp').on}")
        case "offload":
            return replace(edited, draft=draft.setting("fsdp", "cpu_offload", "true"), note="cpu_offload")
    rules = tuple(Rule(one, "unit") for one in random.sample(UNITS, k=random.choice((1, 2))))
    draft = draft.edit("fsdp", lambda block: replace(block, rules=rules))
    return replace(edited, draft=draft, note="; ".join(map(str, rules)))


def _recomputed(edited: Edited, random: Random) -> Edited:
    pattern, mode = random.choice((EXPERTS, MLP, "model.layers.*")), random.choice(("full", "selective"))
    block = Block("activation_checkpoint", rules=(Rule((pattern,), mode),))
    draft = Draft((*edited.draft.without(block.kind).blocks, block))
    return replace(edited, draft=draft, note=str(block.rules[0]))


_CHANGES: tuple[Callable[[Edited, Random], Edited], ...] = (
    _size,
    _size,
    _over,
    _modules,
    _number,
    _mesh,
    _mesh,
    _fsdp,
    _recomputed,
)
