"""`planc teacher`: store the log-probabilities of a plan's teacher."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from planc.cli.commands.run import on_rank
from planc.cli.running.starting import Options
from planc.cli.running.teaching import teach
from planc.cli.support.exits import require_libraries
from planc.cli.support.options import add_run_extensions_argument, add_set_argument
from planc.runtime.process import Launch
from planc.tables import format_bytes, format_number, plural

DESCRIPTION = """\
Compute a teacher's log-probabilities of its likeliest tokens, at every position of a plan's data, and store
them where `loss = distillation(...)` says. Parts that are there are kept, so the command continues after an
interruption. Under torchrun, ranks hold shards of the teacher, and each computes parts of its own."""

EPILOG = """\
examples:
  planc teacher student.plan
  torchrun --nproc-per-node 8 -m planc teacher student.plan

The plan's mesh is of the model that is trained, and plays no role. Runs of all plans with the same teacher,
tokenizer, source, sequence_length, packing and shuffle_seed can read what is stored. Exit codes are those of
a run."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="the plan of the model that is trained")
    add_set_argument(parser)
    add_run_extensions_argument(parser)


def run(arguments: Namespace) -> int:
    """The exit code of a run."""
    require_libraries("planc teacher", "torch", "transformers", "safetensors", "numpy")
    return on_rank(partial(_store, arguments))


def _store(arguments: Namespace, launch: Launch) -> None:
    options = Options(arguments.plan, set=tuple(arguments.set))
    taught = teach(options, launch, runs_extensions=arguments.run_extensions)
    if launch.rank == 0:
        layout, loss = taught.stored.layout, taught.loss
        print(f"{loss.logits}: top {loss.top_k} of {loss.teacher}, {format_bytes(layout.num_bytes)}")
        sizes = f"{format_number(layout.num_sequences)} x {format_number(layout.sequence_length)} tokens"
        computed = f"{taught.stored.num_computed} computed now"
        print(f"  {sizes} in {plural(layout.num_parts, 'part')}, {computed}")
        if taught.stored.covered is not None:
            print(f"  the stored tokens have {taught.stored.covered:.1%} of the teacher's probability")
