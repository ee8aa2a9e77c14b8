"""Damage to an entry of a directory: cut, spoiled, grown, or replaced by anything but a plain file."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOB = 18 * 2**20
"""Bytes of a line that is longer than any that a run writes."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A directory next to the run's, to which links point, and its initial contents."""

    folder: Path

    def make(self) -> None:
        """Create it again."""
        remove(self.folder)
        (self.folder / "folder").mkdir(parents=True)
        (self.folder / "file").write_text("outside", encoding="utf-8")

    def problem(self) -> str:
        """Unless nothing of it has changed."""
        names = sorted(path.name for path in self.folder.iterdir())
        if names != ["file", "folder"] or list((self.folder / "folder").iterdir()):
            return f"a link was followed: outside the folder there are {names}"
        text = (self.folder / "file").read_text(encoding="utf-8")
        return "" if text == "outside" else "a link was followed, and what it leads to overwritten"


Damage = Callable[[Path, Outside], object]


def remove(path: Path) -> None:
    """Removes whatever has this name, a link itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _instead(make: Damage) -> Damage:
    def damage(path: Path, outside: Outside) -> None:
        remove(path)
        path.parent.mkdir(exist_ok=True)
        make(path, outside)

    return damage


def _content(change: Callable[[bytes], bytes]) -> Damage:
    def damage(path: Path, outside: Outside) -> None:
        content = path.read_bytes() if path.is_file() else b'{"step": 1, "phase": {"a": 1}}\n'
        remove(path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(change(content))

    return damage


def _cut_after_brace(content: bytes) -> bytes:
    return content[: content.rfind(b"}", 0, max(1, len(content) - 2)) + 1]


def _in_the_middle(more: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content[: len(content) // 2] + more + content[len(content) // 2 :]


def _bind(path: Path, outside: Outside) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        # The name of a socket has a hundred bytes at most.
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def _fill(path: Path, outside: Outside) -> None:
    path.mkdir()
    (path / "file").write_text("text")


def _grow(path: Path, outside: Outside) -> None:
    with path.open("wb") as stream:
        stream.truncate(2**42)


def _make_zeros(path: Path, outside: Outside) -> None:
    # Not every user, nor every container, may make a device: then the entry is lost.
    with contextlib.suppress(PermissionError):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


DAMAGES: Mapping[str, Damage] = {
    "lost": lambda path, outside: remove(path),
    "emptied": _content(lambda content: b""),
    "cut in half": _content(lambda content: content[: len(content) // 2]),
    "cut after an inner brace": _content(_cut_after_brace),
    "with a byte that is not UTF-8": _content(_in_the_middle(b"\xff")),
    "with a page of zeros": _content(_in_the_middle(bytes(4096))),
    "with a list on a line": _content(_in_the_middle(b"\n[1]\n")),
    "with numbers of 400 digits": _content(
        lambda content: re.sub(rb'(": *)\d', rb"\g<1>" + b"9" * 400, content)
    ),
    "with numbers beyond all": _content(lambda content: re.sub(rb'(": *)[\d.e-]+', rb"\g<1>1e999", content)),
    "nested deeply": _content(_in_the_middle(b'\n{"step":' + b"[" * 200_000 + b"\n")),
    "a line of 18 MiB": _content(lambda content: b"x" * _BLOB + b"\n" + content),
    "huge": _instead(_grow),
    "an empty directory": _instead(lambda path, outside: path.mkdir()),
    "a directory": _instead(_fill),
    "a named pipe": _instead(lambda path, outside: os.mkfifo(path)),
    "a socket": _instead(_bind),
    "a device": _instead(_make_zeros),
    "a dangling link": _instead(lambda path, outside: path.symlink_to(outside.folder / "new")),
    "a link to itself": _instead(lambda path, outside: path.symlink_to(path.name)),
    "a link to a file outside": _instead(lambda path, outside: path.symlink_to(outside.folder / "file")),
    "a link to a directory outside": _instead(
        lambda path, outside: path.symlink_to(outside.folder / "folder")
    ),
    "a link to /dev/zero": _instead(lambda path, outside: path.symlink_to("/dev/zero")),
}
"""By what becomes of an entry."""
