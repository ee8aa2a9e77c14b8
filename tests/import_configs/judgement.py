"""What configs train by a reading of their own, next to what their imports train: `python -m` this module.

Every config is of a shape that people use. What it trains is written down by hand, from the documents and the
source of its tool: nothing here reads a default of planc or a row of an importer. The import's side is the
graph that its plan compiles to. A config is "the same", or refused at the keys named here, or CHANGED.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from planc.api import check_source
from planc.graph.ops import (
    AttachAdapters,
    BuildModel,
    BuildOptimizer,
    BuildPreferenceLoss,
    BuildSchedule,
    ClipGradients,
    FreezeParameters,
    FullyShard,
    OpenData,
)
from planc.hub.user_dirs import cache_dir
from planc.import_configs import facts
from planc.import_configs.detect import Undetected
from planc.import_configs.importing import Result, import_config
from planc.import_configs.kind import NoteKind
from planc.import_configs.lowering import Target
from planc.inventory.known import KnownModels
from planc.runtime.schedule import learning_rate_factor
from planc.source import SourceFile
from planc.tables import render_table
from tests.import_configs.reading import MATRICES, NORMS, Case, Rate, Training
from tests.import_configs.shapes import SHAPES

MODEL = Path(__file__).parents[2] / "plans/models/tiny-llama"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
)


def judged(case: Case, folder: Path) -> tuple[str, str]:
    """What the import trains, or that it was refused; and the verdict."""
    inventory = KnownModels(folder, cache_dir()).get("model")
    options = {getattr(facts, name): value for name, value in case.options.items()}
    result = import_config(
        {name: text.encode() for name, text in case.files.items()},
        from_kind=None,
        options={facts.MODEL: "model", **options},
        target=Target(lambda name: False, has_tokenizer=True, inventory=inventory),
        accepted=case.accepted,
    )
    assert not isinstance(result, Undetected), result
    if isinstance(case.expected, frozenset):
        return _refusal(result, case.expected)
    if result.text is None:
        causes = [note.key for note in result.refused] + [one.what for one in result.missing]
        return f"refused: {', '.join(causes)[:60]}", "REFUSED WITHOUT NEED"
    found = _trained(result, folder)
    differences = _differences(case.expected, found, result)
    return _shown(found), "the same" if not differences else f"CHANGED: {'; '.join(differences)}"


def _refusal(result: Result, expected: frozenset[str]) -> tuple[str, str]:
    keys = {note.key for note in result.refused} | {
        note.key for note in result.notes if note.kind is NoteKind.WRONG
    }
    shown = f"refused: {', '.join(sorted(keys))}"
    if result.text is not None and not keys:
        return "a plan without a word", "CHANGED: it should be refused"
    return shown, "refused" if expected <= keys else f"REFUSED FOR ANOTHER REASON than {sorted(expected)}"


def _trained(result: Result, folder: Path) -> dict[str, Any]:
    """What the graph of the imported plan trains."""
    assert result.text is not None
    checked = check_source(SourceFile("imported.plan", result.text), base=folder)
    errors = [f"{one.code.code} {one.code.summary}" for one in checked.diagnostics if one.severity == "error"]
    assert checked.draft is not None and not errors, errors
    graph, plan = checked.draft.graph, checked.draft.bound.plan
    ops: dict[type, Any] = {type(op): op for op in (*graph.setup, *graph.step)}
    optimizer, adapters, data = ops[BuildOptimizer], ops.get(AttachAdapters), ops[OpenData]
    units = ops.get(FullyShard)
    source = data.source
    what = f"chat:{source.train_on}" if source.kind == "chat" else "text"
    if (loss := ops.get(BuildPreferenceLoss)) is not None:
        what = f"pairs, beta {loss.beta}, smoothing {loss.label_smoothing}"
    compute = units.param_dtype if units is not None and units.param_dtype else ops[BuildModel].dtype
    return {
        "schedule": ops[BuildSchedule],
        "epochs": data.epochs,
        "rates": {group.lr for group in optimizer.groups},
        "decay": {name: group.weight_decay for group in optimizer.groups for name in group.parameters},
        "clip": ops[ClipGradients].max_norm if ClipGradients in ops else None,
        "compute": str(compute),
        "data": what,
        "weights": str(plan.model.weights),
        "adapters": frozenset(adapters.modules) if adapters else frozenset(),
        "lora": (adapters.rank, adapters.alpha, adapters.dropout, adapters.rslora) if adapters else None,
        "dora": adapters.dora if adapters else False,
        "frozen": frozenset(ops[FreezeParameters].parameters) if FreezeParameters in ops else frozenset(),
        "shards": {str(dim): size for dim, size in graph.init_mesh.sizes}.get("dp_shard", 1),
        "tokens": data.global_batch * data.sequence_length,
        "optimizer": type(optimizer.settings).__name__,
        "betas": tuple(getattr(optimizer.settings, "betas", ())),
    }


def _differences(expected: Training, found: Mapping[str, Any], result: Result) -> list[str]:
    names = (
        "clip",
        "compute",
        "data",
        "weights",
        "adapters",
        "lora",
        "dora",
        "shards",
        "optimizer",
        "epochs",
    )
    wanted = [(name, getattr(expected, name), found[name]) for name in names]
    frozen = expected.frozen or (MATRICES | NORMS if expected.adapters else frozenset())
    parts = ("lora_A", "lora_B", "lora_magnitude_vector")[: 2 + expected.dora]
    trained = (MATRICES | NORMS) - frozen | {
        f"{fqn}.{part}.weight" for fqn in expected.adapters for part in parts
    }
    decays = {name for name, value in found["decay"].items() if value}
    is_decayed = expected.decayed if not expected.adapters else trained
    wanted += [
        ("frozen", frozen, found["frozen"]),
        ("trained", trained, set(found["decay"])),
        ("decayed", set(is_decayed) & trained if expected.decay else set(), decays),
        ("decay", {expected.decay} - {0.0}, {value for value in found["decay"].values() if value}),
        ("tokens of a step", expected.tokens, found["tokens"]),
        ("peak", {expected.rate.peak if expected.rate else expected.peak}, found["rates"]),
    ]
    if found["betas"]:
        wanted.append(("betas", expected.betas, found["betas"]))
    texts = [f"{name} {ours} is not {theirs}" for name, theirs, ours in wanted if theirs != ours]
    if expected.rate is not None:
        texts += _other_rates(expected.rate, found["schedule"], result)
    return [text[:300] for text in texts]


def _other_rates(rate: Rate, schedule: BuildSchedule, result: Result) -> list[str]:
    """Five steps whose rates differ: within warm-up, a step's shift must stand among the notes."""
    if schedule.num_steps != rate.steps:
        return [f"{schedule.num_steps} steps are not {rate.steps}"]
    texts = []
    steps = (1, max(1, rate.warmup), rate.warmup + 1, (rate.warmup + rate.steps) // 2, rate.steps)
    is_noted = any(f"has k / {rate.warmup} of the peak" in note.text for note in result.notes)
    for step in steps:
        ours = rate.peak * learning_rate_factor(schedule, step=step)
        shift = rate.peak / rate.warmup if step <= rate.warmup and is_noted and not rate.starts_at else 0.0
        if not math.isclose(ours, rate.at(step) + shift, rel_tol=1e-9, abs_tol=1e-15):
            texts.append(f"lr at step {step} is {ours:.4g}, not {rate.at(step):.4g}")
    return texts


def _shown(found: Mapping[str, Any]) -> str:
    schedule = found["schedule"]
    length = f"{found['epochs']} epochs" if found["epochs"] else f"{schedule.num_steps} steps"
    decays = sorted(set(found["decay"].values()))
    parts = [
        f"{length}, {schedule.kind}, lr {min(found['rates']):g}",
        f"decay {'/'.join(f'{value:g}' for value in decays)}, clip {found['clip']}, {found['compute']}",
        f"{found['data']}, {found['weights']}",
    ]
    if found["lora"]:
        parts.append(f"{'DoRA' if found['dora'] else 'LoRA'} {found['lora'][0]} on {len(found['adapters'])}")
    if found["frozen"] and not found["lora"]:
        parts.append(f"{len(found['frozen'])} frozen")
    return "; ".join(parts)


def workspace(folder: Path) -> Path:
    """A folder with the model, a tokenizer with a template, and data."""
    shutil.copytree(MODEL, folder / "model")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        [], BpeTrainer(special_tokens=["<|end|>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    )
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def verdicts(cases: Sequence[Case]) -> list[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = workspace(Path(name))
        return [(case.name, *judged(case, folder)) for case in cases]


def main() -> int:
    rows = verdicts(SHAPES)
    print(render_table([("config", "what the import trains", "verdict"), *rows]))
    num_changed = sum(verdict not in ("the same", "refused") for _, _, verdict in rows)
    same = sum(verdict == "the same" for _, _, verdict in rows)
    num_refused = len(rows) - same - num_changed
    print(f"{len(rows)} configs: {same} the same, {num_refused} refused, {num_changed} changed")
    return 1 if num_changed else 0


if __name__ == "__main__":
    sys.exit(main())
