"""Mutations of everything but tensor-parallel rules: mesh, sharding, context, data, numbers, expectations."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.mutants.draft import Block, Draft, Rule
from tests.mutants.mutant import Edited
from tests.mutants.shrink import SEQUENCE_LENGTH, Config

MAX_WORLD = 8
UNIT_PATTERNS: tuple[tuple[str, ...], ...] = (
    ("model.layers.*.mlp",),
    ("model.layers.*.self_attn",),
    ("model.layers.*.{self_attn,mlp}",),
    ("model.layers.*.self_attn.q_proj",),
    ("model.layers.*.input_layernorm",),
    ("model.layers.0",),
    ("model.layers.1",),
    ("model.layers",),
    ("model",),
    ("model.embed_tokens",),
    ("lm_head",),
    ("model.norm",),
    ("model.embed_tokens", "model.norm"),
    ("model.embed_tokens", "lm_head"),
    ("model.norm", "lm_head"),
    ("model.layers.0", "model.layers.1"),
    ("model.layers.*", "model.norm"),
    ("model.layers.0", "lm_head"),
    ("model.layers.*.mlp", "lm_head"),
    ("model.rotary_emb",),
    ("model.layers.*.mlp.act_fn",),
)
LISTS: tuple[tuple[str, ...], ...] = (
    ("model.layers.*",),
    ("model.layers.0",),
    ("model.layers.1",),
    ("model.layers",),
    ("model",),
    ("model.layers.*.mlp",),
    ("model.layers.*.self_attn",),
    ("model.layers.*.{self_attn,mlp}",),
    ("model.embed_tokens",),
    ("model.norm",),
    ("lm_head",),
    ("model.layers.*.mlp.down_proj",),
    ("model.layers.*.self_attn.{q,k,v}_proj",),
    ("model.layers.*.input_layernorm",),
)
"""Modules whose activations a rule recomputes."""


def mesh_size(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another size of a mesh dim; the batch follows half the time."""
    mesh = draft.mesh()
    name = random.choice(tuple(mesh))
    size = random.choice((1, 2, 3, 4, 5, 6, 8))
    world = draft.world_size() // mesh[name] * size
    if size == mesh[name] or world > MAX_WORLD:
        return None
    edited = draft.setting("mesh", name, size)
    if random.random() < 0.7:
        edited = edited.edit("expect", lambda block: replace(block, comparisons=()))
        edited = closed_batch(edited)
    return Edited(edited, config, f"{name} = {size}")


def closed_batch(draft: Draft, *, times: int = 1) -> Draft:
    """The plan with this many micro-batches in a step."""
    mesh, data = draft.mesh(), draft.block("data")
    each = mesh["dp_replicate"] * mesh["dp_shard"] * _number(data, "micro_batch") * times
    return draft.setting("train", "tokens_per_step", each * _number(data, "sequence_length"))


def _number(block: Block, name: str) -> int:
    return int((block.get(name) or "0").replace("_", ""))


def sharded_dims(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other mesh dims for FSDP to shard or replicate over."""
    if draft.get("fsdp") is None:
        return None
    on = random.choice((("dp_shard",), ("dp_shard", "cp"), ("cp",), ("cp", "dp_shard"), ("dp_shard", "tp")))
    replicate = random.choice(("dp_replicate", "dp_replicate", "none", "cp", "dp_shard"))
    changed = draft.edit("fsdp", lambda block: replace(block, on=on).having("replicate_on", replicate))
    return Edited(changed, config, f"fsdp on {', '.join(on)}, replicate_on = {replicate}")


def units(draft: Draft, config: Config, random: Random) -> Edited | None:
    """FSDP units dropped, added, listed together, or resharded otherwise."""
    block = draft.get("fsdp")
    if block is None:
        return None
    rules = list(block.rules)
    match random.choice(("drop", "add", "add", "add", "flip", "replace")):
        case "drop" if rules:
            note = f"without {rules.pop(random.randrange(len(rules)))}"
        case "flip" if rules:
            index = random.randrange(len(rules))
            flipped = "false" if rules[index].argument("reshard_after_forward") == "true" else "true"
            rules[index] = rules[index].with_argument("reshard_after_forward", flipped)
            note = f"now {rules[index]}"
        case "replace":
            rules = [unit(random) for _ in range(random.randint(0, 3))]
            note = f"units: {'; '.join(map(str, rules)) or 'none'}"
        case _:
            rules.append(unit(random))
            note = f"and {rules[-1]}"
    return Edited(draft.edit("fsdp", lambda block: replace(block, rules=tuple(rules))), config, note)


def unit(random: Random) -> Rule:
    """A rule that makes a unit."""
    value = random.choice(("true", "false"))
    patterns = random.choice(UNIT_PATTERNS)
    return Rule(patterns, "unit", (("reshard_after_forward", value),), override=random.random() < 0.3)


def block_drop(draft: Draft, config: Config, random: Random) -> Edited | None:
    """A whole block less."""
    kinds = [block.kind for block in draft.blocks if block.kind not in ("model", "mesh", "data", "train")]
    kind = random.choice(kinds)
    return Edited(draft.without(kind), config, f"without {kind}") if kind != "optimizer" else None


def context(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Context parallelism otherwise: rotation, balance, buffers, the mesh dim."""
    block = draft.get("context_parallel")
    if block is None:
        return None
    edited, notes = draft, []
    for _ in range(random.choice((1, 1, 2))):
        edited, note = _context_once(edited, random)
        notes.append(note)
    return Edited(edited, config, ", ".join(notes))


def _context_once(draft: Draft, random: Random) -> tuple[Draft, str]:
    kind = "context_parallel"
    block = draft.block(kind)
    match random.choice(("rotate", "rotate", "balance", "drop", "dim", "on", "name")):
        case "rotate":
            value = random.choice(("ring", "allgather", "ulysses"))
            return draft.setting(kind, "rotate", value), f"rotate = {value}"
        case "balance":
            value = random.choice(("headtail", "none"))
            return draft.setting(kind, "load_balancer", value), f"load_balancer = {value}"
        case "drop" if block.rules:
            index = random.randrange(len(block.rules))
            return draft.edit(kind, lambda block: block.with_rule(index)), f"without {block.rules[index]}"
        case "dim" if block.rules:
            index, value = random.randrange(len(block.rules)), str(random.choice((0, 1, 2)))
            rule = replace(block.rules[index], arguments=(("", value),), action="Shard")
            return draft.edit(kind, lambda block: block.with_rule(index, rule)), f"now {rule}"
        case "name" if block.rules:
            rule = replace(block.rules[0], patterns=(random.choice(("*", "*_ids", "attention_mask")),))
            return draft.edit(kind, lambda block: block.with_rule(0, rule)), f"now {rule}"
        case _:
            on = random.choice(("cp", "tp", "dp_shard", "dp_replicate"))
            return draft.edit(kind, lambda block: replace(block, on=(on,))), f"on {on}"


def parallel_dim(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Tensor parallelism over another mesh dim."""
    on = random.choice(("cp", "dp_shard", "dp_replicate"))
    if draft.get("tensor_parallel") is None:
        return None
    edited = draft.edit("tensor_parallel", lambda block: replace(block, on=(on,)))
    return Edited(edited, config, f"tensor_parallel on {on}")


def recomputation(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other modules recompute their activations."""
    rules = tuple(
        Rule(random.choice(LISTS), random.choice(("full", "full", "none")), (), random.random() < 0.2)
        for _ in range(random.randint(1, 3))
    )
    added = Block("activation_checkpoint", rules=rules)
    note = f"activation_checkpoint {'; '.join(map(str, rules))}"
    return Edited(Draft((*draft.without("activation_checkpoint").blocks, added)), config, note)


def dtypes(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other dtypes of the parameters, of their gathers, of gradient sums."""
    kind, name = random.choice((("model", "dtype"), ("fsdp", "param_dtype"), ("fsdp", "reduce_dtype")))
    value = random.choice(("float64", "float32", "bfloat16", "float16"))
    if draft.get(kind) is None:
        return None
    edited = draft.setting(kind, name, value)
    if kind == "fsdp" and name == "param_dtype" and random.random() < 0.5:
        edited = edited.setting("fsdp", "reduce_dtype", "float32")
    return Edited(edited, config, f"{name} = {value}")


def batch(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other batch numbers; they close half the time."""
    micro = random.choice((1, 1, 2, 3, 4, 5))
    edited = draft.setting("data", "micro_batch", micro)
    edited = edited.edit("expect", lambda block: replace(block, comparisons=()))
    data = edited.block("data")
    if random.random() < 0.5:
        times = random.choice((1, 2, 3))
        total = _number(closed_batch(edited).block("train"), "tokens_per_step") * times
    else:
        total = random.choice((16, 33, 64, 96, 100, 128, 160, 256, 320)) * random.choice((1, 1, 2))
    if random.random() < 0.15:
        return Edited(edited.setting("train", "tokens_per_step", "none"), config, f"micro_batch = {micro}")
    length = data.get("sequence_length")
    note = f"micro_batch = {micro}, tokens_per_step = {total} of sequences of {length}"
    return Edited(edited.setting("train", "tokens_per_step", total), config, note)


def sequence_length(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another sequence length, with a batch that closes."""
    length = random.choice((1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 30, 31, 33, 34, 36, 40, 48, 63, 64, 65, 96))
    mesh, data = draft.mesh(), draft.block("data")
    each = mesh["dp_replicate"] * mesh["dp_shard"] * _number(data, "micro_batch")
    edited = draft.setting("data", "sequence_length", length).setting(
        "train", "tokens_per_step", each * length
    )
    edited = edited.edit("expect", lambda block: replace(block, comparisons=()))
    return Edited(edited, config, f"sequence_length = {length}") if length != SEQUENCE_LENGTH else None


def evaluation(draft: Draft, config: Config, random: Random) -> Edited | None:
    """An evaluation, which changes no training, whatever it keeps or when it would end the run."""
    source = draft.block("data").get("source")
    if source is None:
        return None
    settings = [f"source = {source}", f"every = {random.choice((1, 2, 3))} steps"]
    settings.append(f"sequences = {random.choice((1, 2, 3, 5))}")
    settings.append(random.choice(("keep_best = 2", "patience = 1", "patience = 3, min_delta = 0.5")))
    directive = f'eval "held" {{ {", ".join(settings)} }}'
    edited = draft.edit("data", lambda block: replace(block, directives=(*block.directives, directive)))
    return Edited(edited, config, directive)


def optimizer(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other hyperparameters, groups and schedules."""
    block = draft.block("optimizer")
    match random.choice(("clip", "groups", "schedule", "kind", "overlap")):
        case "clip":
            value = random.choice(("none", "0.05", "1.0", "10.0"))
            return Edited(draft.setting("optimizer", "clip_grad_norm", value), config, f"clip {value}")
        case "groups":
            texts = (("lm_head", "model.norm"), ("model.layers.0.**",), ("**.bias",), ("model.embed_tokens",))
            rule = Rule(random.choice(texts), "group", (("weight_decay", "0.0"),))
            rules = (rule,) if random.random() < 0.5 else (*block.rules, rule)
        case "overlap":
            rule = Rule(("**.*norm*",), "group", (("weight_decay", random.choice(("0.0", "0.2"))),))
            rules = (*block.rules, replace(rule, override=random.random() < 0.5))
        case "schedule":
            steps = random.choice((0, 1, 5, 10, 11, 40))
            kind = random.choice(("cosine", "linear", "constant"))
            value = f"{kind}(warmup = {steps} steps)"
            return Edited(draft.setting("optimizer", "schedule", value), config, value)
        case _:
            value = f"adamw(lr = {random.choice(('0.0', '0.01', '0.0001'))}, weight_decay = 0.0)"
            return Edited(draft.setting("optimizer", "kind", value), config, value)
    edited = draft.edit("optimizer", lambda block: replace(block, rules=rules))
    return Edited(edited, config, f"groups {'; '.join(map(str, rules))}")


def expectation(draft: Draft, config: Config, random: Random) -> Edited | None:
    """An expectation added, that holds or does not."""
    mesh = draft.mesh()
    known = {
        "world_size": draft.world_size(),
        "dp_size": mesh["dp_replicate"] * mesh["dp_shard"],
        "tokens_per_step": _number(draft.block("train"), "tokens_per_step"),
        "sequences_per_step": _number(draft.block("train"), "tokens_per_step") // SEQUENCE_LENGTH,
    }
    subject = random.choice(tuple(known))
    value = known[subject] + random.choice((-1, 0, 0, 1))
    comparison = (subject, random.choice(("==", "!=", "<", "<=", ">", ">=")), str(value))
    expect = draft.get("expect") or Block("expect")
    expect = replace(expect, comparisons=(*expect.comparisons, comparison))
    edited = Draft((*draft.without("expect").blocks, expect))
    return Edited(edited, config, f"expect {' '.join(comparison)}")


def order(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Blocks and rules in another order, which must mean the same, and one edit that does not."""
    blocks = [
        replace(block, rules=tuple(random.sample(block.rules, k=len(block.rules)))) for block in draft.blocks
    ]
    random.shuffle(blocks)
    edited = units(Draft(tuple(blocks)), config, random)
    return edited and replace(edited, note=f"shuffled, {edited.note}")
