"""Prepared data in a directory that machines, containers and users share, of sources on any file system."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planc.runtime.data.prepared import leftovers
from planc.runtime.data.prepared.folder import find, known_states
from planc.runtime.data.prepared.leftovers import PULSE_NAME, new_directory, pulse, unfinished
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import stdlib_files
from planc.runtime.file_systems import keeps_times
from tests.data.preparing import SPEC

NOBODY = 65534
MADE_UP = (10**18, 10**18)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    text = b"".join(path.read_bytes() for name, path in stdlib_files() if name.startswith("asyncio/"))
    (base / "a.txt").write_bytes(text * 5)
    return base


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has the times of an image of squashfs: one for all files, whatever is in them."""
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = list(real(path, **options))
        nanoseconds = {"st_mtime_ns": MADE_UP[0], "st_ctime_ns": MADE_UP[1], "st_dev": real(path).st_dev}
        return os.stat_result(found, {**_extra(real(path, **options)), **nanoseconds})

    monkeypatch.setattr("planc.runtime.data.prepared.source_files.os.stat", stat)
    monkeypatch.setattr("planc.runtime.data.prepared.source_files.file_system_of", lambda path: "squashfs")


def _extra(status: os.stat_result) -> dict[str, Any]:
    return {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(leftovers, "BEAT_SECONDS", 0.05)


def test_other_text_with_the_same_times_is_prepared_again(
    base: Path, root: Path, made_up_times: None
) -> None:
    first = prepare(root, want(SPEC, base=base), name="text")
    assert known_states(first.folder) == ()
    text = (base / "a.txt").read_bytes()
    (base / "a.txt").write_bytes(text[::-1])
    assert find(root, want(SPEC, base=base)) is None
    said = list[str]()
    second = prepare(root, want(SPEC, base=base), name="text", say=said.append)
    assert second.folder != first.folder
    assert said == ["the file system of the source makes up the times of files: comparing content"]


def test_data_of_a_source_whose_times_are_made_up_is_used_once_its_content_is_compared(
    base: Path, root: Path, made_up_times: None
) -> None:
    first = prepare(root, want(SPEC, base=base), name="text")
    assert prepare(root, want(SPEC, base=base), name="text") == first


@pytest.mark.parametrize(
    ("file_system", "changed", "keeps"),
    [
        ("ext4", 5, True),
        ("nfs4", 5, True),
        ("squashfs", 5, False),
        ("fuse.gcsfuse", 5, False),
        ("vfat", 6, False),
        ("overlay", 5, False),
        ("overlay", 6, True),
        (None, 5, True),
    ],
)
def test_which_file_systems_keep_the_times_of_files(
    file_system: str | None, changed: int, keeps: bool, tmp_path: Path
) -> None:
    status = os.stat_result(list(os.stat(tmp_path)), {"st_mtime_ns": 5, "st_ctime_ns": changed})
    assert keeps_times(file_system, status) is keeps


def as_nobody(root: Path, action: Callable[[], None]) -> None:
    """Runs an action in a process of a user that may read everything here, and write nothing."""
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.geteuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    process = os.fork()
    if process == 0:
        try:
            # No mode keeps root from writing.
            if os.geteuid() == 0:
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
            action()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0


@pytest.mark.parametrize("times", ["the same", "others"])
def test_another_users_data_is_used_without_a_right_to_write(times: str, base: Path, root: Path) -> None:
    first = prepare(root, want(SPEC, base=base), name="text")
    if times == "others":
        os.utime(base / "a.txt", ns=MADE_UP)
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    said = list[str]()

    def use() -> None:
        assert prepare(root, want(SPEC, base=base), name="text", say=said.append) == first
        assert [text.startswith("cannot note that") for text in said[1:]] == [True] * (times == "others")

    as_nobody(root, use)


def test_a_preparer_of_another_boot_leaves_nothing_for_good(
    base: Path, root: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    key = want(SPEC, base=base).key
    for name in (f".tmp-trainer-7f9c-worker-0-{key}-00", f".tmp-0123456789ab-{'0' * 16}-00"):
        (root / name).mkdir()
        (root / name / "tokens-00000.npy").write_bytes(b"half")
    said = list[str]()
    prepare(root, want(SPEC, base=base), name="text", say=said.append)
    assert unfinished(root) == ()
    assert said[0].startswith("watching for 0 s whether another machine works in ")


def test_what_a_live_preparer_of_another_machine_writes_stays(base: Path, root: Path, quick: None) -> None:
    root.mkdir()
    directory = root / f".tmp-0123456789ab-{want(SPEC, base=base).key}-00"
    directory.mkdir()
    with pulse(directory):
        prepare(root, want(SPEC, base=base), name="text")
        assert unfinished(root) == (directory,)
    assert not (directory / PULSE_NAME).exists()


def test_what_grows_stays_though_an_earlier_planc_has_no_pulse(base: Path, root: Path, quick: None) -> None:
    root.mkdir()
    directory = root / f".tmp-host-{want(SPEC, base=base).key}-00"
    directory.mkdir()
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            with (directory / "tokens-00000.npy").open("ab") as stream:
                stream.write(b"more")
            time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        prepare(root, want(SPEC, base=base), name="text")
        assert unfinished(root) == (directory,)
    finally:
        is_over.set()
        thread.join()


def test_other_data_that_a_process_of_this_machine_prepares_stays(
    base: Path, root: Path, tmp_path: Path
) -> None:
    root.mkdir()
    key = "0" * 16
    directory = new_directory(root, key=key)
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys\nfrom filelock import FileLock\n"
            "with FileLock(sys.argv[1]):\n print('held', flush=True)\n sys.stdin.read()",
            str(root / f".lock-{key}"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        prepare(root, want(SPEC, base=base), name="text")
        assert unfinished(root) == (directory,)
        holder.stdin.close()
    (base / "a.txt").write_bytes(b"other text " * 600_000)
    prepare(root, want(SPEC, base=base), name="text")
    assert unfinished(root) == ()
