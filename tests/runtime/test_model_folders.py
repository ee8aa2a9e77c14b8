"""Model directories drawn at random, read by planc and by `from_pretrained`: the same, value by value.

A directory has one layout of files, some names and some dtypes, and perhaps a flaw. planc reads it as
transformers does, or refuses it; it refuses nothing that is only laid out or stored in another way.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from planc.graph.ops import BuildModel, LoadWeights, MaterialiseWeights
from planc.modeling.tensor_dtypes import kept_in_float32
from planc.runtime.errors import RunError
from planc.runtime.model_files import config_digest
from planc.runtime.observer import Together
from planc.runtime.process import Launch
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.run import Paths, Run
from planc.runtime.torch.weights.build import bare_model, build_model, own_dtypes
from planc.runtime.torch.weights.weights import load_weights, materialize_weights
from planc.source import NOWHERE
from planc.vocab import DType
from tests.models.architectures import architectures
from tests.models.independent import tensors_of, write_weights
from tests.models.tiny import tiny_config
from tests.plans import PLANS, checked

MODELS = ("llama", "gpt2", "qwen3_moe", "deepseek_v3", "gemma3_text", "phi3")
"""Plain names; a prefix and a tied head; experts that are stacked; a buffer kept in float32; buffers that are
computed; fused projections."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WRAPPERS = ("_orig_mod.", "module.", "base_model.model.", "language_model.")
STORED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Folder:
    """What is in a directory, and whether planc may refuse it."""

    path: Path
    dtype: DType
    strip: str | None = None
    may_refuse: bool = False


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("folders")
    for model_type in MODELS:
        (base / model_type).mkdir()
        config = tiny_config(model_type, architectures()[model_type])
        (base / model_type / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        write_weights(base / model_type)
    return base


def loaded(folder: Folder) -> dict[str, Tensor]:
    """Every parameter and buffer as a run has them after `weights.load`."""
    graph = checked(PLANS / "quickstart.plan").graph
    assert graph is not None
    paths = Paths(folder.path.parent, folder.path / "run")
    run = Run(graph, "hash", Launch(), paths, Together(), torch.device("cpu"))
    build = BuildModel(
        path=folder.path.name,
        config_digest=config_digest(folder.path),
        architecture="",
        dtype=folder.dtype,
        own_dtypes=(),
        kept_in_float32=(),
        zeroed=(),
        span=NOWHERE,
    )
    bare = bare_model(build, base=paths.base)
    kept = kept_in_float32(bare, TORCH_DTYPES[folder.dtype])
    own = own_dtypes(bare, dtype=folder.dtype)
    model = build_model(run, replace(build, own_dtypes=own, kept_in_float32=kept))
    materialize_weights(run, MaterialiseWeights(), model, None)
    load = LoadWeights(path=folder.path.name, seed=0, strip=folder.strip, span=NOWHERE)
    load_weights(run, load, model, None)
    return dict(tensors_of(model))


def by_transformers(folder: Folder) -> tuple[dict[str, Tensor], Mapping[str, object]]:
    dtype = TORCH_DTYPES[folder.dtype]
    model, found = AutoModelForCausalLM.from_pretrained(
        folder.path, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    return dict(tensors_of(model)), found


def differing(found: Tensors, expected: Tensors) -> list[str]:
    names = sorted(found.keys() ^ expected.keys())
    return names + [
        name
        for name, tensor in found.items()
        if name in expected
        and (tensor.dtype != expected[name].dtype or not torch.equal(tensor, expected[name]))
    ]


class Writer:
    """Writes one directory, by the choices of a seed."""

    def __init__(self, source: Path, path: Path, chance: random.Random) -> None:
        self.path, self.chance = path, chance
        path.mkdir()
        self.config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        self.tensors: dict[str, Tensor] = dict(load_file(source / SINGLE))

    def write(self) -> Folder:
        """The directory: values in other dtypes, other names, perhaps a flaw, in some layout."""
        for name, tensor in self.tensors.items():
            # What eight bits hold of it is as good a weight as any.
            self.tensors[name] = tensor.to(self.chance.choice(STORED))
        strip = self._named()
        is_flawed = self._flawed()
        self.chance.choice((self._single, self._sharded, self._both, self._named_file, self._named_index))()
        (self.path / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        dtype = self.chance.choice((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16))
        return Folder(self.path, dtype, strip, is_flawed)

    def _named(self) -> str | None:
        """Names as a wrapper leaves them, or of the model without its head."""
        kind = self.chance.choice(("own", "own", "wrapped", "inside", "bare"))
        part = self.chance.choice(WRAPPERS)
        if kind == "wrapped":
            self.tensors = {f"{part}{name}": one for name, one in self.tensors.items()}
            return part
        if kind == "inside":
            self.tensors = {name.replace(".0.", f".0.{part}"): one for name, one in self.tensors.items()}
            return part
        start = "transformer." if any(one.startswith("transformer.") for one in self.tensors) else "model."
        if kind == "bare":
            self.tensors = {name.removeprefix(start): one for name, one in self.tensors.items()}
        return None

    def _flawed(self) -> bool:
        flaw = self.chance.choice(("", "", "", "missing", "extra", "shape", "twice", "adapter", "ranks"))
        name = self.chance.choice(sorted(self.tensors))
        if flaw == "missing":
            del self.tensors[name]
        elif flaw == "extra":
            self.tensors["visual.patch.weight"] = torch.ones(3)
        elif flaw == "shape":
            self.tensors[name] = torch.ones(3, 1, 2)
        elif flaw == "twice":
            self.tensors[f"model.{name}"] = torch.zeros_like(self.tensors[name])
        elif flaw == "adapter":
            (self.path / "adapter_config.json").write_text("{}", encoding="utf-8")
        elif flaw == "ranks":
            save_file(self.tensors, self.path / "shard-00001-model-00001-of-00001.safetensors")
        return bool(flaw)

    def _save(self, tensors: Tensors, name: str) -> None:
        save_file(dict(tensors), self.path / name, metadata={"format": "pt"})

    def _index(self, tensors: Tensors, name: str, *, files: str) -> None:
        """An index that need not name every tensor, nor its right file."""
        num_shards = self.chance.randint(1, 3)
        shards: dict[str, dict[str, Tensor]] = {files.format(number): {} for number in range(num_shards)}
        for key, tensor in tensors.items():
            shards[self.chance.choice(sorted(shards))][key] = tensor
        for file, held in shards.items():
            self._save(held, file)
        weight_map = {key: file for file, held in shards.items() for key in held}
        (self.path / name).write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8"
        )

    def _single(self) -> None:
        self._save(self.tensors, SINGLE)

    def _sharded(self) -> None:
        self._index(self.tensors, INDEX, files="model-{}.safetensors")
        # A shard of an earlier save, which nothing names.
        self._save(self._others(), "model-9.safetensors")

    def _both(self) -> None:
        self._single()
        self._index(self._others(), INDEX, files="older-{}.safetensors")

    def _named_file(self) -> None:
        self._save(self.tensors, "mine.safetensors")
        self._save(self._others(), SINGLE)
        self.config["transformers_weights"] = "mine.safetensors"

    def _named_index(self) -> None:
        self._index(self.tensors, "mine.safetensors.index.json", files="mine-{}.safetensors")
        self._save(self._others(), SINGLE)
        self.config["transformers_weights"] = "mine.safetensors.index.json"

    def _others(self) -> Tensors:
        return {name: torch.full_like(tensor, 0.5) for name, tensor in self.tensors.items()}


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("model_type", MODELS)
def test_a_directory_is_read_as_transformers_reads_it_or_refused(
    model_type: str, seed: int, base: Path, tmp_path: Path
) -> None:
    folder = Writer(base / model_type, tmp_path / "model", random.Random(f"{model_type} {seed}")).write()
    try:
        found = loaded(folder)
    except RunError:
        assert folder.may_refuse, "planc refuses what transformers reads"
        return
    expected, info = by_transformers(_without_part(folder, tmp_path))
    assert not any(info[name] for name in ("missing_keys", "mismatched_keys", "error_msgs"))
    assert differing(found, expected) == []


def _without_part(folder: Folder, tmp_path: Path) -> Folder:
    """For transformers, which can't strip names: the same directory with names that are stripped."""
    if folder.strip is None:
        return folder
    copy = tmp_path / "stripped"
    copy.mkdir()
    for path in sorted(folder.path.iterdir()):
        if path.suffix == ".safetensors":
            held = load_file(path)
            save_file({_bare(name, folder.strip): one for name, one in held.items()}, copy / path.name)
        elif path.name.endswith(".index.json"):
            index = json.loads(path.read_text(encoding="utf-8"))
            names = {_bare(name, folder.strip): file for name, file in index["weight_map"].items()}
            (copy / path.name).write_text(json.dumps({**index, "weight_map": names}), encoding="utf-8")
        elif path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    return replace(folder, path=copy)


def _bare(name: str, part: str) -> str:
    return ".".join(name.replace(part, "").split("."))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("part", WRAPPERS)
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe"])
def test_a_wrapper_in_the_names_is_named_and_the_help_reads_them(
    part: str, model_type: str, base: Path, tmp_path: Path
) -> None:
    folder = written(base / model_type, tmp_path / "model", lambda name: f"{part}{name}")
    with pytest.raises(RunError, match="in their names") as caught:
        loaded(folder)
    assert caught.value.help == f'write `strip = "{part}"` in `model` to read them without it'
    expected, _ = by_transformers(Folder(base / model_type, DType.FLOAT32))
    assert differing(loaded(replace(folder, strip=part)), expected) == []


def test_a_part_that_no_name_has_is_refused(base: Path, tmp_path: Path) -> None:
    folder = written(base / "llama", tmp_path / "model", lambda name: name)
    with pytest.raises(RunError, match="which no tensor has in its name"):
        loaded(replace(folder, strip="module."))


def test_missing_and_unexpected_tensors_are_both_in_the_message(base: Path, tmp_path: Path) -> None:
    folder = written(base / "llama", tmp_path / "model", lambda name: name.replace("mlp", "ffn"))
    with pytest.raises(RunError) as caught:
        loaded(folder)
    assert "missing model.layers.0.mlp.gate_proj.weight" in caught.value.message
    assert "unexpected model.layers.0.ffn.down_proj.weight" in caught.value.message


def test_what_only_a_larger_model_has_is_skipped_with_a_part(base: Path, tmp_path: Path) -> None:
    folder = written(base / "llama", tmp_path / "model", lambda name: f"language_model.{name}")
    tensors = dict(load_file(folder.path / SINGLE)) | {"vision_tower.patch.weight": torch.ones(3)}
    save_file(tensors, folder.path / SINGLE)
    with pytest.raises(RunError, match=r"have `language_model\.` in their names"):
        loaded(folder)
    expected, _ = by_transformers(Folder(base / "llama", DType.FLOAT32))
    assert differing(loaded(replace(folder, strip="language_model.")), expected) == []


def written(source: Path, path: Path, rename: Callable[[str], str]) -> Folder:
    """A copy with other names."""
    path.mkdir()
    (path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / SINGLE)
    save_file({rename(name): one for name, one in tensors.items()}, path / SINGLE)
    return Folder(path, DType.FLOAT32)
