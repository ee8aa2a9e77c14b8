"""What a disk may hold after the power fails, by a stated model that is meaner than ext4 or xfs.

- What has been written to a file since its last fsync may be there, absent, there as zeros, or cut off
  half-way.
- Each creation, rename and removal since its folder's last fsync may be there or not, in any combination. A
  rename within a folder is one change. The fsync of a file does not keep its name.
- Nothing else changes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.calls import Call

Change = tuple[tuple[str, "Node | None"], ...]
"""Names in a directory with their targets from now on."""


@dataclass(slots=True, eq=False)
class File:
    """A file's bytes as the disk surely has them, and as processes see them."""

    durable: bytes = b""
    seen: bytes = b""

    def possible(self) -> tuple[bytes, ...]:
        """Everything that the disk may hold, the surest first."""
        if self.seen == self.durable:
            return (self.durable,)
        zeros = self.durable + bytes(len(self.seen) - len(self.durable))
        return (self.durable, zeros, self.seen, self.seen[: len(self.seen) // 2])


@dataclass(slots=True, eq=False)
class Folder:
    """A folder's names as the disk surely has them, and what has changed since."""

    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def names(self, kept: list[Change]) -> dict[str, Node]:
        """The names, if of the pending changes these have reached the disk."""
        found = dict(self.durable)
        for change in kept:
            for name, node in change:
                if node is None:
                    found.pop(name, None)
                else:
                    found[name] = node
        return found

    def seen(self) -> dict[str, Node]:
        """The names as processes see them."""
        return self.names(self.pending)


Node = File | Folder

Image = dict[str, bytes | None]
"""A tree: bytes of files, None for folders, by path relative to the top."""


class Disk:
    """A tree of files under `top`, on which calls are made and from which the power may be taken."""

    def __init__(self, top: Path) -> None:
        """All that lies beneath `top` now is durable."""
        self._top = os.path.realpath(top)
        self._root = _read(top)

    def make(self, call: Call) -> None:
        """The call as processes see it from now on; `fsync` makes durable."""
        folder, name = self._place(call.path)
        match call.kind:
            case "create":
                # An existing file that is opened again keeps its node, and loses its bytes.
                node = folder.seen().get(name)
                if isinstance(node, File):
                    node.seen = b""
                else:
                    folder.pending.append(((name, File()),))
            case "mkdir":
                folder.pending.append(((name, Folder()),))
            case "unlink" | "rmdir":
                folder.pending.append(((name, None),))
            case "rename":
                target_folder, target = self._place(call.target)
                assert target_folder is folder, "planc renames within a folder"
                folder.pending.append(((name, None), (target, folder.seen()[name])))
            case "write":
                file = self._node(call.path)
                assert isinstance(file, File)
                file.seen = file.seen[: call.offset] + call.data + file.seen[call.offset + len(call.data) :]
            case "fsync":
                file = self._node(call.path)
                assert isinstance(file, File)
                file.durable = file.seen
            case "fsync directory":
                synced = self._node(call.path)
                assert isinstance(synced, Folder)
                synced.durable, synced.pending = synced.seen(), []

    def images(self, *, num_samples: int, seed: int) -> Iterator[Image]:
        """What may be left if the power fails now: the extremes, then `num_samples` at random."""
        for keeps_names in (False, True):
            for choice in range(4):
                yield self._image(_Fixed(keeps_names=keeps_names, choice=choice))
        for sample in range(num_samples):
            yield self._image(_Drawn(random.Random(f"{seed} {sample}")))

    def _image(self, fate: _Fixed | _Drawn) -> Image:
        image: Image = {}

        def visit(folder: Folder, path: str) -> None:
            for name, node in sorted(folder.names(fate.kept(folder.pending)).items()):
                place = f"{path}{name}"
                if isinstance(node, File):
                    image[place] = fate.content(node.possible())
                else:
                    image[place] = None
                    visit(node, f"{place}/")

        visit(self._root, "")
        return image

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, name = os.path.split(path)
        if path == self._top:
            return self._root, ""
        folder = self._node(parent)
        assert isinstance(folder, Folder)
        return folder, name

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for part in Path(os.path.relpath(path, self._top)).parts:
            assert isinstance(node, Folder)
            node = node.seen()[part]
        return node


@dataclass(frozen=True, slots=True)
class _Fixed:
    """One fate for all: every pending change of a name kept or lost, and the same choice of every content."""

    keeps_names: bool
    choice: int

    def kept(self, pending: list[Change]) -> list[Change]:
        return pending if self.keeps_names else []

    def content(self, possible: tuple[bytes, ...]) -> bytes:
        return possible[min(self.choice, len(possible) - 1)]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Each for itself."""

    random: random.Random

    def kept(self, pending: list[Change]) -> list[Change]:
        return [change for change in pending if self.random.random() < 0.5]

    def content(self, possible: tuple[bytes, ...]) -> bytes:
        return self.random.choice(possible)


def write_image(image: Image, top: Path) -> None:
    """The tree as files, in a new folder."""
    top.mkdir()
    for place, content in image.items():
        if content is None:
            (top / place).mkdir()
        else:
            (top / place).write_bytes(content)


def _read(folder: Path) -> Folder:
    names: dict[str, Node] = {}
    for path in folder.iterdir():
        if path.is_dir():
            names[path.name] = _read(path)
        else:
            content = path.read_bytes()
            names[path.name] = File(content, content)
    return Folder(names)
