"""`check` accepts no architecture that has not been shown to train as transformers does by itself.

The architectures are transformers' own list, of which the table of models shows all that `check` accepts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from planc.checks.pipeline.model_not_shown import SHOWN
from planc.inventory.files import InventoryError
from tests.models.architectures import in_the_table
from tests.positions.plain import CORPUS, save_corpus
from tests.positions.sizes import sizes_of
from tests.positions.through_planc import MODEL, checked

IN_THE_TABLE = frozenset(in_the_table().values())
"""Classes: two model types may share one."""
UNSHOWN: dict[str, Any] = {
    model_type: name
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    if name not in IN_THE_TABLE
}


@pytest.mark.parametrize("model_type", UNSHOWN)
def test_what_is_not_shown_is_refused(model_type: str, tmp_path: Path) -> None:
    config = {"model_type": model_type, "architectures": [UNSHOWN[model_type]], **sizes_of(model_type)}
    (tmp_path / MODEL).mkdir()
    (tmp_path / MODEL / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_corpus(tmp_path / CORPUS)
    for attention in ("sdpa", "eager"):
        try:
            found = checked(tmp_path, mesh="one", packing="attend", attention=attention)
        except InventoryError:
            continue
        assert found.graph is None, f"{attention}: accepted, and nowhere shown"


def test_stages_are_for_architectures_whose_row_is_equal() -> None:
    rows = json.loads((Path(__file__).parent / "results.json").read_text(encoding="utf-8")).values()
    assert {row["architecture"] for row in rows if row["cells"]["pp"]["status"] == "equal"} == SHOWN
