"""`planc eval`: the loss of a checkpoint, without a run."""

from __future__ import annotations

import json
import math
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from planc.cli.commands.run import on_rank
from planc.cli.running.evaluating import Weights, evaluate, of_plan, of_saved_plan
from planc.cli.running.starting import Options
from planc.cli.support.checkpoints import add_weights_argument, is_export, newest_of
from planc.cli.support.exits import UsageError, require_libraries
from planc.cli.support.options import (
    add_output_format_argument,
    add_run_extensions_argument,
    add_set_argument,
)
from planc.cli.support.terminal import write_view
from planc.data_sources import Source
from planc.diagnostics import Diagnostic
from planc.diagnostics.human import HumanRenderer
from planc.graph import ops
from planc.graph.graph import Graph, plan_hash
from planc.graph.sources import training_data
from planc.lower.data import source_of
from planc.lower.evaluating import evaluated_on
from planc.plan.conversations import ImageChat
from planc.plan.data import SOURCES, AnySource, Labeled, Mapped, Matched, source_call, untransformed
from planc.plan.scope import Scope
from planc.plan.task import AnyTask, CausalLm, SequenceClassification, TokenClassification
from planc.plan.types import Variant
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.observer import Evaluation
from planc.runtime.process import Launch
from planc.source import SourceFile, Span
from planc.syntax.parse import parse_assignment
from planc.tables import format_number, render_table

DESCRIPTION = """\
Evaluate a checkpoint: the mean loss over each evaluation of the plan that saved it, as the run logged it at
that step, or over other data. One process evaluates a checkpoint of any mesh; under torchrun, the plan's mesh
is used, or that of another plan. Nothing is written into the run's directory."""

EPILOG = """\
examples:
  planc eval runs/llama
  planc eval runs/llama/checkpoints/step-500 --data "data/*.txt" --output-format json
  torchrun --nproc-per-node 4 -m planc eval runs/llama
  planc eval exports/llama --plan llama.plan          (an export has no plan of its own)

`loss` is the mean over `labels`: tokens that have a label. `perplexity` is e to the loss; a plan's own loss
and a loss with other terms have none. A preference loss is a mean over pairs, and has the means of their
rewards. Exit codes are those of a run."""


def add_arguments(parser: ArgumentParser) -> None:
    add_weights_argument(parser)
    parser.add_argument(
        "--plan", type=Path, metavar="PLAN", help="evaluate as this plan does (default: the one that saved)"
    )
    add_set_argument(parser)
    parser.add_argument(
        "--data",
        metavar="SOURCE",
        help='other data: files as "held_out/*.txt", or a source as a plan writes it; relative to the '
        "current directory",
    )
    parser.add_argument(
        "--ema", action="store_true", help="evaluate the moving averages of the trained weights"
    )
    add_run_extensions_argument(parser)
    add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """The exit code of a run; UsageError for arguments that say nothing of a checkpoint."""
    require_libraries("planc eval", "torch", "transformers", "safetensors", "numpy")
    return on_rank(partial(_evaluate, arguments))


def _evaluate(arguments: Namespace, launch: Launch) -> None:
    weights, may_run = _weights(arguments.checkpoint), arguments.run_extensions
    if arguments.plan is None:
        if arguments.set:
            raise RunError("--set changes a plan, and none is named", help="name it: --plan PLAN")
        compiled = of_saved_plan(weights, launch)
    else:
        options = Options(arguments.plan, set=tuple(arguments.set))
        compiled = of_plan(weights, launch, options, runs_extensions=may_run)
    if arguments.data is not None:
        source, span = _source(arguments.data, training_data(compiled.graph))
        compiled = replace(compiled, graph=evaluated_on(compiled.graph, source, label="data", span=span))
    if arguments.ema and weights.manifest is None:
        raise RunError(
            f"`{weights.folder}` is an export, which has one set of weights", help="leave out --ema"
        )
    results = evaluate(compiled, weights, launch, runs_extensions=may_run, averaged=arguments.ema)
    for result in results:
        if not math.isfinite(result.loss):
            raise RunError(f"the loss of {result.label} is {result.loss}", code=ExitCode.NUMERICS)
    if launch.rank == 0:
        _print(results, weights, compiled.graph, arguments)


def _weights(name: str) -> Weights:
    """RunError unless a path has a checkpoint, or a model that transformers loads."""
    if is_export(Path(name)):
        return Weights(Path(name), None)
    try:
        folder = newest_of(name)
        return Weights(folder, read_manifest(folder))
    except UsageError as error:
        raise RunError(str(error)) from error
    except CheckpointError as error:
        raise RunError(error.message, help=error.help) from error


_KINDS: tuple[tuple[type, type[ops.OpenData], str, str, str], ...] = (
    (Labeled, ops.OpenLabeledData, "labeled", "classes", "is a classifier"),
    (Mapped, ops.OpenMappedData, "mapped", "inputs with targets", "is an encoder-decoder"),
    (Matched, ops.OpenMatchedData, "matched", "pairs to match", "makes vectors"),
    (ImageChat, ops.OpenImageData, "image_chat", "images", "is trained on images"),
)
"""Sources of one kind of model: the call, what its rows have, and what the model is."""


def _require_kind(given: AnySource, training: ops.OpenData) -> None:
    """RunError unless rows of `--data` have what the model was trained on."""
    rows = next((kind for kind in _KINDS if isinstance(untransformed(given), kind[0])), None)
    model = next((kind for kind in _KINDS if isinstance(training, kind[1])), None)
    if rows is model:
        return
    has = "no classes, targets, pairs or images" if rows is None else rows[3]
    reads = "is a language model" if model is None else model[4]
    help = "name another source, such as `text(...)`" if model is None else f"write `{model[2]}(...)`"
    raise RunError(f"rows of --data have {has}, and the model {reads}", help=help)


def _source(text: str, training: ops.OpenData) -> tuple[Source, Span]:
    """The source of `--data`, whose paths start at the current directory, and its place.

    RunError if it is none, or if only one of it and the training data has classes, or pairs to match.
    """
    given, problems, file = _given_source(text)
    if given is None:
        raise RunError(HumanRenderer({file.name: file}).render(problems).rstrip())
    task: AnyTask = CausalLm()
    if isinstance(training, ops.OpenLabeledData):
        kind = TokenClassification if training.by_word else SequenceClassification
        task = kind(training.num_labels, training.names)
    _require_kind(given, training)
    source: Any = source_of(given, task)
    if source.reads_local_files:
        source = replace(source, patterns=tuple(map(os.path.abspath, source.patterns)))
    if "/" in (getattr(source, "template", None) or ""):
        source = replace(source, template=os.path.abspath(source.template))
    return source, file.whole()


def _print(results: tuple[Evaluation, ...], weights: Weights, graph: Graph, arguments: Namespace) -> None:
    step = weights.manifest.step if weights.manifest is not None else None
    # Of hidden tokens alone, or of classes, it would not be that of a text.
    of_others = ops.OpenMaskedData | ops.OpenLabeledData | ops.OpenMatchedData
    others = ops.LoadLoss | ops.BuildLoss | ops.BuildPreferenceLoss | of_others
    is_entropy = not any(isinstance(op, others) for op in graph.setup)
    perplexities = [_perplexity(result.loss) if is_entropy else None for result in results]
    if arguments.output_format == "json":
        document = {
            "checkpoint": str(weights.folder),
            "step": step,
            "plan_hash": plan_hash(graph),
            "mesh": {dim.value: size for dim, size in graph.mesh if size > 1},
            "evaluations": [
                {"label": result.label, "perplexity": perplexity, **result.figures}
                for result, perplexity in zip(results, perplexities, strict=True)
            ],
        }
        print(json.dumps(document, indent=2, allow_nan=False))
        return
    print(f"{weights.folder}{f'  step {step}' if step is not None else ''}")
    of_pairs = sorted(
        {name for result in results for name in result.figures} - {"loss", "labels"}, reverse=True
    )
    cells = [
        (
            result.label,
            f"{result.loss:.4f}",
            f"{perplexity:.4g}" if perplexity else "-",
            format_number(result.labels),
            *(f"{result.figures[name]:.4g}" for name in of_pairs),
        )
        for result, perplexity in zip(results, perplexities, strict=True)
    ]
    header = ("evaluation", "loss", "perplexity", "labels", *of_pairs)
    write_view(render_table(cells, header=header, right=(1, 2, 3, 4, 5)), stream=sys.stdout)


def _perplexity(loss: float) -> float | None:
    """e to the loss, where that is a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return None


_PREFIX = "data.source="


def _given_source(text: str) -> tuple[AnySource | None, tuple[Diagnostic, ...], SourceFile]:
    """The source of the text of `--data`, what is wrong with it, and the source that findings point into.

    A text without a call is the path of files, whose suffix names the call.
    """
    written = text if "(" in text else source_call(text)
    file = SourceFile("--data", f"{_PREFIX}{written}")
    assignment, problems = parse_assignment(file)
    if assignment is None:
        return None, problems, file
    scope = Scope({})
    source: AnySource | None = Variant(SOURCES, "source").convert(assignment.value, scope)
    return (None if scope.diagnostics else source), tuple(scope.diagnostics), file
