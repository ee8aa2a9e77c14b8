"""The table of models is of the models that transformers has, and what it says still holds."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.dist.pool import start_server
from tests.models import independent
from tests.models.architectures import LEFT_OUT, in_the_table, known_types
from tests.models.judge import Status, judged
from tests.models.page import PAGE, RESULTS, read_rows
from tests.models.plans import COLUMNS, is_filled
from tests.models.tiny import tiny_config
from tests.slow import slow_except

SAMPLE = ("gpt_oss", "granitemoehybrid", "phi3", "qwen3_next")
"""Sinks and experts, a state space, fused projections, a linear attention."""
DTYPES = ("llama", "deepseek_v3", "ernie4_5_moe", "gemma3_text", "gpt2")
"""Rotary frequencies; a buffer that loading keeps in float32; parameters that are built so; an embedding with
a scale in a buffer; learned positions."""

TIED_BIASES = ("bert", "camembert", "data2vec-text", "electra", "megatron-bert", "roberta", "xlm-roberta")
"""Decoders whose head's bias is a parameter of the module around it, too."""


def test_every_architecture_is_in_the_table_or_left_out_with_a_reason() -> None:
    assert list(read_rows(RESULTS)) == list(in_the_table())
    assert set(LEFT_OUT) <= set(known_types())


def test_the_page_shows_every_row_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = read_rows(RESULTS).values()
    assert [row for row in rows if f"| {row.model_type} | {row.architecture} |" not in page] == []


def test_nothing_that_check_accepts_trains_otherwise_than_one_process() -> None:
    bad = (Status.DIFFERENT, Status.FAILED)
    rows = read_rows(RESULTS).values()
    assert [
        (row.model_type, column) for row in rows for column, cell in row.cells.items() if cell.status in bad
    ] == []


def test_every_row_has_the_columns_that_are_for_it() -> None:
    for model_type, row in read_rows(RESULTS).items():
        assert list(row.cells) == [column for column in COLUMNS if is_filled(column, model_type)]


def test_no_reason_names_a_place_of_the_machine_that_measured() -> None:
    assert "site-packages" not in RESULTS.read_text(encoding="utf-8")


def test_every_refusal_has_a_code_and_a_reason() -> None:
    cells = [cell for row in read_rows(RESULTS).values() for cell in row.cells.values()]
    assert [
        cell for cell in cells if cell.status is Status.REFUSED and not (cell.codes and cell.detail)
    ] == []


def test_a_tiny_config_keeps_every_kind_of_layer() -> None:
    config = tiny_config("gemma3_text", "Gemma3ForCausalLM")
    assert set(config["layer_types"]) == {"sliding_attention", "full_attention"}
    assert config["num_hidden_layers"] == len(config["layer_types"])


@pytest.mark.slow
@pytest.mark.parametrize("model_type", slow_except(SAMPLE, "gpt_oss"))
def test_a_row_of_the_table_still_holds(model_type: str) -> None:
    start_server()
    columns = ("one", "fsdp", "tp", "sp", "cp")
    row = judged(model_type, in_the_table()[model_type], columns=columns)
    known = read_rows(RESULTS)[model_type]
    assert [(column, cell.status, cell.codes, cell.detail) for column, cell in row.cells.items()] == [
        (column, known.cells[column].status, known.cells[column].codes, known.cells[column].detail)
        for column in columns
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", slow_except(DTYPES, "deepseek_v3"))
def test_every_tensor_begins_and_trains_as_transformers_has_it(model_type: str) -> None:
    require_equal(model_type, columns=("random", "one", "one bfloat16", "fsdp bfloat16"))


@pytest.mark.slow
def test_a_head_in_float32_sends_float32_over_tp_in_a_bfloat16_model() -> None:
    require_equal("hy_v4", columns=("tp bfloat16",))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model_type", slow_except(TIED_BIASES, "bert", "roberta"))
def test_a_bias_with_two_names_is_added_once(model_type: str) -> None:
    require_equal(model_type, columns=("fsdp", "tp", "solve"))


STAGED = ("gpt2", "gpt_bigcode")
"""Their code around the layers takes the shape of hidden states from the ids, or from the embeddings."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", slow_except(STAGED, "gpt2"))
def test_stages_compute_the_same_beside_sequence_parallelism_and_units_inside_layers(model_type: str) -> None:
    require_equal(model_type, columns=("pp-sp", "pp-fsdp"))


@pytest.mark.parametrize("model_type", slow_except(in_the_table(), "deepseek_v3", "xlstm"))
def test_no_tensor_begins_with_a_constant_in_any_dtype(model_type: str, tmp_path: Path) -> None:
    """A balancing bias is a buffer that is saved; a gate begins at -10, where a bfloat16 rounds."""
    config = dict(tiny_config(model_type, in_the_table()[model_type]))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    independent.write_weights(tmp_path)
    for dtype in ("float32", "bfloat16"):
        saved = independent.loaded(tmp_path, dtype=dtype).state_dict()
        assert saved
        assert [*independent.constants(saved)] == []


def require_equal(
    model_type: str, *, columns: Sequence[str], changes: Mapping[str, object] | None = None
) -> None:
    start_server()
    row = judged(model_type, in_the_table()[model_type], columns=columns, changes=changes)
    found = {column: (cell.status, cell.detail) for column, cell in row.cells.items()}
    assert found == dict.fromkeys(columns, (Status.EQUAL, ""))


ROPES: Mapping[str, Mapping[str, object]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "short_factor": [1.0 + n / 8 for n in range(8)],
        "long_factor": [2.0 + n for n in range(8)],
        "original_max_position_embeddings": 64,
        "factor": 4.0,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROPES)
def test_scaled_frequencies_are_those_of_transformers(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 10_000.0, **ROPES[kind]}
    changes = {"head_dim": 16, "max_position_embeddings": 256, "rope_parameters": rope}
    require_equal("llama", columns=("random", "one", "one bfloat16"), changes=changes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_dtype_of_a_config_says_nothing(dtype: str) -> None:
    """The plan's does, also where config.json has another."""
    changes = {"dtype": dtype, "torch_dtype": dtype}
    require_equal("deepseek_v3", columns=("random", "one bfloat16"), changes=changes)


def test_the_reference_imports_nothing_of_planc() -> None:
    tree = ast.parse(Path(independent.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {name.partition(".")[0] for name in names} & {"planc", "tests"} == set()
