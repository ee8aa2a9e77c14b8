"""`planc data show`."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.support import options
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.pages import page_path, write_page
from planc.cli.support.terminal import wants_color
from planc.graph.graph import Graph
from planc.hub.user_dirs import data_dir

if TYPE_CHECKING:
    # Lazy: they import numpy.
    from planc.data_view.parts import Part
    from planc.data_view.shown import Shown
    from planc.runtime.data.open import OpenData

SUMMARY = "show what rows and sequences become, and what is trained on"
DESCRIPTION = """\
Show what a plan's data becomes: its text, tokens, positions, and which tokens are trained on (colored, or in
brackets without colors). Without --row or --sequence: the first rows, and statistics of a sample, which is
the beginning of the files and rows at places spread over them. Nothing is read whole.

--sequence shows exactly what the run's loader gives. It needs prepared data, unless the data is small."""
EXAMPLES = """\
  planc data show chat.plan
  planc data show chat.plan --row 3
  planc data show chat.plan --sequence 1 --output-format json"""


def add_arguments(parser: ArgumentParser) -> None:
    options.add_plan_argument(parser, help="a .plan file, or an artifact from `planc compile`", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--row", type=int, metavar="N", help="a row of the source, counted from 1, held out or not"
    )
    which.add_argument("--sequence", type=int, metavar="N", help="a sequence of the data, counted from 1")
    parser.add_argument(
        "--source",
        metavar="NAME",
        help="a source's or an evaluation's name in the plan (default: all of the training data)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page instead")
    options.add_set_argument(parser)
    options.add_run_extensions_argument(parser)
    options.add_output_format_argument(parser)


def show(graph: Graph, base: Path, arguments: Namespace) -> int:
    """Print the rows, the sequence or the statistics. Raises DataError."""
    if arguments.html is not None:
        page_path(arguments.html)
    chosen = _chosen(graph, base, arguments)
    if arguments.row is None and arguments.sequence is None:
        _show_samples(chosen, arguments)
        return CLEAN
    shown = _sequence(chosen, arguments) if arguments.row is None else _row(chosen, arguments)
    if arguments.html is not None:
        from planc.report.data import shown_page

        write_page(arguments.html, shown_page(f"The data of {arguments.plan}", shown))
    elif arguments.output_format == "json":
        documents = [one.data() for one in shown]
        print(json.dumps(documents[0] if len(documents) == 1 else {"documents": documents}))
    else:
        # Imported here because it imports numpy, as below.
        from planc.data_view.text import shown_text

        is_colored = wants_color(sys.stdout)
        texts = (shown_text(one, is_colored=is_colored, is_whole=True).rstrip("\n") for one in shown)
        print("\n\n".join(texts))
    return CLEAN


def _chosen(graph: Graph, base: Path, arguments: Namespace) -> list[Part]:
    """The parts that are shown: those of the training data, or the one of a name."""
    from planc.data_view.parts import parts

    name: str | None = arguments.source
    found = list(parts(graph, base=base, runs_extensions=arguments.run_extensions))
    chosen = [one for one in found if (one.name == name if name else not one.is_evaluation)]
    if not chosen:
        names = ", ".join(one.name for one in found)
        raise UsageError(f"the plan has no data `{name}`: --source is one of {names}")
    return chosen


def _show_samples(chosen: list[Part], arguments: Namespace) -> None:
    from planc.data_view.look import look
    from planc.data_view.text import look_text

    seen = [look(part) for part in chosen]
    if arguments.html is not None:
        from planc.report.data import samples_page

        write_page(arguments.html, samples_page(f"The data of {arguments.plan}", seen))
    elif arguments.output_format == "json":
        samples = [
            {"rows": [row.data() for row in one.rows], "statistics": one.data(), "source": one.part.label}
            for one in seen
        ]
        print(json.dumps(samples[0] if len(samples) == 1 else {"sources": samples}))
    else:
        print("\n\n".join(look_text(one, is_colored=wants_color(sys.stdout)) for one in seen))


def _row(chosen: list[Part], arguments: Namespace) -> list[Shown]:
    from planc.data_view.shown import shown_row

    if len(chosen) > 1:
        names = ", ".join(one.name for one in chosen)
        raise UsageError(f"the plan has several sources: name one of {names} with --source")
    (part,) = chosen
    with contextlib.closing(part.wanted.tokenizer.load(num_processes=1)) as tokenizer:
        return shown_row(part, arguments.row, tokenizer=tokenizer)


def _sequence(chosen: list[Part], arguments: Namespace) -> list[Shown]:
    """A sequence of the data that the run would open, which has the sequences of its sources one by one."""
    from planc.data_view.shown import shown_sequence
    from planc.runtime.data.errors import DataError

    before = 0
    for part in chosen:
        data = _opened(part, arguments)
        total = data.dataset.num_sequences
        if 0 < arguments.sequence - before <= total:
            with contextlib.closing(part.wanted.tokenizer.load(num_processes=1)) as tokenizer:
                return [
                    shown_sequence(
                        data, arguments.sequence - before, before=before, part=part, tokenizer=tokenizer
                    )
                ]
        before += total
    raise DataError(
        f"the data has no sequence {arguments.sequence}", help=f"sequences are counted from 1 to {before}"
    )


def _opened(part: Part, arguments: Namespace) -> OpenData:
    """The data as a run opens it. UsageError if it is not prepared."""
    from planc.runtime.data.open import open_in_memory, open_prepared
    from planc.runtime.data.prepared.folder import find

    if part.wanted.stays_in_memory:
        return open_in_memory(part.wanted, model_vocab_size=part.vocab_size)
    prepared = find(data_dir(), part.wanted)
    if prepared is None:
        raise UsageError(
            f"{part.label} is not prepared, so its sequences are not known yet\n"
            f"run `planc data prepare {arguments.plan}`, or show a row with --row"
        )
    return open_prepared(prepared, part.wanted, model_vocab_size=part.vocab_size)
