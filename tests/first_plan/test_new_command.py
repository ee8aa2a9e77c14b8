"""`planc new` as a command: what it writes, what it refuses, and what it asks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from shutil import copytree
from typing import Any

import datasets
import pytest

from planc.cli.main import main
from planc.cli.support.shipped import TASKS, examples, shipped_models
from tests import signals
from tests.cli.terminal import at_terminal, plain
from tests.data.conversing import TALK, save_tokenizer
from tests.first_plan.at_prompts import answered
from tests.plans import PLANS
from tests.slow import slow_except

FOR_TASKS: tuple[tuple[str, str, dict[str, object], str], ...] = (
    (
        "sequence_classification",
        "tiny-bert",
        {"sentence": "a fine day", "label": "good"},
        'labeled("rows.jsonl", field = "sentence")',
    ),
    (
        "sequence_classification",
        "tiny-llama",
        {"premise": "rain", "hypothesis": "wet", "label": 4},
        'labeled("rows.jsonl", field = "premise", pair = "hypothesis")',
    ),
    (
        "token_classification",
        "tiny-bert",
        {"tokens": ["Ann", "runs"], "ner_tags": ["B", "O"]},
        'labeled("rows.jsonl", field = "tokens", label = "ner_tags")',
    ),
    (
        "embedding",
        "tiny-bert",
        {"question": "who", "answer": "Ann", "id": 7},
        'matched("rows.jsonl", query = "question", positive = "answer", ignore = ["id"])',
    ),
    (
        "seq2seq_lm",
        "tiny-bart-encoder-decoder",
        {"article": "a long text", "summary": "text"},
        'mapped("rows.jsonl", input = "article", target = "summary")',
    ),
    (
        "preferences",
        "tiny-llama",
        {"prompt": "1 + 1 = ", "chosen": "2", "rejected": "3"},
        'pairs("rows.jsonl", template = none)',
    ),
)
"""A purpose, a model, a row, and the source that reads it."""
IMAGES = '{"images": ["a.png"], "messages": [{"role": "user", "content": "<image>"}]}\n'
FOR_IMAGES = ("--gpus", "1", "--gpu", "h100", "--for", "image_text_to_text", "--data", "rows.jsonl")
GIVEN = ("--gpus", "4", "--gpu", "h100", "--for", "pretrain", "--data", "python_stdlib")
VERIFIED = (
    *("tiny-llama", "tiny-llama-tied", "tiny-mistral", "tiny-gemma2", "tiny-phi3", "tiny-gpt2"),
    *("tiny-qwen3-moe", "tiny-deepseek-v3", "tiny-opt-flattened", "tiny-nanochat"),
)
"""CodeGen is not one: its code cuts heads into four parts, which the twin of `planc verify` does not have."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a model in it."""
    copytree(PLANS / "models" / "tiny-llama", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_written_that_is_sound_formatted_and_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "mine", *GIVEN]) == 0
    printed = capsys.readouterr()
    assert printed.out.split("\n")[:2] == [
        "  planc check mine.plan",
        "  torchrun --standalone --nproc-per-node 4 -m planc.run mine.plan",
    ]
    text = (folder / "mine.plan").read_text(encoding="utf-8")
    assert text.startswith("# Written by planc new (pretrain) for 4 devices (h100): ")
    assert "# The peak of nanoGPT's smallest models." in text
    assert "expect {\n  parameters == " in text and "\n  tokens_per_step == " in text
    assert main(["check", "mine.plan", "--world-size", "4"]) == 0
    assert main(["fmt", "--check", "mine.plan"]) == 0


def test_a_file_that_exists_is_kept_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.plan").write_text("mine", encoding="utf-8")
    assert main(["new", "mine", *GIVEN]) == 2
    assert "mine.plan exists: pass --force" in capsys.readouterr().err
    assert (folder / "mine.plan").read_text(encoding="utf-8") == "mine"
    assert main(["new", "mine", *GIVEN, "--gpus", "1", "--force"]) == 0
    assert (folder / "mine.plan").read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a MODEL"),
        (("mine",), "pass --gpus, --gpu, --for, --data, or --yes"),
        (("mine", "--gpus", "4", "--for", "chats"), "pass --gpu, --data, or --yes"),
        (("mine", "--gpu", "h1000"), "`h1000` is not a device that planc knows; did you mean `h100`?"),
        (
            ("mine", "--gpu", "a100_80gb"),
            "`a100_80gb` is not a device that planc knows; did you mean `a100`?",
        ),
        (("mine", "--gpu", "A100-SXM4-40GB"), "did you mean `a100_40gb`?"),
        (("mine", "--gpu", "abacus"), "write a100_40gb, a100, "),
        (("mine", "--gpu", "NVIDIA GeForce RTX 4090"), "did you mean `rtx_4090`?"),
        (("mine", "--gpu", "rtx5090"), "did you mean `rtx_5090`?"),
        (("mien", *GIVEN), "no model `mien`; did you mean `mine`?"),
        (("models/mien", *GIVEN), "no directory `models/mien`; did you mean `models/mine`?"),
        (("mine/config.json", *GIVEN), "mine/config.json is a file: name its directory, `mine`"),
        (
            ("mine", *GIVEN, "--sequence-length", "256", "--tokens-per-step", "100"),
            "--tokens-per-step 100 is less than one sequence of 256 tokens: "
            "pass --tokens-per-step 1024 for one sequence on each of 4 devices",
        ),
        (
            ("mine", *GIVEN, "--sequence-length", "256", "--tokens-per-step", "300"),
            "--tokens-per-step 300 is not a multiple of one sequence of 256 tokens",
        ),
        (("nowhere", *GIVEN), "no model `nowhere`"),
        (("empty", *GIVEN), "empty has no config.json"),
        (("org/name", *GIVEN), "write hf://org/name@COMMIT"),
        (("mine", *GIVEN, "-o", "no/x.plan"), "no is not a directory"),
        (("mine", *GIVEN, "--nodes", "3"), "4 devices are not 3 whole nodes"),
        (("mine", *GIVEN, "--gpus", "12"), "12 devices are not whole nodes of 8: pass --nodes"),
        (("mine", *GIVEN, "--data", "data.csv"), "`data.csv` ends in none of .jsonl"),
        (("mine", *GIVEN, "--data", "chat.jsonl"), "holds chats: pass --for chats"),
        (("mine", *GIVEN, "--data", "odd.jsonl"), "`text` or `content` is not among its keys: `id`"),
        (("--example", "qwickstart"), "did you mean `quickstart`?"),
        (("mine", "--example", "quickstart"), "--example takes no MODEL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_an_error_that_names_the_way_out(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    (folder / "empty").mkdir()
    copytree(folder / "mine", folder / "models" / "mine")
    (folder / "chat.jsonl").write_text('{"messages": []}\n', encoding="utf-8")
    (folder / "odd.jsonl").write_text('{"id": 1}\n', encoding="utf-8")
    assert main(["new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not [*folder.glob("*.plan")]


@pytest.mark.parametrize(
    ("purpose", "model", "row", "source"), FOR_TASKS, ids=[f"{one[0]} {one[1]}" for one in FOR_TASKS]
)
def test_a_plan_for_rows_of_a_task_reads_their_own_keys_and_trains_on_them(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    purpose: str,
    model: str,
    row: dict[str, object],
    source: str,
) -> None:
    """Batches of a rank are whole pairs and groups, and a length in passes has a warm-up in per cent."""
    other = {key: "another" for key in ("label",) if row.get(key) == "good"}
    rows = f"{json.dumps(row)}\n{json.dumps(row | other)}\n"
    (folder / "rows.jsonl").write_text(rows * 20, encoding="utf-8")
    given = ("--gpus", "2", "--gpu", "cpu", "--for", purpose, "--data", "rows.jsonl", "-o", "new.plan")
    assert main(["new", model, *given]) == 0, capsys.readouterr().err
    text = (folder / "new.plan").read_text(encoding="utf-8")
    assert f"source = {source}\n" in text
    assert f"epochs = {5 if purpose == 'seq2seq_lm' else 3}\n" in text and " %)\n" in text
    if purpose not in ("preferences",):
        assert f"task = {purpose}" in text
    assert main(["check", "new.plan", "--world-size", "2", "--data"]) == 0
    assert "P710" not in capsys.readouterr().err, "a checkpoint every so many steps, and the run has fewer"
    assert main(["compile", "new.plan", "-o", "new.json"]) == 0
    assert main(["diff", "new.json", "new.plan", "--exit-code"]) == 0
    capsys.readouterr()


def test_classes_are_those_of_the_rows(folder: Path) -> None:
    rows = [{"text": "x", "label": label} for label in ("neu", "pos", "neg", "pos")]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", "sequence_classification", "--data", "rows.jsonl")
    assert main(["new", "tiny-bert", *given, "-o", "new.plan"]) == 0
    text = (folder / "new.plan").read_text(encoding="utf-8")
    assert 'task = sequence_classification(labels = 3, names = ["neg", "neu", "pos"])' in text
    (folder / "rows.jsonl").write_text('{"text": "x", "label": 6}\n', encoding="utf-8")
    assert main(["new", "tiny-bert", *given, "-o", "new.plan", "--force"]) == 0
    assert "sequence_classification(labels = 7)" in (folder / "new.plan").read_text(encoding="utf-8")


T5: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "vocab_size": 264,
    "dropout_rate": 0.1,
}
ROBERTA: dict[str, Any] = {
    "architectures": ["RobertaForMaskedLM"],
    "model_type": "roberta",
    "hidden_size": 64,
    "vocab_size": 264,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 1,
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
}


def test_a_model_that_drops_weights_and_needs_its_own_attention_gets_it(folder: Path) -> None:
    (folder / "t5").mkdir()
    (folder / "t5" / "config.json").write_text(json.dumps(T5), encoding="utf-8")
    (folder / "rows.jsonl").write_text('{"input": "a text", "target": "text"}\n', encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", "seq2seq_lm", "--data", "rows.jsonl")
    assert main(["new", "t5", *given, "-o", "new.plan"]) == 0
    text = (folder / "new.plan").read_text(encoding="utf-8")
    assert "fused attention is refused (P708).\n  attention = eager" in text
    assert "dropout" not in text, "the model's own attention drops weights as config.json has it"


def test_positions_that_no_token_has_are_not_counted(folder: Path) -> None:
    (folder / "roberta").mkdir()
    (folder / "roberta" / "config.json").write_text(json.dumps(ROBERTA), encoding="utf-8")
    (folder / "corpus.txt").write_text("a line of text\n" * 100, encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", "masked_lm", "--data", "corpus.txt", "--steps", "4")
    assert main(["new", "roberta", *given, "-o", "new.plan"]) == 0
    assert "sequence_length = 64\n" in (folder / "new.plan").read_text(encoding="utf-8")


def test_texts_that_are_ignored_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Negatives of an embedding are none of its texts. A number of a row is nobody's text."""
    row = {"query": "a", "positive": "b", "negative": "c", "id": 3}
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", "embedding", "--data", "rows.jsonl")
    assert main(["new", "tiny-bert", *given, "-o", "new.plan"]) == 0
    assert 'ignore = ["negative", "id"]' in (folder / "new.plan").read_text(encoding="utf-8")
    assert "planc: note: `negative` of the rows is not trained on: " in capsys.readouterr().err


def test_the_least_of_a_rank_has_its_name(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"query": "a", "positive": "b"}\n', encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", "embedding", "--data", "rows.jsonl")
    assert main(["new", "tiny-bert", *given, "-o", "new.plan"]) == 0
    assert "# One group of pairs for each rank:" in (folder / "new.plan").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "purpose", "row", "message"),
    [
        ("tiny-bert", "pretrain", {"text": "x"}, "a masked language model: pass --for masked_lm"),
        ("tiny-llama", "seq2seq_lm", {"input": "x", "target": "y"}, "pass --for pretrain or continue or"),
        ("tiny-bert", "embedding", {"text": "x"}, "no key for `query` of `matched(...)`: `query` or"),
        ("tiny-bert", "sequence_classification", {"text": "x", "label": None}, "neither all names nor"),
        ("tiny-bert", "sequence_classification", {"text": "x", "label": -1}, "from 0 on: `-1`"),
        ("tiny-bert", "sequence_classification", {"text": "x", "label": True}, "from 0 on: `True`"),
        ("tiny-bert", "sequence_classification", {"text": "x", "label": "a"}, "all rows have the class `a`"),
        ("tiny-bert", "ner", {"text": "x"}, "did you mean `token_classification` (words with classes)?"),
        ("tiny-llama", "dpo", {"text": "x"}, "did you mean `preferences` (DPO)?"),
    ],
)
def test_rows_or_a_model_of_another_task_are_refused_with_what_to_write(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    purpose: str,
    row: dict[str, object],
    message: str,
) -> None:
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    given = ("--gpus", "1", "--gpu", "cpu", "--for", purpose, "--data", "rows.jsonl")
    assert main(["new", model, *given]) == 2
    assert message in capsys.readouterr().err
    assert not [*folder.glob("*.plan")]


def test_an_image_that_takes_more_tokens_than_a_sequence_has_is_named_by_its_flag(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rows.jsonl").write_text(IMAGES, encoding="utf-8")
    assert main(["new", "tiny-qwen2.5-vl", *FOR_IMAGES, "-o", "new.plan"]) == 1
    assert "--sequence-length: an image of 448 x 448 pixels takes 3_136 tokens" in capsys.readouterr().err
    assert not (folder / "new.plan").exists()


@pytest.mark.slow
def test_a_model_that_sees_images_gets_conversations_with_images(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One with room for an image, whose structure is read first."""
    copytree(PLANS / "models" / "tiny-qwen2.5-vl", folder / "seeing")
    (folder / "seeing" / "inventory.json").unlink()
    config = json.loads((folder / "seeing" / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["max_position_embeddings"] = 8_192
    (folder / "seeing" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "rows.jsonl").write_text(IMAGES, encoding="utf-8")
    length = ("--sequence-length", "8192", "--tokens-per-step", "8192")
    assert main(["new", "seeing", *FOR_IMAGES, *length, "-o", "new.plan"]) == 0, capsys.readouterr().err
    text = (folder / "new.plan").read_text(encoding="utf-8")
    assert 'source = image_chat("rows.jsonl", image = "images")' in text
    assert "task = image_text_to_text(height = 448, width = 448)" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpu", "h1000"), "did you mean `h100`?"),
        (("--gpus", "12"), "12 devices are not whole nodes of 8"),
        (("--nodes", "3"), "4 devices are not 3 whole nodes"),
        (("--data", "data.csv"), "`data.csv` ends in none of .jsonl"),
    ],
)
def test_a_wrong_flag_is_named_before_a_file_that_exists(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    (folder / "mine.plan").write_text("mine", encoding="utf-8")
    assert main(["new", "mine", *GIVEN, *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and "exists" not in err


def test_missing_flags_are_named_before_the_model_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine" / "inventory.json").unlink()
    (folder / "mine" / "config.json").write_text("{", encoding="utf-8")
    assert main(["new", "mine", "--gpus", "4"]) == 2
    assert "pass --gpu, --for, --data, or --yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (("finetune", "sft", "fine-tune", "chat", "instruct", "instruction-tuning", "Chats"), "chats"),
        (("pretraining", "pre-train", "scratch", "pretrian"), "pretrain"),
        (("cpt", "continued-pretraining", "contniue"), "continue"),
    ],
)
def test_a_word_of_the_field_for_a_purpose_is_answered_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], purpose: str
) -> None:
    for word in words:
        assert main(["new", "mine", *GIVEN, "--for", word]) == 2
        assert f"did you mean `{purpose}` (" in capsys.readouterr().err


def test_the_name_of_a_device_is_taken_in_any_case(folder: Path) -> None:
    assert main(["new", "mine", *GIVEN, "--gpus", "1", "--gpu", "H100"]) == 0
    assert "gpu = h100\n" in (folder / "mine.plan").read_text(encoding="utf-8")


def test_too_few_tokens_for_the_devices_name_their_flag(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Llama 8B does not fit one device, and one sequence can't be on several without tp."""
    given = ("--gpus", "2", "--gpu", "a100_40gb", "--for", "pretrain", "--data", "x.txt")
    assert main(["new", "llama-3.1-8b", *given, "--tokens-per-step", "4096"]) == 1
    err = capsys.readouterr().err
    assert "--tokens-per-step 4096 has fewer sequences of 4096 tokens than devices" in err
    assert "expect" not in err


@pytest.mark.slow
def test_a_terminal_shows_what_the_search_waits_for(folder: Path) -> None:
    shown = plain(at_terminal(("new", "mine", *GIVEN), columns=120, cwd=folder))
    assert "searching plans of mine for 4 x h100" in shown and "wrote mine.plan" in shown


def test_a_count_of_zero_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--gpus", "0"]) == 2
    assert "`0` is not a positive number" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_does_not_fit_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats = ("--for", "chats", "--data", "x.jsonl")
    assert main(["new", "llama-3.1-8b", "--gpus", "1", "--gpu", "a100_40gb", *chats]) == 1
    assert "parameters and optimizer alone are" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_settings_that_the_check_refuses_are_shown_with_its_findings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "mine", *GIVEN, "--sequence-length", "4096"]) == 1
    err = capsys.readouterr().err
    assert "error[P704]" in err and "  --sequence-length: 4096 tokens exceed" in err
    assert "help: set --sequence-length to at most " in err
    # No plan was written, so there is no place in it.
    assert "mine.plan" not in err
    assert not (folder / "mine.plan").exists()


def test_steps_follow_from_the_size_of_chats_that_are_there(folder: Path) -> None:
    (folder / "data").mkdir()
    line = json.dumps({"conversations": [{"role": "user", "content": "x" * 1_000}]}) + "\n"
    (folder / "data" / "a.jsonl").write_text(line * 2_000, encoding="utf-8")
    assert main(["new", "mine", "--gpus", "4", "--gpu", "cpu", "--for", "chats", "-y"]) == 0
    text = (folder / "mine.plan").read_text(encoding="utf-8")
    assert 'source = chat("data/*.jsonl", field = "conversations")' in text
    size = (folder / "data" / "a.jsonl").stat().st_size
    assert f"steps = {round(3 * size / 4 / 16_384)}\n" in text and "tokens_per_step = 16_384\n" in text
    assert "packing = whole" in text and "weights = pretrained" in text


def test_data_smaller_than_a_step_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("x" * 8_000, encoding="utf-8")
    given = ("--gpus", "4", "--gpu", "cpu", "--for", "pretrain", "--sequence-length", "128", "-y", "--force")
    assert main(["new", "mine", *given, "--tokens-per-step", "4096"]) == 0
    told = 'text("data/*.txt") has about 2_000 tokens, and a step takes 4_096: sequences repeat within a step'
    assert told in capsys.readouterr().err
    assert main(["new", "mine", *given, "--tokens-per-step", "1024"]) == 0
    assert "sequences repeat" not in capsys.readouterr().err


def test_numbers_that_are_given_are_those_of_the_plan(folder: Path) -> None:
    given = ("--steps", "7", "--sequence-length", "128", "--tokens-per-step", "1024")
    assert main(["new", "mine", *GIVEN, "--gpus", "1", *given]) == 0
    text = (folder / "mine.plan").read_text(encoding="utf-8")
    for line in ("steps = 7", "sequence_length = 128", "tokens_per_step = 1_024"):
        assert f"# As given to planc new.\n  {line}\n" in text


def test_questions_are_asked_again_after_answers_that_make_no_sense(folder: Path) -> None:
    typed = "many\n4\nh1000\ncpu\nplay\npretrain\npython_stdlib\n"
    code, shown = answered(["new", "mine"], typed=typed, cwd=folder)
    assert code == 0, shown
    assert "`many` is not a positive number" in shown
    assert "did you mean `h100`?" in shown
    assert "`play` is none of pretrain, continue, chats, adapters" in shown
    assert (folder / "mine.plan").exists()


@pytest.mark.parametrize(("typed", "code"), [("\x03\n", 130), ("\x04\n", 2)], ids=["ctrl-c", "ctrl-d"])
def test_a_question_can_be_left(folder: Path, typed: str, code: int) -> None:
    found, shown = answered(["new", "mine"], typed=typed, cwd=folder)
    assert found == code, shown
    assert "Traceback" not in shown and not (folder / "mine.plan").exists()


def test_a_question_can_be_left_where_a_shell_in_the_background_has_started_the_tests(folder: Path) -> None:
    with signals.ignored():
        code, shown = answered(["new", "mine"], typed="\x03\n", cwd=folder)
    assert code == 130, shown


def test_every_shipped_plan_is_listed_under_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--example"]) == 0
    out = capsys.readouterr().out
    assert [task.upper() in out for task in TASKS] == [True] * len(TASKS)
    assert {one.name for one in examples()} == {path.stem for path in PLANS.glob("*.plan")}
    assert all(f"  {one.name}  " in out.replace("   ", "  ") for one in examples())


@pytest.mark.parametrize(
    "name",
    slow_except([one.name for one in examples()], "quickstart", "llama-3.1-8b", "launch-two-nodes"),
)
def test_an_example_is_written_with_everything_that_it_needs(folder: Path, name: str) -> None:
    assert main(["new", "--example", name]) == 0
    assert main(["check", f"{name}.plan"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", VERIFIED)
def test_verify_passes_for_what_is_written(folder: Path, model: str) -> None:
    assert main(["new", model, "--gpus", "4", "--gpu", "cpu", "--data", "python_stdlib", "-y"]) == 0
    assert main(["verify", f"{model}.plan"]) == 0


def test_models_that_ship_have_names() -> None:
    assert {"llama-3.1-8b", "tiny-llama"} <= set(shipped_models())


def chats(folder: Path, *rows: object) -> None:
    """Rows of conversations, and a tokenizer with a template in the directory of a model that has its ids."""
    save_tokenizer(folder / "mine")
    config = json.loads((folder / "mine" / "config.json").read_text(encoding="utf-8"))
    (folder / "mine" / "config.json").write_text(json.dumps({**config, "vocab_size": 320}), encoding="utf-8")
    (folder / "mine" / "inventory.json").unlink()
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


FOR_CHATS = ("mine", "--gpus", "1", "--gpu", "cpu", "--for", "chats", "--data", "chats.jsonl")


def test_data_is_read_before_a_plan_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats(folder, {"messages": TALK}, {"messages": TALK[:2]}, {"messages": "none"})
    assert main(["new", *FOR_CHATS]) == 1
    error = capsys.readouterr().err
    assert "chats.jsonl:3 " in error and "nothing was written" in error
    assert not (folder / "mine.plan").exists()


def test_questionable_data_is_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats(folder, {"messages": TALK}, {"messages": TALK[:2]})
    assert main(["new", *FOR_CHATS]) == 0
    assert (
        "note: 1 of 2 documents is without a token to train on, as chats.jsonl:2" in capsys.readouterr().err
    )
    assert main(["check", "mine.plan", "--data"]) == 0


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("row", "message", "help"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, 'no "completion"', "rename `chosen`"),
        ({"text": "a"}, "no messages, and no prompt and completion", "as `field` in `chat(...)`"),
        ({"messages": json.dumps(TALK)}, "is not a list of messages", 'write [{"role"'),
        ({"instruction": "a", "input": "", "output": "b"}, "no messages, and no prompt", "rename what"),
        ({"messages": TALK, "id": 7}, 'a key that planc does not read: "id"', 'write `ignore = ["id"]`'),
    ],
)
def test_rows_of_another_format_are_refused_with_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], row: object, message: str, help: str
) -> None:
    chats(folder, row)
    assert main(["new", *FOR_CHATS]) == 1
    error = capsys.readouterr().err
    assert "P862" in error and "chats.jsonl:1" in error and message in error and help in error
    assert not (folder / "mine.plan").exists()


def test_prompts_and_completions_are_conversations(folder: Path) -> None:
    chats(folder, *[{"prompt": "Where is it?", "completion": " On the left."}] * 9)
    assert main(["new", *FOR_CHATS]) == 0
    assert 'source = chat("chats.jsonl")' in (folder / "mine.plan").read_text(encoding="utf-8")


@pytest.mark.slow
def test_conversations_may_be_in_columns_and_compressed(folder: Path) -> None:
    chats(folder, *[{"conversations": TALK}] * 9)
    content = (folder / "chats.jsonl").read_bytes()
    (folder / "chats.jsonl.gz").write_bytes(gzip.compress(content))
    datasets.Dataset.from_list([{"conversations": TALK}] * 9).to_parquet(str(folder / "chats.parquet"))
    for name in ("chats.jsonl.gz", "chats.parquet"):
        assert main(["new", *FOR_CHATS[:-1], name, "-o", f"{name}.plan"]) == 0
        text = (folder / f"{name}.plan").read_text(encoding="utf-8")
        assert f'source = chat("{name}", field = "conversations")' in text
