"""Bad models, data, checkpoints and environments, each with planc's answer: rows 69 to 110 of the corpus.

Each case spoils a sound workspace: a plan `x.plan`, a model with weights in `model`, text in `corpus.txt`.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from planc.runtime.checkpoint_format.shards import Entry, encode_header
from tests.faults import corpus
from tests.parity.cases import CORPUS, Case, make_workspace, plan_text

INPUT, NUMERICS, CORRUPT = 2, 5, 7
FINDINGS = 1
RUN = ("run", "x.plan", "--run-dir", "run", "--stop-after", "1")
CHECK = ("check", "x.plan")
WEIGHTS = "model/model.safetensors"


@dataclass(frozen=True, slots=True)
class FileCase:
    """`said` stands in the answer to `command`, whose exit code is `code`; `arrange` spoils a workspace."""

    row: str
    arrange: Callable[[Path], object]
    said: str
    code: int = INPUT
    command: tuple[str, ...] = RUN
    environment: Mapping[str, str] = field(default_factory=dict)


def workspace(folder: Path) -> Path:
    """A sound one, in a folder of its own."""
    made = make_workspace(folder / "made")
    folder = folder / "sound"
    folder.mkdir()
    shutil.copytree(made / "llama", folder / "model")
    shutil.copy(made / CORPUS, folder / CORPUS)
    text = plan_text(Case("1", model="model"), saves=True).replace(
        "  seed", "  weights = pretrained\n  seed", 1
    )
    (folder / "x.plan").write_text(text, encoding="utf-8")
    write_weights(folder, shapes_of(folder))
    return folder


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter that the model keeps, by its name."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def write_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], *, element: bytes = b"\0\0\0\0"
) -> None:
    entries = [Entry(name, "float32", shape) for name, shape in shapes.items()]
    data = b"".join(element * prod(shape) for shape in shapes.values())
    (folder / WEIGHTS).write_bytes(encode_header(entries) + data)


def edit_json(name: str, **values: Any) -> Callable[[Path], object]:
    def arrange(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}))

    return arrange


def config(**values: Any) -> Callable[[Path], object]:
    """Another config.json, of which nothing is known yet."""

    def arrange(folder: Path) -> None:
        edit_json("model/config.json", **values)(folder)
        (folder / "model" / "inventory.json").unlink()

    return arrange


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def arrange(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text, old
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return arrange


def text(content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / CORPUS).write_bytes(data)


def only_bin(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model" / "pytorch_model.bin")


def index(file: str, *, present: bool = True, absent: str = "") -> Callable[[Path], object]:
    """An index that leads to `file`, where the weights really are unless it is the folder's."""

    def arrange(folder: Path) -> None:
        names = [*shapes_of(folder), *([absent] if absent else [])]
        target = folder / "model" / file
        (folder / WEIGHTS).rename(target)
        path = folder / "model" / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}), encoding="utf-8")

    return arrange


def absolute(folder: Path) -> None:
    index(str(folder / "victim.safetensors"))(folder)


def header(change: Callable[[dict[str, Any]], str]) -> Callable[[Path], object]:
    """The weights with another header of the same tensors' bytes."""

    def arrange(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        size = int.from_bytes(data[:8], "little")
        changed = change(json.loads(data[8 : 8 + size])).encode()
        (folder / WEIGHTS).write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])

    return arrange


def overlapping(fields: dict[str, Any]) -> str:
    first, second, *_ = (name for name, field in fields.items() if field["shape"] == [64])
    fields[second]["data_offsets"] = fields[first]["data_offsets"]
    return json.dumps(fields)


def repeated(fields: dict[str, Any]) -> str:
    """The first key once more, at the last one's end."""
    key, value = next(iter(fields.items()))
    return f"{json.dumps(fields)[:-1]},{json.dumps(key)}:{json.dumps(value)}}}"


def escaping_name(fields: dict[str, Any]) -> str:
    fields["../../x"] = fields.pop("model.norm.weight")
    return json.dumps(fields)


def huge_header(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes((2**63).to_bytes(8, "little") + data[8:])


def long_header(folder: Path) -> None:
    """A header as long as the format's limit and one byte, all of it there."""
    with (folder / WEIGHTS).open("wb") as stream:
        stream.write((100_000_001).to_bytes(8, "little"))
        stream.truncate(8 + 100_000_001)


def truncated(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def wrong_shape(folder: Path) -> None:
    write_weights(folder, {**shapes_of(folder), "model.norm.weight": (63,)})


def not_numbers(folder: Path) -> None:
    write_weights(folder, shapes_of(folder), element=b"\0\0\xc0\x7f")


def gzip_bomb(folder: Path) -> None:
    """A name that says text, and the bytes of an archive a thousand times as large."""
    (folder / CORPUS).write_bytes(gzip.compress(bytes(50 * 2**20)))


def one_line(folder: Path) -> None:
    """A gigabyte without a line's end, as a sparse file."""
    with (folder / CORPUS).open("wb") as stream:
        stream.truncate(2**30)


def json_line(folder: Path) -> None:
    one_line(folder)
    edit("x.plan", f'text("{CORPUS}")', f'jsonl("{CORPUS}")')(folder)


def two_ranks(folder: Path) -> None:
    edit("x.plan", "tp = 1", "dp_shard = 2")(folder)
    edit("x.plan", "micro_batch = 8", "micro_batch = 4")(folder)


def bad_checkpoint(name: str) -> Callable[[Path], object]:
    """A checkpoint of step 10, spoilt; made from the sound one that `checkpoints` has."""
    damage = corpus.REFUSED[name][0]
    return lambda folder: damage(folder / "checkpoints" / f"step-{corpus.STEP}", folder / "marker")


def nothing(folder: Path) -> None:
    """What is bad is said around the workspace."""


WORLD = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
KEY = "hf_of_nobody_at_all"
UNKNOWN = "no causal or masked language model"


def _nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = {"x": value}
    return value


def config_text(old: str, new: str) -> Callable[[Path], object]:
    """Another config.json, of which nothing is known yet, as JSON libraries would not write it."""

    def arrange(folder: Path) -> None:
        config()(folder)
        edit("model/config.json", old, new)(folder)

    return arrange


LAYERS, HEADS, EPS = "num_hidden_layers", "num_attention_heads", "rms_norm_eps"
HOSTILE = tuple(
    FileCase(f"110 {row}", arrange, said, FINDINGS, CHECK)
    for row, arrange, said in (
        ("10^9 layers", config(num_hidden_layers=10**9), f"`{LAYERS}` is 1000000000, but must be from 1 to"),
        ("10^30 layers", config(num_hidden_layers=10**30), f"`{LAYERS}` is about 10^30, but must be"),
        ("5000 layers", config(num_hidden_layers=5000), f"`{LAYERS}` is 5000, but must be from 1 to 1000"),
        ("no layers", config(num_hidden_layers=0), f"`{LAYERS}` is 0, but must be from 1"),
        ("layers as a string", config(num_hidden_layers="4"), f'`{LAYERS}` is "4", but must be a number'),
        ("layers as a bool", config(num_hidden_layers=True), f"`{LAYERS}` is true, but must be a number"),
        ("4.5 layers", config(num_hidden_layers=4.5), f"`{LAYERS}` is 4.5, but must be an integer"),
        ("NaN eps", config(rms_norm_eps=float("nan")), f"`{EPS}` is nan, but must be a finite number"),
        ("infinite eps", config(rms_norm_eps=float("inf")), f"`{EPS}` is inf, but must be a finite number"),
        ("negative eps", config(rms_norm_eps=-1.0), f"`{EPS}` is -1.0, but must be at least 0"),
        ("eps as a string", config(rms_norm_eps="x"), f'`{EPS}` is "x", but must be a number'),
        ("no heads", config(num_attention_heads=0), f"`{HEADS}` is 0, but must be from 1"),
        ("-4 heads", config(num_attention_heads=-4), f"`{HEADS}` is -4, but must be from 1"),
        ("vocabulary 10^15", config(vocab_size=10**15), "`vocab_size` is 1000000000000000, but must be"),
        ("10^400 positions", config(max_position_embeddings=10**400), "is about 10^400, but must be"),
        ("NaN inside", config(rope_scaling={"factor": float("nan")}), "`rope_scaling.factor` is nan"),
        ("10^9 layers inside", config(text_config={LAYERS: 10**9}), f"`text_config.{LAYERS}` is 1000000000"),
        ("nested deep", config(x=_nested(100)), "is nested more"),
        ("nested beyond reading", config_text("{", '{"x": ' + "[" * 10**5 + "]" * 10**5 + ","), "too deeply"),
        ("many values", config(x=[0] * 10**5), "more than 50000 values"),
        ("100 MB", config_text("{", "{" + " " * 10**8), "is larger than 4194304 bytes"),
        ("a key given twice", config_text("{", f'{{"{LAYERS}": 1, '), f'the key "{LAYERS}" occurs twice'),
    )
)
MODEL = (
    FileCase("69 auto_map", config(auto_map={"AutoModelForCausalLM": "m.M"}), "auto_map", FINDINGS, CHECK),
    FileCase(
        "70 _attn_implementation_internal",
        config(_attn_implementation_internal="org/kernel"),
        "_attn_implementation_internal",
        FINDINGS,
        CHECK,
    ),
    FileCase("71 architecture pipeline", config(architectures=["pipeline"]), UNKNOWN, FINDINGS, CHECK),
    FileCase(
        "72 hidden size 2^40", config(hidden_size=2**40), "must be from 1 to 2147483647", FINDINGS, CHECK
    ),
    FileCase(
        "72 hidden size 2^30",
        config(hidden_size=2**30, intermediate_size=2**20),
        "larger than a",
        FINDINGS,
        CHECK,
    ),
    *HOSTILE,
    FileCase("73 only .bin", only_bin, "has neither model.safetensors nor"),
    FileCase(
        "74 index to ../victim", index("../victim.safetensors"), "not a safetensors file in its directory"
    ),
    FileCase("75 absolute index path", absolute, "not a safetensors file in its directory"),
    FileCase(
        "76 index of an absent tensor",
        index("a.safetensors", absent="x.y"),
        "model/a.safetensors does not contain x.y",
    ),
    FileCase("77 header of 2^63", huge_header, "is not a safetensors file"),
    FileCase("77 header of 100 MB", long_header, "is not a safetensors file"),
    FileCase("78 overlapping offsets", header(overlapping), "is not a safetensors file"),
    FileCase("79 truncated file", truncated, "is not a safetensors file"),
    FileCase("80 key given twice", header(repeated), "stands twice"),
    FileCase("81 wrong shape", wrong_shape, "model.norm.weight has shape [63], the model [64]"),
    FileCase("82 NaN weights", not_numbers, "nan", NUMERICS),
    FileCase("83 tensor named ../../x", header(escaping_name), "../../x"),
)
DATA = (
    FileCase("84 tokenizer above vocabulary", config(vocab_size=200), "P705", FINDINGS, CHECK),
    FileCase("87 empty dataset", text(""), "not fill one sequence"),
    FileCase("88 shorter than a sequence", text("a"), "not fill one sequence"),
    FileCase("86 1 GB line", json_line, "is longer than 256 MiB"),
    FileCase("89 gzip bomb", gzip_bomb, "is not UTF-8"),
)
CHECKPOINTS = tuple(
    FileCase(
        name,
        bad_checkpoint(name),
        said,
        FINDINGS,
        ("checkpoint", "verify", f"checkpoints/step-{corpus.STEP}"),
    )
    for name, (_, said) in corpus.REFUSED.items()
)
ENVIRONMENT = (
    *(
        FileCase(f"101 TP_SIZE = {value!r}", nothing, "TP_SIZE", INPUT, CHECK, environment={"TP_SIZE": value})
        for value in ("\u0662", " 2 ", "2_0", "+2")
    ),
    FileCase(
        "102 WORLD_SIZE = abc", nothing, "WORLD_SIZE = 'abc'", environment={**WORLD, "WORLD_SIZE": "abc"}
    ),
    FileCase("103 no LOCAL_RANK", nothing, "LOCAL_RANK is not", environment={"RANK": "0", "WORLD_SIZE": "1"}),
    FileCase(
        "104 MASTER_PORT = 70000",
        nothing,
        "MASTER_PORT = 70000 is not a port",
        environment={**WORLD, "WORLD_SIZE": "2", "MASTER_PORT": "70000"},
    ),
    FileCase(
        "107 one process for two",
        two_ranks,
        "dp_shard = 2 needs 2 ranks; the world size is 1",
    ),
    FileCase(
        "108 token as argument",
        nothing,
        "unknown option `--hf-token`",
        command=(*CHECK, "--hf-token", KEY),
        environment={"HF_TOKEN": KEY},
    ),
)
FILE_CASES = (*MODEL, *DATA, *CHECKPOINTS, *ENVIRONMENT)
ELSEWHERE = {
    "85 token id above vocabulary": "tests/data/test_data_packing.py",
    "94 manifest of another run": "tests/faults/test_corpus.py",
    "96 step 9 beside step 10": "tests/faults/test_corpus.py",
    "97 leftover of a dead save": "tests/faults/test_corpus.py",
    "99 folder that all may write": "tests/faults/test_corpus.py",
    "105 another plan on one rank": "tests/launch/test_launch.py",
    "106 plan edited between ranks": "tests/launch/test_launch.py",
    "109 python -O": "tests/robustness/test_bad_inputs.py",
}
"""Rows that one process cannot be asked, and the suite that asks several."""
