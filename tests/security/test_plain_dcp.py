"""Plain DCP is read only where that is asked for, and then nothing in it runs, however it was made."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

from planc.cli.main import main
from planc.runtime.checkpoint_format import unpickle_dcp
from planc.runtime.checkpoint_format.dcp import Limits, read_dcp_index
from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from tests.checkpoints.plain_dcp import edit_metadata, save_plainly
from tests.faults.corpus import Payload, payload
from tests.patience import WAIT_SECONDS

FILE = "__0_0.distcp"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A tensor of four elements and an object, in one file."""
    return save_plainly({"model": {"w": torch.arange(4.0)}, "planc": "facts"}, tmp_path / "plain")


def convert(plain: Path, *arguments: str) -> int:
    root = plain.parent / "root"
    code = main(["checkpoint", "convert", str(plain), "--planc", str(root), *arguments])
    assert not (root / "step-1").exists()
    return code


def refusal(plain: Path, capsys: pytest.CaptureFixture[str], *, step: tuple[str, ...] = ()) -> str:
    """What a conversion is refused with; it leaves nothing behind."""
    assert convert(plain, "--unpickle", *step) == 2
    assert not list((plain.parent / "root").glob("*"))
    return capsys.readouterr().err


def infos(metadata: Metadata) -> list[_StorageInfo]:
    return list(metadata.storage_data.values())


def place_of(plain: Path, name: str) -> _StorageInfo:
    metadata = pickle.loads((plain / ".metadata").read_bytes())
    [info] = [one for key, one in metadata.storage_data.items() if key.fqn == name]
    return info


def overwrite(plain: Path, name: str, data: bytes) -> None:
    """Puts other bytes in the place of a tensor or object."""
    (plain / "evil").write_bytes(data)

    def move(metadata: Metadata) -> None:
        for key, info in metadata.storage_data.items():
            if key.fqn == name:
                info.relative_path, info.offset, info.length = "evil", 0, len(data)

    edit_metadata(plain, move)


def drop_object(metadata: Metadata) -> None:
    """Leaves the tensor alone: the step is then for the command line to say."""
    del metadata.state_dict_metadata["planc"]


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def repacked(data: bytes, change: Callable[[str, bytes], bytes], *, compression: int) -> bytes:
    """An archive of torch.save's with its entries changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w", compression) as copy:
        for one in archive.infolist():
            copy.writestr(one.filename, change(one.filename, archive.read(one)))
    return out.getvalue()


NAMES: dict[str, Callable[[Path], bytes]] = {
    "posix.mkdir": payload,
    "builtins.eval": lambda marker: (
        f"cbuiltins\neval\n(S'__import__(\"os\").mkdir({str(marker)!r})'\ntR.".encode()
    ),
    "torch.distributed.checkpoint.metadata.os.mkdir": lambda marker: (
        b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x08os.mkdir\x93"
        + pickle.dumps((str(marker),), protocol=4)[2:-1]
        + b"R."
    ),
    "torch.load": lambda marker: b"ctorch\nload\n(S'x'\ntR.",
    "copyreg._reconstructor": lambda marker: b"ccopyreg\n_reconstructor\n(NNNtR.",
    "torch.serialization.os": lambda marker: b"ctorch.serialization\nos\n.",
}
"""Pickles by what they name."""


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_that_names_anything_else_is_refused_and_does_not_run(
    name: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plain / ".metadata").write_bytes(NAMES[name](tmp_path / "marker"))
    assert f"it names {name}, which DCP metadata never does" in refusal(plain, capsys)
    assert not (tmp_path / "marker").exists()


def test_the_pickle_would_have_run(tmp_path: Path) -> None:
    pickle.loads(NAMES["torch.distributed.checkpoint.metadata.os.mkdir"](tmp_path / "marker"))
    assert (tmp_path / "marker").exists()


def test_a_payload_deep_in_sound_metadata_does_not_run(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "marker"),)

    def hide(metadata: Metadata) -> None:
        metadata.planner_data = {"model.w": [Payload()]}

    edit_metadata(plain, hide)
    assert "it names posix.mkdir" in refusal(plain, capsys)
    assert not (tmp_path / "marker").exists()


def test_without_the_flag_the_pickle_is_not_even_opened(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plain / ".metadata").unlink()
    assert convert(plain) == 2
    assert "--unpickle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x04Nr\xff\xff\xff\xff.", "more memory"),
        (b"\x80\x04\x8e" + (2**62).to_bytes(8, "little"), "more memory"),
        (b"", "it is not DCP metadata"),
        (b"N.", "it is not DCP metadata"),
        (pickle.dumps({"state_dict_metadata": {}}), "it is not DCP metadata"),
        (b"\x80\x04" + b"]" * 1_000_000, "it is not DCP metadata"),
    ],
    ids=["memo of 2^32", "text of 2^62 bytes", "empty", "None", "another object", "a million lists"],
)
def test_a_pickle_that_is_no_metadata_is_refused(data: bytes, said: str, plain: Path) -> None:
    (plain / ".metadata").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=said):
        read_dcp_index(plain, limits=Limits())


def test_a_pickle_that_takes_for_ever_is_given_up(plain: Path) -> None:
    # The hash of a pair of pairs of pairs.
    (plain / ".metadata").write_bytes(b"\x80\x04})" + b"2\x86" * 60 + b"Ns.")
    with pytest.raises(CorruptCheckpointError, match="more than 1 s of CPU time"):
        read_dcp_index(plain, limits=Limits(cpu_seconds=1))


def test_an_index_larger_than_metadata_has_reason_to_be_is_not_read(plain: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="holds more than metadata can"):
        read_dcp_index(plain, limits=Limits(index_bytes=100))


def test_metadata_of_too_many_bytes_is_not_read(plain: Path) -> None:
    with (plain / ".metadata").open("ab") as stream:
        stream.truncate(257 * 2**20)
    with pytest.raises(CorruptCheckpointError, match="larger than metadata can be"):
        read_dcp_index(plain, limits=Limits())


def test_metadata_that_is_a_link_is_refused(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plain / ".metadata").rename(plain.parent / "elsewhere")
    (plain / ".metadata").symlink_to(plain.parent / "elsewhere")
    assert "symbolic link" in refusal(plain, capsys)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "sub/evil", "..", ".metadata", "evil\0"])
def test_a_path_that_leads_out_is_refused(path: str, plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plain / FILE).rename(plain.parent / "evil")

    def lead_out(metadata: Metadata) -> None:
        for info in infos(metadata):
            info.relative_path = path

    edit_metadata(plain, lead_out)
    assert "is not valid DCP metadata" in refusal(plain, capsys)


@pytest.mark.parametrize("name", ["model.w", "planc"])
@pytest.mark.parametrize("in_archive", ["pickle", "archive"])
def test_a_payload_as_tensor_or_object_does_not_run(
    name: str, in_archive: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As old as torch.save's own: the newer one it would refuse for its age.
    data = pickle.dumps(Payload(tmp_path / "marker"), protocol=2)
    if in_archive == "archive":
        sound = saved(torch.arange(4.0))
        data = repacked(
            sound,
            lambda file, content: data if file.endswith("data.pkl") else content,
            compression=zipfile.ZIP_STORED,
        )
    overwrite(plain, name, data)
    step: tuple[str, ...] = ()
    if name == "model.w":
        edit_metadata(plain, drop_object)
        step = ("--step", "1")
    assert f"evil: {name} is " in refusal(plain, capsys, step=step)
    assert not (tmp_path / "marker").exists()


def test_a_compressed_archive_is_not_unpacked(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = repacked(saved(torch.zeros(2**20)), lambda _, content: content, compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**14
    overwrite(plain, "model.w", bomb)
    edit_metadata(plain, drop_object)
    assert "compressed" in refusal(plain, capsys, step=("--step", "1"))


def large(metadata: Metadata) -> None:
    tensor: Any = metadata.state_dict_metadata["model.w"]
    tensor.size = tensor.chunks[0].sizes = torch.Size([2**50])


def gap(metadata: Metadata) -> None:
    tensor: Any = metadata.state_dict_metadata["model.w"]
    tensor.size = torch.Size([5])


def beyond(metadata: Metadata) -> None:
    for info in infos(metadata):
        info.offset = 2**60


def twice(metadata: Metadata) -> None:
    for info in infos(metadata):
        info.offset, info.length = 0, (info.length + 8000) // 2


def extended(metadata: Metadata) -> None:
    for info in infos(metadata):
        info.transform_descriptors = ("zstd",)


def other_dtype(metadata: Metadata) -> None:
    tensor: Any = metadata.state_dict_metadata["model.w"]
    tensor.properties.dtype = torch.int32


def complex_numbers(metadata: Metadata) -> None:
    tensor: Any = metadata.state_dict_metadata["model.w"]
    tensor.properties.dtype = torch.complex64


def negative(metadata: Metadata) -> None:
    for info in infos(metadata):
        info.offset = -1


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (large, "a chunk of [1125899906842624] has only"),
        (gap, "1 of 5 elements are in no chunk"),
        (beyond, "outside the file, or overlaps another part"),
        (twice, "outside the file, or overlaps another part"),
        (extended, "compressed by an extension"),
        (other_dtype, "not int32 [4] as in the metadata"),
        (complex_numbers, "its dtype is complex64; planc stores float64"),
        (negative, "is not valid DCP metadata"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_metadata_that_the_files_do_not_bear_out_is_refused(
    edit: Callable[[Metadata], object], said: str, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_metadata(plain, drop_object)
    edit_metadata(plain, edit)
    assert said in refusal(plain, capsys, step=("--step", "1"))


def test_the_confined_process_opens_nothing(tmp_path: Path) -> None:
    program = f"""
import os, runpy, socket
confine = runpy.run_path({unpickle_dcp.__file__!r})["confine"]
confine(memory_bytes=2**32, cpu_seconds=5)
for attempt in (socket.socket, os.pipe, lambda: os.open("/etc/hostname", os.O_RDONLY), lambda: bytes(2**33)):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        print(type(error).__name__, getattr(error, "errno", ""))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.stdout.splitlines() == ["OSError 24"] * 3 + ["MemoryError "], done.stderr
