"""`planc verify`."""

from __future__ import annotations

import gc
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError
from planc.cli.support.libraries import require_libraries
from planc.runtime.cpus import unsupported_system
from planc.runtime.data.errors import DataError
from planc.runtime.errors import RunError
from planc.vocab import DType

DESCRIPTION = """\
Show that a plan computes what one device computes: run it, small, against one process.

The plan's own graph runs for three steps on CPU ranks, through the same code as a launch, on a tiny model of
the same architecture: every kind of layer, the same heads a group, ties, windows, norms and experts; every
mesh dim of more than one rank has two; the sequence and its windows are short in proportion. One process
trains the same with transformers and torch alone. Compared are initial weights, sample ids, each step's
loss, gradient norm and learning rate, the gradient of every parameter, replicas across ranks, the parameters
after the last step, and a resume on another mesh. Neither weights nor data of the plan are read."""

EPILOG = """\
examples:
  planc verify llama.plan
  planc verify llama.plan --set mesh.tp=4
  planc verify llama.plan --output-format json

Arithmetic is in full precision, whatever dtypes the plan asks for: rounding would hide what is looked for.
Mesh dims of two stand for larger ones. exit codes: 0 all equal, 1 something differs, 2 could not run."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN")
    plans.add_set_argument(parser)
    parser.add_argument(
        "--dtype",
        type=DType,
        choices=(DType.FLOAT32, DType.FLOAT64),
        default=DType.FLOAT32,
        help="the dtype of all arithmetic",
    )
    parser.add_argument("--output-format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    """Verifies a plan without errors; findings of one with errors go to stderr."""
    require_libraries("verify", "torch", "transformers")
    refusal = unsupported_system("verify")
    if refusal:
        raise UsageError(refusal)
    checked = plans.check(arguments.plan, settings=plans.settings(arguments))
    failure = plans.require_sound(checked)
    if failure is not None:
        return failure
    assert checked.bound is not None and checked.graph is not None, "a sound plan has both"
    # Off for the short commands (planc.cli.main); training needs it.
    gc.enable()
    # Imported here: what cannot run should not wait for torch to say so.
    from planc.verify.text import report_text
    from planc.verify.twin import CannotShrink
    from planc.verify.verify import verify

    began = time.monotonic()
    try:
        report = verify(checked.bound, checked.graph, base=Path(arguments.plan).parent, dtype=arguments.dtype)
    except CannotShrink as error:
        raise UsageError(f"cannot verify this plan: {error}") from error
    except (RunError, DataError) as error:
        raise UsageError(error.message) from error
    seconds = time.monotonic() - began
    if arguments.output_format == "json":
        sys.stdout.write(json.dumps({**report.data(), "seconds": round(seconds, 1)}, indent=2) + "\n")
    else:
        equal = sum(verdict.ok for verdict in report.verdicts)
        last = f"{equal} of {len(report.verdicts)} equal to one process, {seconds:.1f} s"
        sys.stdout.write(f"{report_text(report)}{last}\n")
    return CLEAN if report.ok else FINDINGS
