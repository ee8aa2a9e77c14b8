"""The catalogue of faults, and how planc catches each: a plan with its finding, or tests of the rest."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

_CODES = re.compile(r"^# codes: (.+)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^# (world-size|set): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of `faults.tsv`."""

    id: str
    name: str
    condition: str


@dataclass(frozen=True, slots=True)
class BrokenPlan:
    """A plan and the codes that checking it gives, in the order of its text."""

    path: Path
    text: str
    codes: tuple[str, ...]
    world_size: int | None
    settings: tuple[str, ...]


class How(StrEnum):
    """What keeps a fault from a run."""

    RULE = "a rule"
    LANGUAGE = "no such words"
    CONSTRUCTION = "by construction"
    START = "at start-up"
    """Found by a run before its first step, or by `planc doctor`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Tests of this repository that show what becomes of a fault which no plan can be checked for."""

    how: How
    tests: tuple[str, ...]
    """`tests/x.py::test_y`, with a case in brackets where one stands for the fault."""


def faults() -> tuple[Fault, ...]:
    with (HERE / "faults.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(Fault(**row) for row in csv.DictReader(file, delimiter="\t"))


def read_plan(path: Path) -> BrokenPlan:
    text = path.read_text(encoding="utf-8")
    codes = _CODES.search(text)
    assert codes is not None, f"{path.name} does not say which codes it gives"
    directives = _DIRECTIVE.findall(text)
    sizes = [int(value) for name, value in directives if name == "world-size"]
    settings = tuple(value for name, value in directives if name == "set")
    return BrokenPlan(path, text, tuple(codes[1].split()), sizes[0] if sizes else None, settings)


def plans(folder: str) -> tuple[BrokenPlan, ...]:
    """The broken plans of `rules` or `wild`, by name."""
    return tuple(read_plan(path) for path in sorted((HERE / folder).glob("*.plan")))


def exists(test: str, *, slow: bool = False) -> bool:
    """Whether a test is there and has the case in brackets, if one is named.

    It runs in the plain suite, or, where `slow` is asked for, in the long ones.
    """
    name, _, case = test.removesuffix("]").partition("[")
    path, _, function = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            is_slow = any("mark.slow" in ast.unparse(decorator) for decorator in node.decorator_list)
            return is_slow == slow and (not case or f'"{case}"' in text)
    return False


_OWN = "tests/catalogue/test_construction.py::test_"
_RANKS = "tests/catalogue/test_ranks.py::test_"
_VERIFY = "tests/graph/test_graph_verify.py::test_planted_violation_is_found"
_COMPILED = "tests/verify/test_verify_compiled.py::test_"
_PIPELINES = "tests/dist/test_pipelines.py::test_a_"
_PARITY = "tests/parity/test_parity.py::test_a_mesh_trains_as_one_process"

PROOFS: Mapping[str, Proof] = {
    "M04": Proof(How.CONSTRUCTION, (f"{_OWN}the_order_of_mesh_dims_in_a_plan_means_nothing",)),
    "M10": Proof(How.CONSTRUCTION, (f"{_OWN}sharding_over_no_ranks_leaves_no_trace",)),
    "M11": Proof(How.CONSTRUCTION, (f"{_PIPELINES}pipeline_with_weights_from_files_trains_as_one_process",)),
    "M12": Proof(How.CONSTRUCTION, (_PARITY,)),
    "T12": Proof(How.CONSTRUCTION, (f"{_OWN}the_loss_follows_the_layout_of_the_head", _PARITY)),
    "T21": Proof(How.START, ("tests/doctor/test_doctor_devices.py::test_variables_of_runs_on_devices",)),
    "T22": Proof(How.CONSTRUCTION, (f"{_RANKS}a_mesh_computes_what_one_rank_computes[uneven vocabulary]",)),
    "T25": Proof(How.CONSTRUCTION, (f"{_OWN}shards_of_a_vocabulary_hold_its_rows_and_no_padding",)),
    "T26": Proof(How.CONSTRUCTION, (_PARITY,)),
    "T28": Proof(How.CONSTRUCTION, (f"{_VERIFY}[tp after fsdp]",)),
    "T30": Proof(
        How.CONSTRUCTION, (_PARITY, "tests/dist/test_runtime_training.py::test_the_gradient_norm_is_torchs")
    ),
    "T32": Proof(How.CONSTRUCTION, (f"{_OWN}the_loss_follows_the_layout_of_the_head",)),
    "T33": Proof(
        How.CONSTRUCTION,
        (
            "tests/dist/test_runtime_weights.py::"
            "test_initial_weights_are_equal_bit_for_bit_however_they_are_divided",
            "tests/dropout/test_dropout_meshes.py::test_a_mesh_drops_what_one_process_drops",
        ),
    ),
    "F01": Proof(How.CONSTRUCTION, (f"{_VERIFY}[root unit first]",)),
    "F04": Proof(How.CONSTRUCTION, (f"{_OWN}the_root_unit_takes_what_no_rule_names",)),
    "F07": Proof(
        How.CONSTRUCTION, (f"{_RANKS}a_mesh_computes_what_one_rank_computes[uneven tied vocabulary]",)
    ),
    "F08": Proof(
        How.CONSTRUCTION,
        ("tests/dist/test_runtime_training.py::test_tied_embeddings_stay_tied_through_training_and_resume",),
    ),
    "F09": Proof(How.CONSTRUCTION, (f"{_RANKS}a_model_is_built_in_one_dtype",)),
    "F12": Proof(How.CONSTRUCTION, (f"{_VERIFY}[no memory]",)),
    "F14": Proof(
        How.CONSTRUCTION, (f"{_COMPILED}offloaded_parameters_train_and_resume_as_others[dp_shard = 2]",)
    ),
    "F15": Proof(How.CONSTRUCTION, (f"{_VERIFY}[optimizer before sharding]",)),
    "F16": Proof(How.CONSTRUCTION, (f"{_RANKS}gradients_summed_in_bfloat16_are_near_those_in_float32",)),
    "F22": Proof(How.CONSTRUCTION, (f"{_OWN}every_parameter_is_sharded_where_fsdp_has_ranks",)),
    "C06": Proof(
        How.CONSTRUCTION,
        ("tests/dist/test_attention.py::test_a_window_under_cp_hides_what_it_hides_in_one_process",),
    ),
    "C07": Proof(
        How.CONSTRUCTION, (f"{_RANKS}a_mesh_computes_what_one_rank_computes[attention of another name]",)
    ),
    "C08": Proof(How.START, ("tests/dist/test_attention.py::test_a_bidirectional_module_is_refused",)),
    "C11": Proof(
        How.CONSTRUCTION, (_PARITY, "tests/parity/test_parity.py::test_labels_shifted_after_sharding_fail")
    ),
    "C12": Proof(
        How.CONSTRUCTION,
        ("tests/dist/test_isolated_documents.py::test_a_changed_document_moves_nothing_of_another",),
    ),
    "C15": Proof(How.CONSTRUCTION, (_PARITY,)),
    "D03": Proof(How.CONSTRUCTION, (_PARITY,)),
    "D04": Proof(
        How.CONSTRUCTION,
        ("tests/data/test_data_loader.py::test_every_mesh_sees_the_same_samples_in_every_step",),
    ),
    "D05": Proof(How.CONSTRUCTION, (f"{_OWN}one_sequence_is_enough_for_any_number_of_ranks",)),
    "D09": Proof(How.CONSTRUCTION, (_PARITY,)),
    "P06": Proof(
        How.CONSTRUCTION,
        (
            "tests/dist/test_pipeline_ties.py::test_both_ends_train_one_weight",
            "tests/graph/test_graph_verify_pipeline.py::"
            "test_a_tied_weight_is_summed_once_over_its_two_stages[no sum]",
        ),
    ),
    "P07": Proof(
        How.CONSTRUCTION,
        (f"{_PIPELINES}feature_computes_in_stages_what_it_does_in_one_process_bit_for_bit[whole documents]",),
    ),
    "K02": Proof(How.START, ("tests/dist/test_checkpoint_alone.py::test_another_dtype_is_not_converted",)),
    "K03": Proof(How.START, ("tests/dist/test_runtime_weights.py::test_weights_that_do_not_fit_are_named",)),
    "K04": Proof(
        How.CONSTRUCTION,
        (
            "tests/data/test_data_loader.py::"
            "test_resuming_at_other_dp_sizes_neither_repeats_nor_loses_a_sample",
        ),
    ),
    "K05": Proof(How.CONSTRUCTION, ("tests/dist/test_checkpoint.py::test_four_ranks_load_it_on_any_mesh",)),
    "K06": Proof(
        How.CONSTRUCTION,
        ("tests/checkpoints/test_checkpoint_commit.py::test_prune_does_not_delete_the_last_checkpoint",),
    ),
    "K07": Proof(
        How.START,
        ("tests/checkpoints/test_checkpoint_commit.py::test_a_file_that_rank_0_cannot_see_is_not_committed",),
    ),
    "K08": Proof(
        How.CONSTRUCTION,
        ("tests/checkpoints/test_checkpoint_commit.py::test_what_is_begun_is_not_committed",),
    ),
    "K09": Proof(
        How.CONSTRUCTION,
        (
            "tests/dist/test_checkpoint_behind.py::"
            "test_each_step_is_bit_for_bit_the_one_that_training_waited_for",
        ),
    ),
    "K12": Proof(
        How.CONSTRUCTION,
        ("tests/runtime/test_runtime_interpreter.py::test_a_finished_run_trains_and_saves_nothing_more",),
    ),
    "X02": Proof(How.CONSTRUCTION, (f"{_OWN}what_a_plan_says_is_what_its_graph_does",)),
}
"""By fault, the tests of those for which there is no plan in `rules`."""

_OUTSIDE = ("P201", "P202", "P207", "P211", "P212")
"""Codes of plans that ask for what the language has not."""


def proof_of(fault: Fault) -> Proof | None:
    """What becomes of a fault: of its plan in `rules`, or what `PROOFS` says; None if neither is there."""
    path = HERE / "rules" / f"{fault.id}.plan"
    if not path.exists():
        return PROOFS.get(fault.id)
    # A mistyped key and a mesh dim out of range are faults that every language can have.
    is_outside = read_plan(path).codes[0] in _OUTSIDE and fault.id != "X01"
    test = f"tests/catalogue/test_catalogue.py::test_plan_has_its_findings[{fault.id}]"
    return Proof(How.LANGUAGE if is_outside else How.RULE, (test,))
