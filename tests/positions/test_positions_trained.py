"""Positions of a run: loss and gradients of one step, against transformers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.positions.plain import CORPUS, plain_step, save_corpus, save_model
from tests.positions.sizes import HALVES, OFFSET, ORDINARY, OWN_ATTENTION, sizes_of
from tests.positions.through_planc import MODEL, checked, codes, planc_step, worst_error

TOLERANCE = 5e-5
"""Weights are large, and so is rounding. A wrong position is off by 1e-2 and more."""
ROPE: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 64,
    },
    "proportional": {"rope_type": "proportional"},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
LLAMA: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def error_of(
    folder: Path, *, model_type: str, mesh: str, packing: str, sizes: Any = None, attention: str = "sdpa"
) -> float:
    save_model(folder / MODEL, model_type=model_type, sizes=sizes or sizes_of(model_type))
    save_corpus(folder / CORPUS)
    found = checked(folder, mesh=mesh, packing=packing, attention=attention)
    assert found.graph is not None, codes(found)
    expected = plain_step(folder / MODEL, corpus=folder / CORPUS, isolates=packing == "isolate")
    return worst_error(planc_step(found.graph, base=folder), expected)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("model_type", "mesh", "packing"),
    [("roberta", "one", "attend"), ("camembert", "one", "isolate"), ("roberta", "cp", "isolate")],
)
def test_positions_are_those_of_the_model(model_type: str, mesh: str, packing: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, model_type=model_type, mesh=mesh, packing=packing) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["attend", "isolate"])
@pytest.mark.parametrize("mesh", ["one", "cp", "dp"])
@pytest.mark.parametrize("model_type", [*ORDINARY, *OFFSET])
def test_every_such_model_trains_equal(model_type: str, mesh: str, packing: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, model_type=model_type, mesh=mesh, packing=packing) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "dp"])
@pytest.mark.parametrize("model_type", HALVES)
def test_a_model_that_counts_its_tokens_trains_equal_where_they_are_whole(
    model_type: str, mesh: str, tmp_path: Path
) -> None:
    assert error_of(tmp_path, model_type=model_type, mesh=mesh, packing="attend") < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "dp"])
@pytest.mark.parametrize("model_type", OWN_ATTENTION)
def test_attention_of_the_models_own_trains_equal(model_type: str, mesh: str, tmp_path: Path) -> None:
    found = error_of(tmp_path, model_type=model_type, mesh=mesh, packing="attend", attention="eager")
    assert found < TOLERANCE


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("model_type", HALVES)
def test_a_model_that_counts_its_tokens_is_refused_where_they_are_not(
    model_type: str, tmp_path: Path
) -> None:
    save_model(tmp_path / MODEL, model_type=model_type, sizes=sizes_of(model_type))
    save_corpus(tmp_path / CORPUS)
    assert codes(checked(tmp_path, mesh="cp", packing="attend")) == ["P611"]
    assert codes(checked(tmp_path, mesh="one", packing="isolate")) == ["P611"]
    assert codes(checked(tmp_path, mesh="one", packing="attend")) == []


@pytest.mark.parametrize(
    ("rope_type", "mesh", "packing"),
    [
        ("dynamic", "one", "isolate"),
        *(
            pytest.param(one, mesh, packing, marks=pytest.mark.slow)
            for one in ROPE
            for mesh in ("one", "cp")
            for packing in ("attend", "isolate")
        ),
    ],
)
def test_every_kind_of_rotary_embedding_trains_equal(
    rope_type: str, mesh: str, packing: str, tmp_path: Path
) -> None:
    """Dynamic ones too, of which none grows within `max_position_embeddings`; here that is all of them."""
    rope = ROPE[rope_type] | {"rope_theta": 10000.0}
    sizes = LLAMA | {"max_position_embeddings": 32 if rope_type == "dynamic" else 64, "rope_parameters": rope}
    assert error_of(tmp_path, model_type="llama", sizes=sizes, mesh=mesh, packing=packing) < TOLERANCE
