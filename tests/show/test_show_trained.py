"""What a plan trains of a model is counted, where it does not train all of it."""

from __future__ import annotations

from pathlib import Path

from planc.api import check_source
from planc.show.overview import overview
from planc.source import SourceFile
from tests.plans import PLANS, TINY


def rows_of(text: str, *, base: Path = PLANS) -> dict[str, str]:
    checked = check_source(SourceFile("trained.plan", text), base=base)
    assert checked.draft is not None
    return dict(overview(checked.draft.bound, checked.draft.graph, checked.draft.estimate))


def test_trained_parameters_are_counted_next_to_all() -> None:
    assert "trained" not in rows_of(TINY)
    frozen = rows_of(f'{TINY}freeze {{\n  "model" -> frozen\n}}\n')
    # The head: 260 tokens of 128 features.
    assert frozen["trained"].startswith("33_280 of the parameters, ")
    rule = '  "model.layers.0.mlp.up_proj" -> adapted\n'
    adapted = rows_of(f"{TINY}adapter {{\n  kind = lora(rank = 4, alpha = 8)\n{rule}}}\n")
    inner = 4 * (128 + 352)
    assert adapted["trained"].startswith(f"{inner:_} of the parameters, ")
