"""Where values come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys
from planc.show.origin import chain, values
from planc.source import SourceFile
from tests.plans import TINY, write_plan


@pytest.mark.parametrize(
    ("path", "settings", "expected"),
    [
        ("mesh.cp", (), ("default",)),
        ("mesh.tp", (), ("{plan}:9",)),
        ("mesh.dp_shard", (), ("{plan}:8", "param size ({plan}:1)")),
        ("mesh.dp_shard", (("--set", "size=4"),), ("{plan}:8", "param size ({plan}:1)", "--set size=4")),
        ("mesh.dp_shard", (("--set", "mesh.dp_shard=4"),), ("--set mesh.dp_shard=4", "{plan}:8")),
        ("mesh.tp", (("TP_SIZE", "mesh.tp=1"),), ("environment TP_SIZE: mesh.tp=1", "{plan}:9")),
        (
            "mesh.tp",
            (("TP_SIZE", "mesh.tp=1"), ("--set", "mesh.tp=4")),
            ("--set mesh.tp=4", "environment TP_SIZE: mesh.tp=1", "{plan}:9"),
        ),
    ],
)
def test_chain(
    tmp_path: Path, path: str, settings: tuple[tuple[str, str], ...], expected: tuple[str, ...]
) -> None:
    plan_path = write_plan(tmp_path, text=TINY)
    plan = check_plan(plan_path, settings=[SourceFile(name, text) for name, text in settings]).plan
    assert plan is not None
    assert chain(plan.origins[path]) == tuple(step.format(plan=plan_path) for step in expected)


def test_settings_of_nested_blocks_have_an_origin(tmp_path: Path) -> None:
    edits = [("  resume = latest\n", '  resume = latest\n  export "hf" { dtype = bfloat16 }\n')]
    plan_path = write_plan(tmp_path, edits=edits)
    plan = check_plan(plan_path).plan
    assert plan is not None
    found = {path: value for path, value in values(plan).items() if path.startswith("checkpoint.export")}
    assert found == {
        "checkpoint.export.hf.when": "end",
        "checkpoint.export.hf.dtype": "bfloat16",
        "checkpoint.export.hf.merged": "false",
        "checkpoint.export.hf.weights": "trained",
        "checkpoint.export.hf.push": "none",
    }
    assert chain(plan.origins["checkpoint.export.hf.dtype"]) == (f"{plan_path}:59",)


def test_every_setting_has_an_origin(tmp_path: Path) -> None:
    plan = check_plan(write_plan(tmp_path)).plan
    assert plan is not None
    written = [f"{kind}.{key.name}" for kind, shape in BLOCKS.items() for key in keys(shape.record)]
    absent = (
        *(
            "adapter",
            "balance",
            "compile",
            "context_parallel",
            "elastic",
            "expert_parallel",
            "guard",
            "hardware",
        ),
        *("logging", "pipeline", "profile"),
    )
    assert list(values(plan)) == [path for path in written if not path.startswith(absent)]
    assert all(plan.origins[path] for path in values(plan))
