"""`planc import` as a command, and the files that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.import_configs.detect import KINDS, detect
from planc.import_configs.importing import READERS, read_leaves
from planc.import_configs.kind import Kind
from planc.import_configs.leaves import MAX_BYTES, MAX_LEAVES, SourceError
from planc.import_configs.report import keys_page
from planc.plan.spec import Plan
from tests.plans import PLANS

CONFIGS = Path(__file__).parent / "configs"
MODEL = ("--model", str(PLANS / "models" / "tiny-llama"))
DATA = ("--data", "data/*.txt")
PLAIN = str(CONFIGS / "torchtitan" / "plain.toml")
ZERO = str(CONFIGS / "deepspeed" / "numbers_zero3.json")

Streams = pytest.CaptureFixture[str]


def test_the_plan_goes_to_standard_output_and_the_notes_to_standard_error(capsys: Streams) -> None:
    assert main(["import", PLAIN, *MODEL, *DATA, "--gpus", "8"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Imported from plain.toml, a config of torchtitan.\n\nmodel {")
    assert "NOT IN THE PLAN" in err and f"{PLAIN}:2 " in err


def test_a_written_plan_passes_the_check_and_is_formatted(tmp_path: Path, capsys: Streams) -> None:
    plan = tmp_path / "x.plan"
    assert main(["import", PLAIN, *MODEL, *DATA, "--gpus", "8", "-o", str(plan)]) == 0
    assert "NOT IN THE PLAN" in capsys.readouterr().out
    assert main(["check", str(plan)]) == 0
    assert main(["fmt", "--check", str(plan)]) == 0


def test_a_model_is_named_relative_to_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").symlink_to(PLANS / "models")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    command = ["import", PLAIN, "--model", "models/tiny-llama", *DATA, "--gpus", "8", "-o", "mine/x.plan"]
    assert main(command) == 0
    assert 'hf = "../models/tiny-llama"' in Path("mine/x.plan").read_text(encoding="utf-8")


def test_everything_that_is_missing_is_named_with_its_option(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "axolotl.yaml"
    config.write_text("base_model: org/base\nsequence_len: 256\nmicro_batch_size: 1\n")
    plan = tmp_path / "x.plan"
    assert main(["import", str(config), "-o", str(plan)]) == 1
    err = capsys.readouterr().err
    for line, option in ((1, "--model DIR"), (None, "--lr X"), (None, "--gpus N")):
        place = f"{config}:{line}" if line else f"{config}: "
        assert place in err and f"help: pass {option}" in err, err
    assert not plan.exists()


@pytest.mark.parametrize(
    ("lines", "schedule"),
    [
        ("warmup_ratio: 0.03\nlr_scheduler: cosine\n", "schedule = cosine(warmup = 3 %)"),
        ("warmup_ratio: 0.125\nlr_scheduler: linear\n", "schedule = linear(warmup = 12.5 %)"),
        ("warmup_steps: 40\nlr_scheduler: cosine\n", "schedule = cosine(warmup = 40 steps)"),
    ],
)
def test_epochs_and_shares_of_steps_stay_what_they_are(
    lines: str, schedule: str, tmp_path: Path, capsys: Streams
) -> None:
    config = tmp_path / "axolotl.yaml"
    config.write_text(
        "base_model: org/base\nsequence_len: 256\nmicro_batch_size: 1\nnum_epochs: 2.5\n"
        f"learning_rate: 1.0e-5\n{lines}"
    )
    assert main(["import", str(config), *MODEL, *DATA, "--gpus", "1"]) == 0
    text = capsys.readouterr().out
    assert "  epochs = 2.5\n" in text and schedule in text and "steps = 0" not in text
    assert main(["import", str(config), *MODEL, *DATA, "--gpus", "1", "--steps", "1000"]) == 0
    out, err = capsys.readouterr()
    assert "  steps = 1000\n" in out and "epochs =" not in out and "num_epochs" in err


def test_a_model_of_the_hub_takes_the_commit_of_the_file(tmp_path: Path, capsys: Streams) -> None:
    config, commit = tmp_path / "axolotl.yaml", "0123456789" * 4
    config.write_text(
        f"base_model: org/base\nrevision_of_model: '{commit}'\nsequence_len: 256\nmicro_batch_size: 1\n"
        "max_steps: 5\nlearning_rate: 1.0e-5\n"
    )
    assert main(["import", str(config), "--gpus", "1"]) == 0
    assert f'hf = hub("org/base", revision = "{commit}")' in capsys.readouterr().out


def test_an_option_wins_over_the_file_and_is_noted(capsys: Streams) -> None:
    assert main(["import", PLAIN, *MODEL, *DATA, "--gpus", "8", "--steps", "7"]) == 0
    out, err = capsys.readouterr()
    assert "steps = 7\n" in out and "`--steps` gives 7 instead of 600" in err


def test_strict_fails_for_a_key_without_a_counterpart() -> None:
    assert main(["import", PLAIN, *MODEL, *DATA, "--gpus", "8", "--strict"]) == 1


def test_json_has_the_plan_and_where_each_key_went(capsys: Streams) -> None:
    command = ["import", ZERO, *MODEL, "--gpus", "8", "--sequence-length", "256", "--steps", "9"]
    assert main([*command, "--output-format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "deepspeed" and document["missing"] == []
    lines = Path(ZERO).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if '"lr"' in text)
    assert document["training"] == "pretrains random weights on documents"
    found = {"key": "optimizer.params.lr", "file": ZERO, "line": line, "setting": "optimizer.kind.lr"}
    assert found in document["imported"]
    assert document["plan"].endswith("}\n")


def test_the_source_is_never_overwritten(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "x.toml"
    config.write_bytes(Path(PLAIN).read_bytes())
    assert main(["import", str(config), *MODEL, *DATA, "--gpus", "8", "-o", str(config)]) == 2
    assert config.read_bytes() == Path(PLAIN).read_bytes()


def test_a_file_of_no_kind_lists_the_keys_looked_for(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "x.yaml"
    config.write_text("color: red\n")
    assert main(["import", str(config)]) == 2
    err = capsys.readouterr().err
    assert "pass --from KIND" in err
    assert all(f"{kind.name}: `" in err for kind in KINDS)


def test_a_kind_that_is_given_is_not_detected(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "x.yaml"
    config.write_text("learning_rate: 1.0e-5\nmax_steps: 5\n")
    options = ["--gpus", "1", "--sequence-length", "256", "--micro-batch", "1"]
    assert main(["import", str(config), "--from", "axolotl", *MODEL, *options]) == 0


def test_a_slip_in_a_key_stops_the_import_with_the_key_that_is_meant(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "x.toml"
    config.write_text(Path(PLAIN).read_text().replace("seq_len =", "seq_lem ="))
    assert main(["import", str(config), *MODEL, *DATA, "--gpus", "8"]) == 1
    assert "did you mean `training.seq_len`?" in capsys.readouterr().err


def test_devices_that_the_degrees_do_not_divide_are_an_error(capsys: Streams) -> None:
    path = str(CONFIGS / "torchtitan" / "tensor.toml")
    assert main(["import", path, *MODEL, *DATA, "--gpus", "7"]) == 1
    assert "7 devices are not whole groups of tp 2 x cp 1" in capsys.readouterr().err


def _bomb() -> str:
    lines = ["a0: &a0 [1, 1]"]
    for index in range(1, 30):
        lines.append(f"a{index}: &a{index} [{', '.join([f'*a{index - 1}'] * 9)}]")
    return "\n".join(lines)


def _merges() -> str:
    lines = ["m0: &m0 {a: 1}"]
    for index in range(1, 30):
        lines.append(f"m{index}: &m{index}\n  <<: [{', '.join([f'*m{index - 1}'] * 9)}]")
    return "\n".join(lines)


REFUSED = [
    ("x.yaml", b"", "the file is empty"),
    ("x.json", b" \n", "the file is empty"),
    ("x.json", b"\x80\x04\x95", "not UTF-8 text"),
    ("x.yaml", b"a: 1\na: 2\n", "the key `a` is also in line 1"),
    ("x.json", b'{"a": 1, "a": 2}', 'the key "a" stands twice'),
    ("x.toml", b"a = 1\na = 2\n", "not TOML"),
    ("x.json", b'{"a": NaN}', "NaN is not a JSON number"),
    ("x.yaml", b"a:\tb\n\tc: 1\n", "not YAML"),
    ("x.yaml", b"- a\n- b\n", "not a table of keys"),
    ("x.json", b"[1, 2]", "not a table of keys"),
    ("x.yaml", b"a: 1\n---\nb: 2\n", "another document"),
    ("x.yaml", b"{}", "the file has no keys"),
    ("x.yaml", b"a: !!python/object/apply:os.getcwd []\n", "is not a plain value"),
    ("x.yaml", b"a: !own 1\n", "is not a plain value"),
    ("x.yaml", b"? [a, b]\n: 1\n", "a key is not text"),
    ("x.yaml", b"a: &a\n  b: *a\n", "nested deeper"),
    ("x.yaml", b"a: " + b"[" * 5000, "nested deeper"),
    ("x.json", b'{"a":' * 500 + b"1" + b"}" * 500, "nested deeper"),
    ("x.json", b"[" * 100_000, "nested too deeply"),
    ("x.toml", b"a=" + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    ("x.yaml", b"a: " + b"9" * 5000, "4300 digits"),
    ("x.yaml", _bomb().encode(), f"more than {MAX_LEAVES:_} values"),
    ("x.yaml", _merges().encode(), f"more than {MAX_LEAVES:_} values"),
    ("x.yaml", b"a: 1\n" * MAX_BYTES, "larger than"),
    ("x.py", b"import os\n", "a Python config is not run"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_file_that_is_not_a_config_is_refused(name: str, content: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message.replace("[", r"\[")):
        read_leaves(content, name=name)


def test_aliases_and_merges_are_read() -> None:
    text = b"base: &base\n  a: 1\n  b: 2\nown:\n  <<: *base\n  b: 3\nagain: *base\n"
    leaves = {leaf.key: (leaf.value, leaf.line) for leaf in read_leaves(text, name="x.yaml")}
    assert leaves["own.a"] == (1, 2) and leaves["own.b"] == (3, 6) and leaves["again.b"] == (2, 3)


def test_values_with_control_characters_do_not_reach_the_plan(tmp_path: Path, capsys: Streams) -> None:
    config = tmp_path / "x.yaml"
    config.write_text(
        'base_model: "a\\x1b[31m\\nb"\nsequence_len: 256\nmicro_batch_size: 1\nwandb_project: "a\\nb"\n'
    )
    options = ["--gpus", "1", "--steps", "5", "--lr", "1e-5"]
    assert main(["import", str(config), *options]) == 1
    assert "\x1b" not in capsys.readouterr().err
    assert main(["import", str(config), *MODEL, *options]) == 0
    assert "wandb" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_row_is_a_fact_or_a_reason(kind: Kind) -> None:
    for row in kind.rows:
        assert [row.fact is not None, bool(row.reason), bool(row.change)].count(True) == 1, row.key


def test_every_fact_has_a_place_in_a_plan() -> None:
    blocks = set(Plan.__dataclass_fields__)
    places = {row.fact.place.partition(".")[0] for kind in KINDS for row in kind.rows if row.fact is not None}
    assert places <= blocks


def test_the_page_has_every_row() -> None:
    page = keys_page()
    assert all(f"| `{row.key}` | " in page for kind in KINDS for row in kind.rows)


def test_each_config_is_detected_as_its_own_kind_under_any_name() -> None:
    for path in sorted(CONFIGS.glob("*/*")):
        leaves = READERS[path.suffix](path.read_text(encoding="utf-8"))
        found = detect(leaves)
        assert getattr(found, "name", None) == path.parent.name, path
