from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "plans" / "models"

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}

ConfigWriter = Callable[..., Path]


@pytest.fixture(scope="session")
def models() -> Path:
    """The directory of the models that ship with the plans."""
    return MODELS


@pytest.fixture
def write_config(tmp_path: Path) -> ConfigWriter:
    """Writes a tiny model's config.json, with any keys replaced, and returns its directory."""

    def write(*, architecture: str, model_type: str, **keys: object) -> Path:
        model_dir = tmp_path / "model"
        model_dir.mkdir(exist_ok=True)
        config = {"architectures": [architecture], "model_type": model_type, **TINY, **keys}
        (model_dir / "config.json").write_text(json.dumps(config))
        return model_dir

    return write


@pytest.fixture
def tiny_llama(write_config: ConfigWriter) -> Path:
    """A directory with the config.json of a three-layer Llama, and nothing else."""
    return write_config(architecture="LlamaForCausalLM", model_type="llama")
