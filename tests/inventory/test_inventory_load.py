from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

import pytest

import planc
from planc.inventory import versions
from planc.inventory.codec import dumps, loads
from planc.inventory.files import MAX_CONFIG_BYTES, write_atomically
from planc.inventory.load import InventoryError, load_inventory, save_inventory
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


def run_python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def change_config(model_dir: Path) -> None:
    config = model_dir / "config.json"
    config.write_text(config.read_text() + "\n")


def test_saved_inventory_comes_first(models: Path, tmp_path: Path) -> None:
    loaded = load_inventory(models / "tiny-llama", cache_dir=tmp_path)
    assert (loaded.origin, loaded.path) == ("saved", models / "tiny-llama" / "inventory.json")
    assert list(tmp_path.iterdir()) == []


def test_saved_inventory_needs_no_configuration(models: Path, tmp_path: Path) -> None:
    text = (models / "tiny-llama" / "inventory.json").read_text()
    (tmp_path / "inventory.json").write_text(text)
    assert load_inventory(tmp_path, cache_dir=tmp_path / "cache").inventory == loads(text)


def test_stale_saved_inventory_is_an_error_with_its_remedy(tiny_llama: Path, tmp_path: Path) -> None:
    save_inventory(tiny_llama)
    change_config(tiny_llama)
    with pytest.raises(InventoryError, match=r"made from a different config\.json") as caught:
        load_inventory(tiny_llama, cache_dir=tmp_path)
    assert f"planc inventory {tiny_llama} --save" in caught.value.help


def test_damaged_saved_inventory_is_an_error_that_names_the_file(tiny_llama: Path, tmp_path: Path) -> None:
    (tiny_llama / "inventory.json").write_text("{}")
    with pytest.raises(InventoryError, match=r'inventory\.json: inventory: the key "format_version"'):
        load_inventory(tiny_llama, cache_dir=tmp_path)


def test_saving_replaces_a_stale_inventory(tiny_llama: Path, tmp_path: Path) -> None:
    save_inventory(tiny_llama)
    change_config(tiny_llama)
    assert save_inventory(tiny_llama) == tiny_llama / "inventory.json"
    assert load_inventory(tiny_llama, cache_dir=tmp_path).origin == "saved"


def test_probe_fills_the_cache_under_the_digest(tiny_llama: Path, tmp_path: Path) -> None:
    cache_dir = tmp_path / "deep" / "cache"
    probed = load_inventory(tiny_llama, cache_dir=cache_dir)
    cached = load_inventory(tiny_llama, cache_dir=cache_dir)
    digest = hashlib.sha256((tiny_llama / "config.json").read_bytes()).hexdigest()
    releases = f"planc-{planc.__version__}-torch-{version('torch')}-transformers-{version('transformers')}"
    name = f"{digest}-{releases}.json"
    assert (probed.origin, probed.path) == ("probed", tiny_llama / "config.json")
    assert (cached.origin, cached.path) == ("cached", cache_dir / name)
    assert cached.inventory == probed.inventory
    assert [path.name for path in cache_dir.iterdir()] == [name]


def install(folder: Path, *, torch: str, transformers: str) -> None:
    """Packages of these releases, of which nothing but that can be found out."""
    for name, release in (("torch", torch), ("transformers", transformers)):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
        (folder / f"{name}-{release}.dist-info").mkdir()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("releases", "origin"),
    [
        ({}, "cached"),
        ({"transformers": "5.24.0"}, "probed"),
        ({"torch": "2.14.0"}, "probed"),
    ],
)
def test_what_another_release_made_is_probed_again(
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    releases: dict[str, str],
    origin: str,
) -> None:
    """Under another release of transformers the same config.json can be another model."""
    cache_dir = tmp_path / "cache"
    load_inventory(tiny_llama, cache_dir=cache_dir)
    found = {"torch": version("torch"), "transformers": version("transformers")}
    install(tmp_path / "site", **found | releases)
    monkeypatch.setattr(
        versions,
        "find_spec",
        lambda name: PathFinder.find_spec(name, [str(tmp_path / "site")]),
    )
    assert load_inventory(tiny_llama, cache_dir=cache_dir).origin == origin
    assert load_inventory(tiny_llama, cache_dir=cache_dir).origin == "cached"
    monkeypatch.undo()
    # Two environments of one user do not take turns to probe.
    assert load_inventory(tiny_llama, cache_dir=cache_dir).origin == "cached"


def test_packages_that_pip_did_not_unpack_are_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install has its files elsewhere than its name and release."""
    checkout = tmp_path / "checkout"
    for name in ("torch", "transformers"):
        (checkout / name).mkdir(parents=True)
        (checkout / name / "__init__.py").write_text("")
    monkeypatch.setattr(versions, "find_spec", lambda name: PathFinder.find_spec(name, [str(checkout)]))
    expected = f"torch-{version('torch')}-transformers-{version('transformers')}"
    assert versions.probe_versions() == f"planc-{planc.__version__}-{expected}"


def test_without_libraries_the_newest_entry_is_taken(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir = tmp_path / "cache"
    load_inventory(tiny_llama, cache_dir=cache_dir)
    (entry,) = cache_dir.iterdir()
    digest = hashlib.sha256((tiny_llama / "config.json").read_bytes()).hexdigest()
    older, damaged = cache_dir / f"{digest}-older.json", cache_dir / f"{digest}-newest.json"
    older.write_text(entry.read_text())
    damaged.write_text("{}")
    for age, path in enumerate((damaged, entry, older)):
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(versions, "find_spec", lambda name: None)
    assert load_inventory(tiny_llama, cache_dir=cache_dir).path == entry


def test_changed_configuration_is_probed_anew(tiny_llama: Path, tmp_path: Path) -> None:
    load_inventory(tiny_llama, cache_dir=tmp_path / "cache")
    change_config(tiny_llama)
    assert load_inventory(tiny_llama, cache_dir=tmp_path / "cache").origin == "probed"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("text", ["", '{"format_version":0}'])
def test_unreadable_cache_entry_is_replaced(tiny_llama: Path, tmp_path: Path, text: str) -> None:
    cache_dir = tmp_path / "cache"
    load_inventory(tiny_llama, cache_dir=cache_dir)
    (entry,) = cache_dir.iterdir()
    entry.write_text(text)
    assert load_inventory(tiny_llama, cache_dir=cache_dir).origin == "probed"
    assert load_inventory(tiny_llama, cache_dir=cache_dir).origin == "cached"


def test_cache_entry_of_another_configuration_is_replaced(
    models: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    cache_dir = tmp_path / "cache"
    load_inventory(tiny_llama, cache_dir=cache_dir)
    (entry,) = cache_dir.iterdir()
    entry.write_text((models / "qwen3-8b" / "inventory.json").read_text())
    assert load_inventory(tiny_llama, cache_dir=cache_dir).inventory.architecture == "LlamaForCausalLM"


def test_unwritable_cache_does_not_fail_the_run(tiny_llama: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert load_inventory(tiny_llama, cache_dir=blocked / "cache").origin == "probed"


def test_unwritable_model_directory_cannot_be_saved_to(tiny_llama: Path) -> None:
    (tiny_llama / "inventory.json").mkdir()
    with pytest.raises(InventoryError, match="cannot be written"):
        save_inventory(tiny_llama)
    assert sorted(path.name for path in tiny_llama.iterdir()) == ["config.json", "inventory.json"]


def test_racing_writers_never_show_a_part(models: Path, tmp_path: Path) -> None:
    texts = [(models / name / "inventory.json").read_text() for name in ("tiny-llama", "qwen3-8b")]
    path = tmp_path / "entry.json"
    write_atomically(path, text=texts[0])

    def write_and_read(index: int) -> bool:
        write_atomically(path, text=texts[index % 2])
        return path.read_text() in texts

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert all(pool.map(write_and_read, range(200)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["entry.json"]


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="is not a directory") as caught:
        load_inventory(tmp_path / "meta-llama" / "Llama", cache_dir=tmp_path)
    assert 'or name a commit of a Hub model: `hub("org/name", ' in caught.value.help


def test_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"neither config\.json nor inventory\.json"):
        load_inventory(tmp_path, cache_dir=tmp_path)


def test_configuration_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("model_type: llama")
    with pytest.raises(InventoryError, match=r"config\.json: not JSON"):
        load_inventory(tmp_path, cache_dir=tmp_path / "cache")


def test_huge_configuration_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(InventoryError, match="larger than"):
        load_inventory(tmp_path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["config.json", "inventory.json"])
def test_fifo_is_an_error_and_not_a_hang(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InventoryError, match="not a regular file"):
        load_inventory(tmp_path, cache_dir=tmp_path / "cache")


LOAD = """
import sys
from pathlib import Path
from planc.inventory.load import InventoryError, load_inventory
try:
    load_inventory(Path(sys.argv[1]), cache_dir=Path(sys.argv[2]))
except InventoryError as error:
    print(error.message, "|", error.help)
print(sorted({"torch", "transformers", "pydantic"} & sys.modules.keys()))
"""


def test_saved_inventory_loads_without_torch(models: Path, tmp_path: Path) -> None:
    assert run_python(LOAD, models / "llama-3.1-405b", tmp_path).stdout == "[]\n"


def test_cached_inventory_loads_without_torch(tiny_llama: Path, tmp_path: Path) -> None:
    load_inventory(tiny_llama, cache_dir=tmp_path / "cache")
    assert run_python(LOAD, tiny_llama, tmp_path / "cache").stdout == "[]\n"


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_package_is_an_error_that_says_what_to_install(
    tiny_llama: Path, tmp_path: Path, missing: str
) -> None:
    # None in sys.modules makes Python raise as it does for a package that is not installed.
    block = f"import sys; sys.modules[{missing!r}] = None\n"
    output = run_python(block + LOAD, tiny_llama, tmp_path).stdout
    assert f"{missing} is not installed" in output
    assert "pip install 'planc[run]'" in output


def test_equal_inventories_have_equal_texts(tiny_llama: Path, tmp_path: Path) -> None:
    first = load_inventory(tiny_llama, cache_dir=tmp_path / "a").inventory
    second = load_inventory(tiny_llama, cache_dir=tmp_path / "b").inventory
    assert dumps(first) == dumps(second)
