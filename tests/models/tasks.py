"""Every class of transformers for a task through planc: `python -m tests.models.tasks TASK [TYPE ...]`.

Writes the task's table. Exits with 1 if a plan that `planc check` accepts fails, or does not compute what one
process computes.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PADDING: Mapping[str, Any] = {"pad_token_id": 1}
_OF_DECODER: Mapping[str, Any] = {"decoder_start_token_id": 2, "is_encoder_decoder": True}
_OF_SPEECH = frozenset(
    (
        *("audioflamingo3", "encoder-decoder", "glmasr", "granite_speech", "granite_speech_plus"),
        *("moss_transcribe_diarize", "musicflamingo", "nemo_speechlm", "qwen2_audio", "qwen3_asr"),
        *("seamless_m4t", "seamless_m4t_v2", "vibevoice_asr", "voxtral", "voxtral_realtime"),
    )
)
"""Model types of transformers' list that take more than text, or are put together of two others."""
_CLASSES: Mapping[str, Any] = {
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
}


@dataclass(frozen=True, slots=True)
class Table:
    """The classes of a task: `mapping` names them in transformers, by model type."""

    mapping: str
    results: Path
    columns: tuple[str, ...]
    changes: Mapping[str, Any]
    """Values of config.json that all of its tiny models need."""
    of_types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those that some need."""
    left_out: Collection[str] = ()
    """Types of the mapping that are in another table, or in none."""

    def known_types(self) -> Mapping[str, str]:
        """The class of every model type."""
        from transformers.models.auto import modeling_auto

        names: Mapping[str, str] = getattr(modeling_auto, self.mapping)
        return {one: name for one, name in names.items() if one not in self.left_out}

    def judged_row(self, model_type: str, columns: Sequence[str] | None = None) -> Any:
        """The row of a type; one that can't be made tiny has a reason in the place of cells."""
        from tests.models.judge import Cell, Row, Status, judged

        architecture, chosen = self.known_types()[model_type], columns or self.columns
        changes = {**self.changes, **self.of_types.get(model_type, {})}
        try:
            return judged(model_type, architecture, columns=chosen, changes=changes)
        except Exception as error:  # its own config may refuse small sizes
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return Row(model_type, architecture, dict.fromkeys(chosen, Cell(Status.UNKNOWN, reason)))


TABLES: Mapping[str, Table] = {
    "masked_lm": Table(
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        _HERE / "masked.json",
        ("random", "one", "fsdp", "solve", "sp", "compile", "tp-fsdp", "fsdp-chunks"),
        {"is_decoder": False},
        {
            "esm": {"vocab_size": 264, "mask_token_id": 257, "pad_token_id": 1, "token_dropout": False},
            **dict.fromkeys(("ibert", "longformer", "luke", "xmod"), _PADDING),
            "squeezebert": {"embedding_size": 64},
        },
        left_out=("bart", "mbart"),
    ),
    "seq2seq_lm": Table(
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        _HERE / "encoder_decoders.json",
        ("random", "one", "fsdp", "solve", "full", "tp-fsdp", "fsdp-chunks"),
        {**_PADDING, **_OF_DECODER},
        {"bigbird_pegasus": {"attention_type": "original_full"}},
        left_out=_OF_SPEECH,
    ),
    "sequence_classification": Table(
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        _HERE / "classifiers.json",
        ("one", "fsdp", "solve", "tp-fsdp"),
        {"is_decoder": False, **_PADDING, **_CLASSES},
        {
            "deberta-v2": {"pooler_hidden_size": 64},
            "esm": {"vocab_size": 264, "mask_token_id": 257, "token_dropout": False},
            "squeezebert": {"embedding_size": 64},
        },
    ),
    "token_classification": Table(
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        _HERE / "token_classifiers.json",
        ("one", "fsdp", "solve", "tp-fsdp"),
        {"is_decoder": False, "classifier_dropout": 0.0, **_PADDING, **_CLASSES},
        {
            "esm": {"vocab_size": 264, "mask_token_id": 257, "token_dropout": False},
            "squeezebert": {"embedding_size": 64},
        },
    ),
}


def main(task: str, *chosen: str) -> int:
    from tests.models.judge import Status
    from tests.models.page import read_rows, write_rows

    table = TABLES[task]
    names, rows = table.known_types(), read_rows(table.results)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {one: pool.submit(table.judged_row, one) for one in chosen or names}
        for model_type, future in futures.items():
            row = rows[model_type] = future.result()
            write_rows({one: rows[one] for one in names if one in rows}, table.results)
            cells = (",".join(cell.codes) or cell.status.value for cell in row.cells.values())
            print(f"{model_type:24} {'  '.join(f'{cell:10}' for cell in cells)}", flush=True)
    for column in table.columns:
        counts = Counter(row.cells[column].status.value for row in rows.values() if column in row.cells)
        print(f"{column:12} {', '.join(f'{number} {status}' for status, number in counts.items())}")
    bad = (Status.FAILED, Status.DIFFERENT)
    return int(any(cell.status in bad for row in rows.values() for cell in row.cells.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
