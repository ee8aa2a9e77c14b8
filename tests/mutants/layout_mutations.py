"""Mutations of tensor parallelism: styles, rules, placements at their edges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from tests.mutants.draft import Block, Draft, Rule
from tests.mutants.mutant import Edited
from tests.mutants.shrink import Config, rule_indices

STYLES = (
    "colwise",
    "colwise_gather_output",
    "rowwise",
    "rowwise_split_input",
    "embedding_rowwise",
    "embedding_colwise",
    "sequence_parallel",
    "replicate",
    "replicated_with_grad_allreduce",
    "prepare_input",
)
FITTING: Mapping[str, tuple[str, ...]] = {
    "norm": ("sequence_parallel", "replicate", "replicated_with_grad_allreduce"),
    "embed_tokens": ("embedding_rowwise", "embedding_colwise", "replicate"),
    "proj": ("colwise", "colwise_gather_output", "rowwise", "rowwise_split_input", "replicate"),
    "lm_head": ("colwise", "colwise_gather_output", "rowwise", "rowwise_split_input", "replicate"),
}
"""The styles that modules can have, by how their names end; containers have one."""
PLACEMENTS = ("Shard(0)", "Shard(1)", "Shard(2)", "Shard(-1)", "Shard(-2)", "Replicate()")
USUAL = ("Shard(1)", "Shard(-1)", "Replicate()")
OPTIONS = {
    "colwise": ("input", "output"),
    "colwise_gather_output": ("input",),
    "rowwise": ("input", "output"),
    "rowwise_split_input": ("output",),
    "embedding_rowwise": ("output",),
    "embedding_colwise": ("output",),
    "prepare_input": ("input", "desired"),
    "sequence_parallel": ("sequence_dim",),
}
"""What each style's call takes."""
TARGETS = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    "model.layers.*",
    "model.layers.*.self_attn",
    "model.layers.*.mlp",
    "model.layers.*.input_layernorm",
    "model.layers.*.post_attention_layernorm",
    "model.layers.*.self_attn.q_proj",
    "model.layers.*.self_attn.k_proj",
    "model.layers.*.self_attn.{q,k,v}_proj",
    "model.layers.*.self_attn.o_proj",
    "model.layers.*.self_attn.{q,k}_norm",
    "model.layers.*.mlp.{gate,up}_proj",
    "model.layers.*.mlp.down_proj",
)
"""Modules that an added rule names."""
GROUPS: tuple[tuple[str, ...], ...] = (
    ("model.layers.*.mlp", "model.layers.*.mlp.{gate,up}_proj", "model.layers.*.mlp.down_proj"),
    ("model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj", "model.layers.*.mlp.down_proj"),
    (
        "model.layers.*.self_attn",
        "model.layers.*.self_attn.q_proj",
        "model.layers.*.self_attn.{k,v}_proj",
        "model.layers.*.self_attn.o_proj",
    ),
    ("model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.self_attn.o_proj"),
    ("model.embed_tokens", "model.norm", "lm_head"),
    ("model.norm", "lm_head"),
    ("model.layers.*.input_layernorm", "model.layers.*.self_attn"),
    ("model.layers.*.post_attention_layernorm", "model.layers.*.mlp"),
)
"""Parts of a model whose modules must agree."""
TP = "tensor_parallel"


def style_swap(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another style for a rule, with the boundary that both styles have."""
    return _edit_rule(draft, config, random, lambda rule: _restyled(rule, _style(rule, random)))


def _style(rule: Rule, random: Random) -> str:
    """A style that fits the rule's modules, at times any."""
    ending = next((end for end in FITTING if re.sub(r"\W+$", "", rule.patterns[0]).endswith(end)), "")
    return random.choice(FITTING[ending] if ending and random.random() < 0.85 else STYLES)


def _restyled(rule: Rule, style: str) -> Rule:
    kept = tuple(argument for argument in rule.arguments if argument[0] in OPTIONS.get(style, ()))
    return replace(rule, action=style, arguments=kept)


def rule_drop(draft: Draft, config: Config, random: Random) -> Edited | None:
    """A rule less, or two."""
    block = draft.get(TP)
    if block is None or not block.rules:
        return None
    index = random.randrange(len(block.rules))
    dropped = draft.edit(TP, lambda block: block.with_rule(index))
    note = f"without {block.rules[index]}"
    if random.random() < 0.4 and len(block.rules) > 1:
        other = random.randrange(len(block.rules) - 1)
        dropped = dropped.edit(TP, lambda block: block.with_rule(other))
        note += " and another"
    return Edited(dropped, config, note)


def rule_add(draft: Draft, config: Config, random: Random) -> Edited | None:
    """One rule more, at times an override."""
    target = Rule((random.choice(TARGETS),), "replicate", override=random.random() < 0.85)
    rule = _restyled(target, _style(target, random))
    rule = _bounded(rule, random) if random.random() < 0.6 else rule
    if draft.get(TP) is None:
        return None
    added = draft.edit(TP, lambda block: replace(block, rules=(*block.rules, rule)))
    return Edited(added, config, f"and {rule}")


def rule_narrow(draft: Draft, config: Config, random: Random) -> Edited | None:
    """A pattern that covers fewer modules: a choice less in its braces, or only some layers."""
    return _edit_rule(draft, config, random, lambda rule: replace(rule, patterns=_narrowed(rule, random)))


def _narrowed(rule: Rule, random: Random) -> tuple[str, ...]:
    pattern = rule.patterns[0]
    braces = re.search(r"\{([a-z_,]+)\}", pattern)
    if braces and random.random() < 0.7:
        choices = braces[1].split(",")
        choices.pop(random.randrange(len(choices)))
        text = f"{{{','.join(choices)}}}" if len(choices) > 1 else choices[0]
        return (pattern.replace(braces[0], text), *rule.patterns[1:])
    return (pattern.replace(".*.", random.choice((".0.", ".1.", ".{0..0}.")), 1), *rule.patterns[1:])


def mosaic(draft: Draft, config: Config, random: Random) -> Edited | None:
    """A part of the model restyled at random, module by module; some of these are right."""
    group = random.choice(GROUPS)
    rules = tuple(_tile(pattern, random) for pattern in group)
    kept = [replace(rule, override=True) for rule in rules if rule is not None]
    if draft.get(TP) is None or not kept:
        return None
    if random.random() < 0.5:
        draft = _with_whole_sequences(draft, random, chance=1.0)
    edited = draft.edit(TP, lambda block: replace(block, rules=(*block.rules, *kept)))
    return Edited(edited, config, "; ".join(map(str, kept)))


def _tile(pattern: str, random: Random) -> Rule | None:
    """A module's new rule; None leaves it as it is."""
    if random.random() < 0.4:
        return None
    if pattern.endswith(("self_attn", "mlp")):
        return _bounded(Rule((pattern,), "prepare_input", (("input", "Shard(1)"),)), random)
    rule = Rule((pattern,), _style(Rule((pattern,), ""), random))
    return _bounded(rule, random) if random.random() < 0.4 else rule


def rule_part(draft: Draft, config: Config, random: Random) -> Edited | None:
    """One module of a rule's braces gets a rule of its own, with another style or boundary."""
    block = draft.get(TP)
    places = [index for index in rule_indices(block) if block and "{" in block.rules[index].patterns[0]]
    if block is None or not places:
        return None
    index = random.choice(places)
    rule = block.rules[index]
    braces = re.search(r"\{([a-z_,]+)\}", rule.patterns[0])
    if braces is None:
        return None
    choices = braces[1].split(",")
    one = choices.pop(random.randrange(len(choices)))
    rest = f"{{{','.join(choices)}}}" if len(choices) > 1 else choices[0]
    odd = replace(rule, patterns=(rule.patterns[0].replace(braces[0], one),))
    odd = _bounded(odd, random) if random.random() < 0.5 else _restyled(odd, _style(odd, random))
    others = replace(rule, patterns=(rule.patterns[0].replace(braces[0], rest),))
    return Edited(draft.edit(TP, lambda block: block.with_rule(index, others, odd)), config, f"and {odd}")


def boundary(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another placement at a rule's edge, or two."""
    return _edit_rule(draft, config, random, lambda rule: _bounded(rule, random))


def _bounded(rule: Rule, random: Random) -> Rule:
    options = OPTIONS.get(rule.action, ())
    for name in random.sample(options, k=random.randint(1, len(options)) if options else 0):
        rule = rule.with_argument(name, _value(name, random))
    return rule


def _value(option: str, random: Random) -> str:
    if option == "sequence_dim":
        return str(random.randrange(4))
    return random.choice(PLACEMENTS if random.random() < 0.3 else USUAL)


def residual_layout(draft: Draft, config: Config, random: Random) -> Edited | None:
    """The sequence kept whole in all of the places where it is divided, or in some."""
    block = draft.get(TP)
    if block is None or not block.rules:
        return None
    chance = random.choice((0.5, 1.0, 1.0))
    edited = _with_whole_sequences(draft, random, chance=chance)
    return Edited(edited, config, "sequence kept whole" + ("" if chance == 1.0 else " in places"))


def _with_whole_sequences(draft: Draft, random: Random, *, chance: float) -> Draft:
    def change(block: Block) -> Block:
        rules = tuple(
            _unsharded(rule, random) if random.random() < chance else rule
            for rule in block.rules
            if rule.action not in ("sequence_parallel", "prepare_input") or random.random() > chance
        )
        return replace(block, rules=rules)

    return draft.edit(TP, change)


def _unsharded(rule: Rule, random: Random) -> Rule:
    for name in ("input", "output"):
        if rule.argument(name) == "Shard(1)":
            rule = rule.with_argument(name, "Replicate()")
    if rule.action == "colwise" and rule.patterns[0] == "lm_head" and random.random() < 0.4:
        return rule.with_argument("output", random.choice(("Replicate()", "Shard(-1)")))
    return rule


def gather_in_layers(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Each projection gathers the sequence for itself, in place of the container that holds them."""
    block = draft.get(TP)
    if block is None:
        return None
    gated = rule_indices(block, "prepare_input")
    if not gated:
        return None
    projections = ("q_proj", "gate_proj", "{q,k,v}_proj", "{gate,up}_proj", "k_proj")

    def change(block: Block) -> Block:
        kept = [rule for index, rule in enumerate(block.rules) if index not in gated]
        moved = [
            rule.with_argument("input", "Shard(1)")
            if rule.action == "colwise" and rule.patterns[0].endswith(projections) and random.random() < 0.9
            else rule
            for rule in kept
        ]
        return replace(block, rules=tuple(moved))

    return Edited(draft.edit(TP, change), config, "gathered in each projection")


def automatic(draft: Draft, config: Config, random: Random) -> Edited | None:
    """The model's own plan, alone or beside some of the rules, which then override it."""
    block = draft.get(TP)
    if block is None or (block.directives and not block.rules):
        return None
    kept = [replace(rule, override=random.random() < 0.8) for rule in block.rules if random.random() < 0.25]
    edited = draft.edit(TP, lambda block: replace(block, directives=("auto",), rules=tuple(kept)))
    return Edited(edited, config, f"auto and {len(kept)} rules")


def _edit_rule(draft: Draft, config: Config, random: Random, change: object) -> Edited | None:
    block = draft.get(TP)
    if block is None or not block.rules:
        return None
    index = random.randrange(len(block.rules))
    assert callable(change), "an edit of one rule"
    rule = change(block.rules[index])
    return Edited(draft.edit(TP, lambda block: block.with_rule(index, rule)), config, f"now {rule}")
