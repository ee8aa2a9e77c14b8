"""What a config.json may say: limits at the boundary, before torch or transformers see it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from planc.api import check_source
from planc.inventory.config_limits import MAX_LAYERS, require_sane
from planc.inventory.files import InventoryError, parse_json
from planc.source import SourceFile
from tests.plans import PLANS
from tests.robustness.bad_files import HOSTILE, FileCase

CONFIG = PLANS / "models" / "tiny-llama" / "config.json"
ROOT = Path(__file__).parents[2]


def refusal(text: str) -> str:
    with pytest.raises(InventoryError) as error:
        require_sane(parse_json(text.encode(), name="c.json"), text=text, path=Path("c.json"))
    return error.value.message


def test_every_config_in_the_repository_is_within_limits() -> None:
    paths = [*PLANS.rglob("config.json"), *(ROOT / "tests").rglob("config.json")]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        require_sane(json.loads(text), text=text, path=path)
    assert len(paths) > 10


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.row)
def test_a_hostile_config_is_refused_at_once_and_says_where(case: FileCase, tmp_path: Path) -> None:
    """Also if there is an inventory next to it: one of other contents is not used."""
    (tmp_path / "model").mkdir()
    for name in ("config.json", "inventory.json"):
        (tmp_path / "model" / name).write_bytes((CONFIG.parent / name).read_bytes())
    case.arrange(tmp_path)
    text = (PLANS / "quickstart.plan").read_text(encoding="utf-8").replace("models/tiny-llama", "model")
    started = time.process_time()
    (found,) = check_source(SourceFile("x.plan", text), base=tmp_path).diagnostics
    assert time.process_time() - started < 2
    assert found.code.code == "P216"
    assert case.said in found.primary.text
    assert found.primary.span.line == text[: text.index("hf = ")].count("\n") + 1
    assert found.help


def test_the_line_of_the_field_is_named_inside_its_part() -> None:
    text = '{\n  "num_hidden_layers": 2,\n  "text_config": {\n    "num_hidden_layers": 9999\n  }\n}'
    assert refusal(text) == (
        f"c.json:4: `text_config.num_hidden_layers` is 9999, but must be from 1 to {MAX_LAYERS}"
    )


def test_lists_of_sizes_are_held_to_the_limits_of_one() -> None:
    assert "`intermediate_size` is -1" in refusal('{"intermediate_size": [8, -1]}')


TWO = '{"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]'


@pytest.mark.parametrize("name", ["layer_types", "mlp_layer_types"])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_list_of_layers_has_an_entry_for_each(name: str, num_layers: int) -> None:
    text = TWO.replace("layer_types", name).replace(": 2", f": {num_layers}") + "}"
    assert refusal(f'{{\n  "text_config":\n  {text}\n}}') == (
        f"c.json:3: `text_config.{name}` has 2 entries, and must have one for each of {num_layers} layers"
    )


def test_a_list_that_is_cut_short_may_be_longer() -> None:
    text = TWO.replace("2", "1") + ', "model_type": "deepseek_v4"}'
    require_sane(json.loads(text), text=text, path=Path("c.json"))
    assert "`layer_types` has 2 entries" in refusal(text.replace(": 1", ": 3"))


@pytest.mark.parametrize(
    "text",
    [
        f"{TWO}}}",
        '{"time_step_limit": [0.0, Infinity]}',
        '{"num_key_value_heads": null, "head_dim": null}',
        '{"intermediate_size": [16384, 8192], "pad_token_id": -1, "sliding_window": -1}',
        f'{{"num_hidden_layers": {MAX_LAYERS}}}',
        '{"rope_scaling": {"rope_type": "default"}, "rms_norm_eps": 0}',
    ],
)
def test_what_real_models_write_is_within_limits(text: str) -> None:
    require_sane(json.loads(text), text=text, path=Path("c.json"))
