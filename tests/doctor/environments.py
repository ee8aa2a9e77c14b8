"""Processes in environments of their own: other packages, other variables, other limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from planc.doctor.packages import PACKAGES
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
LIGHT = (
    "lark",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "rich",
    "PyYAML",
)
"""What a light installation has, and what that needs to be imported."""
READ = ("PATH", "HOME", "TMPDIR", "LANG")
"""What a process takes over from this one."""


def light_installation(folder: Path) -> Path:
    """`folder` with the packages of an installation without PyTorch, as links to those of this one."""
    folder.mkdir()
    for name in LIGHT:
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def installed(folder: Path, **versions: str) -> Path:
    """`folder` with the records of packages in these versions, which count where it is first on the path."""
    for name, version in versions.items():
        record = folder / f"{name}-{version}.dist-info"
        record.mkdir(parents=True)
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def python(
    *arguments: str,
    path: Sequence[Path] = (),
    is_bare: bool = False,
    environment: Mapping[str, str] | None = None,
    shell_prefix: str = "",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Python with `path` first on its path; `is_bare` leaves out all installed packages.

    It runs where only plans are: in the checkout a plan's run would be the one that `make quickstart` left.
    """
    inherited = {name: os.environ[name] for name in READ if name in os.environ}
    search = os.pathsep.join(str(folder) for folder in (*path, ROOT))
    command = [sys.executable, *(["-S"] if is_bare else []), *arguments]
    if shell_prefix:
        command = ["sh", "-c", f'{shell_prefix}; exec "$@"', "sh", *command]
    return subprocess.run(
        command,
        env={**inherited, "PYTHONPATH": search, **(environment or {})},
        cwd=cwd or _only_plans(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def _only_plans() -> Path:
    folder = Path(os.environ["HOME"]) / "only plans"
    folder.mkdir(exist_ok=True)
    if not (folder / "plans").exists():
        (folder / "plans").symlink_to(ROOT / "plans")
    return folder


def present_versions() -> dict[str, str | None]:
    """Every package in the newest release that planc is tested with."""
    return {package.name: package.newest for package in PACKAGES}
