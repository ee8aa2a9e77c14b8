"""A chat template is a program from elsewhere: it has a budget, the same on every machine."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from planc.runtime.data.chat import ChatSource, ChatTemplate, TemplateFault, compiled, conversations
from planc.runtime.data.chat_budget import MAX_TEMPLATE_CHARACTERS
from planc.runtime.data.errors import DataError
from tests.data.conversing import TALK
from tests.patience import PATIENCE_SECONDS
from tests.security.chat_templates import HOSTILE, REAL, SLOWEST

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LIMIT_SECONDS, LIMIT_BYTES = 2.0, 500 * 2**20


def rendered(template: str, talk: list[dict[str, Any]] = TALK, *, starts_answer: bool = False) -> str:
    return compiled(ChatTemplate("here", template, SPECIAL))(talk, starts_answer)


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[str, float]]:
    """What each hostile template comes to, and in how many seconds, in a process of little memory."""
    script = Path(__file__).with_name("hostile_templates.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, tuple[str, float]] = {}
    for line in done.stdout.splitlines():
        name, answer, seconds, peak = json.loads(line)
        assert peak < LIMIT_BYTES, (name, peak)
        found[name] = (answer, seconds)
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_little_time_and_memory(
    name: str, answers: dict[str, tuple[str, float]]
) -> None:
    answer, seconds = answers[name]
    assert answer.startswith(("TemplateFault", "DataError")), answer
    assert seconds < LIMIT_SECONDS


def test_the_longest_template_without_a_loop_ends() -> None:
    began = time.process_time()
    assert rendered(SLOWEST) == ""
    assert time.process_time() - began < PATIENCE_SECONDS


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("starts_answer", [False, True])
def test_a_real_template_writes_what_transformers_writes(name: str, starts_answer: bool) -> None:
    expected, _ = render_jinja_template(
        [TALK], chat_template=REAL[name], add_generation_prompt=starts_answer, **SPECIAL
    )
    assert rendered(REAL[name], starts_answer=starts_answer) == expected[0]


@pytest.mark.parametrize("name", REAL)
def test_long_conversations_are_allowed_what_they_need(name: str) -> None:
    many = [one for _ in range(1000) for one in TALK[1:3]]
    assert len(rendered(REAL[name], many)) > sum(len(one["content"]) for one in many)
    long = [{**one, "content": one["content"] * 300_000} for one in TALK[:3]]
    # The last of these writes what the system says only before a question that comes last.
    written = long if name != "mistral" else long[1:]
    assert len(rendered(REAL[name], long)) > sum(len(one["content"].strip()) for one in written)


def test_loops_within_loops_over_the_messages_are_allowed() -> None:
    template = (
        "{% for a in messages %}{% for b in messages[:loop.index] %}{% if b.role == a.role %}"
        "{% endif %}{% endfor %}{% endfor %}done"
    )
    talk = [one for _ in range(500) for one in TALK[1:3]]
    assert rendered(template, talk) == "done"


def test_the_refusal_names_the_chat_the_template_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": TALK}) + "\n", encoding="utf-8")
    template = ChatTemplate("tokenizer/chat_template.jinja", "{{ 'a' }}\n\n{{ 'a' * 10 ** 9 }}", {})
    with pytest.raises(DataError) as caught:
        list(conversations(ChatSource(("*.jsonl",)), base=tmp_path, template=template))
    assert "a.jsonl:1" in caught.value.message
    assert "line 3 of tokenizer/chat_template.jinja" in caught.value.message


def test_a_template_of_its_longest_length_is_taken() -> None:
    assert rendered("a" * MAX_TEMPLATE_CHARACTERS) == "a" * MAX_TEMPLATE_CHARACTERS
    with pytest.raises(DataError, match="more than"):
        rendered("a" * (MAX_TEMPLATE_CHARACTERS + 1))


@pytest.mark.parametrize("expression", ["[1, 2] | random", "lipsum()", "['x'.ljust] | map('string') | list"])
def test_what_differs_from_one_rendering_to_the_next_is_refused(expression: str) -> None:
    with pytest.raises((TemplateFault, DataError)):
        rendered("{{ " + expression + " }}")


def test_a_fresh_budget_comes_with_each_conversation() -> None:
    render = compiled(ChatTemplate("here", "{{ 'a' * 3000000 }}", {}))
    for _ in range(5):
        assert len(render(TALK, False)) == 3_000_000
