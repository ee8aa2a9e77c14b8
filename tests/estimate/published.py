"""The estimate's peak against peaks that others published: `make estimate-accuracy`.

The rows are torchtitan's, dense models without pipeline or expert parallelism, `max reserved` on H100 with
expandable segments, from its benchmarks and its commits' messages. They were run by torchtitan and not by
planc, so each row has two estimates:

    as printed   what `planc estimate` prints for a plan of the row
    adjusted     for what the run was: compiled code writes no squares of a norm

float8 enters as bfloat16 in both. Every coefficient is a count of live tensors, none a fit; but the rows
were in view while the tensors were counted, so rows that are not here judge better.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from statistics import mean, median

from planc.estimate.estimate import estimate, pieces_of
from planc.estimate.gaps import SQUARES
from planc.estimate.peak import Pieces, peak_bytes
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.units import units
from planc.inventory.load import load_inventory
from planc.inventory.schema import Inventory, Kind, Module, Parameter
from planc.lower import draft_graph
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from tests.plans import PLANS

ROWS = Path(__file__).with_name("published_peaks.csv")
DEVICE_GIB = 95
"""What the devices of the rows that ran out of memory have."""

SEQUENCE_PARALLEL = """tensor_parallel on tp {
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

COMPILE = """compile {
  loss = false
  "model.layers.*" -> region
}
"""

_RECOMPUTE: Mapping[str, str] = {"full": "full", "selective-op": "selective", "none": "none"}


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


Row = Mapping[str, str]
Alter = Callable[[Pieces], Pieces]


def rows() -> tuple[Row, ...]:
    """Every published row."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def scores(*, change: Callable[[Row], Row] = dict, alter: Alter = lambda pieces: pieces) -> tuple[Score, ...]:
    """Every row with its adjusted estimate, in GiB. `change` and `alter` put in what the run was not."""
    return tuple(_scored(row, peak_bytes(alter(_pieces(change(row))))) for row in rows())


def printed() -> tuple[Score, ...]:
    """Every row with the peak that `planc estimate` prints for a plan of the row."""
    return tuple(_scored(row, _printed(row)) for row in rows())


def _printed(row: Row) -> int:
    work = _work(row)
    return estimate(work.graph, work.inventory).memory.peak.num_bytes


def _scored(row: Row, peak: float) -> Score:
    shape = " ".join(f"{name} {row[name]}" for name in ("dp_shard", "cp", "tp") if row[name] != "1")
    kind = f"{row['recompute']}{', compiled' if row['compiled'] == '1' else ''}"
    name = f"{row['model']} {row['sequence']} x {row['local_batch']}, {shape}, {kind}"
    published = None if row["peak_gib"] == "OOM" else float(row["peak_gib"])
    return Score(name, published, peak / 2**30)


def _pieces(row: Row) -> Pieces:
    work = _work(row)
    pieces = pieces_of(work, units(work))
    if row["compiled"] == "1":
        # The compiler fuses a norm, and never writes its squares.
        pieces = replace(pieces, gaps=tuple(gap for gap in pieces.gaps if gap.name != SQUARES))
    return pieces


def _work(row: Mapping[str, str]) -> RankWork:
    file, problems = parse(SourceFile("row.plan", _plan(row)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory = sized_inventory(row)
    return rank_work(draft_graph(bind(plan, inventory)), inventory)


def _plan(row: Mapping[str, str]) -> str:
    """torchtitan's: layers are units, resharded but for the last by default; older versions had no other."""
    last = int(row["layers"]) - 1
    return f"""model {{ hf = "models/tiny-llama" }}
mesh {{
  dp_shard = {row["dp_shard"]}
  cp = {row["cp"]}
  tp = {row["tp"]}
}}
{SEQUENCE_PARALLEL if row["tp"] != "1" else ""}
fsdp on dp_shard, cp {{
  param_dtype = bfloat16
  reduce_dtype = float32
  "model.layers.{{0..{last - 1}}}" -> unit(reshard_after_forward = {str(row["reshard"] != "never").lower()})
  "model.layers.{last}" -> unit(reshard_after_forward = {str(row["reshard"] == "always").lower()})
{_HEAD_UNITS if row["root_unit"] == "separate" else ""}}}
context_parallel on cp {{
  rotate = allgather
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}}
activation_checkpoint {{
  "model.layers.*" -> {_RECOMPUTE[row["recompute"]]}
}}
{COMPILE if row["compiled"] == "1" else ""}
data {{
  source = python_stdlib()
  sequence_length = {row["sequence"]}
  micro_batch = {row["local_batch"]}
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{ steps = 10 }}
"""


def sized_inventory(row: Row, *, is_plain: bool = False) -> Inventory:
    """The small Llama's structure with a row's sizes and number of layers.

    A plain one is as GPT's and MPT's: an MLP without a gate, nn.LayerNorm, and no rotary embedding.
    """
    small = load_inventory(PLANS / "models" / "tiny-llama", cache_dir=PLANS).inventory
    original = [*map(_plain, filter(_is_plain, small.modules))] if is_plain else small.modules
    layer = "model.layers."
    template = [module for module in original if f"{module.fqn}.".startswith(f"{layer}1.")]
    modules: list[Module] = []
    for module in original:
        if not module.fqn.startswith(layer):
            modules.append(_sized(_after(module, f"{layer}{int(row['layers']) - 1}"), row))
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


def _is_plain(module: Module) -> bool:
    return not module.fqn.endswith("gate_proj") and "Rotary" not in module.class_name


def _plain(module: Module) -> Module:
    return replace(
        module,
        class_name="LayerNorm" if module.kind is Kind.NORM else module.class_name,
        sources=tuple(source for source in module.sources if not source.endswith("gate_proj")),
    )


def _after(module: Module, last: str) -> Module:
    """A module outside of the layers, reading the last one where it read the small model's."""
    sources = tuple(last if one.startswith("model.layers.") else one for one in module.sources)
    return replace(module, sources=sources)


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
    parameters = tuple(Parameter(one.name, shape) for one in module.parameters)
    # What its code keeps at another size was not measured: the rules by widths count it.
    return replace(module, parameters=parameters, own_code=None, eager_code=None)


def parameters_alone(row: Row) -> float:
    """A baseline: 16 bytes for each parameter, over all ranks."""
    inventory = sized_inventory(row)
    return 16 * inventory.num_parameters / (int(row["dp_shard"]) * int(row["cp"]) * int(row["tp"]))


def megatron(row: Row) -> float:
    """A baseline: the same, and 34 h / tp bytes a token and layer (Korthikanti, selective recomputation)."""
    tokens = int(row["sequence"]) * int(row["local_batch"]) / int(row["cp"])
    return parameters_alone(row) + tokens * int(row["layers"]) * 34 * int(row["hidden"]) / int(row["tp"])


def _flip_recompute(row: Row) -> Row:
    return {**row, "recompute": "none" if row["recompute"] == "full" else "full"}


def _flip_reshard(row: Row) -> Row:
    return {**row, "reshard": "always" if row["reshard"] == "never" else "never"}


def _drop_a_loss_tensor(pieces: Pieces) -> Pieces:
    """Without one of the loss's float32 tensors, of about four."""
    return replace(pieces, loss=pieces.loss * 3 // 4)


def controls() -> Iterator[tuple[str, tuple[Score, ...]]]:
    """(what is wrong on purpose, the scores then): estimates of other runs than the published ones."""
    yield "recompute flipped", scores(change=_flip_recompute)
    yield "reshard flipped", scores(change=_flip_reshard)
    yield "a loss tensor less", scores(alter=_drop_a_loss_tensor)
    yield "no activations", scores(alter=lambda pieces: replace(pieces, activations=0))


def baselines() -> Iterator[tuple[str, tuple[Score, ...]]]:
    """(formula, its scores on the same rows)."""
    for name, formula in (("16 P / world", parameters_alone), ("16 P / world + 34 h", megatron)):
        yield name, tuple(_scored(row, formula(row)) for row in rows())


def errors_of(found: tuple[Score, ...]) -> list[float]:
    """Signed relative errors of the rows that ran."""
    return [score.error for score in found if score.published_gib is not None]


def p90(errors: list[float]) -> float:
    """The error that nine rows of ten stay within."""
    return sorted(map(abs, errors))[ceil(0.9 * len(errors)) - 1]


def confusion(found: tuple[Score, ...]) -> Mapping[str, int]:
    """How often the estimate and the run agree on the device's memory."""
    labels = [(score.published_gib is not None, score.estimated_gib <= DEVICE_GIB) for score in found]
    names = {
        "ran, estimated to": (True, True),
        "ran, estimated not to": (True, False),
        "did not, estimated to": (False, True),
        "did not, estimated not to": (False, False),
    }
    return {name: labels.count(label) for name, label in names.items()}


def report(found: tuple[Score, ...], as_printed: tuple[Score, ...]) -> Iterator[str]:
    """A line a row, the errors of those that ran, out-of-memory labels, controls and baselines."""
    yield f"{'':<68}{'GiB':>7}{'as printed':>20}{'adjusted':>20}"
    for score, plain in zip(found, as_printed, strict=True):
        published = "    OOM" if score.published_gib is None else f"{score.published_gib:7.2f}"
        yield f"{score.name:<68}{published}{_column(plain)}{_column(score)}".rstrip()
    for name, ones in (("as printed", as_printed), ("adjusted", found)):
        yield _summary(f"planc, {name}", ones)
        labels = ", ".join(f"{label} {count}" for label, count in confusion(ones).items())
        yield f"on {DEVICE_GIB} GiB, {name}: {labels}"
    for name, wrong in controls():
        yield _summary(f"control, {name}", wrong)
    for name, other in baselines():
        yield _summary(f"baseline, {name}", other)


def _column(score: Score) -> str:
    error = "" if score.published_gib is None else f"{100 * score.error:+.1f} %"
    return f"{score.estimated_gib:11.2f}{error:>9}"


def _summary(name: str, found: tuple[Score, ...]) -> str:
    errors = errors_of(found)
    sizes = [abs(error) for error in errors]
    values = (
        ("mean", mean(sizes)),
        ("median", median(sizes)),
        ("p90", p90(errors)),
        ("max", max(sizes)),
        ("bias", mean(errors)),
        ("lowest", min(errors)),
    )
    text = ", ".join(f"{label} {100 * value:.1f} %" for label, value in values)
    return f"{name}, {len(errors)} rows: {text}"


if __name__ == "__main__":
    print("\n".join(report(scores(), printed())))
