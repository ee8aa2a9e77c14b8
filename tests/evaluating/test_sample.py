"""`planc sample`: transformers' own generate on a checkpoint's weights, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from planc.cli.main import main
from tests.data.cases.case import save_tokenizer
from tests.dist.test_classifier_training import write_model
from tests.plans import PLANS

PROMPT = "1 words, "


def sampled(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    options = ("--max-new-tokens=12", "--output-format=json")
    assert main(["sample", *map(str, arguments), PROMPT, *options]) == 0
    found: str = json.loads(capsys.readouterr().out)["continuation"]
    return found


def greedy(export: Path) -> str:
    """The likeliest byte after the text, 12 times; of the tokens, 257 have a meaning."""
    model = AutoModelForCausalLM.from_pretrained(export)
    ids = [*PROMPT.encode()]
    for _ in range(12):
        with torch.no_grad():
            best = int(model(torch.tensor([ids])).logits[0, -1, :257].argmax())
        if best == 256:
            break
        ids.append(best)
    return bytes(ids[len(PROMPT) :]).decode(errors="replace")


def test_a_checkpoint_and_its_export_continue_a_text(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = run_dir / "export" / "hf"
    expected = greedy(export)
    assert sampled(capsys, run_dir) == sampled(capsys, export, "--bytes") == expected
    drawn = [sampled(capsys, export, "--bytes", "--temperature=1.5", f"--seed={seed}") for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0] != expected
    # With next to no temperature, and with next to no share, the likeliest token is drawn.
    for option in ("--temperature=1e-6", "--temperature=1 --top-p=1e-9"):
        assert sampled(capsys, export, "--bytes", *option.split()) == expected


def test_generation_settings_of_a_model_change_nothing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "hf"
    shutil.copytree(run_dir / "export" / "hf", export)
    settings = {"repetition_penalty": 30.0, "min_new_tokens": 12, "num_beams": 3}
    (export / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert sampled(capsys, export, "--bytes") == greedy(run_dir / "export" / "hf")


def test_an_encoder_decoder_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The likeliest bytes after the start token, given the text to the encoder."""
    config = json.loads((PLANS / "models/tiny-bart-encoder-decoder/config.json").read_text(encoding="utf-8"))
    write_model(tmp_path / "hf", config | {"tie_word_embeddings": False})
    model, ids = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf"), [config["decoder_start_token_id"]]
    torch.manual_seed(0)
    with torch.no_grad():
        # In a new model hardly anything depends on the text.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter) * (parameter.ndim == 2)
    model.save_pretrained(tmp_path / "hf")
    text = torch.tensor([[*PROMPT.encode()]])
    for _ in range(12):
        with torch.no_grad():
            logits = model(input_ids=text, decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1, :257].argmax()))
    assert 256 not in ids and len(set(ids[1:])) > 2 and config["decoder_start_token_id"] not in ids[1:]
    expected = bytes(ids[1:]).decode(errors="replace")
    assert sampled(capsys, tmp_path / "hf", "--bytes") == expected
    assert main(["sample", str(tmp_path / "hf"), PROMPT, "--bytes", "--max-new-tokens=12"]) == 0
    assert PROMPT not in capsys.readouterr().out
    assert main(["sample", str(tmp_path / "hf"), PROMPT, "--bytes", "--max-new-tokens=512"]) == 2
    assert "set --max-new-tokens to 511" in capsys.readouterr().err


def test_an_answer_has_no_special_tokens_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that begins an answer with a special token, as after training on such targets."""
    folder = tmp_path / "hf"
    config = json.loads((PLANS / "models/tiny-bart-encoder-decoder/config.json").read_text(encoding="utf-8"))
    write_model(folder, config | {"tie_word_embeddings": False, "vocab_size": 344})
    save_tokenizer(folder, {})
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    special, ids = tokenizer.convert_tokens_to_ids("<|im_start|>"), [config["decoder_start_token_id"]]
    text = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)["input_ids"]
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter) * (parameter.ndim == 2)
        decoder = torch.tensor([[*ids, special]])
        first, second = model(
            input_ids=text, decoder_input_ids=decoder, output_hidden_states=True
        ).decoder_hidden_states[-1][0]
        model.lm_head.weight[special] = first - (first @ second) / (second @ second) * second
    model.save_pretrained(folder)
    for _ in range(12):
        with torch.no_grad():
            logits = model(input_ids=text, decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    assert ids[1] == special and tokenizer.eos_token_id not in ids[2:]
    answer = tokenizer.decode(ids[2:], clean_up_tokenization_spaces=False)
    # Inside of a text, it is a part of it.
    assert answer.endswith("<|im_start|>") and answer.count("<|im_start|>") > 1
    assert sampled(capsys, folder) == answer.removesuffix("<|im_start|>")


def test_text_is_harmless_and_what_gives_no_sample_is_refused(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = str(run_dir / "export" / "hf")
    assert main(["sample", export, "a\033]0;title\007b", "--bytes", "--max-new-tokens=1"]) == 0
    assert not {"\033", "\007"} & {*capsys.readouterr().out}
    for arguments, part in (
        ([export, "x"], "add --bytes"),
        ([str(run_dir), "x", "--bytes"], "--bytes is for exports"),
        ([export, "x", "--top-p=0.5"], "--top-p needs --temperature"),
        ([export, "", "--bytes"], "the text has no tokens"),
        ([export, "x", "--bytes", "--max-new-tokens=100000"], "to at most"),
        ([str(run_dir / "checkpoints" / "step-9"), "x"], "found step-2"),
    ):
        assert main(["sample", *arguments]) == 2
        assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LlamaModel", "has no head"),
        ("LlamaForSequenceClassification", "tells the class of a text"),
        ("LlamaForTokenClassification", "tells the class of each token"),
    ],
)
def test_a_model_of_another_task_writes_no_text(
    name: str, reason: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "hf"
    shutil.copytree(run_dir / "export" / "hf", export)
    path = export / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"architectures": [name]}
    path.write_text(json.dumps(config), encoding="utf-8")
    assert main(["sample", str(export), "x", "--bytes"]) == 2
    assert f"{name} {reason}" in capsys.readouterr().err
