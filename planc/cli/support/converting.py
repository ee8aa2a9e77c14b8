"""`planc checkpoint convert`: to and from plain torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import planc
from planc.cli.support.exits import UsageError, require_libraries
from planc.hub.names import model_folder
from planc.runtime.checkpoint_format.manifest import Contents, Manifest, Progress
from planc.runtime.errors import RunError
from planc.runtime.model_files import config_digest

if TYPE_CHECKING:
    from planc.runtime.torch.checkpoint.foreign import ModelNames

_MAX_LISTED = 5


def add_arguments(parser: ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--dcp", metavar="DIR", help="write plain DCP to this directory")
    target.add_argument(
        "--planc", metavar="DIR", help="write plain DCP as a planc checkpoint `step-N` in this directory"
    )
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="with --planc: read the pickle in plain DCP, in a sandboxed process",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="with --planc: the step of DCP from another program"
    )
    parser.add_argument("--model", metavar="DIR", help="with --step: the directory of the tensors' model")
    parser.add_argument(
        "--rename",
        action="append",
        metavar="OLD=NEW",
        help="with --planc: replace a prefix of DCP's tensor names (=model. adds one); can be repeated",
    )


def to_plain(checkpoint: Path, arguments: Namespace) -> str:
    """Write the checkpoint as plain DCP and read it back; return a note of what was written."""
    for option in ("unpickle", "step", "model", "rename"):
        if getattr(arguments, option) not in (None, False):
            raise UsageError(f"--{option} needs --planc: it applies to plain DCP as input")
    require_libraries("planc checkpoint convert", "torch")
    # It imports torch, which takes seconds.
    from planc.runtime.torch.checkpoint.dcp_convert import to_dcp

    base = to_dcp(checkpoint, folder=Path(arguments.dcp)).base
    rest = f"\nfrozen parameters are not in it: they are in {base.path}" if base is not None else ""
    return f"wrote {arguments.dcp} from {checkpoint}; read back, it is bitwise equal{rest}"


def from_plain(folder: Path, arguments: Namespace) -> str:
    """Write plain DCP as a planc checkpoint and verify it; return a note of what was written."""
    if not arguments.unpickle:
        raise UsageError(
            f"{folder}: plain DCP stores its metadata as a pickle, which can execute arbitrary code when "
            "loaded; planc has not read it\n"
            "pass --unpickle to read it in a process without files, sockets or environment variables that "
            "allows DCP's metadata classes alone"
        )
    require_libraries("planc checkpoint convert", "torch", "numpy")
    # It imports torch, which takes seconds.
    from planc.runtime.torch.checkpoint.dcp_convert import from_dcp

    facts = _facts(arguments)
    directory, left_out = from_dcp(
        folder,
        root=Path(arguments.planc),
        prefixes=dict(map(_renaming, arguments.rename or ())),
        facts=facts,
        model=_names(arguments.model) if arguments.model else None,
    )
    written = f"wrote {directory} from {folder}; read back, it is bitwise equal"
    return f"{written}{_compared(arguments, is_own=facts is None)}{_left_out(left_out)}"


def _names(model: str) -> ModelNames:
    require_libraries("planc checkpoint convert --model", "torch", "transformers")
    # They import torch and transformers, which takes seconds.
    from planc.runtime.torch.checkpoint.foreign import names_of
    from planc.runtime.torch.weights.factory import config_in, on_meta

    return names_of(on_meta(config_in(model_folder(model, base=Path()), None), None))


def _compared(arguments: Namespace, *, is_own: bool) -> str:
    """Whether names and shapes of another program's tensors are known to be a model's."""
    if is_own:
        return ""
    if arguments.model:
        return f"\nnames and shapes are those of the model in {arguments.model}"
    return "\nnames and shapes were not compared with a model: pass --model DIR to do so"


def _facts(arguments: Namespace) -> Manifest | None:
    """The facts that only the user knows of DCP from another program; None for DCP that planc wrote."""
    if arguments.step is None:
        if arguments.model:
            raise UsageError("--model needs --step: DCP that planc wrote stores both")
        return None
    if arguments.step < 0:
        raise UsageError("--step must be 0 or more")
    return Manifest(
        planc_version=planc.__version__,
        torch_version="unknown",
        step=arguments.step,
        plan_hash="",
        model_digest=_digest(arguments.model) if arguments.model else "",
        mesh={},
        # Its data is unknown, so a run refuses to resume from it unless the change of data is allowed.
        progress=Progress(step=arguments.step, samples_consumed=0, seed=0, data_fingerprint=""),
        contents=Contents(grids=(), tensors={}),
        parts=(),
    )


def _digest(model: str) -> str:
    try:
        return config_digest(model_folder(model, base=Path()))
    except (ValueError, RunError) as error:
        raise UsageError(str(error)) from error


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals:
        raise UsageError(f"--rename must be OLD=NEW, not `{text}`")
    return old, new


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"\nleft out because they are not tensors: {', '.join(names[:_MAX_LISTED])}{more}"
