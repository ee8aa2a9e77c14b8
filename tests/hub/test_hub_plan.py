"""`model.hf = hub(...)`: what a check makes of it, without a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.graph.ops import BuildModel, LoadWeights
from planc.hub.names import HubModel, hub_cache, is_repository, model_folder, parse_hub
from planc.show.overview import essence
from planc.show.resolved import resolved_text
from tests.hub.model_repository import NAME, REPOSITORY, REVISION, put_into_cache
from tests.launch.test_launch_reporting import ONE_RANK
from tests.plans import PLANS, write_plan

TINY = PLANS / "models" / "tiny-llama"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def checked(folder: Path, source: str, *edits: tuple[str, str]) -> Checked:
    plan = write_plan(folder, edits=[('"models/tiny-llama"', source), *edits])
    return check_plan(plan)


def only_finding(found: Checked) -> tuple[str, str, str]:
    """(code, the label's text, help) of the one error."""
    [one] = [one for one in found.diagnostics if one.code.severity == "error"]
    return one.code.code, one.primary.text, one.help or ""


PINNED = f'hub("{REPOSITORY}", revision = "{REVISION}")'


def test_a_model_of_the_hub_is_found_in_its_cache(cache: Path, tmp_path: Path) -> None:
    put_into_cache(cache, {path.name: path.read_bytes() for path in TINY.iterdir() if path.is_file()})
    found = checked(tmp_path, PINNED, ("weights = random", "weights = pretrained"))
    assert found.graph is not None, found.diagnostics
    named = [op.path for op in found.graph.setup if isinstance(op, BuildModel | LoadWeights)]
    assert named == [NAME, NAME]


def test_the_resolved_plan_names_it_as_it_was_written(cache: Path, tmp_path: Path) -> None:
    put_into_cache(cache, {path.name: path.read_bytes() for path in TINY.iterdir() if path.is_file()})
    found = checked(tmp_path, PINNED)
    assert found.bound is not None
    assert f"hf = {PINNED}" in resolved_text(found.bound)


def test_a_model_that_is_not_here_yet_is_an_error_that_says_how_to_fetch_it(
    cache: Path, tmp_path: Path
) -> None:
    code, text, help = only_finding(checked(tmp_path, PINNED))
    assert code == "P216"
    assert text.startswith(f"{REPOSITORY} at {REVISION[:12]} is not on this machine")
    assert help.endswith(f"planc inventory {NAME}")


@pytest.mark.parametrize("revision", ["main", "v1.0", REVISION[:12], REVISION.upper()])
def test_a_name_that_may_move_is_refused(revision: str, tmp_path: Path) -> None:
    code, text, help = only_finding(checked(tmp_path, f'hub("org/tiny", revision = "{revision}")'))
    assert code == "P211"
    assert text == f'"{revision}" is not a commit: branches and tags can move'
    assert "40 hexadecimal digits" in help


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../x", "org/..", "org/a..b", "org/", "/x", "o rg/x"])
def test_what_names_no_repository_is_refused(name: str, tmp_path: Path) -> None:
    assert not is_repository(name)
    code, text, _ = only_finding(checked(tmp_path, f'hub("{name}", revision = "{REVISION}")'))
    assert (code, text) == ("P211", f'"{name}" is not a repository name')


def test_a_revision_is_required(tmp_path: Path) -> None:
    code, text, help = only_finding(checked(tmp_path, 'hub("org/tiny")'))
    assert (code, text) == ("P211", "`hub` needs `revision`")
    assert help == "add `revision = ...`"


def test_the_name_in_graphs_is_no_path_for_a_plan(tmp_path: Path) -> None:
    code, _, help = only_finding(checked(tmp_path, f'"{NAME}"'))
    assert code == "P205"
    assert help == f"write `{PINNED}`"


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_library_has_it(
    variables: dict[str, str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub_cache() == Path(cache)


def test_a_local_folder_starts_at_the_plans(tmp_path: Path) -> None:
    assert model_folder("models/a", base=tmp_path) == tmp_path / "models/a"


@pytest.mark.parametrize("text", ["hf://a/b", "hf://a/b@main", f"hf://../b@{REVISION}", f"a/b@{REVISION}"])
def test_what_is_no_name_of_a_model_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="40 hexadecimal digits"):
        parse_hub(text)


def test_names_are_read_as_they_are_written() -> None:
    assert parse_hub(str(HubModel("org/tiny", REVISION))) == HubModel("org/tiny", REVISION)


def test_an_export_of_adapters_names_its_base_as_peft_loads_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert torch
    from planc.runtime.torch.weights.export_adapter import adapter_config

    rule = '"model.layers.*.self_attn.q_proj" -> adapted'
    adapter = f"\nadapter {{\n  kind = lora(rank = 8, alpha = 16)\n  {rule}\n}}\n"
    plan = write_plan(tmp_path, text=ONE_RANK + adapter)
    graph = check_plan(plan).graph
    assert graph is not None and graph.adapters is not None
    names = {
        base: adapter_config(graph.adapters, base=base, architecture="LlamaForCausalLM")
        for base in (NAME, "models/tiny-llama")
    }
    keys = ("base_model_name_or_path", "revision")
    assert [names[NAME][key] for key in keys] == [REPOSITORY, REVISION]
    assert [names["models/tiny-llama"][key] for key in keys] == ["models/tiny-llama", None]


def pushing(folder: Path, push: str, *more: str) -> Checked:
    """A plan that pushes its export."""
    block = f'\ncheckpoint {{\n  export "hf" {{ push = {push} }}\n{"".join(more)}}}\n'
    return check_plan(write_plan(folder, text=ONE_RANK + block))


def test_a_check_shows_what_is_pushed_where(tmp_path: Path) -> None:
    draft = pushing(tmp_path, 'hub("org/name", private = false, revision = "v1.0")').draft
    assert draft is not None
    assert ("push", "hf to org/name (public), branch v1.0") in [
        *essence(draft.bound, draft.graph, draft.estimate)
    ]
    assert 'push = hub("org/name", private = false, revision = "v1.0")' in resolved_text(draft.bound)


@pytest.mark.parametrize(
    ("push", "code", "text", "help"),
    [
        ('"org/name"', "P205", "expected `hub`, found a string", 'write `push = hub("org/name")`'),
        ('hub("name")', "P211", '"name" is not a repository name', 'write `"org/name"`'),
        ('hub("org/../name")', "P211", '"org/../name" is not a repository name', 'write `"org/name"`'),
        ('hub("org/name", revision = "refs/pr/1")', "P211", "is not the name of a branch", '`"main"`'),
        ('hub("org/name", revision = "a..b")', "P211", '"a..b" is not the name of a branch', '`"main"`'),
        ('hub("org/name", token = "hf_x")', "P211", "`hub` has no argument `token`", ""),
    ],
)
def test_a_target_that_is_none_is_refused(push: str, code: str, text: str, help: str, tmp_path: Path) -> None:
    found = only_finding(pushing(tmp_path, push))
    assert found[0] == code
    assert text in found[1]
    assert help in found[2]
