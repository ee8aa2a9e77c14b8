"""Bad plans, each with what `planc check` has to say of it. The numbers are rows of one corpus, 1 to 68.

The language has no order of steps, no loops, no names or folders of runs: rows about those write what a user
would, and have the finding that says so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.plans import FULL, PLANS


@dataclass(frozen=True, slots=True)
class Case:
    """`code` at `line`, counted from 1, with `label` and `help` in its texts; accepted where `code` is empty.

    `arrange` writes the plan into a folder and returns its path.
    """

    row: str
    arrange: Callable[[Path], Path]
    code: str = ""
    line: int = 1
    help: str = ""
    label: str = ""
    exit_code: int = 1
    arguments: tuple[str, ...] = field(default=())


def plan(content: str | bytes, *, name: str = "x.plan") -> Callable[[Path], Path]:
    def arrange(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return arrange


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def edit(
    row: str,
    old: str,
    new: str,
    code: str,
    *,
    help: str = "",
    label: str = "",
    at: str = "",
    arguments: tuple[str, ...] = (),
) -> Case:
    """FULL with one edit, and the finding on the line where `at`, or else the new text, stands."""
    assert old in FULL, old
    text = FULL.replace(old, new, 1)
    line = line_of(text, at or new.strip()) if code else 1
    return Case(row, plan(text), code, line, help, label, arguments=arguments)


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "x.plan")
    return folder / "x.plan"


def device(folder: Path) -> Path:
    return Path("/dev/zero")


def folder_as_base(folder: Path) -> Path:
    (folder / "sub").mkdir()
    return plan('extends "sub"\n')(folder)


def absent(folder: Path) -> Path:
    return folder / ("x" * 300 + ".plan")


def sparse(folder: Path) -> Path:
    path = folder / "x.plan"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    return path


def files(**texts: str) -> Callable[[Path], Path]:
    """Several files, `x` the plan."""

    def arrange(folder: Path) -> Path:
        for name, text in texts.items():
            (folder / f"{name}.plan").write_text(text)
        return folder / "x.plan"

    return arrange


def linked(folder: Path) -> Path:
    (folder / "y.plan").symlink_to("/etc/passwd")
    return plan('extends "y.plan"\n')(folder)


def fan_out(folder: Path) -> Path:
    """Ten imports in each of ten files, on ten levels."""
    for level in range(10):
        for number in range(10):
            imports = (f'import "f{level + 1}_{at}.plan" as a{at}\n' for at in range(10))
            (folder / f"f{level}_{number}.plan").write_text("".join(imports))
    for number in range(10):
        (folder / f"f10_{number}.plan").write_text("")
    return plan("".join(f'import "f0_{at}.plan" as a{at}\n' for at in range(10)))(folder)


def hundred_files(folder: Path) -> Path:
    for number in range(100):
        (folder / f"f{number}.plan").write_text("param a: int = 1\n")
    return plan("".join(f'import "f{number}.plan" as a{number}\n' for number in range(100)))(folder)


def vocabulary(size: int) -> Callable[[Path], Path]:
    """FULL with a model of another vocabulary."""

    def arrange(folder: Path) -> Path:
        inventory = json.loads((PLANS / "models" / "tiny-llama" / "inventory.json").read_text())
        text = json.dumps(inventory).replace("[260, 128]", f"[{size}, 128]")
        (folder / "model").mkdir()
        (folder / "model" / "inventory.json").write_text(
            text.replace('"vocab_size": 260', f'"vocab_size": {size}')
        )
        return plan(FULL.replace("models/tiny-llama", "model"))(folder)

    return arrange


DTYPE = "dtype = float32"
BETAS = "betas = [0.9, 0.95]"
LR = "adamw(lr = lr"
SEED = "seed = 0"
TP = "  tp = 2"
HF = 'hf = "models/tiny-llama"'
RANKS = "dp_shard = 2\n  tp = 2"
CONTEXT = """context_parallel on cp {
  "input_ids" -> Shard(1)
  "labels" -> Shard(1)
  "position_ids" -> Shard(1)
}
"""


def cp(sequence_length: str, context: str) -> str:
    """FULL over two ranks of cp."""
    text = FULL.replace(RANKS, "dp_shard = 1\n  cp = 2\n  tp = 2").replace(
        "activation_ch", f"{context}\nactivation_ch"
    )
    return text.replace("sequence_length = 256", f"sequence_length = {sequence_length}")


def reordered() -> str:
    """FULL with its blocks in the reverse order."""
    *head, rest = re.split(r"\n\n(?=model)", FULL)
    return "\n\n".join((*head, *reversed(rest.strip().split("\n\n")))) + "\n"


TEXT = (
    Case("1 empty", plan(""), "P209", 1, "add `model"),
    Case("2 comments only", plan("# one\n# two\n"), "P209", 1, "add `model"),
    Case("3 byte-order mark", plan("\ufeff" + FULL), "P106", 1, "without a byte-order mark"),
    Case("4 NUL", plan(FULL + "# \0\n"), "P106", FULL.count("\n") + 1, "remove the character"),
    Case("5 byte ff", plan(FULL.encode() + b"# \xff\n"), "P106", FULL.count("\n") + 1, "UTF-8"),
    Case("6 UTF-16", plan(FULL.encode("utf-16")), "P106", 1, "UTF-8"),
    Case("6 UTF-16 without a mark", plan(FULL.encode("utf-16-be")), "P106", 1, "remove the character"),
    Case("7 lone CR", plan(FULL.replace("\n", "\r")), "P106", 1, "with Unix or Windows line endings"),
    edit("8 right-to-left override", "seed = 0", "seed = 0 # \u202e", "P106", help="remove"),
    edit("9 Cyrillic letter", "mesh {", "m\u0430sh {", "P101", help="ASCII"),
    edit("10 zero-width space", "  tp = 2", "  t\u200bp = 2", "P106", help="remove"),
    edit("11 Arabic digit", TP, "  tp = \u0662", "P101", help="ASCII"),
    edit("12 open string", HF, 'hf = "models/tiny-llama', "P101", help="close it"),
    edit("13 backslashes", HF, "hf = " + "\\" * 32_768, "P101", help="several lines"),
    edit("13 more backslashes", HF, "hf = " + "\\" * 60_000, "P110"),
    edit("13 backslashes in a string", HF, 'hf = "' + "\\" * 32_768 + '"', "P216"),
    edit("14 escape of a surrogate", HF, 'hf = "\\ud800"', "P216"),
    Case("14 surrogate", plan(FULL.encode() + b'# "\xed\xa0\x80"\n'), "P106", FULL.count("\n") + 1, "UTF-8"),
    edit("15 nesting 1,000", BETAS, f"betas = {'[' * 1000}1{']' * 1000}", "P104", at="[[["),
    edit("16 nesting 200,000", BETAS, f"betas = {'[' * 200_000}", "P104", at="[[["),
    Case("17 100 MB", sparse, "P105", 1),
    Case("18 400,000 statements", plan("a=1\n" * 400_000), "P105", 1),
    Case("18 60,000 statements", plan("a=1\n" * 60_000), "P110", 13_334),
    Case("18 13,000 statements", plan("a=1\n" * 13_000), "P210", 1),
    Case("19 10 MB token", plan("a" * 10 * 2**20), "P105", 1),
    Case("19 200 KB token", plan("a" * 200_000 + "\n" + FULL), "P210", 1),
    edit("20 unclosed brace", f"{TP}\n}}", TP, "P108", at="mesh {", help="}"),
    edit("21 mistyped block", "tensor_parallel on", "tensr_parallel on", "P201", help="tensor_parallel"),
    edit("22 key given twice", TP, "  tp = 2\n  tp = 4", "P204", at="  tp = 4"),
    Case("23 FIFO", fifo, "P100", 1, exit_code=2),
    Case("24 /dev/zero", device, "P100", 1, exit_code=2),
    Case("a folder as the base", folder_as_base, "P231", 1, "a `.plan` file", "sub is not a regular file"),
)

VALUES = (
    edit("25 tp = 0", TP, "  tp = 0", "P206"),
    edit("26 tp = -1", TP, "  tp = -1", "P206"),
    edit("27 tp = 2.0", TP, "  tp = 2.0", "P205", help="write `2`"),
    edit("28 5,000 digits", TP, f"  tp = {'9' * 5000}", "P107"),
    edit("29 2**63 as written", TP, "  tp = 2**63", "P102"),
    edit("29 2**63 as a number", TP, "  tp = 9223372036854775808", "P206"),
    edit("30 lr = nan", LR, "adamw(lr = nan", "P205", help="`lr = 3e-4`", label="found `nan`"),
    edit("31 lr = 1e999", LR, "adamw(lr = 1e999", "P206"),
    edit("32 lr = -1", LR, "adamw(lr = -1", "P206"),
    edit("33 betas as a tuple", BETAS, "betas = (1.0, 0.9)", "P102", help="[a, b]"),
    edit("33 beta of 1", BETAS, "betas = [1.0, 0.9]", "P206"),
    edit("34 sequence of 0", "sequence_length = 256", "sequence_length = 0", "P206"),
    edit("35 sequence of 10^12", "sequence_length = 256", "sequence_length = 1_000_000_000_000", "P206"),
    edit("36 warmup beyond training", "warmup = 10 steps", "warmup = 100 steps", "P706"),
    edit("37 timeout of 0", TP, "  tp = 2\n  timeout = 0 s", "P206", at="timeout"),
    edit("38 dtype = fp42", DTYPE, "dtype = fp42", "P207"),
    edit("39 world 4, tp 3", TP, "  tp = 3", "P301", at="mesh {", arguments=("--world-size", "4")),
    edit("40 tp above KV heads", RANKS, "dp_shard = 1\n  tp = 8", "P402", at="tp = 8"),
    edit("41 batch over dp", RANKS, "dp_shard = 3\n  tp = 2", "P701", at="tokens_per_step"),
    Case("42 sequence of 1001 over cp", plan(cp("1001", CONTEXT)), "P601", 49, "1000 or 1004"),
    Case("43 vocabulary of 65", vocabulary(65), "P705", line_of(FULL, "tokenizer"), "at least 257"),
    # Rows of the vocabulary may be divided unevenly: the lookup and the loss are exact all the same.
    Case("43 odd vocabulary over tp 2", vocabulary(261)),
    # Nothing in a plan stands for a step that another one follows: the order of its lines is free.
    Case("44 clip after step", plan(reordered())),
    edit("45 step before backward", "train {", "train {\n  order = [step, backward]", "P202", at="order"),
    edit("46 dim sharded twice", "fsdp on dp_shard, cp", "fsdp on dp_shard, dp_shard", "P204"),
    edit("47 mesh dim twice", RANKS, f"{RANKS}\n  dp_shard = 2", "P204", at="dp_shard = 2\n}"),
    Case(
        "48 buffer on another dim",
        plan(cp("256", CONTEXT.replace('"labels" -> Shard(1)', '"labels" -> Shard(0)'))),
        "P603",
        38,
        "or leave the rule out",
    ),
    Case("49 mask under cp", plan(cp("256", CONTEXT.replace("position_ids", "attention_mask"))), "P203", 39),
)

RELATIVE = "relative to this file"
IMPORTS = (
    Case("50 cycle", files(x='extends "y.plan"\n', y='extends "x.plan"\n'), "P233", 1, "to a third file"),
    Case("51 self", files(x='\nextends "x.plan"\n'), "P233", 2, "remove this line", "`x.plan` is this file"),
    Case(
        "52 above the folder",
        plan('import "../../etc/passwd" as p\n'),
        "P232",
        1,
        "put a file `planc.toml`",
        "is above",
    ),
    Case(
        "52 absolute", plan('extends "/etc/passwd"\n'), "P232", 1, RELATIVE, "starts outside the plan's tree"
    ),
    Case(
        "53 link out of the folder",
        linked,
        "P232",
        1,
        "copy the file into the plan's folder",
        "symbolic link",
    ),
    Case(
        "54 over the network",
        plan('extends "http://example.org/x.plan"\n'),
        "P232",
        1,
        RELATIVE,
        "only local files",
    ),
    Case("55 ten by ten, ten levels", fan_out, "P210", 1, "keep only parameters and fragments"),
    Case("55 hundred files", hundred_files, "P234", 100),
)

Q_PROJ = '"model.layers.*.self_attn.{q,k,v}_proj"'
GRAPH = (
    edit("56 {a,b} thirty times", Q_PROJ, f'"{"{a,b}" * 30}"', "P213"),
    edit("57 many stars", Q_PROJ, '"model.layers.*.*a*a*a*a*b"', "P203"),
    edit("58 dependency cycle", "param lr: float = 4e-3", "param lr: float = b\nparam b: float = lr", "P205"),
    edit("59 undefined name", TP, "  tp = undefined", "P205", help="`tp = 1`", label="found `undefined`"),
    edit("60 10^6 layers", '"model.layers.*" -> none', '"model.layers.{0..999999}" -> none', "P213"),
    edit(
        "61 loop of 10^18", "train {", "for i in range(1_000_000_000_000_000_000) {", "P102", help="no loops"
    ),
    edit("61 range of 10^18", Q_PROJ, f'"model.layers.{{0..{10**18}}}"', "P213"),
    edit("62 __import__", HF, 'hf = __import__("os")', "P212"),
    edit("63 ${HF_TOKEN}", HF, "hf = ${HF_TOKEN}", "P101", help="can't read the environment"),
    edit("63 ${HF_TOKEN} in a string", HF, 'hf = "${HF_TOKEN}"', "P216"),
    edit("64 run named $(id)", "train {", 'train {\n  name = "$(id)"', "P202", at="name"),
    Case("64 plan named $(id)", plan(FULL, name="$(id).plan")),
    edit("65 run folder /", "train {", 'train {\n  run_dir = "/"', "P202", at="run_dir"),
    edit("66 ../x", HF, 'hf = "../x"', "P216"),
    edit("67 300 characters", HF, f'hf = "{"x" * 300}"', "P216"),
    Case("67 file name of 300 characters", absent, "P100", 1, exit_code=2),
    edit("68 model linked to /etc", HF, 'hf = "etc"', "P216"),
)
CASES = (*TEXT, *VALUES, *IMPORTS, *GRAPH)
