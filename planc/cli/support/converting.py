"""`planc checkpoint convert`: to and from what torch.distributed.checkpoint (DCP) writes by itself."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import planc
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.libraries import require_libraries
from planc.hub.names import model_folder
from planc.runtime.checkpoint_format.manifest import Manifest, Progress
from planc.runtime.errors import RunError
from planc.runtime.model_files import config_digest

OPTIONS = ("dcp", "planc", "unpickle", "step", "rename")
_MAX_LISTED = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dcp", metavar="FOLDER", help="convert: the folder of plain DCP to write")
    parser.add_argument(
        "--planc", metavar="FOLDER", help="convert: the folder that gets plain DCP as planc's `step-N`"
    )
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="convert: read the pickle in plain DCP, in a confined process",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="convert: the step that DCP of another program is of"
    )
    parser.add_argument(
        "--rename",
        action="append",
        metavar="OLD=NEW",
        help="convert: another start for tensors' names in DCP (=model. for all); again for more",
    )


def to_plain(checkpoint: Path, arguments: Namespace) -> int:
    """0 once the folder is written as plain DCP, and read back."""
    for option in OPTIONS[1:]:
        if getattr(arguments, option) not in (None, False):
            raise UsageError(f"--{option} is for plain DCP that becomes planc's, not for --dcp")
    require_libraries("planc checkpoint convert", "torch")
    # It imports torch, which takes seconds.
    from planc.runtime.torch.checkpoint.dcp_convert import to_dcp

    to_dcp(checkpoint, folder=Path(arguments.dcp))
    print(f"wrote {arguments.dcp}, of {checkpoint}; read back, it is equal in every bit", file=sys.stderr)
    return CLEAN


def from_plain(folder: Path, arguments: Namespace) -> int:
    """0 once the folder of plain DCP is a checkpoint of planc's, and verified."""
    if not arguments.planc:
        raise UsageError(
            "say what to write: --dcp FOLDER, or --planc FOLDER where the checkpoint is plain DCP"
        )
    if not arguments.unpickle:
        raise UsageError(
            f"{folder}: plain DCP describes its tensors in a pickle, a program that its writer chose; "
            "nothing of it has been read\n"
            "with --unpickle it is read by a process without files, sockets and environment, which takes no "
            "names but those of DCP's metadata"
        )
    require_libraries("planc checkpoint convert", "torch", "numpy")
    # It imports torch, which takes seconds.
    from planc.runtime.torch.checkpoint.dcp_convert import from_dcp

    directory, left_out = from_dcp(
        folder,
        root=Path(arguments.planc),
        prefixes=dict(map(_renaming, arguments.rename or ())),
        facts=_facts(arguments),
    )
    print(f"wrote {directory}, of {folder}, and verified it{_left_out(left_out)}", file=sys.stderr)
    return CLEAN


def _facts(arguments: Namespace) -> Manifest | None:
    """What a user says of a checkpoint that does not say it itself."""
    if arguments.step is None:
        if arguments.model:
            raise UsageError("--model goes with --step: what planc has written says both itself")
        return None
    if arguments.step < 0:
        raise UsageError("--step is 0 or more")
    return Manifest(
        planc_version=planc.__version__,
        torch_version="unknown",
        step=arguments.step,
        plan_hash="",
        model_digest=_digest(arguments.model) if arguments.model else "",
        mesh={},
        # Nothing tells what data it has seen: a run refuses to go on from it, as from one of other data.
        progress=Progress(step=arguments.step, samples_consumed=0, seed=0, data_fingerprint=""),
        tensors={},
        files={},
    )


def _digest(model: str) -> str:
    try:
        return config_digest(model_folder(model, base=Path()))
    except (ValueError, RunError) as error:
        raise UsageError(str(error)) from error


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals:
        raise UsageError(f"--rename is OLD=NEW, not {text}")
    return old, new


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"\nleft out, as they are no tensors: {', '.join(names[:_MAX_LISTED])}{more}"
