"""Runs planc's commands in a process that lacks something: a library, or what only POSIX has.

    python -m tests.platforms.pretend [LIBRARY | posix ...] < commands.json > answers.json

Only planc's own modules see another system: what the libraries do on each is theirs to test.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, util
from types import ModuleType
from typing import Any

ALONG = ("huggingface_hub", "filelock", "regex", "pyarrow", "sympy", "fsspec")
"""What an installation without torch and transformers has not got either."""

POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "readline")
POSIX_NAMES: Mapping[str, tuple[str, ...]] = {
    "os": (
        *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_SYNC", "O_DSYNC", "O_NOCTTY", "O_PATH"),
        *("fork", "forkpty", "register_at_fork", "wait", "wait3", "wait4", "waitid", "WNOHANG", "nice"),
        *("getuid", "geteuid", "getgid", "getegid", "getgroups", "getpgid", "setsid", "getsid", "killpg"),
        *("uname", "statvfs", "fstatvfs", "chown", "fchown", "lchown", "fchmod", "fchdir", "mkfifo", "mknod"),
        *("sched_getaffinity", "sched_setaffinity", "getloadavg", "sysconf", "confstr", "ctermid", "openpty"),
        *("pread", "pwrite", "readv", "writev", "sendfile", "posix_fallocate", "posix_fadvise", "lockf"),
        *("copy_file_range", "memfd_create", "eventfd", "pidfd_open", "getrandom", "setpriority"),
    ),
    "signal": (
        *("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGXCPU", "SIGQUIT", "SIGPIPE"),
        *("SIGTSTP", "SIGSTOP", "SIGCONT", "SIGBUS", "pthread_sigmask", "pthread_kill", "sigwait", "alarm"),
        *("setitimer", "sigtimedwait", "siginterrupt", "pause"),
    ),
    "socket": ("AF_UNIX", "SO_REUSEPORT", "SCM_RIGHTS", "recv_fds", "send_fds"),
    "select": ("poll", "epoll", "kqueue"),
    "time": ("tzset", "clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC"),
}
"""What Windows has not got, by module, of what planc uses or might."""


class Lacking(ModuleType):
    """A module without some of its names."""

    def __init__(self, real: ModuleType, names: Sequence[str], **other: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update({k: v for k, v in vars(real).items() if k not in names}, **other)


def windows() -> dict[str, ModuleType]:
    """The modules as planc sees them on Windows."""
    real_open = os.open

    def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real_open(path, flags, mode)

    other: dict[str, dict[str, Any]] = {
        "os": {"name": "nt", "open": open_file, "supports_dir_fd": set(), "O_BINARY": 0}
    }
    return {
        name: Lacking(sys.modules.get(name) or __import__(name), names, **other.get(name, {}))
        for name, names in POSIX_NAMES.items()
    }


def lack(missing: Sequence[str], stand_ins: Mapping[str, ModuleType], *, for_all: bool) -> None:
    """Imports of `missing` fail, for all modules or for planc's alone; planc's get the stand-ins."""
    real = builtins.__import__

    def importing(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        importer = (globals or {}).get("__name__", "")
        is_planc = importer == "planc" or importer.startswith("planc.")
        top = name.partition(".")[0]
        if level == 0 and top in missing and (for_all or is_planc):
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
        if level == 0 and is_planc and name in stand_ins:
            return stand_ins[name]
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = importing  # type: ignore[assignment]
    if for_all:
        _hide(missing)


def _hide(missing: Sequence[str]) -> None:
    """Also from who looks for a library without importing it, and from `import_module`."""
    find, version, load = util.find_spec, metadata.version, importlib.import_module

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.partition(".")[0] in missing else find(name, package)

    def version_of(name: str) -> str:
        if name.replace("-", "_") in missing:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, package)

    util.find_spec, metadata.version, importlib.import_module = find_spec, version_of, import_module


def prepare(missing: Sequence[str]) -> None:
    """Takes libraries from this process, and what only POSIX has where `posix` is among their names."""
    if "posix" in missing:
        lack(POSIX_MODULES, windows(), for_all=False)
    if libraries := [name for name in missing if name != "posix"]:
        lack([*libraries, *(ALONG if "torch" in libraries else ())], {}, for_all=True)


def answer(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> dict[str, Any]:
    """What a command prints, and its exit code."""
    encoding = os.environ.get("PRETENDED_ENCODING", "utf-8")
    real = sys.stdout, sys.stderr
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in real]
    sys.stdout, sys.stderr = streams
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout, sys.stderr = real
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))  # type: ignore[attr-defined]
    return {"arguments": list(arguments), "code": code, "out": texts[0], "err": texts[1]}


def _main() -> None:
    commands = json.load(sys.stdin)
    leave, os._exit = os._exit, sys.exit  # type: ignore[assignment]
    prepare(sys.argv[1:])
    from planc.cli.main import main

    print(json.dumps([answer(main, arguments) for arguments in commands]))
    sys.stdout.flush()
    # Past what torch would take apart.
    leave(0)


if __name__ == "__main__":
    _main()
