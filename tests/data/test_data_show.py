"""`planc data show` and `planc check --data`, against transformers, the loader and counts by hand."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from planc.cli.main import main
from tests.data.cases.case import PLAN, planc, save_tokenizer
from tests.data.conversing import TALK, TEMPLATE, save_talks
from tests.data.conversing import save_tokenizer as save_chat_tokenizer

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu",
    "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
TEXTS = ["hello world, how are you today?", "the cat sat on the mat", "fine thanks"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(MODEL))
    save_tokenizer(tmp_path / "tok", {})
    return tmp_path


def plan(base: Path, source: str, **settings: object) -> str:
    text = PLAN.format(source=source, tokenizer="tok")
    for name, value in {"sequence_length": 32, **settings}.items():
        lines = text.splitlines(keepends=True)
        place = next((at for at, line in enumerate(lines) if line.startswith(f"  {name} = ")), None)
        if place is None:
            lines.insert(lines.index("data {\n") + 1, f"  {name} = {value}\n")
        else:
            lines[place] = f"  {name} = {value}\n"
        text = "".join(lines)
    (base / "case.plan").write_text(text)
    return str(base / "case.plan")


def rows(base: Path, *values: object, name: str = "rows.jsonl") -> None:
    (base / name).write_text("".join(f"{json.dumps(one)}\n" for one in values), encoding="utf-8")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["data", "show", *words, "--output-format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def ids_of(base: Path, text: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(base / "tok", local_files_only=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


END = 2


def test_a_row_has_the_ids_of_transformers_and_its_place(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(base, *({"text": text} for text in TEXTS))
    path = plan(base, 'jsonl("rows.jsonl")')
    for number, text in enumerate(TEXTS, start=1):
        found = shown(capsys, path, "--row", str(number))
        assert found["ids"] == [*ids_of(base, text), END]
        assert found["trained"] == [True] * len(found["ids"])
        assert found["positions"] == list(range(len(found["ids"])))
        assert (found["document_starts"], found["source"]) == ([0], f"rows.jsonl:{number}")
        assert found["text"] == f"{text}<|im_end|>"
        assert "".join(found["tokens"]) == found["text"]


def test_a_sequence_is_what_the_loader_gives(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: all documents end to end, each sequence with one more token, its last label."""
    rows(base, *({"text": text} for text in TEXTS))
    path = plan(base, 'jsonl("rows.jsonl")', packing="isolate", sequence_length=8)
    joined = [token for text in TEXTS for token in (*ids_of(base, text), END)]
    starts = [0]
    for text in TEXTS:
        starts.append(starts[-1] + len(ids_of(base, text)) + 1)
    for number in range(1, (len(joined) - 1) // 8 + 1):
        first = 8 * (number - 1)
        found = shown(capsys, path, "--sequence", str(number))
        inside = [start - first for start in starts if first <= start < first + 8]
        # The first token of a document is no label, so a last one that begins a document is not shown.
        num = 8 + (first + 8 not in starts)
        assert found["ids"] == joined[first : first + num]
        assert found["trained"] == [False, *(first + at not in starts for at in range(1, num))]
        assert found["document_starts"] == sorted({0, *inside})
    assert main(["data", "show", path, "--sequence", str((len(joined) - 1) // 8 + 1)]) == 2
    assert "sequences are counted from 1 to" in capsys.readouterr().err


def test_padding_is_no_document(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(base, {"text": TEXTS[1]}, {"text": TEXTS[2]})
    path = plan(base, 'jsonl("rows.jsonl")', packing="whole", sequence_length=32)
    found = shown(capsys, path, "--sequence", "1")
    lengths = [len(ids_of(base, text)) + 1 for text in (TEXTS[1], TEXTS[2])]
    assert found["document_starts"] == [0, lengths[0]]
    assert found["notes"] == [f"padding: {32 - sum(lengths)} tokens at the end"]
    assert sum(found["trained"]) == sum(lengths) - 2


def test_what_is_trained_on_is_in_brackets_or_colored(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_chat_tokenizer(base / "tok")
    save_talks(
        base / "talks.jsonl",
        [{"role": "user", "content": "hi\x1b[2J"}, {"role": "assistant", "content": "yo"}],
    )
    path = plan(base, 'chat("talks.jsonl")')
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["data", "show", path, "--row", "1"]) == 0
    plain = capsys.readouterr().out
    assert "user\nhi\\u001b[2J<|im_end|>\n<|im_start|>assistant\n[yo<|im_end|>]" in plain
    monkeypatch.delenv("NO_COLOR")
    assert main(["--color", "always", "data", "show", path]) == 0
    colored = capsys.readouterr().out
    assert "\033[32myo<|im_end|>\033[0m" in colored
    assert "\033[2J" not in colored


def test_the_statistics_are_those_of_a_count_by_hand(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [*TEXTS, "", "the cat " * 40]
    rows(base, *({"text": text} for text in texts[:2]), {"text": 7}, *({"text": text} for text in texts[2:]))
    path = plan(base, 'jsonl("rows.jsonl")', packing="none", sequence_length=32)
    found = shown(capsys, path)["statistics"]
    lengths = sorted(len(ids_of(base, text)) + 1 for text in texts)
    assert found["is_whole"] is True
    assert (found["documents"], found["tokens"], found["labels"]) == (5, sum(lengths), sum(lengths))
    assert (found["empty"], found["without_labels"], found["too_long"], found["unusable"]) == (1, 1, 1, 1)
    assert found["lengths"] == {
        "shortest": 1, "median": lengths[2], "p90": lengths[4], "p99": lengths[4], "longest": lengths[4]
    }  # fmt: skip
    assert [one["tokens"] for one in found["longest"]] == lengths[::-1]
    assert found["longest"][0]["source"] == "rows.jsonl:6"
    # The empty document has no label, and has no sequence.
    assert found["sequences_per_epoch"] == 4


def test_a_row_that_cannot_be_used_counts_and_is_named(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(base, {"text": "one"}, {"other": 1}, {"text": "two"})
    path = plan(base, 'jsonl("rows.jsonl")')
    assert shown(capsys, path, "--row", "3")["source"] == "rows.jsonl:3"
    assert main(["data", "show", path, "--row", "2"]) == 2
    assert 'rows.jsonl:2 has no field "text"' in capsys.readouterr().err
    assert main(["data", "show", path, "--row", "4"]) == 2
    assert "rows are counted from 1 to 3" in capsys.readouterr().err


def test_both_texts_of_a_row_are_shown_as_one_row(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_chat_tokenizer(base / "tok")
    rows(base, *({"prompt": "a ", "chosen": f"b{n}", "rejected": f"c{n}"} for n in range(3)))
    path = plan(base, 'pairs("rows.jsonl", template = none)', micro_batch=2, packing="none")
    Path(path).write_text(Path(path).read_text().replace("train {", "train {\n  loss = dpo(beta = 0.1)"))
    for number in (1, 3):
        documents = shown(capsys, path, "--row", str(number))["documents"]
        sources = [f"rows.jsonl:{number} (chosen)", f"rows.jsonl:{number} (rejected)"]
        assert [document["source"] for document in documents] == sources
    assert main(["data", "show", path, "--row", "4"]) == 2
    assert "rows are counted from 1 to 3" in capsys.readouterr().err


def test_a_row_is_shown_with_the_side_that_has_it(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(base, *({"text": f"the cat sat on mat {number}"} for number in range(20)))
    path = plan(base, 'jsonl("rows.jsonl")', packing="none")
    held_out = 'data {\n  eval "mats" {\n    share = 30 %\n    every = 1 step\n  }'
    Path(path).write_text(Path(path).read_text().replace("data {", held_out))
    notes = {"training": "held out: an evaluation has this row, and training does not",
             "mats": "training has this row, and the evaluation does not"}  # fmt: skip
    sides = {
        name: [
            note not in shown(capsys, path, *source, "--row", str(number))["notes"] for number in range(1, 21)
        ]
        for (name, note), source in zip(notes.items(), ((), ("--source", "mats")), strict=True)
    }
    assert sides["mats"] == [not is_trained for is_trained in sides["training"]]
    for name, source in (("training", ()), ("mats", ("--source", "mats"))):
        statistics = shown(capsys, path, *source)["statistics"]
        assert 0 < statistics["documents"] == sum(sides[name]) < 20


def test_one_fault_of_all_rows_is_one_finding(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(base, *({"txt": str(number)} for number in range(30)), {"text": 7}, {"text": 8})
    path = plan(base, 'jsonl("rows.jsonl")', packing="none")
    held_out = 'data {\n  eval "mats" {\n    share = 30 %\n    every = 1 step\n  }'
    Path(path).write_text(Path(path).read_text().replace("data {", held_out))
    assert main(["check", path, "--data", "--output-format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert [finding["text"] for finding in found] == [
        'rows.jsonl:1 has no field "text"; 29 more rows in the sample have the same fault',
        'field "text" of rows.jsonl:31 is not a string; 1 more row in the sample has the same fault',
    ]
    assert main(["data", "show", path]) == 0
    assert "32 documents, 100.0 %: rows.jsonl:1 has no field" in capsys.readouterr().out.replace(
        f"{base}/", ""
    )


def test_a_large_file_is_sampled_at_its_beginning_at_places_and_at_its_end(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.dumps({"text": "the cat sat on the mat " * 20}) + "\n"
    with open(base / "rows.jsonl", "w") as file:
        file.write(line * 40_000 + '{"text": 3}\n')
    path = plan(base, 'jsonl("rows.jsonl")', sequence_length=512, packing="attend")
    found = shown(capsys, path)["statistics"]
    assert found["is_whole"] is False and 400 < found["documents"] < 1_000
    assert found["unusable"] == 1
    num_tokens = 40_000 * (len(ids_of(base, "the cat sat on the mat " * 20)) + 1)
    assert found["sequences_per_epoch"] == pytest.approx(num_tokens / 512, rel=0.01)
    assert main(["check", path, "--data"]) == 1
    assert 'field "text" of rows.jsonl:40001 is not a string' in capsys.readouterr().out.replace(
        f"{base}/", ""
    )


@pytest.mark.slow
def test_the_first_screen_of_a_gigabyte_takes_three_seconds_and_half_a_gigabyte(base: Path) -> None:
    talk = {
        "messages": [{"role": "user", "content": "hi " * 300}, {"role": "assistant", "content": "yo " * 300}]
    }
    save_chat_tokenizer(base / "tok")
    line = (json.dumps(talk) + "\n").encode()
    with open(base / "rows.jsonl", "wb") as file:
        for _ in range(2**30 // (len(line) * 1_000) + 1):
            file.write(line * 1_000)
    path = plan(base, 'chat("rows.jsonl")', sequence_length=512)
    command = (sys.executable, "-m", "planc", "data", "show", path)
    subprocess.run(command, check=True, capture_output=True)  # the model's structure is cached
    began = time.monotonic()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.monotonic() - began
    assert "statistics of the beginning of 1 file" in out
    assert seconds < 3
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 500 * 1024


CHECKED: Sequence[tuple[str, list[object], str, dict[str, object], int, str]] = [
    ("jsonl", [{"text": "a"}, {"other": 1}], "rows.jsonl:2 has no field", {}, 1, "P860"),
    ("jsonl", [{"text": "a b c"}, {}], "left out by `skip_bad = 1`: rows", {"skip_bad": 1}, 0, "P861"),
    ("jsonl", [{"text": "a b c"}, {"text": ""}], "1 of 2 documents is empty, as rows.jsonl:2", {}, 0, "P861"),
    ("jsonl", [{"text": "a b " * 60}], "truncated: more than 33 tokens, as in rows.jsonl:1", {}, 0, "P861"),
    ("jsonl", [{"text": "a"}], "2 tokens do not fill one sequence", {"packing": "attend"}, 1, "P860"),
    ("jsonl", [{"text": "<|im_start|><|im_start|>a b"}], "twice at their beginning, as rows", {}, 0, "P861"),
    ("jsonl", [], "the source has no documents", {}, 1, "P860"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "values", "message", "settings", "code", "finding"), CHECKED)
def test_a_check_reads_the_data(
    base: Path,
    capsys: pytest.CaptureFixture[str],
    call: str,
    values: list[object],
    message: str,
    settings: dict[str, object],
    code: int,
    finding: str,
) -> None:
    rows(base, *values)
    path = plan(base, f'{call}("rows.jsonl")', **settings)
    assert main(["check", path, "--data", "--output-format", "json"]) == code
    found = json.loads(capsys.readouterr().out)
    place = next(one for one in found["diagnostics"] if one["code"] == finding)
    assert message in json.dumps(place)
    lines = Path(path).read_text().splitlines()
    assert lines[place["line"] - 1].startswith("  source = ")


def test_a_token_beyond_the_vocabulary_is_named(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "base" / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 344}))
    # Only transformers knows that this class adds it.
    save_tokenizer(base / "tok", {"tokenizer_class": "CohereTokenizer"})
    rows(base, {"text": "the cat"}, {"text": "the <MASK_TOKEN> cat"})
    assert main(["check", plan(base, 'jsonl("rows.jsonl")'), "--data"]) == 1
    assert "is in rows.jsonl:2, but the model has 344 token ids" in capsys.readouterr().out


def test_a_template_by_which_nothing_teaches_to_stop_is_found(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    assert written in TEMPLATE
    apart = "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}"
    save_chat_tokenizer(base / "tok", template=TEMPLATE.replace(written, apart))
    save_talks(base / "rows.jsonl", TALK)
    path = plan(base, 'chat("rows.jsonl")', sequence_length=128)
    assert main(["check", path, "--data"]) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert "warning[P861]" in found and "nothing teaches the model to end its turn" in found
    assert "end with '<|im_end|>', which is not trained on" in found
    path = plan(base, 'chat("rows.jsonl", train_on_end_of_turn = true)', sequence_length=128)
    assert main(["check", path, "--data"]) == 0
    assert "P861" not in capsys.readouterr().out
    assert main(["data", "show", path]) == 0
    assert "turns end with '<|im_end|>', which is trained on" in capsys.readouterr().out


def test_conversations_without_an_answer_are_found(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_chat_tokenizer(base / "tok")
    save_talks(base / "rows.jsonl", TALK, TALK[:2])
    path = plan(base, 'chat("rows.jsonl")', sequence_length=128)
    assert main(["check", path, "--data"]) == 0
    assert "1 of 2 documents is without a token to train on, as rows.jsonl:2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}, {}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}, {}),
        ("name", {}, {"name": "bob"}),
        ("reasoning_content", {}, {"thinking": "hm"}),
    ],
)
def test_a_key_that_the_template_leaves_out_is_said(
    name: str, row: dict[str, Any], message: dict[str, Any], base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Templates that ask for the key, or write all keys that there are, are not blamed."""
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **message}]
    rows(base, {"messages": talk, **row})
    texts = {"": True, "{% if tools or enable_thinking or messages[1].name %}{% endif %}": name[0] == "r"}
    texts["{{ messages[1] | tojson }}"] = name in ("tools", "chat_template_kwargs")
    for more, is_said in texts.items():
        save_chat_tokenizer(base / "tok", template=f"{TEMPLATE}{more}")
        assert main(["check", plan(base, 'chat("rows.jsonl")'), "--data"]) == 0
        captured = capsys.readouterr()
        said = f"the chat template does not read `{name}`, which rows.jsonl:1 has"
        assert (said in captured.out + captured.err) is is_said, more


def test_a_deep_check_reads_data_that_is_here_and_needs_none(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan(base, 'jsonl("rows.jsonl")')
    assert main(["check", path, "--deep"]) == 0
    assert 'not read: pattern "rows.jsonl" matches no file' in capsys.readouterr().out
    assert main(["check", path, "--data"]) == 1
    rows(base, {"other": 1})
    assert main(["check", path, "--deep"]) == 1
    assert "rows.jsonl:1 has no field" in capsys.readouterr().out


def test_all_commands_print_the_same_summary(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: of five tokens in eight positions, three are labels, and of two, one."""
    rows(base, {"text": "the cat sat on"}, {"text": "the"})
    path = plan(base, 'jsonl("rows.jsonl")', packing="none", sequence_length=4)
    assert [len(ids_of(base, text)) for text in ("the cat sat on", "the")] == [4, 1]
    line = "2 documents, 7 tokens, 2 sequences; 0 tokens dropped, 3 tokens of padding; 71.4 % labels"
    for words in (["data", "show"], ["data", "prepare"], ["check", "--data"]):
        assert main([*words, path]) == 0
        assert line in capsys.readouterr().out, words


@pytest.mark.slow
def test_a_run_prints_it_too(base: Path) -> None:
    rows(base, {"text": "the cat sat on"}, {"text": "the"})
    plan(base, 'jsonl("rows.jsonl")', packing="none", sequence_length=4)
    found = planc(base, "run", "case.plan")
    line = "2 documents, 7 tokens, 2 sequences; 0 tokens dropped, 3 tokens of padding; 71.4 % labels"
    assert f"data: {line}" in found.text


def test_pages_mark_what_is_trained_on_and_escape_the_data(base: Path) -> None:
    save_chat_tokenizer(base / "tok")
    talk = [{"role": "user", "content": "<script>\x07"}, {"role": "assistant", "content": "yo & <b>"}]
    save_talks(base / "rows.jsonl", talk)
    path = plan(base, 'chat("rows.jsonl")', sequence_length=128)
    for words in (["data", "show", path, "--html"], ["data", "show", path, "--row", "1", "--html"],
                  ["report", path, "--data", "-o"]):  # fmt: skip
        assert main([*words, str(base / "page.html")]) == 0
        page = (base / "page.html").read_text(encoding="utf-8")
        assert "<mark>yo &amp; &lt;b&gt;&lt;|im_end|&gt;</mark>" in page
        assert "&lt;script&gt;\\x07" in page and "<script>\x07" not in page
