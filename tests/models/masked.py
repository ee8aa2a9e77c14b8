"""Every masked language model of transformers through planc: `python -m tests.models.masked [TYPE ...]`.

Writes `masked.json`. Exits with 1 if a plan that `planc check` accepts fails, or does not compute what one
process computes.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "masked.json"
COLUMNS = ("random", "one", "fsdp", "solve", "sp", "compile", "tp-fsdp", "fsdp-chunks")

_ENCODER: Mapping[str, Any] = {"is_decoder": False}
_PADDING: Mapping[str, Any] = {"pad_token_id": 1}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "esm": {"vocab_size": 264, "mask_token_id": 257, "pad_token_id": 1, "token_dropout": False},
    **dict.fromkeys(("ibert", "longformer", "luke", "xmod"), _PADDING),
    "squeezebert": {"embedding_size": 64},
}
"""Values of config.json that a tiny model needs."""


def known_types() -> Mapping[str, str]:
    """The class of every model type that transformers calls a masked language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return dict(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def judged_row(model_type: str, architecture: str, columns: Sequence[str]) -> Any:
    """The row of an architecture; one that can't be made tiny has a reason in the place of cells."""
    from tests.models.judge import Cell, Row, Status, judged

    changes = {**_ENCODER, **_CHANGES.get(model_type, {})}
    try:
        return judged(model_type, architecture, columns=columns, changes=changes)
    except Exception as error:  # its own config may refuse small sizes
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(model_type, architecture, dict.fromkeys(columns, Cell(Status.UNKNOWN, reason)))


def main(chosen: Sequence[str]) -> int:
    from tests.models.judge import Status
    from tests.models.page import read_rows, write_rows

    names = known_types()
    rows = read_rows(RESULTS)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {one: pool.submit(judged_row, one, names[one], COLUMNS) for one in chosen or names}
        for model_type, future in futures.items():
            row = rows[model_type] = future.result()
            write_rows({one: rows[one] for one in names if one in rows}, RESULTS)
            cells = (",".join(cell.codes) or cell.status.value for cell in row.cells.values())
            print(f"{model_type:24} {'  '.join(f'{cell:10}' for cell in cells)}", flush=True)
    for column in COLUMNS:
        counts = Counter(row.cells[column].status.value for row in rows.values() if column in row.cells)
        print(f"{column:12} {', '.join(f'{number} {status}' for status, number in counts.items())}")
    bad = (Status.FAILED, Status.DIFFERENT)
    return int(any(cell.status in bad for row in rows.values() for cell in row.cells.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
