"""No model brings code of its own: neither a plan nor a config can ask for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main
from planc.hub.remote_code import code_asked_for
from planc.runtime.errors import RunError
from planc.runtime.model_files import refuse_remote_code
from tests.plans import FULL, PLANS

ASKING: dict[str, dict[str, Any]] = {
    "auto_map": {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}},
    "_attn_implementation_internal": {"_attn_implementation_internal": "org/kernel"},
    "experts_implementation": {"experts_implementation": "org/kernel@v1"},
    "text_config.auto_map": {"text_config": {"auto_map": {}}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan, and its model with a saved inventory."""
    shutil.copytree(PLANS / "models" / "tiny-llama", tmp_path / "models" / "tiny-llama")
    (tmp_path / "x.plan").write_text(FULL, encoding="utf-8")
    return tmp_path


def ask(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "models" / "tiny-llama" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **values}), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ASKING)
def test_a_config_that_asks_for_code_is_refused_though_its_model_is_known(
    key: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(folder, ASKING[key])
    assert main(["check", str(folder / "x.plan")]) == 1
    assert f'requires remote code ("{key}")' in capsys.readouterr().out


@pytest.mark.parametrize("key", ASKING)
def test_a_run_refuses_it_too(key: str, folder: Path) -> None:
    with pytest.raises(RunError, match="requires remote code"):
        refuse_remote_code(ask(folder, ASKING[key]).parent)


@pytest.mark.parametrize(
    "values", [{"attn_implementation": "sdpa"}, {"_attn_implementation_autoset": True}, {"auto": "a/b"}]
)
def test_what_transformers_has_itself_is_no_code_of_others(values: dict[str, Any]) -> None:
    assert code_asked_for(values) is None


def test_a_plan_cannot_trust_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FULL.replace("model {", "model {\n  trust_remote_code = true", 1)
    (folder / "x.plan").write_text(text, encoding="utf-8")
    assert main(["check", str(folder / "x.plan")]) == 1
    assert "error[P202]" in capsys.readouterr().out
