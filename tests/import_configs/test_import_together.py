"""Files that are read together, scripts whose arguments are read, and what a whole import says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.import_configs.commands import command_leaves
from planc.import_configs.leaves import SourceError

Streams = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
MODEL = ("--model", str(ROOT / "plans/models/tiny-llama"))
ARGUMENTS = {"per_device_train_batch_size": 2, "max_steps": 9, "learning_rate": 1e-4, "output_dir": "out"}
ZERO = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4}
ACCELERATE = "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n"


def files(folder: Path, **texts: str) -> list[str]:
    paths = [folder / name.replace("_", ".") for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in paths]


def test_values_of_two_files_that_disagree_can_not_be_right(tmp_path: Path, capsys: Streams) -> None:
    paths = files(tmp_path, ds_json=json.dumps(ZERO), args_json=json.dumps(ARGUMENTS))
    plan = tmp_path / "x.plan"
    options = ["--gpus", "2", "--sequence-length", "64", "-o", str(plan)]
    assert main(["import", *paths, *MODEL, *options]) == 1
    out = capsys.readouterr().out
    wrong = out.partition("CAN'T BE RIGHT\n")[2].partition("\n\n")[0]
    assert f"{paths[0]}:1  train_micro_batch_size_per_gpu" in wrong
    assert f"`per_device_train_batch_size` in line 1 of {paths[1]} is 2, which the plan has" in wrong
    assert "micro_batch = 2" in plan.read_text(encoding="utf-8")


def test_two_trainings_are_not_read_together(tmp_path: Path, capsys: Streams) -> None:
    recipe = "base_model: a/b\nsequence_len: 8\nmicro_batch_size: 1\n"
    paths = files(tmp_path, a_json=json.dumps(ARGUMENTS), b_yaml=recipe)
    assert main(["import", *paths, *MODEL]) == 2
    assert "are configs of two trainings" in capsys.readouterr().err
    paths = files(tmp_path, a_yaml=ACCELERATE, b_yaml=ACCELERATE)
    assert main(["import", *paths, *MODEL]) == 2
    assert "are configs of two trainings, by accelerate" in capsys.readouterr().err


def test_a_file_that_is_no_config_is_named_among_several(tmp_path: Path, capsys: Streams) -> None:
    paths = files(tmp_path, a_json=json.dumps(ARGUMENTS), b_yaml="a: 1\na: 2\n")
    assert main(["import", *paths, *MODEL]) == 2
    assert f"{paths[1]}:2: the key `a` is also in line 1" in capsys.readouterr().err


def test_notes_of_one_cause_are_one_row(tmp_path: Path, capsys: Streams) -> None:
    text = "base_model: a/b\nsequence_len: 64\nmicro_batch_size: 1\nmax_steps: 4\nlearning_rate: 1e-4\n"
    keys = [f"wandb_{name}" for name in ("project", "entity", "watch", "name", "log_model")]
    paths = files(tmp_path, a_yaml=text + "".join(f"{key}:\n" for key in keys))
    assert main(["import", *paths, *MODEL, "--gpus", "1", "-o", str(tmp_path / "x.plan")]) == 0
    out = capsys.readouterr().out
    assert out.count("has no value") == 1
    assert f"{paths[0]}:6  {', '.join(keys[:3])} and 2 more  has no value" in out


def test_columns_tell_conversations_of_trl_from_documents(tmp_path: Path, capsys: Streams) -> None:
    text = "model_name_or_path: a/b\ndataset_name: rows.jsonl\nmax_length: 64\nmax_steps: 4\n"
    paths = files(tmp_path, a_yaml=text, rows_jsonl=json.dumps({"messages": []}) + "\n")[:1]
    command = ["import", *paths, *MODEL, "--gpus", "1", "-o", str(tmp_path / "x.plan")]
    assert main(command) == 0
    assert 'source = chat("rows.jsonl", train_on = all)' in (tmp_path / "x.plan").read_text()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    assert main(command) == 0
    assert 'source = jsonl("rows.jsonl")' in (tmp_path / "x.plan").read_text()
    (tmp_path / "rows.jsonl").unlink()
    assert main(command) == 1
    assert "pass --data-as chat or --data-as text" in capsys.readouterr().err


def test_a_script_is_read_as_a_shell_reads_it() -> None:
    text = """
N=4; MORE=(--b "x y"
  --c '$N' # --not 1
)
MORE+=(--d=$((1+2)))
mkdir -p out && torchrun --nnodes 1 \\
  train.py --a ${N} "${MORE[@]}" --e ${GONE:-7} --f -1 $1
"""
    found = {leaf.key: (leaf.value, leaf.line) for leaf in command_leaves(text)}
    assert found == {
        "launch.nnodes": (1, 6),
        "a": (4, 7),
        "b": ("x y", 2),
        "c": ("$N", 3),
        "d": ("$((1+2))", 5),
        "e": (7, 7),
        "f": ((-1, "$1"), 7),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("if [ $A ]; then\n  B=1\nfi\npython t.py --b $B\n", "`B` depends on a branch or loop in line 2"),
        ("for i in 1 2; do\n  python t.py --a $i\ndone\n", "a branch or loop decides"),
        ("python a.py --a 1\npython b.py --b 1\n", "several commands have arguments"),
        ("echo hello\n", "no command has arguments"),
    ],
)
def test_arguments_that_only_a_run_would_tell_are_refused(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        command_leaves(text)
