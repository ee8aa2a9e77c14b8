"""What a run refuses before it imports PyTorch: an unsupported release, a tracker without a login."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from planc.cli.running import preflight
from planc.cli.running.preflight import has_wandb_key, require_packages
from planc.cli.running.starting import start_with
from planc.doctor.packages import installed_versions
from planc.runtime.errors import RunError
from planc.runtime.process import Launch


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every package as it is installed, except torch, which is below the floor."""
    monkeypatch.setattr(preflight, "installed_versions", lambda: installed_versions() | {"torch": "2.10.0"})


def netrc(folder: Path, text: str) -> dict[str, str]:
    """An environment with a netrc file, which only its owner may read."""
    path = folder / "netrc"
    path.write_text(text)
    path.chmod(0o600)
    return {"NETRC": str(path)}


def test_a_key_in_the_environment_is_a_key(tmp_path: Path) -> None:
    assert has_wandb_key({"WANDB_API_KEY": "0123", "NETRC": str(tmp_path / "none")})


def test_what_wandb_login_leaves_is_a_key(tmp_path: Path) -> None:
    text = "machine api.wandb.ai\n  login user\n  password 0123\n"
    assert has_wandb_key(netrc(tmp_path, text))


def test_a_key_for_another_server_is_none(tmp_path: Path) -> None:
    environment = netrc(tmp_path, "machine example.org\n  login user\n  password 0123\n")
    assert not has_wandb_key(environment)
    assert has_wandb_key({**environment, "WANDB_BASE_URL": "https://example.org"})


def test_without_a_file_or_with_a_broken_one_there_is_no_key(tmp_path: Path) -> None:
    assert not has_wandb_key({"NETRC": str(tmp_path / "none")})
    assert not has_wandb_key(netrc(tmp_path, "machine\n"))


@pytest.mark.usefixtures("old_torch")
def test_an_unsupported_release_is_refused() -> None:
    with pytest.raises(RunError, match=r"planc needs torch 2.11 or newer, found 2.10.0"):
        require_packages([], Launch())


@pytest.mark.usefixtures("old_torch")
def test_an_allowed_release_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    require_packages(["torch==2.10.0"], Launch())
    assert capsys.readouterr().err.startswith("planc: unsupported, but allowed: planc needs torch 2.11")


@pytest.mark.usefixtures("old_torch")
def test_only_rank_0_prints_an_allowed_release(capsys: pytest.CaptureFixture[str]) -> None:
    require_packages(["torch==2.10.0"], Launch(rank=1, world_size=2))
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("old_torch")
@pytest.mark.parametrize("pin", ["torch==2.12.0", "torch", "numpy==1.0"])
def test_a_permission_for_another_release_allows_nothing(pin: str) -> None:
    with pytest.raises(RunError, match="planc needs torch"):
        require_packages([pin], Launch())


def test_a_permission_that_no_package_needs_is_an_error() -> None:
    with pytest.raises(RunError, match=r"--allow-release torch==2.10.0: no unsupported release"):
        require_packages(["torch==2.10.0"], Launch())


def test_the_command_to_start_with_keeps_allowed_releases() -> None:
    arguments = Namespace(
        plan=Path("a.plan"),
        set=[],
        run_dir=None,
        stop_after=None,
        allow_change=[],
        allow_release=["torch==2.10.0"],
        sample_ids=False,
        skip_collectives_check=False,
    )
    line = start_with(arguments, world_size=2, devices_per_node=None)
    assert line.endswith("a.plan --allow-release torch==2.10.0")
