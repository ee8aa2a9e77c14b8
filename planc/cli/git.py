"""What git says."""

from __future__ import annotations

import subprocess

from planc.cli.exits import UsageError

_NOT_SET = 1


def git(*arguments: str, stdin: bytes | None = None) -> bytes:
    """What a git command prints. UsageError with git's words where it fails."""
    done = _run(*arguments, stdin=stdin)
    if done.returncode != 0:
        raise UsageError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def git_config(name: str, *, scope: str) -> str | None:
    """The last value of a setting in a scope, `--local` or `--global`; None where it has none."""
    done = _run("config", scope, "--get", name)
    if done.returncode not in (0, _NOT_SET):
        raise UsageError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode().removesuffix("\n") if done.returncode == 0 else None


def _run(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False, input=stdin)
    except FileNotFoundError as error:
        raise UsageError("git is not installed") from error
