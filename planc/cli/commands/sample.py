"""`planc sample`: text from a checkpoint or an export."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.support.checkpoints import add_weights_argument, is_export, newest_of
from planc.cli.support.exits import CLEAN, UsageError, require_libraries
from planc.cli.support.export import export, plan_of
from planc.cli.support.options import add_output_format_argument
from planc.cli.support.streams import quiet_libraries
from planc.graph.artifact import graph_of
from planc.graph.ops import BuildModel, BuildOwnModel
from planc.graph.sources import training_data
from planc.hub.tokenizer_files import MODEL_CONFIG, tokenizer_files
from planc.runtime.errors import RunError

if TYPE_CHECKING:
    # It imports numpy, which other commands can do without.
    from planc.runtime.data.tokenizers import TokenizerFiles

DESCRIPTION = """\
Continue a text with a checkpoint's model, by transformers' own generate, in one process. An encoder-decoder
(`task = seq2seq_lm`) is given the text as its input, and its answer is printed, without the special tokens
around it. A checkpoint of planc is written to a temporary directory first, as `planc checkpoint export` does,
with adapters merged. The text begins as documents do in training."""

EPILOG = """\
examples:
  planc sample runs/llama "Once upon a time"
  planc sample runs/llama/checkpoints/step-500 "def main" --temperature 0.8 --top-p 0.95 --seed 1
  planc sample exports/llama "Once" --max-new-tokens 20 --output-format json
  planc sample runs/summaries "A long article, of which a summary is wanted."

Without --temperature the likeliest token is taken. A model class of the plan's own code has no generate, and
is refused."""


def add_arguments(parser: ArgumentParser) -> None:
    add_weights_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="the text to continue, or an encoder-decoder's input")
    parser.add_argument(
        "--max-new-tokens", type=_count, default=64, metavar="N", help="most tokens to write (default: 64)"
    )
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="draw tokens, with logits divided by this (default: 0, the likeliest token)",
    )
    parser.add_argument(
        "--top-p",
        type=_share,
        default=1.0,
        metavar="P",
        help="draw from the likeliest tokens of this share (default: 1)",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument(
        "--bytes", action="store_true", help="the export was trained with `tokenizer = bytes`"
    )
    add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """0; UsageError for a checkpoint, a text or an option that gives no sample."""
    if arguments.top_p < 1 and not arguments.temperature:
        raise UsageError("--top-p needs --temperature: the likeliest token is taken without it")
    require_libraries("planc sample", "torch", "transformers", "safetensors", "numpy", "tokenizers")
    quiet_libraries(os.environ)
    gc.enable()
    with _opened(arguments) as (folder, tokenizer, name):
        # It imports torch, which takes seconds; errors that need no torch have been raised.
        from planc.runtime.torch.sampling import Sampling, sample

        how = Sampling(arguments.max_new_tokens, arguments.temperature, arguments.top_p, arguments.seed)
        try:
            written = sample(folder, tokenizer, arguments.text, how)
        except RunError as error:
            raise UsageError("\n".join(filter(None, (error.message, error.help)))) from error
    if arguments.output_format == "json":
        document = {
            "checkpoint": str(name),
            "text": arguments.text,
            "continuation": written.text,
            "prompt_tokens": written.num_prompt_tokens,
            "tokens": written.num_tokens,
            "ended": written.is_ended,
        }
        print(json.dumps(document, indent=2))
    else:
        print(written.text if written.is_answer else f"{arguments.text}{written.text}")
    return CLEAN


@contextmanager
def _opened(arguments: Namespace) -> Iterator[tuple[Path, TokenizerFiles, Path]]:
    """A directory that transformers loads, its tokenizer, and the checkpoint's own directory."""
    folder = Path(arguments.checkpoint)
    if is_export(folder):
        yield folder, _tokenizer_in(folder, is_bytes=arguments.bytes), folder
        return
    if arguments.bytes:
        raise UsageError("--bytes is for exports: the plan of a checkpoint names its tokenizer")
    checkpoint = newest_of(arguments.checkpoint)
    tokenizer = _tokenizer_of(checkpoint)
    with tempfile.TemporaryDirectory(prefix="planc-sample-") as temporary:
        exported = Path(temporary) / "export"
        export(checkpoint, folder=str(exported), model=None, dtype=None)
        yield exported, tokenizer, checkpoint


def _tokenizer_of(checkpoint: Path) -> TokenizerFiles:
    """The tokenizer of the plan that saved a checkpoint. UsageError for a model without generate."""
    saved = plan_of(checkpoint)
    graph = graph_of(saved.artifact)
    built = next(op for op in graph.setup if isinstance(op, BuildModel))
    if isinstance(built, BuildOwnModel):
        raise UsageError(
            f"the model of {checkpoint} is `{built.own.entry}`, of {built.own.file}: `generate` belongs to "
            "transformers' classes\n`planc eval` computes its loss"
        )
    opened = training_data(graph)
    return _read(
        opened.tokenizer,
        saved.folder / saved.artifact.base,
        end=opened.end_of_document,
        begin=opened.begin_of_document,
    )


def _tokenizer_in(folder: Path, *, is_bytes: bool) -> TokenizerFiles:
    """The tokenizer of an export. UsageError for one without."""
    if not is_bytes and not {*tokenizer_files(folder)} - {MODEL_CONFIG}:
        raise UsageError(f"{folder} has no tokenizer\nadd --bytes if its plan has `tokenizer = bytes`")
    return _read("bytes" if is_bytes else ".", folder, end=None, begin=None if is_bytes else "auto")


def _read(tokenizer: str, base: Path, *, end: str | None, begin: str | None) -> TokenizerFiles:
    from planc.runtime.data.errors import DataError
    from planc.runtime.data.tokenizers import read_tokenizer

    try:
        return read_tokenizer(tokenizer, base=base, end_of_document=end, begin_of_document=begin)
    except DataError as error:
        raise UsageError("\n".join(filter(None, (error.message, error.help)))) from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**6):
        raise ArgumentTypeError(f"`{text}` is not a number of tokens")
    return int(text)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ArgumentTypeError(f"`{text}` is not a seed")
    return int(text)


def _temperature(text: str) -> float:
    return _number(text, "a temperature from 0 to 100", most=100.0)


def _share(text: str) -> float:
    share = _number(text, "a share above 0, to 1", most=1.0)
    if share == 0:
        raise ArgumentTypeError(f"`{text}` is not a share above 0, to 1")
    return share


def _number(text: str, what: str, *, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise ArgumentTypeError(f"`{text}` is not {what}")
    return number
