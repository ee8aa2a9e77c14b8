"""The estimate's peak against peaks that others published: `python -m tests.estimate.published`.

The rows are torchtitan's, dense models without pipeline or expert parallelism, `max reserved` on H100 with
expandable segments. They were run by torchtitan and not by planc: selective recomputation, which planc does
not have, enters as the bytes that torchtitan's policy keeps. Nothing in planc was fitted to them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from planc.estimate.estimate import pieces_of
from planc.estimate.peak import Pieces, peak_bytes
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.units import units
from planc.inventory.load import load_inventory
from planc.inventory.schema import Inventory, Module, Parameter
from planc.lower import draft_graph
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from tests.plans import PLANS

ROWS = Path(__file__).with_name("published_peaks.csv")
DEVICE_GIB = 95
"""What the devices of the rows that ran out of memory have."""

_TENSOR_PARALLEL = """tensor_parallel on tp {
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.{gate,up}_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))
  "model.norm" -> sequence_parallel
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
}
"""
_HEAD_UNITS = """  "model.embed_tokens" -> unit
  ["model.norm", "lm_head"] -> unit(reshard_after_forward = false)
"""


@dataclass(frozen=True, slots=True)
class Score:
    """One row. `published_gib` is None where the run did not fit."""

    name: str
    published_gib: float | None
    estimated_gib: float

    @property
    def error(self) -> float:
        """Relative, signed; rows that did not fit have none."""
        assert self.published_gib is not None
        return self.estimated_gib / self.published_gib - 1


def scores() -> tuple[Score, ...]:
    """Every row with its estimate, in GiB."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(map(_score, csv.DictReader(file)))


def _score(row: Mapping[str, str]) -> Score:
    work = _work(row)
    pieces = pieces_of(work, units(work))
    if row["recompute"] == "selective-op":
        pieces = _selective(pieces, row, work)
    shape = " ".join(f"{name} {row[name]}" for name in ("dp_shard", "cp", "tp") if row[name] != "1")
    name = f"{row['model']} {row['sequence']} x {row['local_batch']}, {shape}, {row['recompute']}"
    published = None if row["peak_gib"] == "OOM" else float(row["peak_gib"])
    return Score(name, published, peak_bytes(pieces) / 2**30)


def _work(row: Mapping[str, str]) -> RankWork:
    file, problems = parse(SourceFile("row.plan", _plan(row)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory = _inventory(row)
    return rank_work(draft_graph(bind(plan, inventory)), inventory)


def _plan(row: Mapping[str, str]) -> str:
    """torchtitan's: layers are units, the last of them and the root stay gathered until backward."""
    last = int(row["layers"]) - 1
    return f"""model {{ hf = "models/tiny-llama" }}
mesh {{
  dp_shard = {row["dp_shard"]}
  cp = {row["cp"]}
  tp = {row["tp"]}
}}
{_TENSOR_PARALLEL if row["tp"] != "1" else ""}
fsdp on dp_shard, cp {{
  param_dtype = bfloat16
  reduce_dtype = float32
  "model.layers.{{0..{last - 1}}}" -> unit
  "model.layers.{last}" -> unit(reshard_after_forward = false)
{_HEAD_UNITS if row["root_unit"] == "separate" else ""}}}
context_parallel on cp {{
  rotate = allgather
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}}
activation_checkpoint {{
  "model.layers.*" -> {"full" if row["recompute"] == "full" else "none"}
}}
data {{
  source = python_stdlib()
  sequence_length = {row["sequence"]}
  micro_batch = {row["local_batch"]}
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{ steps = 10 }}
"""


def _inventory(row: Mapping[str, str]) -> Inventory:
    """The small Llama's structure with a row's sizes and number of layers."""
    small = load_inventory(PLANS / "models" / "tiny-llama", cache_dir=PLANS).inventory
    layer = "model.layers."
    template = [module for module in small.modules if f"{module.fqn}.".startswith(f"{layer}1.")]
    modules: list[Module] = []
    for module in small.modules:
        if not module.fqn.startswith(layer):
            modules.append(_sized(module, row))
        elif module.fqn == f"{layer}0":
            modules.extend(
                _sized(_moved(one, index), row) for index in range(int(row["layers"])) for one in template
            )
    (attention,) = {replace(one, fqn="") for one in small.attentions}
    sized = replace(
        attention,
        num_heads=int(row["heads"]),
        num_kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
    )
    return replace(
        small,
        vocab_size=int(row["vocab"]),
        hidden_size=int(row["hidden"]),
        modules=tuple(modules),
        attentions=tuple(
            replace(sized, fqn=f"{layer}{index}.self_attn") for index in range(int(row["layers"]))
        ),
    )


def _moved(module: Module, index: int) -> Module:
    """Layer 1's module as another layer's; the first reads the embedding, where others read a layer."""

    def moved(fqn: str) -> str:
        if fqn == "model.layers.0":
            return f"model.layers.{index - 1}" if index else "model.embed_tokens"
        return fqn.replace("model.layers.1", f"model.layers.{index}", 1)

    return replace(
        module,
        fqn=moved(module.fqn),
        sources=tuple(map(moved, module.sources)),
        returns=tuple(map(moved, module.returns)),
    )


def _sized(module: Module, row: Mapping[str, str]) -> Module:
    hidden, ffn, vocab = (int(row[name]) for name in ("hidden", "ffn", "vocab"))
    query, key = (int(row[name]) * int(row["head_dim"]) for name in ("heads", "kv_heads"))
    shapes: Mapping[str, tuple[int, ...]] = {
        "embed_tokens": (vocab, hidden),
        "lm_head": (vocab, hidden),
        "q_proj": (query, hidden),
        "k_proj": (key, hidden),
        "v_proj": (key, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (ffn, hidden),
        "up_proj": (ffn, hidden),
        "down_proj": (hidden, ffn),
    }
    shape = shapes.get(module.fqn.rpartition(".")[2], (hidden,))
    return replace(module, parameters=tuple(Parameter(one.name, shape) for one in module.parameters))


def _selective(pieces: Pieces, row: Mapping[str, str], work: RankWork) -> Pieces:
    """torchtitan's policy keeps every second matmul's output, attention's, and a layer's input.

    Bytes a token and layer: 2h/t + 2(2q+k+f)/t + 2h + 4a/t, and 4h gathered under sequence parallelism.
    """
    hidden, ffn, heads, tp = (int(row[name]) for name in ("hidden", "ffn", "heads", "tp"))
    query, key = (int(row[name]) * int(row["head_dim"]) for name in ("heads", "kv_heads"))
    layer = (2 * hidden + 2 * (2 * query + key + ffn) + 4 * heads) / tp + 2 * hidden
    layer += 4 * hidden if tp > 1 else 0
    head = 6 * hidden / tp + 2 * hidden
    kept = work.num_tokens * (int(row["layers"]) * layer + head)
    whole = (pieces.activations - work.num_tokens * head) / int(row["layers"])
    return replace(pieces, activations=int(kept), recomputed=int(whole - work.num_tokens * layer))


def report(found: tuple[Score, ...]) -> Iterator[str]:
    """A line a row, then the errors of those that ran."""
    for score in found:
        published = "    OOM" if score.published_gib is None else f"{score.published_gib:7.2f}"
        error = "" if score.published_gib is None else f"{100 * score.error:+6.1f} %"
        yield f"{score.name:<60}{published}{score.estimated_gib:9.2f} GiB  {error}"
    errors = [score.error for score in found if score.published_gib is not None]
    sizes = [abs(error) for error in errors]
    yield (
        f"{len(errors)} rows: mean {100 * mean(sizes):.1f} %, median {100 * median(sizes):.1f} %, "
        f"max {100 * max(sizes):.1f} %, bias {100 * mean(errors):+.1f} %"
    )


if __name__ == "__main__":
    print("\n".join(report(scores())))
