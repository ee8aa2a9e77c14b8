"""The system compiler that torch.compile calls.

Inductor compiles C++ for CPUs, and C for the code that launches kernels on CUDA devices.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping

_CXX = "clang++" if sys.platform == "darwin" else "g++"
_C = ("gcc", "clang")


def find_compiler(device: str, environment: Mapping[str, str]) -> str | None:
    """The path of the compiler that inductor uses for `cpu` or `cuda`; None if there isn't one.

    Searches as torch/_inductor/config.py (cpp.cxx) and triton/runtime/build.py do.
    """
    name = "CXX" if device == "cpu" else "CC"
    wanted = (environment[name],) if name in environment else (_CXX,) if device == "cpu" else _C
    path = environment.get("PATH")
    return next((compiler for one in wanted if (compiler := shutil.which(one, path=path))), None)


def unusable_inductor(device: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """(message, help) if inductor can't build kernels for a device on this machine; None if it can."""
    otherwise = "write `backend = aot_eager` in `compile`"
    if find_compiler(device, environment) is None:
        language, name, package = ("C++", "CXX", "g++") if device == "cpu" else ("C", "CC", "gcc")
        return (
            f"`backend = inductor` needs a {language} compiler, but none is installed",
            f"install {package} or name a compiler in {name}, or {otherwise}",
        )
    # It hands the compiler one line of text, without quotes (torch/_inductor/cpp_builder.py).
    if device == "cpu" and " " in _torch_path():
        return (
            f"`backend = inductor` can't compile for CPUs: torch is in {_torch_path()}, a path with a space",
            f"install torch in a path without spaces, or {otherwise}",
        )
    return None


def _torch_path() -> str:
    torch = importlib.util.find_spec("torch")
    return "" if torch is None or torch.origin is None else torch.origin
