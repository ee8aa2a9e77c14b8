"""`planc schema`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from planc.cli.support.exits import CLEAN
from planc.diagnostics.machine import diagnostics_schema
from planc.diff.machine import diff_schema
from planc.doctor.examine import report_schema
from planc.graph.artifact import artifact_schema

DESCRIPTION = """\
Print the JSON Schema of an output: of a compiled plan (compile), findings (check --output-format json), a
difference (diff --output-format json) or a machine (doctor --output-format json). Each document has a
format_version; a schema describes one version."""

EPILOG = """\
examples:
  planc schema artifact > artifact.schema.json
  planc schema diagnostics"""

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "artifact": artifact_schema,
    "diagnostics": diagnostics_schema,
    "diff": diff_schema,
    "doctor": report_schema,
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("document", choices=tuple(SCHEMAS), metavar="DOCUMENT", help=", ".join(SCHEMAS))


def run(arguments: Namespace) -> int:
    """Always 0."""
    sys.stdout.write(json.dumps(SCHEMAS[arguments.document](), indent=2) + "\n")
    return CLEAN
