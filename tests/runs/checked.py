"""Every two features of a plan together: `python -m tests.soundness.features [--random N] [--seed S]`.

Each plan is checked for a model without weights and, if it is accepted, compiled, verified and estimated. A
refusal is an answer; an exception is not. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations
from math import prod
from random import Random

from planc.api import check_source
from planc.diagnostics import Severity
from planc.fmt.format import format_source
from planc.graph.graph import plan_hash
from planc.graph.verify import verify
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from planc.tables import render_table
from tests.plans import PLANS

_UNITS = "fsdp on dp_shard, cp {\n  replicate_on = dp_replicate\n  {layers} -> unit\n"
_IN_BFLOAT16 = "  param_dtype = bfloat16\n  reduce_dtype = float32\n"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that ships, and what a plan names of it."""

    folder: str
    layers: str = "model.layers.*"
    adapted: str = "self_attn.{q_proj,v_proj}"
    norms: str = "{input_layernorm,post_attention_layernorm}"
    embedding: str = "model.embed_tokens"
    line: str = ""
    """Of the block `model`."""
    source: str = "python_stdlib()"


_BERT = ("tiny-bert", "bert.encoder.layer.*", "attention.self.{query,value}", "output.LayerNorm")
_OF_BERT = "bert.embeddings.word_embeddings"
MODELS: Mapping[str, Model] = {
    "llama": Model("tiny-llama"),
    "tied": Model("tiny-llama-tied"),
    "experts": Model("tiny-qwen3-moe"),
    "gemma": Model("tiny-gemma2"),
    "gpt2": Model("tiny-gpt2", "transformer.h.*", "attn.c_proj", "{ln_1,ln_2}", "transformer.wte"),
    "phi3": Model("tiny-phi3", adapted="self_attn.o_proj"),
    "latent": Model("tiny-deepseek-v3", adapted="self_attn.o_proj"),
    "masked": Model(*_BERT, _OF_BERT, "task = masked_lm()"),
    "classes": Model(*_BERT, _OF_BERT, "task = sequence_classification(labels = 3)", 'labeled("rows.jsonl")'),
    "words": Model(*_BERT, _OF_BERT, "task = token_classification(labels = 3)", 'labeled("rows.jsonl")'),
}


def _adapter(settings: str) -> str:
    return f'adapter {{\n  {settings}\n  "{{adapted}}" -> adapted\n}}\n'


TRAINED: Mapping[str, str] = {
    "all": "",
    "above the embeddings": 'freeze {\n  "{embedding}" -> frozen\n}\n',
    "upper layers": 'freeze {\n  "{lower}" -> frozen\n}\n',
    "adapters": _adapter("kind = lora(rank = 2, alpha = 4)"),
    "adapters in float32": _adapter("kind = lora(rank = 2, alpha = 4)\n  dtype = float32"),
    "adapters of 4 bits": _adapter("kind = lora(rank = 2, alpha = 4)\n  base = nf4"),
    "lengths and dropout": _adapter("kind = lora(rank = 2, alpha = 4, dora = true, dropout = 0.1)"),
    "adapters and norms": _adapter("kind = lora(rank = 2, alpha = 4)")
    + 'freeze {\n  "{norms}" -> trained\n}\n',
}
MESHES: Mapping[str, str] = {
    "one": "",
    "dp 4": "dp_shard = 4",
    "replicas": "dp_replicate = 4",
    "dp 2 x 2": "dp_replicate = 2\ndp_shard = 2",
    "tp 2": "tp = 2",
    "tp 2 of sequences": "tp = 2",
    "cp 2, ring": "cp = 2",
    "cp 2, allgather": "cp = 2",
    "cp 2, ulysses": "cp = 2",
    "pp 2": "pp = 2",
    "pp 2, interleaved": "pp = 2",
    "pp 2, zero bubble": "pp = 2",
    "pp 4": "pp = 4",
    "ep 2": "dp_shard = 2",
    "dp 2, tp 2": "dp_shard = 2\ntp = 2",
    "dp 2, pp 2, tp 2": "dp_shard = 2\npp = 2\ntp = 2",
}
BLOCKS: Mapping[str, str] = {
    "tp 2": "tensor_parallel on tp { auto }\n",
    "tp 2 of sequences": "tensor_parallel on tp { auto(sequence_parallel = true) }\n",
    **{f"cp 2, {way}": f"context_parallel on cp {{ rotate = {way} }}\n" for way in ("ring", "allgather")},
    "cp 2, ulysses": "context_parallel on cp { rotate = ulysses }\n",
    "pp 2": "pipeline on pp {}\n",
    "pp 2, interleaved": "pipeline on pp { schedule = interleaved(stages_per_rank = 2) }\n",
    "pp 2, zero bubble": "pipeline on pp { schedule = zero_bubble }\n",
    "pp 4": "pipeline on pp {}\n",
    "ep 2": "expert_parallel on dp_shard {\n  size = 2\n  auto\n}\n",
    "dp 2, tp 2": "tensor_parallel on tp { auto }\n",
    "dp 2, pp 2, tp 2": "tensor_parallel on tp { auto }\npipeline on pp {}\n",
}
HOW: Mapping[str, str] = {
    "plain": "",
    **{
        f"recompute {way}": f"activation_checkpoint {{\n  {{layers}} -> {way}\n}}\n"
        for way in ("full", "selective")
    },
    "offload": "activation_checkpoint {\n  {layers} -> offload\n}\n",
    "compiled": "compile {\n  {layers} -> region\n}\n",
    "skips spikes": "guard {\n  loss_spike = skip()\n  replicas_every = 2 steps\n}\n",
    "exports": 'checkpoint {\n  save_every = 1 steps\n  export "hf" {}\n}\n',
}
DTYPES: Mapping[str, tuple[str, str | None]] = {
    "float32": ("float32", ""),
    "computed in bfloat16": ("float32", _IN_BFLOAT16),
    "bfloat16": ("bfloat16", _IN_BFLOAT16),
    "ZeRO-1": ("float32", "  reshard_after_backward = false\n"),
    "ZeRO-2": ("float32", "  reshard_after_backward = false\n  reduce_every = micro_batch\n"),
    "in host memory": ("float32", "  cpu_offload = true\n"),
    "no units": ("float32", None),
}
OPTIMIZERS: Mapping[str, str] = {
    "adamw": "adamw(lr = 1e-3)",
    "sgd": "sgd(lr = 1e-3, momentum = 0.9)",
    "muon": "muon(lr = 1e-2, rest = adamw(lr = 1e-3))",
    "8 bits": "adamw_8bit(lr = 1e-3)",
    "bfloat16 moments": "adamw_bf16(lr = 1e-3)",
}
LOSSES: Mapping[str, str] = {
    "one": "",
    "in chunks": "loss_chunks = 4",
    "chunks by size": "loss_chunks = auto",
    "smooth": "loss = cross_entropy(label_smoothing = 0.1, z_loss = 1e-4)",
    "distilled": 'loss = distillation(teacher = "models/tiny-llama", logits = "logits", top_k = 4)',
    "averaged": "ema_decay = 0.99",
}


@dataclass(frozen=True, slots=True)
class Features:
    """A plan by the names of its features."""

    model: str = "llama"
    trained: str = "all"
    mesh: str = "one"
    how: str = "plain"
    dtypes: str = "float32"
    optimizer: str = "adamw"
    loss: str = "one"
    micro_batches: str = "1"

    def __str__(self) -> str:
        plain = Features()
        names = (field.name for field in fields(self))
        named = [getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)]
        return ", ".join(named) or "plain"

    @property
    def text(self) -> str:
        model, (dtype, of_fsdp) = MODELS[self.model], DTYPES[self.dtypes]
        names = {
            "{layers}": f'"{model.layers}"',
            "{lower}": model.layers.replace("*", "{0..1}"),
            "{embedding}": model.embedding,
            "{adapted}": f"{model.layers}.{model.adapted}",
            "{norms}": f"{model.layers}.{model.norms}",
        }
        blocks = TRAINED[self.trained] + HOW[self.how] + ("" if of_fsdp is None else _UNITS + of_fsdp + "}\n")
        for name, value in names.items():
            blocks = blocks.replace(name, value)
        mesh = f"mesh {{\n{MESHES[self.mesh]}\n}}\n{BLOCKS.get(self.mesh, '')}" if MESHES[self.mesh] else ""
        sizes = dict(line.split(" = ") for line in MESHES[self.mesh].splitlines())
        ranks = prod(int(sizes.get(name, 1)) for name in ("dp_shard", "dp_replicate"))
        sequences = ranks * int(self.micro_batches) * (4 if "pp" in sizes else 1)
        return (
            f'model {{\n  hf = "models/{model.folder}"\n  dtype = {dtype}\n  dropout = false\n'
            f"  {model.line}\n}}\n"
            f"{mesh}{blocks}"
            f"data {{\n  source = {model.source}\n  sequence_length = 64\n  micro_batch = 1\n}}\n"
            f"optimizer {{ kind = {OPTIMIZERS[self.optimizer]} }}\n"
            f"train {{\n  steps = 2\n  tokens_per_step = {64 * sequences}\n  {LOSSES[self.loss]}\n}}\n"
            "hardware { gpu = h100 }\n"
        )


AXES: Mapping[str, tuple[str, ...]] = {
    "model": tuple(MODELS),
    "trained": tuple(TRAINED),
    "mesh": tuple(MESHES),
    "how": tuple(HOW),
    "dtypes": tuple(DTYPES),
    "optimizer": tuple(OPTIMIZERS),
    "loss": tuple(LOSSES),
    "micro_batches": ("1", "2"),
}


def pairs() -> Iterator[Features]:
    """Every two values of two axes, with the first values of the others."""
    found: dict[Features, None] = {}
    for (first, ours), (second, theirs) in combinations(AXES.items(), 2):
        for one in ours:
            for other in theirs:
                found[replace(Features(), **{first: one, second: other})] = None
    yield from found


def at_random(number: int, *, seed: int) -> Iterator[Features]:
    """Values of all axes, drawn evenly."""
    drawn = Random(seed)
    for _ in range(number):
        yield Features(**{name: drawn.choice(values) for name, values in AXES.items()})


def outcome(features: Features) -> str:
    """`accepted`, or the codes of the errors that refuse it. Raises what planc raises."""
    source = SourceFile("features.plan", features.text)
    checked = check_source(source, base=PLANS)
    formatted, _ = format_source(source)
    errors = [one.code.code for one in checked.diagnostics if one.severity is Severity.ERROR]
    if errors:
        return " ".join(dict.fromkeys(errors))
    assert formatted is not None and checked.bound is not None and checked.draft is not None
    assert not tuple(verify(checked.draft.graph)), "the graph of an accepted plan is sound"
    assert checked.draft.estimate.memory.peak.num_bytes > 0
    assert checked.draft.demand is not None
    again = check_source(SourceFile("features.plan", resolved_text(checked.bound)), base=PLANS)
    assert again.ok and again.graph is not None, f"the resolved plan is refused: {again.diagnostics[0]}"
    assert plan_hash(again.graph) == plan_hash(checked.draft.graph), "the resolved plan means the same"
    return "accepted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--random", type=int, default=1000, help="plans with values of all axes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    broken = 0
    for features in (*pairs(), *at_random(arguments.random, seed=arguments.seed)):
        try:
            counts[outcome(features)] += 1
        except Exception as error:
            broken += 1
            print(f"BROKEN {features}: {type(error).__name__}: {error}", flush=True)
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"  {place.filename.partition('planc/')[2]}:{place.lineno}", flush=True)
    print(render_table([(code, str(number)) for code, number in counts.most_common(30)]))
    total, accepted = counts.total(), counts["accepted"]
    print(f"{total + broken} plans: {accepted} accepted, {total - accepted} refused, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
