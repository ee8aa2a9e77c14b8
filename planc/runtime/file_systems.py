"""File systems by type, and whether one keeps the times of its files itself."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_KEEPERS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "zfs", "f2fs", "jfs", "nilfs2", "ocfs2", "gfs2")
) | frozenset(("tmpfs", "ramfs", "nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "wekafs"))
"""Types whose kernel or server sets a file's time of change, which no program can set."""


def file_system_of(path: Path) -> str | None:
    """The type of the file system that has a path; None if the system does not report it, as on macOS."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    real = os.path.realpath(path)
    best = ("", "")
    for line in mounts.splitlines():
        # proc(5): ... mount point is the fifth field; the type follows a lone hyphen.
        fields = line.split()
        point = fields[4].replace("\\040", " ")
        if os.path.commonpath((real, point)) == point and len(point) >= len(best[0]):
            best = (point, fields[fields.index("-") + 1])
    return best[1] or None


def keeps_times(file_system: str | None, status: os.stat_result) -> bool:
    """Whether a change of a file would have changed its times.

    Images (squashfs, erofs, ISO 9660) have the times that their maker wrote, and many file systems of object
    stores and of programs (FUSE) repeat the time of modification as that of change: another content may come
    with the same ones. An overlay shows the times of whichever file system is below.
    """
    if file_system == "overlay":
        return status.st_ctime_ns != status.st_mtime_ns
    return file_system is None or file_system in _KEEPERS
