"""Ends of turns: what a template writes after an answer, and whether it is trained on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.chat import ChatTemplate
from planc.runtime.data.documents import source_documents
from planc.runtime.data.encoding.template import compiled
from planc.runtime.data.encoding.turn import turn_of
from planc.runtime.data.packing import encode
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.against_transformers.chat_shapes import SHAPES
from tests.data.conversing import save_talks, save_tokenizer

TALK = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "bb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "dd"},
]
_LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}ANSWER{% endfor %}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_IF = "{% if m.role == 'assistant' %}MARKED{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}"
MARKED = _LOOP.replace("ANSWER", _IF) + _PROMPT
TEMPLATES = {
    "marks with the end": MARKED.replace(
        "MARKED", "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    ),
    "marks with the end and a line": MARKED.replace(
        "MARKED", "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    ),
    "marks without the end": MARKED.replace(
        "MARKED", "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>\n' }}"
    ),
    "no marks": _LOOP.replace("ANSWER", "{{ m.content + '<|im_end|>\n' }}") + _PROMPT,
    "no ends": "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    "no ends, marks": "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}"
    "{% endfor %}",
    "an end after the last turn": "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% else %}{{ '<|endoftext|>' }}{% endif %}",
}
_IM, _NONE = ["bb<|im_end|>", "dd<|im_end|>"], ["bb", "dd"]
EXPECTED = {
    ("marks with the end", "auto"): _IM,
    ("marks with the end", "true"): _IM,
    ("marks with the end", "false"): _NONE,
    ("marks with the end and a line", "auto"): ["bb<|im_end|>\n", "dd<|im_end|>\n"],
    ("marks with the end and a line", "true"): ["bb<|im_end|>\n", "dd<|im_end|>\n"],
    ("marks with the end and a line", "false"): _NONE,
    ("marks without the end", "auto"): _NONE,
    ("marks without the end", "true"): _IM,
    ("marks without the end", "false"): _NONE,
    ("no marks", "auto"): _IM,
    ("no marks", "true"): _IM,
    ("no marks", "false"): _NONE,
    ("no ends", "auto"): _NONE,
    ("no ends", "true"): [*_NONE, "<|endoftext|>"],
    ("no ends", "false"): _NONE,
    ("no ends, marks", "auto"): _NONE,
    ("no ends, marks", "true"): [*_NONE, "<|endoftext|>"],
    ("an end after the last turn", "auto"): ["bb", "dd\n<|endoftext|>"],
    ("an end after the last turn", "true"): ["bb", "dd\n<|endoftext|>"],
    ("an end after the last turn", "false"): ["bb", "dd\n"],
}


def trained(base: Path, template: str, **settings: Any) -> tuple[list[str], str, bool]:
    """The parts of the conversation that are trained on, what is said of marks, and whether it stops."""
    save_tokenizer(base / "tokenizer", template=template)
    save_talks(base / "a.jsonl", TALK)
    source = ChatSource(("a.jsonl",), **settings)
    wanted = want(DataSpec(source, "tokenizer", 64, 0), base=base)
    with contextlib.closing(wanted.tokenizer.load()) as tokenizer:
        (found,) = encode(source_documents(source, base=base), tokenizer=tokenizer)
        parts: list[list[int]] = []
        is_before = False
        assert found.is_target is not None
        for token, is_target in zip(found.tokens.tolist(), found.is_target.tolist(), strict=True):
            if is_target and not is_before:
                parts.append([])
            if is_target:
                parts[-1].append(token)
            is_before = is_target
        return tokenizer.decode(parts), tokenizer.marks, found.stops


@pytest.mark.parametrize(("name", "setting"), EXPECTED)
def test_what_is_trained_on_is_as_the_plan_says(tmp_path: Path, name: str, setting: Any) -> None:
    expected = EXPECTED[name, setting]
    found, marks, stops = trained(tmp_path, TEMPLATES[name], train_on_end_of_turn=setting)
    assert found == expected
    assert stops == ("<|" in expected[-1])
    assert marks.endswith("trained on")
    assert ("not trained on" in marks) != stops


@pytest.mark.parametrize("setting", ["auto", "true", "false"])
def test_all_is_trained_on_but_for_ends_that_the_plan_excludes(tmp_path: Path, setting: Any) -> None:
    template = TEMPLATES["no marks"]
    found, _, stops = trained(tmp_path, template, train_on="all", train_on_end_of_turn=setting)
    whole = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nbb|\n<|im_start|>user\nc<|im_end|>\n"
    whole += "<|im_start|>assistant\ndd|\n"
    assert found == _split(whole, is_cut=setting == "false")
    assert stops == (setting != "false")


def _split(text: str, *, is_cut: bool) -> list[str]:
    if not is_cut:
        return [text.replace("bb|", "bb<|im_end|>").replace("dd|", "dd<|im_end|>")]
    first, second = text.split("bb|")
    second, third = second.split("dd|")
    return [first + "bb", second + "dd", third]


def test_a_header_that_is_trained_on_is_said(tmp_path: Path) -> None:
    template = TEMPLATES["no marks"].replace(_PROMPT, "")
    found, marks, _ = trained(tmp_path, template)
    header = "<|im_start|>assistant\n"
    assert found == [f"{header}bb<|im_end|>", f"{header}dd<|im_end|>"]
    assert marks.endswith(f"answers are trained on with {header!r} before them")


ENDS = {
    "chatml": "<|im_end|>",
    "llama-3": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "qwen-3": "<|im_end|>",
    "phi-3": "<|end|>",
    "command": "<|END_OF_TURN_TOKEN|>",
    "no-ends-of-turn": "",
}


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("name", ENDS)
def test_the_end_that_a_template_writes_is_found(name: str, is_marked: bool) -> None:
    text = SHAPES[name].marked if is_marked else SHAPES[name].plain
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    template = compiled(ChatTemplate("here", text, special, "2026-01-31"))
    turn = turn_of(template.render(tools=None, arguments={}))
    assert turn is not None
    assert turn.end == ENDS[name]
    assert turn.is_trained == bool(ENDS[name])
    assert turn.header == ("<think>\n\n</think>\n\n" if name == "qwen-3" else "")


def test_a_completion_without_its_end(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a", "completion": "bb"}))
    for setting, is_trained in (("auto", True), ("true", True), ("false", False)):
        source = ChatSource(("a.jsonl",), train_on_end_of_turn=setting)  # type: ignore[arg-type]
        wanted = want(DataSpec(source, "tokenizer", 64, 0), base=tmp_path)
        with contextlib.closing(wanted.tokenizer.load()) as tokenizer:
            (found,) = encode(source_documents(source, base=tmp_path), tokenizer=tokenizer)
        assert found.is_target is not None
        assert found.is_target[-1] == found.stops == is_trained
