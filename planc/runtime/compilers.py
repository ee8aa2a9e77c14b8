"""The system's compiler that torch.compile calls.

Inductor writes C++ for processors, and has C built for what launches kernels on CUDA devices.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

_CXX = "clang++" if sys.platform == "darwin" else "g++"
_C = ("gcc", "clang")


def find_compiler(device: str, environment: Mapping[str, str]) -> str | None:
    """The path of the compiler that inductor takes for `cpu` or `cuda`; None where there is none.

    As torch/_inductor/config.py (cpp.cxx) and triton/runtime/build.py look for it.
    """
    name = "CXX" if device == "cpu" else "CC"
    wanted = (environment[name],) if name in environment else (_CXX,) if device == "cpu" else _C
    path = environment.get("PATH")
    return next((found for one in wanted if (found := shutil.which(one, path=path))), None)


def missing_compiler(device: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """(what is missing, help) where inductor cannot work; None where it can."""
    if find_compiler(device, environment) is not None:
        return None
    language, name, package = ("C++", "CXX", "g++") if device == "cpu" else ("C", "CC", "gcc")
    return (
        f"`backend = inductor` needs a {language} compiler, and this machine has none",
        f"install {package} or name a compiler in {name}, or write `backend = aot_eager` in `compile`",
    )
