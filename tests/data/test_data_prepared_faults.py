"""Prepared data that is damaged, of a source that changed, or whose preparation was cut short."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planc.runtime.data.errors import DataError, DataStorageError, StoredDataError
from planc.runtime.data.open import open_data, open_prepared
from planc.runtime.data.prepared.folder import Prepared, find, folders, known_states
from planc.runtime.data.prepared.layout import HEADER_BYTES, INDEX_NAME
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.stored_array import StoredArray
from planc.runtime.data.prepared.verify import problems, source_problems
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import stdlib_files
from tests.data.prepared_sources import make_sources, prepared_in, spec_of
from tests.data.preparing import SPEC
from tests.patience import WAIT_SECONDS, patient

ROOT = Path(__file__).parents[2]
CHATS = spec_of("chat", "isolate")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A few megabytes of text in three files."""
    base = tmp_path / "base"
    base.mkdir()
    text = b"".join(path.read_bytes() for name, path in stdlib_files() if name.startswith("asyncio/"))
    for name in ("a", "b", "c"):
        (base / f"{name}.txt").write_bytes(text * 2)
    return base


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def made(root: Path, *, base: Path) -> Prepared:
    return prepare(root, want(SPEC, base=base), name="text")


def found(root: Path, *, base: Path) -> Prepared | None:
    return find(root, want(SPEC, base=base))


def flip(path: Path, *, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_flipped_byte_of_any_file_is_found_when_it_is_read_and_by_verify(tmp_path: Path) -> None:
    base = make_sources(tmp_path)
    wanted = want(CHATS, base=base)
    prepared = prepared_in(tmp_path / "root", base=base, spec=CHATS)
    paths = sorted(prepared.folder.glob("*.npy"))
    assert len(paths) > 10
    for path in paths:
        whole = path.read_bytes()
        for place in (3, HEADER_BYTES, len(whole) - 1):
            flip(path, place=place)
            assert find(tmp_path / "root", wanted) is not None
            with pytest.raises(StoredDataError, match=f"{path.name.split('.')[0]}.*is damaged in"):
                for name, entry in prepared.index.arrays.items():
                    StoredArray(prepared.folder, name=name, entry=entry)[:]
            (problem,) = problems(prepared.folder)
            assert problem == f"{path} differs from what was prepared"
            path.write_bytes(whole)
    assert not list(problems(prepared.folder))


@pytest.mark.parametrize("name", ["tokens", "is_target", "document_starts", "sampled_starts"])
def test_no_sequence_is_made_of_a_flipped_byte(name: str, tmp_path: Path) -> None:
    base = make_sources(tmp_path)
    prepared = prepared_in(tmp_path / "root", base=base, spec=CHATS)
    flip(prepared.folder / f"{name}-00000.npy", place=HEADER_BYTES + 5)
    with pytest.raises(
        StoredDataError, match=rf"{name}-00000\.npy is damaged in the 16_384 bytes from 128 on"
    ):
        opened = open_prepared(prepared, want(CHATS, base=base), model_vocab_size=400)
        for index in range(opened.dataset.num_sequences):
            opened.dataset[index], opened.dataset.position_ids(index)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "is missing"),
        (cut_short, r"has \S+ bytes, not the \S+ that were prepared"),
        (replace_by_link, "is not a plain file"),
    ],
)
def test_a_file_of_another_size_or_kind_is_refused_at_the_start(
    damage: Callable[[Path], None], reason: str, base: Path, root: Path
) -> None:
    prepared = made(root, base=base)
    path = prepared.folder / "tokens-00000.npy"
    damage(path)
    with pytest.raises(StoredDataError, match=rf"tokens-00000\.npy {reason}"):
        found(root, base=base)
    assert [path.name in one for one in problems(prepared.folder)] == [True]


def test_a_file_that_is_cut_short_during_a_run_is_an_error(base: Path, root: Path) -> None:
    prepared = made(root, base=base)
    opened = open_prepared(prepared, want(SPEC, base=base), model_vocab_size=300)
    last = opened.dataset.num_sequences - 1
    before = opened.dataset[last]
    os.truncate(prepared.folder / "tokens-00000.npy", 1 << 20)
    with pytest.raises(StoredDataError, match=r"cannot read .*tokens-00000\.npy: it ends at byte"):
        opened.dataset[last]
    assert len(before[0]) == SPEC.sequence_length


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"recipe": 1}'])
def test_a_damaged_index_is_refused(damage: bytes, base: Path, root: Path) -> None:
    path = made(root, base=base).folder / INDEX_NAME
    path.write_bytes(damage)
    with pytest.raises(StoredDataError, match=r"index\.json is damaged"):
        found(root, base=base)


def test_an_edited_index_is_refused(base: Path, root: Path) -> None:
    path = made(root, base=base).folder / INDEX_NAME
    text = path.read_text()
    assert '"num_documents":3' in text
    path.write_text(text.replace('"num_documents":3', '"num_documents":4'))
    with pytest.raises(StoredDataError, match="its seal does not match"):
        found(root, base=base)


def test_an_edit_that_keeps_size_and_modification_time_is_noticed(base: Path, root: Path) -> None:
    first = made(root, base=base)
    path = base / "b.txt"
    status = path.stat()
    flip(path, place=100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert found(root, base=base) is None
    second = made(root, base=base)
    assert second.folder != first.folder
    opened = open_prepared(second, want(SPEC, base=base), model_vocab_size=300)
    assert opened.fingerprint == open_data(SPEC, base=base, model_vocab_size=300).fingerprint
    flip(path, place=100)
    assert made(root, base=base).folder == first.folder


def test_other_times_alone_do_not_tokenize_again(base: Path, root: Path) -> None:
    first, said = made(root, base=base), []
    os.utime(base / "a.txt")
    wanted = want(SPEC, base=base)
    assert find(root, wanted) is None
    assert prepare(root, wanted, name="text", say=said.append) == first
    assert "comparing content" in said[0]
    assert found(root, base=base) == first
    assert len(known_states(first.folder)) == 2
    (first.folder / "known.json").write_text("damaged")
    assert found(root, base=base) is None
    assert made(root, base=base) == first == found(root, base=base)


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_another_list_of_files_is_other_data(change: str, base: Path, root: Path) -> None:
    first = made(root, base=base)
    if change == "more":
        (base / "d.txt").write_text("more")
    else:
        (base / "c.txt").unlink()
    assert found(root, base=base) is None
    wanted = want(SPEC, base=base)
    assert len(list(source_problems(first, wanted))) == 1
    assert made(root, base=base).folder != first.folder


def test_verify_finds_a_source_that_changed(base: Path, root: Path) -> None:
    prepared = made(root, base=base)
    assert not list(source_problems(prepared, want(SPEC, base=base)))
    flip(base / "b.txt", place=0)
    assert list(source_problems(prepared, want(SPEC, base=base))) == ["b.txt differs from what was prepared"]


def test_a_source_that_changes_while_it_is_read_is_refused(base: Path, root: Path) -> None:
    def change(progress: Progress) -> None:
        (base / "c.txt").write_bytes((base / "c.txt").read_bytes())

    with pytest.raises(DataError, match=r"c\.txt was changed while it was being read"):
        prepare(root, want(SPEC, base=base), name="text", report=change)
    assert not folders(root) and not unfinished(root)


def test_a_faulty_source_leaves_nothing(base: Path, root: Path) -> None:
    (base / "c.txt").write_bytes(b"\xff" * 100)
    with pytest.raises(DataError, match=r"c\.txt is not UTF-8 at byte 0"):
        made(root, base=base)
    assert not folders(root) and not unfinished(root)


def test_a_directory_that_cannot_be_written_is_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(DataStorageError, match=r"cannot list \S+file") as error:
        made(tmp_path / "file" / "root", base=base)
    assert "PLANC_DATA" in error.value.help


def start(base: Path, root: Path, *, waits: bool) -> subprocess.Popen[str]:
    how = "waits" if waits else "goes-on"
    command = [sys.executable, "-m", "tests.data.preparing", str(base), str(root), how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def line_of(process: subprocess.Popen[str], awaited: str) -> str:
    assert process.stdout is not None
    with patient(process, awaited):
        return process.stdout.readline()


def test_a_preparer_that_is_killed_leaves_nothing_that_is_read(base: Path, root: Path) -> None:
    process = start(base, root, waits=True)
    assert line_of(process, "its first report").startswith("tokens")
    process.kill()
    process.communicate(timeout=WAIT_SECONDS)
    assert len(unfinished(root)) == 1
    assert folders(root) == () and found(root, base=base) is None
    prepared = made(root, base=base)
    assert unfinished(root) == () and not list(problems(prepared.folder))


def test_of_two_preparers_one_waits_for_the_other(base: Path, root: Path) -> None:
    first = start(base, root, waits=True)
    report = line_of(first, "the first one's first report")
    second = start(base, root, waits=False)
    waiting = line_of(second, "the second one's line on the first")
    outputs = [
        report + first.communicate(timeout=WAIT_SECONDS)[0],
        waiting + second.communicate(timeout=WAIT_SECONDS)[0],
    ]
    assert (first.returncode, second.returncode) == (0, 0)
    assert "waiting" not in outputs[0] and "tokens" in outputs[0]
    assert "another process is preparing the data" in outputs[1] and "tokens" not in outputs[1]
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    (folder,) = folders(root)
    assert not list(problems(folder))


def test_machines_without_a_common_lock_do_not_harm_each_other(base: Path, root: Path) -> None:
    """The second commits first: the first finds the directory there, and takes it."""
    other = root.with_name("other")
    made(other, base=base)
    (source,) = folders(other)

    def commit(progress: Progress) -> None:
        if not folders(root):
            source.rename(root / source.name)

    prepared = prepare(root, want(SPEC, base=base), name="text", report=commit)
    assert prepared.folder == root / source.name
    assert unfinished(root) == ()
    opened = open_prepared(prepared, want(SPEC, base=base), model_vocab_size=300)
    expected = open_data(SPEC, base=base, model_vocab_size=300)
    np.testing.assert_array_equal(opened.dataset[5], expected.dataset[5])
