"""What every test is kept from: the user's home, caches and variables, and writing into the checkout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import MutableMapping
from pathlib import Path

from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[1]

_PREFIXES = (
    *("PLANC_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TOKENIZERS_"),
    *("WANDB_", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "OMPI_", "PMI_", "MKL_", "KMP_", "RAYON_"),
    *("INDUCTOR_", "TRITON_", "SLURM_", "PBS_", "KUBERNETES_", "GITHUB_", "GITLAB_", "GIT_", "PRE_COMMIT"),
    *("XDG_", "LC_", "CLICOLOR"),
)
_NAMES = (
    *("TP_SIZE", "DP_SIZE", "CP_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
    *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CI", "NETRC", "LANGUAGE", "CUDA_LAUNCH_BLOCKING"),
    *("PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONSTARTUP", "PYTHONHOME"),
    *("PYTHONUNBUFFERED", "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONSAFEPATH", "CC", "CXX"),
)
_SET = {"LANG": "C.UTF-8", "TZ": "UTC", "TERM": "dumb", "GIT_CONFIG_NOSYSTEM": "1"}
_DEFAULTS = {"OMP_NUM_THREADS": "1"}
"""What the Makefile sets; whoever runs pytest alone may choose otherwise."""

INVENTORIES = "TESTS_INVENTORIES"
"""The variable with the folder of what `tests.inventories` has probed in a session."""

_CACHES = ("__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", ".git")


def isolate(environment: MutableMapping[str, str], *, home: Path) -> None:
    """Leaves nothing of a user in the environment; `home` is an empty folder for caches and settings."""
    for name in list(environment):
        if name.startswith(_PREFIXES) or name in _NAMES:
            del environment[name]
    environment.update(_SET, HOME=str(home), USERPROFILE=str(home))
    environment[INVENTORIES] = str(home / "inventories")
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)


def files_of_checkout() -> frozenset[str] | None:
    """The files of the checkout that git doesn't track, ignored ones too; None where git can't tell."""
    command = ["git", "ls-files", "--others", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WAIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    paths = map(os.fsdecode, done.stdout.split(b"\0"))
    return frozenset(
        path for path in paths if path and not path.startswith(".venv") and not _is_of_cache(path)
    )


def _is_of_cache(path: str) -> bool:
    return any(part in _CACHES for part in path.split("/"))


def changed_files() -> frozenset[str]:
    """The tracked files that differ from what is staged."""
    done = subprocess.run(
        ["git", "diff", "--name-only", "-z"], cwd=ROOT, capture_output=True, timeout=WAIT_SECONDS
    )
    return frozenset(os.fsdecode(path) for path in done.stdout.split(b"\0") if path)
