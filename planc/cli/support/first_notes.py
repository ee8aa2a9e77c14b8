"""Notes on what the run of a first plan needs that is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.api import Checked
from planc.cli.support.data_files import DataFiles
from planc.cli.support.shipped import NamedModel
from planc.first_plan.brief import Brief
from planc.plan.facts import tokens_per_step


def missing_files(model: NamedModel, brief: Brief, tokenizer: Path | None, data: DataFiles) -> Iterator[str]:
    """Yield what a run needs that is not there yet."""
    if not brief.purpose.has_new_weights and not model.has_weights():
        yield f"{model.files} has no .safetensors: a run reads the weights from there"
    if tokenizer is not None and not tokenizer.exists():
        yield f"there is no {tokenizer}: copy the model's tokenizer there"
    if not data.num_files and "(" in data.call and not data.call.startswith("python_stdlib"):
        yield f"no file matches {data.call}: put data there"


def scarce_data(checked: Checked, brief: Brief, data: DataFiles) -> Iterator[str]:
    """A step that takes more than the data have."""
    if checked.bound is None or not data.num_files:
        return
    plan = checked.bound.plan
    tokens = data.size.tokens(brief.purpose, plan.data.sequence_length)
    wanted = tokens_per_step(plan)
    if tokens < wanted:
        yield (
            f"{data.call} has about {tokens:_} tokens, and a step takes {wanted:_}: sequences repeat within "
            "a step; --tokens-per-step takes fewer"
        )
