"""What a run refuses before it imports PyTorch: a tracker that nobody is logged in to."""

from __future__ import annotations

from pathlib import Path

from planc.cli.running.preflight import has_wandb_key


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
