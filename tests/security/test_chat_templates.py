"""A chat template is a program from elsewhere: it runs in a sandbox, and what it takes is limited."""

from __future__ import annotations

import re
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.chat import ChatTemplate
from planc.runtime.data.encoding.client import Fault
from planc.runtime.data.encoding.limits import Limits
from planc.runtime.data.encoding.template import compiled
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import open_data
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import TokenizerFiles, read_tokenizer
from tests.data.conversing import TALK, conversation, save_talks, save_tokenizer
from tests.security.chat_templates import HOSTILE, REAL

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LIMITS = Limits(cpu_seconds=1, cpu_seconds_a_mebibyte=1, memory_bytes=2**28)
CONVERSATION = conversation(TALK)


def rendered(template: str, talk: list[dict[str, Any]] = TALK, *, starts_answer: bool = False) -> str:
    render = compiled(ChatTemplate("here", template, SPECIAL)).render(tools=None, arguments={})
    return "".join(render(talk, starts_answer))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFiles:
    folder = save_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return read_tokenizer(folder.name, base=folder.parent, end_of_document=None)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_little_time_and_memory(name: str, files: TokenizerFiles) -> None:
    hostile = replace(files, chat_templates={"default": ChatTemplate("here", HOSTILE[name], {})})
    own, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        tokenizer = hostile.load(LIMITS)
        (found,) = tokenizer.encode([CONVERSATION])
        tokenizer.close()
        assert isinstance(found, Fault), found
        assert found.reason.startswith(("is rejected by the chat template", "cannot be tokenized")), found
    except DataError as error:
        assert re.match("here (is not a chat template|cannot be loaded: it takes more than)", error.message)
    # Ours: the time and memory of this process do not grow with what the template asks for.
    assert time.process_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own.ru_maxrss < 2**16
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert taken < 3 * LIMITS.seconds(CONVERSATION.num_bytes) + 2, taken


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("starts_answer", [False, True])
def test_a_real_template_writes_what_transformers_writes(name: str, starts_answer: bool) -> None:
    expected, _ = render_jinja_template(
        [TALK], chat_template=REAL[name], add_generation_prompt=starts_answer, **SPECIAL
    )
    assert rendered(REAL[name], starts_answer=starts_answer) == expected[0]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", REAL)
def test_long_conversations_are_allowed_what_they_need(name: str, files: TokenizerFiles) -> None:
    many = [one for _ in range(2000) for one in TALK[1:3]]
    long = [{**one, "content": one["content"] * 20_000} for one in TALK[:3]]
    tokenizer = replace(files, chat_templates={"default": ChatTemplate("here", REAL[name], SPECIAL)}).load()
    # The last of these writes what the system says only before a question that comes last.
    for talk in (many, long if name != "mistral" else long[1:]):
        (found,) = tokenizer.encode([conversation(talk, train_on="all")])
        assert not isinstance(found, Fault), found
        assert found.num_text_bytes > sum(len(one["content"].strip()) for one in talk)
    tokenizer.close()


def test_loops_within_loops_over_the_messages_are_allowed() -> None:
    template = (
        "{% for a in messages %}{% for b in messages[:loop.index] %}{% if b.role == a.role %}"
        "{% endif %}{% endfor %}{% endfor %}done"
    )
    talk = [one for _ in range(500) for one in TALK[1:3]]
    assert rendered(template, talk) == "done"


def test_the_refusal_names_the_chat_the_template_and_its_line(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", template="{{ 'a' }}\n\n{{ 1 // 0 }}")
    save_talks(tmp_path / "a.jsonl", TALK)
    spec = DataSpec(ChatSource(("*.jsonl",)), "tokenizer", 64, 0)
    with pytest.raises(DataError) as caught:
        open_data(spec, base=tmp_path, model_vocab_size=400)
    assert "a.jsonl:1 is rejected by the chat template" in caught.value.message
    assert "line 3 of tokenizer/chat_template.jinja" in caught.value.message


@pytest.mark.parametrize(
    "expression", ["[1, 2] | random", "lipsum()", "['x'.ljust] | map('string') | list", "messages | map('x')"]
)
def test_what_differs_from_one_rendering_to_the_next_is_refused(
    expression: str, files: TokenizerFiles
) -> None:
    template = ChatTemplate("here", "{{ " + expression + " }}", {})
    with pytest.raises(DataError, match=r"here is not a chat template|rejected by the chat template"):
        tokenizer = replace(files, chat_templates={"default": template}).load()
        (found,) = tokenizer.encode([CONVERSATION])
        assert isinstance(found, Fault), found
        raise DataError(found.reason, help=found.help)


def test_an_address_in_the_messages_is_text_like_any_other(files: TokenizerFiles) -> None:
    talk = [{"role": "user", "content": "what is <object at 0x7f0012345678>?"}, TALK[-1]]
    tokenizer = files.load()
    (found,) = tokenizer.encode([conversation(talk)])
    tokenizer.close()
    assert not isinstance(found, Fault), found
