"""The types of settings: what each accepts, and that what it renders reads back as the same."""

from __future__ import annotations

from dataclasses import MISSING
from datetime import date
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.plan import codes, data
from planc.plan.blocks import BLOCKS
from planc.plan.checkpoint import OrPath, Seconds, StepsOrTime
from planc.plan.conversations import Date, NameOrPath, Split
from planc.plan.keys import keys, type_of
from planc.plan.optimizer import AdamW, Cosine, Implementation
from planc.plan.quantities import BYTES, SECONDS, STEPS
from planc.plan.scalars import MAX_INTEGER, Bool, Choice, Float, Int, Path, Quantity, Text, ValueType
from planc.plan.scope import Scope
from planc.plan.shares import Share, StepsOrShare, Weight
from planc.plan.style_actions import STYLE_ACTIONS
from planc.plan.types import NONE, List, Optional, OrAuto, Placement, Rest, Variant, render_call
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import parse_assignment
from planc.vocab import DType, MeshDim, Replicate, Shard
from tests.plan.resolving import TEXT, edited, fault, resolved
from tests.syntax.reading import covered

RUN = settings(max_examples=60, derandomize=True, deadline=None)


def written(text: str) -> ast.Value:
    assignment, problems = parse_assignment(SourceFile("--set", f"k={text}"))
    assert assignment is not None, problems
    return assignment.value


def converted(wanted: ValueType, text: str) -> Any:
    """What a type makes of a text that it accepts."""
    scope = Scope({})
    found = wanted.convert(written(text), scope)
    assert scope.diagnostics == []
    return found


ACCEPTED = [
    (Int(), "-3", -3),
    (Int(1, 8), "8", 8),
    (Int(), str(MAX_INTEGER), MAX_INTEGER),
    (Int(), "1_000", 1000),
    (Float(), "3", 3.0),
    (Float(), "3e-4", 3e-4),
    (Float(), "1e300", 1e300),
    (Float(0.0), "-0.0", 0.0),
    (Text(), '"a b"', "a b"),
    (Text(), '"ä"', "ä"),
    (Bool(), "true", True),
    (Bool(), "false", False),
    (Choice(DType), "bfloat16", DType.BFLOAT16),
    (Quantity(STEPS), "0 steps", 0),
    (Quantity(STEPS), "1 step", 1),
    (Quantity(STEPS), "2e3 steps", 2000),
    (Quantity(SECONDS), "0.55 h", 1980),
    (Quantity(SECONDS), "1.5 min", 90),
    (Quantity(BYTES), "0.1 KB", 100),
    (Quantity(BYTES), "60 GiB", 60 * 2**30),
    (Optional(Int()), "none", NONE),
    (Optional(Int()), "4", 4),
    (List(Int()), "[]", ()),
    (List(Int(), 2), "[1, 2]", (1, 2)),
    (Placement(), "Shard(-1)", Shard(-1)),
    (Placement(), "Shard(tensor_dim = 1)", Shard(1)),
    (Placement(), "Replicate()", Replicate()),
    (Placement(), "Replicate", Replicate()),
]


@pytest.mark.parametrize(("wanted", "text", "value"), ACCEPTED, ids=[text for _, text, _ in ACCEPTED])
def test_a_type_accepts(wanted: ValueType, text: str, value: object) -> None:
    found = converted(wanted, text)
    assert found == value
    assert type(found) is type(value)


TYPABLE = st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters='"')
QUANTITIES = st.sampled_from([Quantity(STEPS), Quantity(SECONDS, low=1), Quantity(BYTES)])
TYPES_AND_VALUES: st.SearchStrategy[tuple[ValueType, Any]] = st.one_of(
    st.tuples(st.just(Int()), st.integers(-MAX_INTEGER, MAX_INTEGER)),
    st.tuples(st.just(Float()), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(Text()), st.text(TYPABLE, min_size=1).filter(str.strip)),
    st.tuples(st.just(Bool()), st.booleans()),
    st.tuples(st.just(Choice(MeshDim)), st.sampled_from(MeshDim)),
    st.tuples(QUANTITIES, st.integers(1, MAX_INTEGER)),
    st.tuples(st.just(List(Float())), st.lists(st.floats(-1, 1), max_size=4).map(tuple)),
    st.tuples(st.just(Placement()), st.integers(-8, 7).map(Shard) | st.just(Replicate())),
)  # fmt: skip


@settings(RUN, max_examples=300)
@given(TYPES_AND_VALUES)
def test_what_a_type_renders_it_reads_back(case: tuple[ValueType, Any]) -> None:
    wanted, value = case
    assert converted(wanted, wanted.render(value)) == value


@pytest.mark.parametrize("value", [None, 4])
def test_an_optional_value_reads_back(value: int | None) -> None:
    wanted = Optional(Int())
    found = converted(wanted, wanted.render(value))
    assert (None if found is NONE else found) == value


def records() -> list[tuple[str, type[Any]]]:
    """Every record that is written as a call, by its name."""
    found: list[tuple[str, type[Any]]] = list(STYLE_ACTIONS.items())
    for shape in BLOCKS.values():
        found += list((shape.actions or {}).items())
        for spec_field in keys(shape.record):
            wanted = type_of(spec_field)
            if isinstance(wanted, Variant):
                found += list(wanted.cases.items())
    return found


def values(wanted: ValueType) -> st.SearchStrategy[Any]:
    """Values that a type can hold."""
    match wanted:
        case Int(low, high):
            return st.integers(low, high if high is not None else MAX_INTEGER)
        case Float(low, high):
            return st.floats(low, high if high is not None else 1e30, allow_nan=False)
        case Text() | Path() | NameOrPath():
            return st.from_regex(r"[a-z/*.]{1,9}", fullmatch=True)
        case Bool():
            return st.booleans()
        case Choice(choices):
            return st.sampled_from(choices)
        case Quantity(low=low):
            return st.integers(low, 10**9)
        case StepsOrTime(low):
            return st.one_of(
                values(Quantity(STEPS, low=low)), values(Quantity(SECONDS, low=low)).map(Seconds)
            )
        case StepsOrShare(low):
            return st.one_of(values(Quantity(STEPS, low=low)), values(Share()))
        case Share():
            return st.integers(1, 9_999).map(lambda number: Fraction(number, 10_000))
        case Weight():
            return st.decimals("0.001", "1000", places=3).map(Fraction)
        case Optional(inner):
            return st.none() | values(inner)
        case OrAuto(inner):
            return st.just("auto") | values(inner)
        case OrPath(inner):
            return values(Path()) | values(inner)
        case Split():
            return st.sampled_from(["train", "train[:10%]", "test[5:]+train"])
        case Date():
            return st.dates().map(date.isoformat)
        case List(of, length, name_of):
            lists = st.lists(values(of), min_size=length or 0, max_size=length or 3, unique_by=name_of)
            return lists.map(tuple)
        case Rest(of):
            return st.lists(values(of), min_size=1, max_size=3).map(tuple)
        case Placement():
            return st.integers(-8, 7).map(Shard) | st.just(Replicate())
        case Variant(cases):
            return st.one_of(*(instances(record) for record in cases.values()))
        case _:
            raise AssertionError(f"no values of {wanted}")


def instances(record: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(record, **{spec_field.name: values(type_of(spec_field)) for spec_field in keys(record)})


@pytest.mark.parametrize(("name", "record"), records(), ids=[name for name, _ in records()])
def test_every_call_reads_back(name: str, record: type[Any]) -> None:
    @RUN
    @given(instances(record))
    def reads_back(value: Any) -> None:
        assert converted(Variant({name: record}), render_call(name, value)) == value

    reads_back()


PATHS = [(kind, spec_field) for kind, shape in BLOCKS.items() for spec_field in keys(shape.record)]


DEFAULTS = [(kind, f) for kind, f in PATHS if f.metadata["default"] is not MISSING]


@pytest.mark.parametrize(("kind", "spec_field"), DEFAULTS, ids=[f"{kind}.{f.name}" for kind, f in DEFAULTS])
def test_every_default_reads_back(kind: str, spec_field: Any) -> None:
    """What `show --resolved` writes for a default is the default."""
    wanted, default = type_of(spec_field), spec_field.metadata["default"]
    found = converted(wanted, wanted.render(default))
    assert (None if found is NONE else found) == default


@pytest.mark.parametrize(("kind", "spec_field"), PATHS, ids=[f"{kind}.{f.name}" for kind, f in PATHS])
def test_every_type_describes_itself(kind: str, spec_field: Any) -> None:
    assert type_of(spec_field).describe().strip() != ""


def test_defaults_fill_what_is_not_written() -> None:
    plan = resolved(edited(("  seed = 0\n", ""), ("  packing = attend\n", ""), ("  keep_last = 2\n", "")))
    assert plan.model.seed == 0
    assert plan.data.packing is data.Packing.ATTEND
    assert plan.data.too_long is None
    assert plan.checkpoint is not None
    assert plan.checkpoint.keep_last == 3
    assert plan.origins["model.seed"][0].kind == "default"
    assert "model.seed" not in plan.spans
    assert plan.span("model.seed") == plan.span("model")


def test_an_absent_mesh_is_one_rank() -> None:
    plan = resolved(edited(("  dp_shard = 2\n  tp = 2\n", "")))
    assert plan.mesh.world_size == 1
    without = TEXT.replace("mesh {\n  dp_shard = 2\n  tp = 2\n}\n", "")
    assert resolved(without).mesh == plan.mesh


def test_values_arrive_with_their_types() -> None:
    plan = resolved(TEXT)
    assert plan.name == "x"
    assert plan.mesh.sizes == {
        MeshDim.PP: 1,
        MeshDim.DP_REPLICATE: 1,
        MeshDim.DP_SHARD: 2,
        MeshDim.CP: 1,
        MeshDim.TP: 2,
    }
    assert plan.optimizer.kind == AdamW(
        lr=4e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, implementation=Implementation.AUTO
    )
    assert plan.optimizer.schedule == Cosine(warmup=10, min_factor=0.1)
    assert plan.data.source == data.PythonStdlib()
    assert plan.fsdp is not None
    assert plan.fsdp.on == (MeshDim.DP_SHARD, MeshDim.CP)
    assert plan.fsdp.replicate_on is MeshDim.DP_REPLICATE


@pytest.mark.parametrize(
    ("written", "value"), [("10 %", 0.1), ("0.7%", 0.007), ("100 %", 1.0), ("7e-1 %", 0.007)]
)
def test_a_share_may_be_in_per_cent(written: str, value: float) -> None:
    optimizer = resolved(edited(("min_factor = 0.1", f"min_factor = {written}"))).optimizer
    assert optimizer.schedule == Cosine(warmup=10, min_factor=value)


@pytest.mark.parametrize(
    ("old", "new"), [("min_factor = 0.1", "min_factor = 110 %"), ("weight_decay = 0.1", "weight_decay = 1 %")]
)
def test_only_shares_are_in_per_cent_and_none_is_beyond_its_range(old: str, new: str) -> None:
    assert fault(edited((old, new))).code in (codes.OUT_OF_RANGE, codes.WRONG_UNIT)


def test_mesh_dims_after_on_stand_outermost_first() -> None:
    plan = resolved(edited(("fsdp on dp_shard, cp", "fsdp on cp, dp_shard")))
    assert plan.fsdp is not None
    assert plan.fsdp.on == (MeshDim.DP_SHARD, MeshDim.CP)


def test_the_order_of_blocks_and_keys_never_matters() -> None:
    blocks = TEXT.split("\n\n")
    settings_first = resolved("\n\n".join(reversed(blocks)))
    assert settings_first.mesh == resolved(TEXT).mesh
    assert settings_first.optimizer.kind == resolved(TEXT).optimizer.kind
    swapped = resolved(edited(("  dp_shard = 2\n  tp = 2\n", "  tp = 2\n  dp_shard = 2\n")))
    assert swapped.mesh == resolved(TEXT).mesh


def test_a_rule_keeps_its_options_and_places() -> None:
    plan = resolved(edited(('"lm_head" -> colwise(', 'override "lm_head" -> colwise(')))
    assert plan.tensor_parallel is not None
    rule = plan.tensor_parallel.rules[-1]
    assert (rule.override, rule.action.style.name) == (True, "colwise")
    assert (rule.action.boundary.input, rule.action.boundary.output) == (Shard(1), Shard(-1))
    assert covered(TEXT.replace('"lm_head" ->', 'override "lm_head" ->'), rule.action_span).startswith(
        "colwise("
    )
    assert rule.patterns[0].text == "lm_head"


def test_auto_keeps_its_place() -> None:
    plan = resolved(edited(("tensor_parallel on tp {", "tensor_parallel on tp {\n  auto")))
    assert plan.tensor_parallel is not None
    assert plan.tensor_parallel.auto is not None
    assert plan.tensor_parallel.auto.span.column == 3


def test_expectations_are_in_base_units() -> None:
    text = edited(
        ("world_size == 4", "peak_memory < 60 GiB, step_time <= 2 min, warmup >= 3 steps, x != 1_000")
    )
    found = [(one.subject, one.operator, one.value) for one in resolved(text).expectations[:-1]]
    assert found == [
        ("peak_memory", "<", 60 * 2**30),
        ("step_time", "<=", 120),
        ("warmup", ">=", 3),
        ("x", "!=", 1000),
    ]


def test_expect_blocks_add_up() -> None:
    plan = resolved(TEXT + "expect { dp_size == 2 }\n")
    assert [one.subject for one in plan.expectations] == ["world_size", "gradient_accumulation", "dp_size"]


def test_conversations_are_kept_whole_unless_a_plan_says_otherwise() -> None:
    chats = ("source = python_stdlib()", 'source = chat("*.jsonl")')
    plan = resolved(edited(chats, ("  packing = attend\n", "")))
    assert (plan.data.packing, plan.data.too_long) == (data.Packing.WHOLE, data.TooLong.TRUNCATE)
    assert plan.origins["data.packing"][0].kind == "default"
    assert resolved(edited(chats)).data.packing is data.Packing.ATTEND
