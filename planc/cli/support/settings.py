"""Values from the command line and the environment, as sources that a plan is checked with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planc.source import SourceFile

SIZE_VARIABLES: tuple[tuple[str, str], ...] = (
    ("TP_SIZE", "mesh.tp"),
    ("DP_SIZE", "mesh.dp_shard"),
    ("CP_SIZE", "mesh.cp"),
)
"""Environment variables and the settings that they stand for."""

KNOWN_VARIABLES = ("PLANC_CACHE", "PLANC_DEBUG")
"""Every variable with planc's prefix that something reads."""

# `int()` would take " 2 ", "+2", "2_0" and other scripts' digits, which nobody means in a job script.
_SIZE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def settings_from(
    set_arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """One source a value, strongest last: TP_SIZE, DP_SIZE, CP_SIZE, then each `--set`; and what is wrong.

    A source holds one `path=value` and is named for where it comes from, so that a finding can point there.
    """
    sources: list[SourceFile] = []
    errors: list[str] = []
    for variable, target in SIZE_VARIABLES:
        value = environment.get(variable)
        if value is None:
            continue
        if _SIZE.fullmatch(value):
            sources.append(SourceFile(variable, f"{target}={value}"))
        else:
            errors.append(f"{variable}={value!r} is not a size: write digits only, from 1 up")
    for number, text in enumerate(set_arguments, 1):
        sources.append(SourceFile("--set" if number == 1 else f"--set[{number}]", text))
    return tuple(sources), tuple(errors)


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like planc's and that nothing reads, sorted."""
    return tuple(
        sorted(name for name in environment if name.startswith("PLANC_") and name not in KNOWN_VARIABLES)
    )
