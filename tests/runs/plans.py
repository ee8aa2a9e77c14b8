"""Plans in which every two features meet, as far as `planc check` lets them: a value of each axis."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

Row = Mapping[str, str]
"""The name of a value of each axis."""
Pair = tuple[tuple[str, str], tuple[str, str]]
_CANDIDATES, _TRIES = 40, 4
"""Rows among which the next one is chosen, and refused rows after which a pair is tried with plain others."""


@dataclass(frozen=True, slots=True)
class Model:
    """The patterns of a model's modules, within a layer but for the last."""

    layers: str = "model.layers.*"
    linears: str = "self_attn.{q,v}_proj"
    part: str = "mlp"
    """A part of each layer, which is compiled alone."""
    norms: str = "{input_layernorm,post_attention_layernorm}"
    experts: str = "no.experts"
    embedding: str = "model.embed_tokens"


_OF_BERT = ("bert.encoder.layer.*", "attention.self.{query,value}", "intermediate", "output.LayerNorm")
MODELS = {
    "tiny-llama": Model(),
    "tiny-llama-tied": Model(),
    "tiny-gpt2": Model("transformer.h.*", "mlp.c_fc", "mlp", "{ln_1,ln_2}", embedding="transformer.wte"),
    "tiny-gemma2": Model(),
    "tiny-phi3": Model(linears="self_attn.o_proj"),
    "tiny-qwen3-moe": Model(linears="self_attn.{q,o}_proj", part="self_attn", experts="mlp.experts"),
    "tiny-deepseek-v3": Model(linears="self_attn.o_proj", part="self_attn", experts="mlp.experts"),
    "tiny-bert": Model(*_OF_BERT, embedding="bert.embeddings.word_embeddings"),
    "tiny-bart-encoder-decoder": Model(
        "model.{encoder,decoder}.layers.*",
        *("self_attn.{q,v}_proj", "self_attn", "{self_attn,final}_layer_norm"),
        embedding="model.shared",
    ),
    "tiny-qwen2.5-vl": Model(
        "model.language_model.layers.*", embedding="model.language_model.embed_tokens"
    ),
}
_OF_OTHER_TASKS = ("tiny-bert", "tiny-bart-encoder-decoder")
_WITHOUT_HEAD = {
    "embeddings of tiny-llama": Model("layers.*", embedding="embed_tokens"),
    "embeddings of tiny-bert": Model(
        *("encoder.layer.*", *_OF_BERT[1:]), embedding="embeddings.word_embeddings"
    ),
}
SEQUENCES, LENGTH, NUM_STEPS, SAVED_STEP = 8, 64, 4, 2
CORPUS, PAIRS, TEXTS, WORDS = "corpus.jsonl", "pairs.jsonl", "texts.jsonl", "words.jsonl"
QUESTIONS, TARGETS, IMAGES = "questions.jsonl", "targets.jsonl", "images.jsonl"
TEACHER, STORED = "teacher", "stored"
_TP = "tensor_parallel on tp: auto(solve)"
_SEQUENCES = "tensor_parallel on tp: auto(solve, sequence_parallel = true)"
_FSDP = "fsdp on dp_shard, cp: "
_UNITS = (f"{_FSDP}replicate_on = dp_replicate", f'{_FSDP}"LAYERS" -> unit')
_PP = "pipeline on pp: schedule = "
_BERT = 'model: hf = "tiny-bert"'
_LORA = "adapter: kind = lora(rank = 4, alpha = 8)"
_ADAPTED = 'adapter: "LINEARS" -> adapted'
_TEXT = f'data: source = jsonl("{CORPUS}")'
_MATCHED = f'data: source = matched("{QUESTIONS}")'
_CONTRASTIVE = "train: loss = contrastive(temperature = 0.1, group = 2)"
_DISTILLED = (
    f'train: loss = distillation(teacher = "{TEACHER}", logits = "{STORED}", top_k = 8, weight = 0.7)'
)
AXES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "model": {
        **{name: (f'model: hf = "{name}"',) for name in MODELS if name not in _OF_OTHER_TASKS},
        "targets of tiny-bart-encoder-decoder": (
            *('model: hf = "tiny-bart-encoder-decoder"', "model: task = seq2seq_lm"),
            f'data: source = mapped("{TARGETS}")',
        ),
        "images of tiny-qwen2.5-vl": (
            *('model: hf = "tiny-qwen2.5-vl"', "model: task = image_text_to_text(height = 16, width = 24)"),
            "model: weights = pretrained",
            f'data: source = image_chat("{IMAGES}", template = none)',
        ),
        "masks of tiny-bert": (_BERT, "model: task = masked_lm()"),
        "classes of tiny-bert": (
            *(_BERT, "model: task = sequence_classification(labels = 3)"),
            f'data: source = labeled("{TEXTS}")',
        ),
        "words of tiny-bert": (
            *(_BERT, "model: task = token_classification(labels = 3)"),
            f'data: source = labeled("{WORDS}", field = "words", label = "classes")',
        ),
        "embeddings of tiny-bert": (_BERT, "model: task = embedding(pooling = mean)", _MATCHED, _CONTRASTIVE),
        "embeddings of tiny-llama": (
            *('model: hf = "tiny-llama"', "model: task = embedding(pooling = last)", _MATCHED, _CONTRASTIVE),
        ),
        "balanced tiny-qwen3-moe": (
            *('model: hf = "tiny-qwen3-moe"', "balance: z_loss = 1e-3"),
            "balance: loss = switch(coefficient = 0.01, over = sequence)",
        ),
        "balanced tiny-deepseek-v3": (
            *('model: hf = "tiny-deepseek-v3"', "balance: loss = bias(update = 1e-3)"),
        ),
    },
    "mesh": {
        "one": ("mesh: dp_shard = 1",),
        "dp_shard 2": ("mesh: dp_shard = 2",),
        "dp_replicate 2": ("mesh: dp_replicate = 2",),
        "dp_replicate 2, dp_shard 2": ("mesh: dp_replicate = 2", "mesh: dp_shard = 2"),
        "tp 2": ("mesh: tp = 2", _TP),
        "tp 2 of sequences": ("mesh: tp = 2", _SEQUENCES),
        "cp 2 ring": ("mesh: cp = 2", "context_parallel on cp: rotate = ring"),
        "cp 2 ulysses": (
            *("mesh: cp = 2", "context_parallel on cp: rotate = ulysses"),
            "context_parallel on cp: load_balancer = none",
        ),
        "pp 2": ("mesh: pp = 2", f"{_PP}one_f_one_b"),
        "pp 2 zero bubble": ("mesh: pp = 2", f"{_PP}zero_bubble"),
        "pp 4": ("mesh: pp = 4", f"{_PP}one_f_one_b"),
        "pp 2 interleaved": ("mesh: pp = 2", f"{_PP}interleaved(stages_per_rank = 2)"),
        "ep 2": (
            *("mesh: dp_shard = 2", "expert_parallel on dp_shard: size = 2"),
            'expert_parallel on dp_shard: "EXPERTS" -> dispatch',
        ),
        "tp 2 of sequences, ep 2": (
            *("mesh: tp = 2", _SEQUENCES, "expert_parallel on tp: size = 2"),
            'expert_parallel on tp: "EXPERTS" -> dispatch',
        ),
        "dp_shard 2, tp 2 of sequences, ep 4": (
            *("mesh: dp_shard = 2", "mesh: tp = 2", _SEQUENCES, "expert_parallel on dp_shard, tp: size = 4"),
            'expert_parallel on dp_shard, tp: "EXPERTS" -> dispatch',
        ),
        "dp_shard 2, tp 2": ("mesh: dp_shard = 2", "mesh: tp = 2", _TP),
        "dp_shard 2, tp 2 of sequences": ("mesh: dp_shard = 2", "mesh: tp = 2", _SEQUENCES),
        "dp_shard 2, cp 2": (
            *("mesh: dp_shard = 2", "mesh: cp = 2"),
            "context_parallel on cp: rotate = allgather",
        ),
        "dp_shard 2, pp 2": ("mesh: dp_shard = 2", "mesh: pp = 2", f"{_PP}gpipe"),
        "tp 2, pp 2": ("mesh: tp = 2", "mesh: pp = 2", _TP, f"{_PP}one_f_one_b"),
    },
    "fsdp": {
        "layers": _UNITS,
        "kept": (*_UNITS[:1], f'{_FSDP}"LAYERS" -> unit(reshard_after_forward = false)'),
        "each micro-batch": (*_UNITS, f"{_FSDP}reduce_every = micro_batch"),
        "ahead": (*_UNITS, f"{_FSDP}prefetch = 2"),
        "offloaded": (*_UNITS, f"{_FSDP}cpu_offload = true"),
        "ZeRO-1": (*_UNITS, f"{_FSDP}reshard_after_backward = false"),
        "ZeRO-2": (*_UNITS, f"{_FSDP}reshard_after_backward = false", f"{_FSDP}reduce_every = micro_batch"),
        "no units": _UNITS[:1],
        "none": (),
    },
    "dtype": {
        "float32": ("model: dtype = float32",),
        "bfloat16": ("model: dtype = bfloat16",),
        "computed in bfloat16": (
            *("model: dtype = float32", f"{_FSDP}param_dtype = bfloat16", f"{_FSDP}reduce_dtype = float32"),
        ),
    },
    "compile": {
        "none": (),
        "layers": ("compile: backend = aot_eager", 'compile: "LAYERS" -> region'),
        "layers by inductor": ('compile: "LAYERS" -> region',),
        "a part of layers": ("compile: backend = aot_eager", 'compile: "PART" -> region'),
        "layers with breaks": (
            *("compile: backend = aot_eager", "compile: fullgraph = false", 'compile: "LAYERS" -> region'),
        ),
    },
    "recompute": {
        "none": (),
        **{
            mode: (f'activation_checkpoint: "LAYERS" -> {mode}',) for mode in ("full", "selective", "offload")
        },
    },
    "optimizer": {
        "adamw": ("optimizer: kind = adamw(lr = 1e-3)",),
        "muon": ("optimizer: kind = muon(lr = 1e-3, rest = adamw(lr = 1e-3))",),
        "adamw_8bit": ("optimizer: kind = adamw_8bit(lr = 1e-3)",),
        "adamw_bf16": ("optimizer: kind = adamw_bf16(lr = 1e-3)",),
        "sgd": ("optimizer: kind = sgd(lr = 1e-2, momentum = 0.9)",),
    },
    "trained": {
        "all": (),
        "averages": ("train: ema_decay = 0.9",),
        "not the first layer": ('freeze: "FIRST" -> frozen',),
        "not the embedding": ('freeze: "EMBEDDING" -> frozen',),
        "lora": ("adapter: kind = lora(rank = 4, alpha = 8, dropout = 0.1)", _ADAPTED),
        "dora": ("adapter: kind = lora(rank = 4, alpha = 8, dora = true)", _ADAPTED),
        "lora in float32": (_LORA, "adapter: dtype = float32", _ADAPTED),
        "lora and norms": (_LORA, _ADAPTED, 'freeze: "NORMS" -> trained'),
        "qlora": (_LORA, "adapter: base = nf4", _ADAPTED),
    },
    "data": {
        "attend": (_TEXT, "data: packing = attend"),
        "isolate": (_TEXT, "data: packing = isolate"),
        "whole": (_TEXT, "data: packing = whole", "data: too_long = truncate"),
        "pairs": (f'data: source = pairs("{PAIRS}", template = none)', "train: loss = dpo(beta = 0.2)"),
    },
    "loss": {
        "plain": (),
        "chunks": ("train: loss_chunks = 2",),
        "chunks by size": ("train: loss_chunks = auto",),
        "smoothed": ("train: loss = cross_entropy(label_smoothing = 0.1, z_loss = 1e-3)",),
        "distilled": (_DISTILLED,),
    },
    "around": {
        "nothing": (),
        "profile": ("profile: first_step = 2", "profile: last_step = 3"),
        "guard": ("guard: nonfinite = skip(at_most = 2)", "guard: replicas_every = 1 steps"),
        "logs": ("logging: per_rank = true", "train: log_every = 2 steps"),
        "evaluation": (
            f'data: eval "held" {{ source = jsonl("{CORPUS}"), every = 2 steps, sequences = 4 }}',
        ),
    },
    "saves": {
        "none": (),
        "resumed": (f"checkpoint: save_every = {SAVED_STEP} steps",),
        "resumed, in the background": (
            *(f"checkpoint: save_every = {SAVED_STEP} steps", "checkpoint: mode = async"),
        ),
        "exported": ("checkpoint: save_every = 100 steps", 'checkpoint: export "hf" { when = end }'),
    },
    "micro-batches": {"1": (), "2": (), "4": ()},
}


def base_row() -> Row:
    """The first value of each axis."""
    return {axis: next(iter(values)) for axis, values in AXES.items()}


def random_row(draw: random.Random, *, plain: float = 0.0) -> Row:
    """A value of each axis, drawn evenly, but the first one of a share of the axes."""
    return {
        axis: next(iter(values)) if draw.random() < plain else draw.choice([*values])
        for axis, values in AXES.items()
    }


def world_size(row: Row, *, dims: str = "") -> int:
    """The ranks of the row's mesh, or of its dims that begin with `dims`."""
    sizes = (part.removeprefix("mesh: ") for part in AXES["mesh"][row["mesh"]] if part.startswith("mesh: "))
    return prod(int(size.partition(" = ")[2]) for size in sizes if size.startswith(dims))


def on_one_rank(row: Row) -> Row:
    """The same training in one process."""
    return {**row, "mesh": "one", "fsdp": "layers"}


def plan_text(row: Row) -> str:
    """The row's plan."""
    model = _WITHOUT_HEAD.get(row["model"]) or MODELS[row["model"].split()[-1]]
    num_batches = world_size(row, dims="dp_") * int(row["micro-batches"])
    blocks: dict[str, list[str]] = {
        "model": ["seed = 1"],
        "data": [f"sequence_length = {LENGTH}", f"micro_batch = {max(SEQUENCES // num_batches, 1)}"],
        "optimizer": ["clip_grad_norm = 1.0"],
        "train": [f"steps = {NUM_STEPS}", f"tokens_per_step = {SEQUENCES * LENGTH}"],
    }
    has_own_data = any(part.startswith("data: ") for part in AXES["model"][row["model"]])
    for axis, value in row.items():
        for part in () if axis == "data" and has_own_data else AXES[axis][value]:
            block, _, line = part.partition(": ")
            blocks.setdefault(block, []).append(line)
    text = "".join(f"{block} {{\n  {chr(10).join(lines)}\n}}\n" for block, lines in blocks.items())
    words = {
        "LAYERS": model.layers,
        "FIRST": model.layers.replace("*", "0"),
        "EMBEDDING": model.embedding,
        "LINEARS": f"{model.layers}.{model.linears}",
        "PART": f"{model.layers}.{model.part}",
        "NORMS": f"{model.layers}.{model.norms}",
        "EXPERTS": f"{model.layers}.{model.experts}",
    }
    for word, pattern in words.items():
        text = text.replace(word, pattern)
    return text


def rows(is_accepted: Callable[[Row], bool], *, seed: int) -> Iterator[tuple[Row, int]]:
    """Accepted rows, each with pairs of values that met in none before it, and how many those are.

    Ends when no pair is missing but those of which every row that was tried is refused.
    """
    draw = random.Random(seed)
    axes = [[(axis, value) for value in values] for axis, values in AXES.items()]
    missing = {pair: 0 for one, other in combinations(axes, 2) for pair in product(one, other)}
    while missing:
        pair = draw.choice([*missing])
        plain = missing[pair] / _TRIES
        drawn = [{**random_row(draw, plain=plain), **dict(pair)} for _ in range(_CANDIDATES)]
        row = max(drawn, key=lambda row: sum(one in missing for one in _pairs(row)))
        new = [one for one in _pairs(row) if one in missing]
        if is_accepted(row):
            for one in new:
                del missing[one]
            yield row, len(new)
        elif missing[pair] == _TRIES:
            del missing[pair]
        else:
            missing[pair] += 1


def _pairs(row: Row) -> list[Pair]:
    return [*combinations(row.items(), 2)]
