"""Canonical plans shrunk until a laptop's core runs them: the same blocks, rules and kinds of layers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planc.api import check_plan
from planc.show.resolved import resolved_text
from tests.mutants.draft import Block, Draft, Rule, read_draft

Config = Mapping[str, Any]
"""A model's config.json."""

NUM_LAYERS = 2
_MIXTURE: Config = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT: Config = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
_GPT2: Config = {"n_embd": 64, "n_inner": 96, "n_layer": NUM_LAYERS, "n_head": 8, "n_positions": 64}
SEQUENCE_LENGTH = 32
MAX_POSITIONS = 64
MAX_DIMS = 3
"""Mesh dims of two ranks that one base has at most, so that no run has more than 8."""
WARMUP_STEPS = 2
EPS = "1e-6"
NUM_STEPS = 10
"""Of the schedule; runs stop earlier."""
CORPUS = "data/corpus.txt"
CORPUS_LINES = "data/corpus.jsonl"
PAIRS = "data/pairs.jsonl"


@dataclass(frozen=True, slots=True)
class Base:
    """A shrunk plan that is right, to be mutated. `plan` is the canonical plan's name."""

    name: str
    plan: str
    draft: Draft
    config: Config


def bases(plan: Path) -> Iterator[Base]:
    """A canonical plan on every choice of up to `MAX_DIMS` mesh dims. ValueError if it is not clean."""
    checked = check_plan(plan)
    if checked.bound is None or not checked.ok:
        raise ValueError(f"{plan}: {'; '.join(map(str, checked.diagnostics))}")
    whole = read_draft(resolved_text(checked.bound))
    config = json.loads((plan.parent / checked.bound.plan.model.hf / "config.json").read_bytes())
    small = shrink_config(config)
    num_layers = int(config.get("num_hidden_layers") or config["n_layer"])
    draft = _shrink_rules(whole, num_layers=num_layers)
    dims = [name for name, size in whole.mesh().items() if size > 1]
    for count in range(min(len(dims), 1), min(len(dims), MAX_DIMS) + 1):
        for chosen in itertools.combinations(dims, count):
            name = f"{plan.stem} {'.'.join(chosen)}".strip()
            yield Base(name, plan.stem, _shrink_sizes(draft, chosen), small)


def shrink_config(config: Config) -> Config:
    """The same architecture, tiny: 8 heads in the same groups, two layers that keep both kinds."""
    heads = int(config.get("num_attention_heads") or config["n_head"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 8,
        # At least two, so that tp can divide them where it could before.
        "num_key_value_heads": max(min(kv_heads, 2), 8 * kv_heads // heads),
        "head_dim": 16,
        "vocab_size": 260,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": 1,
        "sliding_window": 8,
        "layer_types": _layer_types(config.get("layer_types")),
        "sliding_window_pattern": 2,
        "_sliding_window_pattern": 2,
        **_MIXTURE,
        **_LATENT,
        **_GPT2,
        "query_pre_attn_scalar": 16,
    }
    known = {name: value for name, value in sizes.items() if config.get(name) is not None}
    shrunk = {**config, **known, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 256}
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" in scaling:
        shrunk["rope_scaling"] = {**scaling, "original_max_position_embeddings": MAX_POSITIONS // 2}
    return {name: value for name, value in shrunk.items() if value is not None}


def _layer_types(types: Any) -> list[str] | None:
    """As many as there are layers left, every kind among them where there is room."""
    if not types:
        return None
    kinds = list(dict.fromkeys(types))
    return (kinds * NUM_LAYERS)[:NUM_LAYERS]


def _shrink_rules(draft: Draft, *, num_layers: int) -> Draft:
    """Numbers in patterns: the last layer stays last, those before become the first, lists stay lists."""

    def shrunk(block: Block) -> Block:
        rules = tuple(replace(rule, patterns=tuple(map(pattern, rule.patterns))) for rule in block.rules)
        return replace(block, rules=rules)

    def pattern(text: str) -> str:
        text = re.sub(r"\{(\d+)\.\.(\d+)\}", lambda found: f"{{{layer(found[1])}..{layer(found[2])}}}", text)
        text = re.sub(r"\.(\d+)(?=\.|$)", lambda found: f".{layer(found[1])}", text)
        return re.sub(r"\{(\d+(?:,\d+)+)\}", lambda found: every_other(found[1].split(",")), text)

    def every_other(numbers: list[str]) -> str:
        kept = tuple(dict.fromkeys(str(int(number) % NUM_LAYERS) for number in numbers))
        return kept[0] if len(kept) == 1 else f"{{{','.join(kept)}}}"

    def layer(number: str) -> int:
        return max(0, int(number) - (num_layers - NUM_LAYERS)) if int(number) else 0

    return Draft(tuple(shrunk(block) for block in draft.blocks))


def _shrink_sizes(draft: Draft, dims: tuple[str, ...]) -> Draft:
    """Two ranks in the chosen mesh dims, one in the others; tiny batches that divide; no saves."""
    accumulation = 1 if _facts(draft).get("gradient_accumulation", 1) == 1 else 2
    for mesh_dim in draft.mesh():
        draft = draft.setting("mesh", mesh_dim, 2 if mesh_dim in dims else 1)
    draft = draft.setting("mesh", "devices_per_node", "none").setting("model", "hf", '"models/base"')
    dp_size = 2 ** len({"dp_replicate", "dp_shard"} & set(dims))
    experts = draft.get("expert_parallel")
    on = experts.on if experts is not None else ()
    lines = 'jsonl("data/corpus.jsonl", field = "text")'
    source = draft.block("data").get("source") or ""
    tokens = SEQUENCE_LENGTH * dp_size * accumulation * 2
    draft = (
        draft.without("checkpoint")
        .without("hardware")
        .setting("expert_parallel", "size", 2 if {*on} & {*dims} else 1)
        .setting("data", "source", lines if source.startswith("jsonl") else f'text("{CORPUS}")')
        .setting("data", "tokenizer", "bytes")
        .setting("data", "sequence_length", SEQUENCE_LENGTH)
        .setting("data", "micro_batch", 2)
        .setting("train", "steps", NUM_STEPS)
        .setting("train", "tokens_per_step", tokens)
        .edit("optimizer", _steady)
        .edit("fsdp", _in_float32)
        .edit("pipeline", _one_stage_a_rank)
        .setting("model", "dtype", "float32")
    )
    expected = {
        "world_size": str(draft.world_size()),
        "dp_size": str(dp_size),
        "gradient_accumulation": str(accumulation),
        "tokens_per_step": str(tokens),
        "sequences_per_step": str(dp_size * accumulation * 2),
    }
    return draft.edit(
        "expect",
        lambda block: replace(
            block,
            comparisons=tuple(
                (subject, "==", expected[subject])
                for subject, _, _ in block.comparisons
                if subject in expected
            ),
        ),
    )


def _facts(draft: Draft) -> Mapping[str, int]:
    """What the whole plan expects of itself, as numbers."""
    block = draft.get("expect") or Block("expect")
    return {
        subject: int(value)
        for subject, operator, value in block.comparisons
        if operator == "==" and value.replace("_", "").isdigit()
    }


def _steady(block: Block) -> Block:
    """A schedule of few steps, and an eps that is above the rounding of the smallest gradients."""
    kind = re.sub(r"eps = [\d.e-]+", f"eps = {EPS}", block.get("kind") or "")
    block = block.having("kind", kind)
    schedule = re.sub(r"warmup = [\d_]+ steps", f"warmup = {WARMUP_STEPS} steps", block.get("schedule") or "")
    return block.having("schedule", schedule) if schedule else block


def _one_stage_a_rank(block: Block) -> Block:
    """Two ranks have two layers between them; mutations bring further stages back."""
    several = (block.get("schedule") or "").startswith("interleaved")
    return block.having("schedule", "one_f_one_b()") if several else block


def _in_float32(block: Block) -> Block:
    """Rounding would hide what a run is to show; mutations bring the small dtypes back."""
    return block.having("param_dtype", "none").having("reduce_dtype", "none")


def rule_indices(block: Block | None, *actions: str) -> list[int]:
    """Places of a block's rules, those with one of `actions` where any are given."""
    rules: tuple[Rule, ...] = block.rules if block else ()
    return [index for index, rule in enumerate(rules) if not actions or rule.action in actions]


def write_corpus(folder: Path) -> None:
    """Text enough for a few steps, as one file and as lines of JSON."""
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    texts = [" ".join(words[(i * i + 3 * i + k) % len(words)] + str(i) for i in range(150)) for k in range(4)]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / CORPUS).write_text("\n".join(texts), encoding="utf-8")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / CORPUS_LINES).write_text(lines, encoding="utf-8")
    pairs = (
        {"prompt": word, "chosen": f"{other} {i}", "rejected": f"{i} {word} {other}"}
        for i, (word, other) in enumerate(itertools.pairwise(words))
    )
    (folder / PAIRS).write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
