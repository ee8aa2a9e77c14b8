"""What forwards keep, as estimated and as rehearsed, by architecture.

`python -m tests.estimate.architectures` compares them in small models of every architecture that
transformers has, at the moment before the first layer's backward. No rule counts the tables of rotary
embeddings, which all layers share: in models as small as these they are 1 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.api import check_source
from planc.diagnostics.diagnostic import Severity
from planc.estimate.estimate import estimate
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

NUM_RANKS, TOKENS = 2, 4_096
LENGTHS = 256, 64
"""Of sequences: scans pad short ones, and some models have no positions for long ones."""
LIMIT = 0.03
_PLAN = """\
model {{
  hf = "model"
  weights = random{attention}
}}

mesh {{
  dp_shard = {ranks}
}}

fsdp on dp_shard {{
  param_dtype = bfloat16
  reduce_dtype = float32
  {units}
}}

{compilation}data {{
  source = text("data/*.txt")
  sequence_length = {length}
  micro_batch = {micro_batch}
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}

train {{
  steps = 10
  tokens_per_step = {tokens}
}}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture: what its layers keep, in bytes, or why that is not known."""

    model_type: str
    estimated: int = 0
    measured: int = 0
    refusal: str = ""

    @property
    def error(self) -> float:
        return self.estimated / self.measured - 1

    @property
    def text(self) -> str:
        if self.refusal:
            return f"{self.model_type:<24}{self.refusal}"
        verdict = "" if abs(self.error) <= LIMIT else "  BEYOND"
        return f"{self.model_type:<24}{self.measured:>14_}{100 * self.error:>+9.2f} %{verdict}"


def row(model_type: str, architecture: str, folder: Path, *, is_compiled: bool = False) -> Row:
    """On the longest sequences that the model takes, with its own attention if planc's is refused."""
    *others, last = LENGTHS
    for length in others:
        if not (found := _row(model_type, architecture, folder, length, is_compiled=is_compiled)).refusal:
            return found
    return _row(model_type, architecture, folder, last, is_compiled=is_compiled)


def _row(
    model_type: str,
    architecture: str,
    folder: Path,
    length: int,
    *,
    is_compiled: bool,
    attention: str = "",
) -> Row:
    (folder / "model").mkdir(exist_ok=True)
    config = tiny_config(model_type, architecture) | {"dropout": 0.0}
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    units, compilation = '"lm_head" -> unit', ""
    for _ in range(2):
        text = _PLAN.format(
            attention=attention and f"\n  attention = {attention}",
            ranks=NUM_RANKS,
            units=units,
            compilation=compilation,
            length=length,
            micro_batch=TOKENS // length,
            tokens=NUM_RANKS * TOKENS,
        )
        checked = check_source(SourceFile("small.plan", text), base=folder)
        if checked.inventory is None:
            break
        units = "\n  ".join(f'"{block}.*" -> unit' for block in checked.inventory.blocks)
        if is_compiled:
            regions = "\n  ".join(f'"{block}.*" -> region' for block in checked.inventory.blocks)
            compilation = f"compile {{\n  fullgraph = false\n  {regions}\n}}\n\n"
    errors = [one.code.code for one in checked.diagnostics if one.code.severity is Severity.ERROR]
    if "P708" in errors and not attention:
        return _row(model_type, architecture, folder, length, is_compiled=is_compiled, attention="eager")
    if checked.graph is None or checked.inventory is None:
        return Row(model_type, refusal=f"refused: {', '.join(errors)}")
    rehearsal = rehearse(checked.graph, base=folder)
    if rehearsal.measured is None:
        return Row(model_type, refusal=f"rehearsal: {rehearsal.failures[0]}")
    memory = estimate(checked.graph, checked.inventory).memory
    kept = next(one.num_bytes for one in memory.parts if one.name == "activations")
    (before,) = (dict(one.parts) for one in rehearsal.measured.segments if one.segment == "backward")
    return Row(model_type, kept, before["activations"])


def main(arguments: list[str]) -> int:
    """The exit status: 0 if none is beyond the limit."""
    parser = argparse.ArgumentParser(prog="tests.estimate.architectures", description=__doc__)
    known = architectures()
    parser.add_argument("--only", nargs="+", default=list(known), choices=list(known), metavar="MODEL_TYPE")
    parser.add_argument("--compiled", action="store_true", help="compile the layers")
    rows = []
    options = parser.parse_args(arguments)
    for model_type in options.only:
        with TemporaryDirectory(prefix="planc-small-") as folder:
            rows.append(row(model_type, known[model_type], Path(folder), is_compiled=options.compiled))
        print(rows[-1].text, flush=True)
    errors = sorted(abs(one.error) for one in rows if not one.refusal)
    within = sum(error <= LIMIT for error in errors)
    if errors:
        median, limit = 100 * errors[len(errors) // 2], 100 * LIMIT
        print(f"{len(errors)} of {len(rows)}: median error {median:.2f} %, {within} within {limit:.0f} %")
    return int(within < len(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
