"""`planc verify`."""

from __future__ import annotations

import gc
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.cli.support import options, plans
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError, require_libraries
from planc.runtime.cpus import unsupported_system
from planc.runtime.data.errors import DataError
from planc.runtime.errors import RunError
from planc.vocab import DType

DESCRIPTION = """\
Verify that a plan computes the same as a single device: run a small version of it, and compare with one
process.

The plan's own graph runs for three steps, through the same code as a real run, on CPU ranks, or on CUDA
devices with --backend nccl. The model is a tiny one of the same architecture: every kind of layer, with the
same heads per group, ties, windows, norms and experts. All its initial weights get noise, because biases of 0
and norms of 1 would hide faults. Mesh dims with more than one rank get two, and sequences and windows are
shortened in proportion. One process trains the same model with only transformers and torch. planc compares
initial weights, sample ids, the losses, gradient norm and learning rate of each step, the gradient of every
parameter, replicas across ranks, the parameters after the last step, and a resume on another mesh. It reads
neither the plan's weights nor its data."""

EPILOG = """\
examples:
  planc verify llama.plan
  planc verify llama.plan --set mesh.tp=4
  planc verify llama.plan --output-format json
  planc verify llama.plan --backend nccl

Arithmetic is in full precision, whatever dtypes the plan sets, because rounding would hide differences.

exit codes: 0 all equal, 1 something differs, 2 could not run."""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser)
    options.add_set_argument(parser)
    parser.add_argument(
        "--dtype",
        type=DType,
        choices=(DType.FLOAT32, DType.FLOAT64),
        default=DType.FLOAT32,
        metavar="DTYPE",
        help="dtype of all arithmetic: float32 (default) or float64",
    )
    parser.add_argument(
        "--backend",
        choices=("gloo", "nccl"),
        default="gloo",
        help="gloo (default): ranks on CPUs; nccl: each rank on a CUDA device of its own",
    )
    options.add_run_extensions_argument(parser)
    options.add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """0 if all is equal, 1 if something differs; as `check` for a plan with errors, which go to stderr."""
    require_libraries("verify", "torch", "transformers")
    refusal = unsupported_system("verify")
    if refusal:
        raise UsageError(refusal)
    checked = plans.check(
        arguments.plan, settings=plans.settings(arguments), runs_extensions=arguments.run_extensions
    )
    draft = plans.require_sound(checked)
    # Off for short commands (planc.cli.main); training needs it.
    gc.enable()
    # Imported here because torch takes seconds; errors that need no torch have been raised.
    from planc.verify.outcome import report_text
    from planc.verify.twin import CannotShrink
    from planc.verify.verify import verify

    began = time.monotonic()
    try:
        report = verify(
            draft.bound,
            draft.compiled,
            base=Path(arguments.plan).parent,
            dtype=arguments.dtype,
            backend=arguments.backend,
            runs_extensions=arguments.run_extensions,
        )
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
