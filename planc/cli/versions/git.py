"""Calls of git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from planc.cli.support.exits import UsageError

_NOT_SET = 1


def git(*arguments: str, stdin: bytes | None = None) -> bytes:
    """The output of a git command. UsageError with git's message if it fails."""
    done = _run(*arguments, stdin=stdin)
    if done.returncode != 0:
        raise UsageError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def git_paths(*arguments: str) -> list[str]:
    """The paths that a git command prints, with `-z` or one only."""
    listed = git(*arguments)
    ended = listed.removesuffix(b"\0") if b"\0" in listed else listed.rstrip(b"\r\n")
    # Names of the file system need not be in UTF-8 or the locale's encoding.
    return [os.fsdecode(path) for path in ended.split(b"\0")] if ended else []


def top_folder() -> Path:
    """The top of the current directory's repository. UsageError outside one."""
    (path,) = git_paths("rev-parse", "--show-toplevel")
    return Path(path)


def git_config(name: str, *, scope: str) -> str | None:
    """The last value of a setting in a scope, `--local` or `--global`; None if unset."""
    done = _run("config", scope, "--get", name)
    if done.returncode not in (0, _NOT_SET):
        raise UsageError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode().removesuffix("\n") if done.returncode == 0 else None


def _run(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False, input=stdin)
    except FileNotFoundError as error:
        raise UsageError("git is not installed") from error
