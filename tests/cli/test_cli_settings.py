"""Values from the command line and the environment."""

from __future__ import annotations

import pytest

from planc.cli.support.settings import settings_from, unknown_variables


def _texts(*arguments: str, **environment: str) -> list[tuple[str, str]]:
    sources, errors = settings_from(arguments, environment)
    assert errors == ()
    return [(source.name, source.text) for source in sources]


def test_sizes_come_before_settings_so_that_settings_win() -> None:
    found = _texts("mesh.tp=8", "lr=1", TP_SIZE="4", DP_SIZE="2", CP_SIZE="1")
    assert found == [
        ("TP_SIZE", "mesh.tp=4"),
        ("DP_SIZE", "mesh.dp_shard=2"),
        ("CP_SIZE", "mesh.cp=1"),
        ("--set", "mesh.tp=8"),
        ("--set[2]", "lr=1"),
    ]


def test_other_variables_are_left_alone() -> None:
    assert _texts(WORLD_SIZE="8", PP_SIZE="x") == []


@pytest.mark.parametrize("variable", ["TP_SIZE", "DP_SIZE", "CP_SIZE"])
@pytest.mark.parametrize(
    "value", ["", " 2 ", "+2", "2_0", "٢", "0", "-1", "2.0", "02", "two", "2\n", "1" * 10, "0x2", "²"]
)
def test_malformed_size_is_refused_by_name(variable: str, value: str) -> None:
    sources, errors = settings_from((), {variable: value})
    assert sources == ()
    (error,) = errors
    assert error.startswith(f"{variable}=")


def test_variables_that_nothing_reads() -> None:
    environment = {
        "PLANC_CACHE": "",
        "PLANC_DEBUG": "",
        "PLANC_B": "",
        "PLANC_A": "",
        "PLAN": "",
        "planc_x": "",
    }
    assert unknown_variables(environment) == ("PLANC_A", "PLANC_B")
