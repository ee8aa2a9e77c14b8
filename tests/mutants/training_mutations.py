"""Mutations of what is trained and how: frozen parts, adapters, averages, optimizers, losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.mutants.draft import Block, Draft, Rule
from tests.mutants.mutant import Edited
from tests.mutants.plan_mutations import closed_batch
from tests.mutants.shrink import PAIRS, Config

PARTS: tuple[tuple[str, ...], ...] = (
    ("model.embed_tokens",),
    ("lm_head",),
    ("model.layers.0",),
    ("model.layers.1",),
    ("model.layers.*",),
    ("model.layers.*.self_attn",),
    ("model.layers.*.mlp",),
    ("**.*norm*",),
    ("model.embed_tokens", "lm_head"),
    ("model.norm",),
    ("model",),
    ("**.bias",),
)
ADAPTED: tuple[tuple[str, ...], ...] = (
    ("model.layers.*.self_attn.{q,v}_proj",),
    ("model.layers.*.self_attn.{q,k,v,o}_proj",),
    ("model.layers.*.{self_attn,mlp}.*_proj",),
    ("model.layers.*.mlp.{gate,up,down}_proj",),
    ("model.layers.1.**",),
    ("model.layers.*",),
    ("model.layers.*.mlp.experts",),
    ("lm_head",),
    ("model.embed_tokens",),
    ("model.norm",),
)


def training(draft: Draft, config: Config, random: Random) -> Edited | None:
    """One or two of these changes."""
    edited = Edited(draft, config, "")
    notes = []
    for change in random.sample(_CHANGES, k=random.choice((1, 1, 2))):
        edited = change(edited, random)
        notes.append(edited.note)
    draft = edited.draft.edit("expect", lambda block: replace(block, comparisons=()))
    return replace(edited, draft=draft, note="; ".join(notes))


def _frozen(edited: Edited, random: Random) -> Edited:
    block = edited.draft.get("freeze") or Block("freeze")
    action = "trained" if edited.draft.get("adapter") is not None and random.random() < 0.5 else "frozen"
    rules = tuple(Rule(part, action) for part in random.sample(PARTS, k=random.choice((1, 1, 2))))
    return _with(edited, replace(block, rules=(*block.rules, *rules)))


def _adapter(edited: Edited, random: Random) -> Edited:
    more = random.choice(("", "", ", rslora = true", ", dora = true", ", dora = true"))
    kind = f"lora(rank = {random.choice((1, 4, 5))}, alpha = 8{more})"
    base = random.choice(("model", "model", "nf4"))
    rules = tuple(Rule(part, "adapted") for part in random.sample(ADAPTED, k=random.choice((1, 1, 2))))
    return _with(edited, Block("adapter", settings=(("kind", kind), ("base", base)), rules=rules))


def _optimizer(edited: Edited, random: Random) -> Edited:
    rest = "adamw(lr = 0.01, eps = 0.000001)"
    scale = random.choice(("original", "match_rms_adamw"))
    kinds = (
        f"muon(lr = 0.02, ns_dtype = float32, lr_scale = {scale}, rest = {rest})",
        f"adamw_8bit(lr = 0.01, eps = 0.000001, block = {random.choice((1, 4, 16, 64))})",
        "adamw_bf16(lr = 0.01, eps = 0.000001)",
        f"sgd(lr = 0.1, momentum = {random.choice(('0.0', '0.9'))})",
    )
    kind = random.choice(kinds)
    return replace(edited, draft=edited.draft.setting("optimizer", "kind", kind), note=kind)


def _averages(edited: Edited, random: Random) -> Edited:
    decay = random.choice(("0.0", "0.5", "0.9"))
    draft = edited.draft.setting("train", "ema_decay", decay)
    return replace(edited, draft=draft, note=f"ema_decay = {decay}")


def _pairs(edited: Edited, random: Random) -> Edited:
    smoothing = random.choice(("0.0", "0.1"))
    draft = edited.draft.setting("train", "loss", f"dpo(beta = 0.3, label_smoothing = {smoothing})")
    draft = draft.setting("data", "source", f'pairs("{PAIRS}", template = none)')
    draft = draft.setting("data", "packing", "none")
    draft = draft.setting("data", "too_long", random.choice(("skip", "truncate")))
    draft = draft.setting("data", "micro_batch", random.choice((1, 2, 2, 2, 4)))
    draft = closed_batch(draft, times=random.choice((1, 2)))
    return replace(edited, draft=draft, note=f"pairs, label_smoothing = {smoothing}")


def _teacher(edited: Edited, random: Random) -> Edited:
    temperature, weight = random.choice(("1.0", "2.0")), random.choice(("0.3", "1.0"))
    settings = f"top_k = {random.choice((1, 5))}, temperature = {temperature}, weight = {weight}"
    loss = f'distillation(teacher = "models/teacher", logits = "stored", {settings})'
    draft = edited.draft.setting("train", "loss", loss)
    draft = draft.setting("data", "micro_batch", random.choice((1, 2, 2, 4)))
    draft = closed_batch(draft, times=random.choice((1, 2)))
    return replace(edited, draft=draft, note=f"a teacher, {settings}")


def _chunks(edited: Edited, random: Random) -> Edited:
    chunks = random.choice((2, 4, 8))
    draft = edited.draft.setting("train", "loss_chunks", chunks)
    return replace(edited, draft=draft, note=f"loss_chunks = {chunks}")


def losses(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Pairs of answers or a teacher, for the most part in chunks."""
    edited = random.choice((_pairs, _teacher))(Edited(draft, config, ""), random)
    if random.random() < 0.75:
        in_chunks = _chunks(edited, random)
        edited = replace(in_chunks, note=f"{edited.note}; {in_chunks.note}")
        draft = (
            edited.draft.edit("tensor_parallel", _with_parallel_loss)
            if random.random() < 0.5
            else edited.draft
        )
        edited = replace(edited, draft=draft)
    return replace(edited, draft=edited.draft.edit("expect", lambda block: replace(block, comparisons=())))


def _with_parallel_loss(block: Block) -> Block:
    """The head's logits as shards, which chunks need."""
    head = Rule(("lm_head",), "colwise", (("output", "Shard(-1)"),), override=True)
    return replace(block, rules=(*(rule for rule in block.rules if rule.patterns != ("lm_head",)), head))


def _with(edited: Edited, block: Block) -> Edited:
    draft = Draft((*edited.draft.without(block.kind).blocks, block))
    settings = (f"{name} = {value}" for name, value in block.settings)
    return replace(edited, draft=draft, note="; ".join([*settings, *map(str, block.rules)]))


_CHANGES: tuple[Callable[[Edited, Random], Edited], ...] = (
    _frozen,
    _frozen,
    _adapter,
    _adapter,
    _optimizer,
    _averages,
    _pairs,
    _teacher,
    _chunks,
)
