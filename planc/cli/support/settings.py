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
"""Environment variables and the settings that they override."""

KNOWN_VARIABLES = ("PLANC_CACHE", "PLANC_DATA", "PLANC_DEBUG")
"""Every variable with the prefix PLANC_ that planc reads."""

# `int()` would accept " 2 ", "+2", "2_0" and non-ASCII digits, which are mistakes in a job script.
_SIZE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def settings_from(
    set_arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """The sources of overrides, strongest last (TP_SIZE, DP_SIZE, CP_SIZE, then each `--set`), and errors.

    A source holds one `path=value` and is named for its origin, so a finding can point there.
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
            errors.append(f"{variable}={value!r} is not a positive integer")
    for number, text in enumerate(set_arguments, 1):
        sources.append(SourceFile("--set" if number == 1 else f"--set[{number}]", text))
    return tuple(sources), tuple(errors)


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables with the prefix PLANC_ that planc does not read, sorted."""
    return tuple(
        sorted(name for name in environment if name.startswith("PLANC_") and name not in KNOWN_VARIABLES)
    )
