"""Arguments that several commands take: one name, one metavar and one help each."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from planc.devices.hardware import DEVICES, in_lower_case, meant_device
from planc.diagnostics.suggest import closest

STDIN = "-"


def add_plan_argument(
    parser: ArgumentParser, *, help: str = "a .plan file", type: Callable[[str], object] = str
) -> None:
    parser.add_argument("plan", metavar="PLAN", help=help, type=type)


def add_plans_argument(parser: ArgumentParser, *, help: str) -> None:
    parser.add_argument("plans", nargs="+", metavar="PLAN", help=help)


def add_set_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override a parameter (size=4), a setting (mesh.tp=4) or an argument of a setting's call "
        "(optimizer.lr=2e-3); can be repeated",
    )


def add_gpu_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        dest="set",
        action="append",
        type=_gpu,
        metavar="NAME",
        help="target device, such as h100; short for --set hardware.gpu=NAME",
    )


def add_world_size_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--world-size",
        type=_world_size,
        metavar="N",
        help="number of ranks in the launch; the mesh must have as many",
    )


def add_allow_change_argument(parser: ArgumentParser) -> None:
    """Add --allow-change, for a run that starts from a checkpoint."""
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="NAME",
        help="resume even though NAME differs from the checkpoint's plan (NAME as printed in the error); "
        "can be repeated",
    )


def add_run_dir_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=_run_dir, metavar="DIR", help="run directory (default: runs/NAME)")


def add_output_argument(parser: ArgumentParser, *, help: str) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=help)


def add_output_format_argument(
    parser: ArgumentParser, names: Sequence[str] = ("text", "json"), *, note: str = ""
) -> None:
    """The first name is the default."""
    parser.add_argument(
        "--output-format",
        choices=names,
        default=names[0],
        metavar="FORMAT",
        help=f"{names[0]} (default), {', '.join(names[1:])}{note}",
    )


def add_quiet_argument(parser: ArgumentParser, *, help: str = "print findings only") -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help=help)


def add_run_extensions_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--run-extensions", action="store_true", help="permit running the Python files that the plan names"
    )


def positive_number(text: str) -> int:
    """The number of 1 or more that an option gives."""
    if not text.replace("_", "").isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"`{text}` is not a positive number")
    return int(text)


def _gpu(text: str) -> str:
    """The setting of a device. A name that no plan could write is refused here, where the flag is named."""
    if "(" not in text and not re.fullmatch(r"\w+", text):
        raise ArgumentTypeError(unknown_device(text, DEVICES))
    return f"hardware.gpu={in_lower_case(text)}"


def unknown_device(name: str, known: Iterable[str]) -> str:
    """The error for a name that is none of the known devices, with the one that it probably means."""
    names = (*known,)
    # `a100_40gb` is as near to `a100_80gb` as `a100` is, but another device.
    meant = meant_device(name) or closest(name, names)
    near = f"did you mean `{meant}`?" if meant else f"write {', '.join(names)}"
    return f"`{name}` is not a device that planc knows; {near}"


def _world_size(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ArgumentTypeError(f"`{text}` is not a number of ranks")
    return int(text)


def _run_dir(text: str) -> Path:
    if not text:
        raise ArgumentTypeError("the directory's name is empty")
    return Path(text)
