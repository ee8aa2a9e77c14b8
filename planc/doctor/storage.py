"""Checks of the run directory: space, permission, and whether all machines share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.diagnostics import Diagnostic, Label
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.doctor.machine import Storage
from planc.doctor.needs import Needs, Saves
from planc.runtime.run_directory.obstacles import Obstacle
from planc.source import SourceFile
from planc.tables import format_bytes, plural

_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat", "apfs")
"""File systems that belong to one machine; others may be shared."""
_SKEW_SECONDS = 60.0


def storage_checks(
    storage: Storage,
    *,
    needs: Needs | None,
    num_kept: int = 0,
    num_nodes: int = 1,
    obstacles: Sequence[Obstacle] = (),
) -> Iterator[Check]:
    """Check the run directory, which has `num_kept` checkpoints already."""
    if storage.refusal is not None:
        yield unwritable(storage)
        return
    yield Check(Section.STORAGE, SourceFile("run folder", str(storage.path)), "writable")
    if obstacles:
        yield blocked(storage, obstacles)
    yield room(storage, saves=needs.saves if needs else None, num_kept=num_kept)
    yield _file_system(storage, needs=needs, num_nodes=num_nodes)
    yield _skew(storage)


def unwritable(storage: Storage) -> Check:
    """The check of a directory that can't be written."""
    observed = SourceFile("run folder", str(storage.path))
    text = f"{storage.existing}: {storage.refusal}"
    help = "choose another directory with --run-dir, or give this user write permission"
    problem = codes.UNWRITABLE.at(observed.whole(), text, help=help)
    return Check(Section.STORAGE, observed, "writable", problems=(problem,))


def blocked(storage: Storage, obstacles: Sequence[Obstacle]) -> Check:
    """The check of a directory with entries that would keep a run from saving."""
    observed = SourceFile("saved before", str(storage.path))
    problems = tuple(
        codes.BLOCKED.at(observed.whole(), str(obstacle), help=obstacle.help) for obstacle in obstacles
    )
    return Check(Section.STORAGE, observed, "plain directories", problems=problems)


def room(storage: Storage, *, saves: Saves | None, num_kept: int = 0) -> Check:
    """Check whether the disk has space for what the run will write."""
    observed = SourceFile("disk", f"{format_bytes(storage.free_bytes)} free")
    if saves is None:
        return Check(Section.STORAGE, observed)
    more = max(0, saves.at_once - num_kept)
    wanted = more * saves.num_bytes + saves.export_bytes
    parts = [f"{plural(more, 'checkpoint')} of {format_bytes(saves.num_bytes)}"] if more else []
    parts += [f"an export of {format_bytes(saves.export_bytes)}"] if saves.export_bytes else []
    required = f"{format_bytes(wanted)}: {', '.join(parts)}" if parts else ""
    problems: tuple[Diagnostic, ...] = ()
    if wanted > storage.free_bytes:
        text = f"needs {required}; {storage.existing} has {format_bytes(storage.free_bytes)} free"
        help = "free some space, choose another --run-dir, or lower `checkpoint.keep_last`"
        label = Label(observed.whole(), "")
        problems = (codes.DISK_TOO_SMALL.at(saves.span, text, secondary=(label,), help=help),)
    reason = "for keep_last checkpoints and the one being written"
    return Check(Section.STORAGE, observed, required, reason, problems)


def _file_system(storage: Storage, *, needs: Needs | None, num_nodes: int) -> Check:
    observed = SourceFile("file system", storage.file_system or "unknown")
    if num_nodes == 1:
        return Check(Section.STORAGE, observed)
    required, reason = f"shared by {num_nodes} machines", "every rank writes its shards of a checkpoint"
    if storage.file_system not in _LOCAL:
        return Check(Section.STORAGE, observed, required, reason)
    assert needs is not None, "only a plan has more than one node"
    text = f"{storage.existing} is {storage.file_system}, but the plan needs {num_nodes} machines"
    help = "put --run-dir on a shared file system; otherwise the run exits at startup"
    label = Label(observed.whole(), text)
    problem = codes.LOCAL_FOLDER.at(needs.mesh, text, secondary=(label,), help=help)
    return Check(Section.STORAGE, observed, required, reason, (problem,))


def _skew(storage: Storage) -> Check:
    seconds = round(storage.clock_skew_seconds)
    observed = SourceFile("file times", f"{abs(seconds)} s {'ahead' if seconds > 0 else 'behind'}")
    if abs(storage.clock_skew_seconds) < _SKEW_SECONDS:
        return Check(Section.STORAGE, observed, f"within {_SKEW_SECONDS:.0f} s")
    text = "the clocks of the file system and this machine differ"
    problem = codes.CLOCK_OFF.at(observed.whole(), text, help="start a time service (chrony, ntpd)")
    return Check(Section.STORAGE, observed, f"within {_SKEW_SECONDS:.0f} s", problems=(problem,))
