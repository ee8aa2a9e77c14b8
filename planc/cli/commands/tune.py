"""`planc tune`."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from pathlib import Path

from planc.api import check_source
from planc.cli.support import options, plans
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError
from planc.cli.support.next_commands import next_commands
from planc.cli.support.spinner import spinner
from planc.cli.support.terminal import write_view
from planc.diagnostics import has_errors
from planc.fmt.format import format_source
from planc.hub.user_dirs import cache_dir
from planc.inventory.files import InventoryError
from planc.inventory.known import KnownModels, key_of
from planc.plan.bind import BoundPlan
from planc.plan.expectations import holds
from planc.source import SourceFile
from planc.tune.base import Base, base_of, comments_of, model_plan, with_comments
from planc.tune.score import Scorer
from planc.tune.search import MARGIN, Proposal, Search
from planc.tune.table import reasons_text, result_data, result_text, written_plan

DESCRIPTION = """\
Search the plans of a model for a number of devices, and print the ten that are expected to be fastest.

The search chooses the mesh (pp, dp_replicate, dp_shard, cp, tp), a pipeline's schedule, the micro batch,
recomputation, whether FSDP reshards, sequence parallelism, how attention is computed over cp, whether the
loss is computed in chunks, and whether layers are compiled.
All else stays as the plan has it: model, data, optimizer, tokens per step, and, if it has them,
tensor-parallel rules, `compile` and `expect`. Models with layers without attention, whose code may loop over
tokens, are not compiled. Neither are plans that isolate documents: each compiled layer would keep a mask of
every pair of tokens. A plan counts if its peak leaves --margin of the device's memory free, and if it passes
`planc check`. Speeds are those of `planc estimate`: an expectation with its interval, and a bound.

MODEL is a directory with a config.json. -o writes one of the plans, with rules by pattern and comments, after
a rehearsal as by `planc check --deep`."""

EPILOG = """\
examples:
  planc tune llama.plan --gpus 64 --gpu h100
  planc tune models/llama-3.1-8b --gpus 8 --gpu h100 --tokens-per-step 131072 --sequence-length 2048
  planc tune llama.plan --gpus 64 --gpu h100 --explain
  planc tune llama.plan --gpus 64 --gpu h100 --pick 2 -o tuned.plan

A search without a plan that fits exits with 1."""

_PEAKS = ("peak_flops", "memory_bandwidth", "link_bandwidth", "nic_bandwidth")
"""Fields of a device that the time of a step needs."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN_OR_MODEL", help="a .plan file, or a model directory", type=Path)
    parser.add_argument(
        "--gpus", type=options.positive_number, required=True, metavar="N", help="number of devices"
    )
    options.add_set_argument(parser)
    options.add_run_extensions_argument(parser)
    options.add_gpu_argument(parser)
    parser.add_argument(
        "--nodes", type=options.positive_number, metavar="N", help="nodes that the devices are in"
    )
    parser.add_argument(
        "--tokens-per-step",
        type=options.positive_number,
        metavar="N",
        help="tokens of a step (default: those of the plan)",
    )
    parser.add_argument(
        "--sequence-length",
        type=options.positive_number,
        metavar="N",
        help="for a model: tokens of a sequence (default: 4096)",
    )
    parser.add_argument(
        "--margin",
        type=_percent,
        default=round(100 * MARGIN),
        metavar="PERCENT",
        help="of the device's memory, left free (default: %(default)s)",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print why other meshes are not among the best"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write a plan, in the directory of PLAN"
    )
    parser.add_argument(
        "--pick",
        type=options.positive_number,
        default=1,
        metavar="N",
        help="the number in the table that -o writes (default: 1)",
    )
    options.add_output_format_argument(parser)


def _percent(text: str) -> int:
    if not text.isdecimal() or int(text) >= 100:
        raise ArgumentTypeError(f"`{text}` is not a percentage below 100")
    return int(text)


def run(arguments: Namespace) -> int:
    """0 with proposals, 1 without any or for a plan with errors; UsageError for a device without peaks."""
    is_model = arguments.plan.is_dir()
    folder = _folder(arguments, is_model=is_model)
    source, settings = _source(arguments, folder, is_model=is_model), plans.settings(arguments)
    checked = check_source(
        source,
        base=folder,
        settings=settings,
        on_probe=plans.announce_probe,
        runs_extensions=arguments.run_extensions,
    )
    if checked.bound is None:
        sys.stderr.write(plans.render_errors(checked, stream=sys.stderr))
        return plans.exit_code(checked.diagnostics) or FINDINGS
    search = _search(checked.bound, arguments, folder, source)
    text = (
        f"searching plans for {arguments.gpus} x {search.device.name}: meshes, micro batches, recomputation"
    )
    with spinner(text, stream=sys.stderr):
        proposals = search.proposals()
    if arguments.output_format == "json":
        document = result_data(search, proposals, explain=arguments.explain)
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        more = reasons_text(search) if arguments.explain else ""
        write_view(result_text(search, proposals) + more, stream=sys.stdout)
    if not proposals:
        return FINDINGS
    return CLEAN if arguments.output is None else _write(proposals, search, arguments)


def _folder(arguments: Namespace, *, is_model: bool) -> Path:
    """The directory that the plan's paths start from. UsageError for an output elsewhere."""
    folder: Path = arguments.output.parent if is_model and arguments.output else arguments.plan.parent
    folder = Path() if is_model and not arguments.output else folder
    if arguments.output is not None and arguments.output.parent.resolve() != folder.resolve():
        raise UsageError(f"write the plan into `{folder}`: its paths are relative to that directory")
    return folder


def _source(arguments: Namespace, folder: Path, *, is_model: bool) -> SourceFile:
    """The plan to start from: the given one, or a plain one of the model."""
    path: Path = arguments.plan
    if not is_model:
        if arguments.sequence_length is not None:
            raise UsageError(
                "--sequence-length is for a model: with a plan, use --set data.sequence_length=N"
            )
        try:
            return SourceFile(str(path), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None
    if arguments.tokens_per_step is None:
        raise UsageError("pass --tokens-per-step: a model alone has no batch")
    name = os.path.relpath(path, folder)
    try:
        inventory = KnownModels(folder, cache_dir(), on_probe=plans.announce_probe).get(name)
    except InventoryError as error:
        raise UsageError(error.message) from None
    tokenizer = f'file("{name}/tokenizer.json")' if _has_tokenizer(path) else "bytes"
    length = arguments.sequence_length or 4096
    text = model_plan(f'"{name}"', inventory, sequence_length=length, tokenizer=tokenizer)
    formatted, _ = format_source(SourceFile("tuned.plan", text))
    return SourceFile("tuned.plan", formatted or text)


def _search(bound: BoundPlan, arguments: Namespace, folder: Path, source: SourceFile) -> Search:
    plan = bound.plan
    if plan.hardware is None:
        if arguments.plan.is_dir():
            raise UsageError("pass --gpu, such as --gpu h100: a model alone names no device")
        raise UsageError(
            f"{arguments.plan} has no `hardware` block: pass --gpu, such as --gpu h100, "
            "or add `hardware { gpu = h100 }`"
        )
    device = plan.hardware.gpu
    node = plan.mesh.devices_per_node or device.devices_per_node
    if arguments.nodes:
        node, rest = divmod(arguments.gpus, arguments.nodes)
        if rest:
            raise UsageError(f"{arguments.gpus} devices are not whole nodes of {arguments.nodes}")
    unknown = [name for name in _PEAKS if getattr(device, name) is None]
    if unknown or node is None:
        missing = ", ".join(f"`{name}`" for name in unknown or ["devices_per_node"])
        raise UsageError(
            f"the device in `hardware` lacks {missing}: add them to `{device.name}(...)`, "
            "or pass --gpu with a device that planc knows, such as --gpu h100"
        )
    if arguments.gpus > node and arguments.gpus % node:
        raise UsageError(f"{arguments.gpus} devices are not whole nodes of {node}: pass --nodes")
    base = with_comments(_base(bound, arguments), comments_of(source))
    asked = {"world_size": arguments.gpus, "tokens_per_step": base.tokens_per_step}
    for expectation in plan.expectations:
        if expectation.subject in asked and not holds(expectation, asked[expectation.subject]):
            expected = f"`{expectation.subject} {expectation.operator} {expectation.value}`"
            raise UsageError(
                f"the plan expects {expected}, not {asked[expectation.subject]:_}: change that line"
            )
    key = key_of(plan.model.hf, own=plan.model.architecture, classes=plan.model.task.classes)
    models = KnownModels(folder, cache_dir(), found={key: bound.model})
    scorer = Scorer(base, bound.model, device, min(node, arguments.gpus))
    search = Search(base, models, folder, scorer, device, min(node, arguments.gpus), arguments.gpus)
    search.margin = arguments.margin / 100
    return search


def _base(bound: BoundPlan, arguments: Namespace) -> Base:
    base = base_of(bound, tokens=arguments.tokens_per_step)
    if base.tokens_per_step % base.sequence_length:
        raise UsageError(
            f"{base.tokens_per_step:_} tokens per step are not whole sequences of {base.sequence_length:_}"
        )
    if bound.plan.fsdp is not None and bound.plan.fsdp.cpu_offload:
        raise UsageError("the time of CPU offload is not modeled: search without `cpu_offload`")
    if not bound.inventory.blocks:
        raise UsageError("the model has no repeated layers for FSDP to shard")
    return base


def _write(proposals: tuple[Proposal, ...], search: Search, arguments: Namespace) -> int:
    """Write the chosen plan once a rehearsal finds nothing wrong."""
    if arguments.pick > len(proposals):
        raise UsageError(f"--pick {arguments.pick}: there are {len(proposals)} plans")
    text = written_plan(proposals[arguments.pick - 1], search)
    name = str(arguments.output)
    checked = check_source(SourceFile(name, text), base=search.folder, models=search.models)
    with spinner(f"rehearsing {name}", stream=sys.stderr):
        # The other outcomes should not wait for this import, of torch.
        from planc.cli.support.deep import rehearse

    rehearsed, _ = rehearse(name, checked, stream=sys.stderr, runs_extensions=arguments.run_extensions)
    if has_errors(rehearsed.diagnostics):
        sys.stderr.write(plans.render_errors(rehearsed, stream=sys.stderr))
        return FINDINGS
    arguments.output.write_text(text, encoding="utf-8", newline="\n")
    print(f"planc: wrote {name}, which passed `check --deep`", file=sys.stderr)
    if arguments.plan.is_dir():
        for note in _placeholders(arguments.plan):
            print(f"planc: note: {note}", file=sys.stderr)
    for line in next_commands(arguments.output, devices=arguments.gpus, node=search.node):
        print(f"  {line}", file=sys.stderr)
    return CLEAN


def _placeholders(model: Path) -> Iterator[str]:
    """Describe what a plan of a model alone has in place of what only its user knows."""
    yield "its data are data/*.txt next to the plan: put yours there, or name them in the block `data`"
    if not _has_tokenizer(model):
        yield f"{model} has no tokenizer.json: the plan takes bytes for tokens"


def _has_tokenizer(model: Path) -> bool:
    return (model / "tokenizer.json").exists()
