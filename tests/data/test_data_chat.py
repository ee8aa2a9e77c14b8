"""Conversations: the text that transformers makes of them, and answers alone as labels."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from planc.data_sources.kinds import ChatSource, TrainOn
from planc.runtime.data.chat import START, STOP, ChatTemplate, conversations
from planc.runtime.data.documents import source_documents
from planc.runtime.data.encoding.talk import rendered
from planc.runtime.data.encoding.template import compiled
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.packing import IGNORED_LABEL, encode
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import read_tokenizer
from tests.data.conversing import TALK, TEMPLATE, conversation, save_talks, save_tokenizer
from tests.data.tokenizing import ids_of, load_tokenizer

SPEC = DataSpec(
    ChatSource(("*.jsonl",)), tokenizer="tokenizer", sequence_length=128, shuffle_seed=0, packing="none"
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path / "tokenizer")
    save_talks(tmp_path / "a.jsonl", TALK)
    return tmp_path


def opened(spec: DataSpec, *, base: Path) -> OpenData:
    return open_data(spec, base=base, model_vocab_size=400)


def with_template(template: str, *, base: Path, train_on: TrainOn = "answers") -> OpenData:
    """The data of one conversation and a template."""
    (base / "tokenizer" / "chat_template.jinja").write_text(template, encoding="utf-8")
    source = ChatSource(("*.jsonl",), train_on=train_on)
    return opened(replace(SPEC, source=source), base=base)


def answers(template: str = TEMPLATE, *, train_on: TrainOn = "answers") -> list[str]:
    """The parts of the conversation's text that are trained on."""
    talk = json.loads(conversation(TALK, train_on=train_on).content)
    found = rendered(talk, compiled(ChatTemplate("here", template)))
    return [found.text[start:stop] for start, stop in found.targets]


def test_tokens_and_labels_are_those_that_transformers_makes(base: Path) -> None:
    plain = AutoTokenizer.from_pretrained(base / "tokenizer", local_files_only=True)
    expected = plain.apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
    inputs, labels = opened(SPEC, base=base).dataset[0]
    tokens, mask = expected["input_ids"], expected["assistant_masks"]
    assert 0 < sum(mask) < len(mask)
    assert inputs[: len(tokens)].tolist() == tokens
    wanted = [token if is_answer else IGNORED_LABEL for token, is_answer in zip(tokens, mask, strict=True)]
    assert labels.tolist() == [*wanted[1:], *[IGNORED_LABEL] * (len(labels) - len(wanted) + 1)]


def test_answers_alone_are_targets_with_their_ends_of_turn() -> None:
    assert answers() == ["Là-bas, à gauche. ☕<|im_end|>", "You are welcome.<|im_end|>"]


def test_without_marks_an_answer_is_what_it_adds_to_the_text_before() -> None:
    template = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert answers(template) == ["Là-bas, à gauche. ☕<|im_end|>", "You are welcome.<|im_end|>"]


def test_text_that_holds_a_mark_is_refused(base: Path) -> None:
    save_talks(base / "a.jsonl", [{"role": "user", "content": "\ufdd0"}])
    with pytest.raises(DataError, match=r"a\.jsonl:1 contains U"):
        list(conversations(SPEC.source, base=base))


def test_the_whole_conversation_can_be_a_target() -> None:
    render = compiled(ChatTemplate("here", TEMPLATE)).render(tools=None, arguments={})
    assert answers(train_on="all") == ["".join(render(TALK, False)).replace(START, "").replace(STOP, "")]


def test_messages_may_stand_under_another_key(base: Path) -> None:
    save_talks(base / "a.jsonl", TALK, field="dialogue")
    source = replace(SPEC, source=ChatSource(("*.jsonl",), field="dialogue"))
    assert opened(source, base=base).dataset.num_sequences == 1


def test_a_template_may_stand_in_the_tokenizers_config(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", in_config=True)
    templates = read_tokenizer("tokenizer", base=tmp_path, end_of_document=None).chat_templates
    assert [one.text for one in templates.values()] == [TEMPLATE]


def test_a_template_names_special_tokens(base: Path) -> None:
    template = ChatTemplate("here", "{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    render = compiled(template).render(tools=None, arguments={})
    assert "".join(render([{"role": "user", "content": "x"}], False)) == "<s>x"


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", template=None)
    with pytest.raises(DataError, match="the tokenizer tokenizer has no chat template"):
        opened(SPEC, base=tmp_path)


@pytest.mark.parametrize(
    "text", ["{}", '{"messages": []}', '{"messages": "hi"}', '{"messages": [{"content": "hi"}]}']
)
def test_lines_without_messages_are_named(base: Path, text: str) -> None:
    (base / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"a\.jsonl:1"):
        opened(SPEC, base=base)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content.nothing }}", "UndefinedError"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ strftime_now('%Y') }}", "templates have no clock"),
    ],
)
def test_what_a_template_must_not_or_does_not_take_names_the_line(
    base: Path, template: str, reason: str
) -> None:
    with pytest.raises(DataError, match=rf"a.jsonl:1 is rejected by the chat template: .*{reason}"):
        with_template(template, base=base)


def test_a_template_that_is_none_is_refused(base: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer/chat_template\.jinja is not a chat template"):
        with_template("{% for %}", base=base)


def test_a_template_that_rewrites_earlier_turns_cannot_tell_answers_apart(base: Path) -> None:
    # As templates do that leave the thoughts of all answers but the last one out.
    template = (
        "{% for message in messages %}{{ message.role }}:"
        "{{ message.content if loop.last else '...' }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    with pytest.raises(DataError, match="message 3 differently when more messages follow") as caught:
        with_template(template, base=base)
    assert "train_on = all" in caught.value.help
    assert with_template(template, base=base, train_on="all").dataset.num_sequences == 1


def test_a_tokenizers_folder_gives_the_end_of_a_document(base: Path) -> None:
    tokenizer = load_tokenizer("tokenizer", base=base, end_of_document=None)
    assert tokenizer.end_of_document == ids_of(tokenizer, "<|endoftext|>")[0][0]
    # A tokenizer.json means the tokenizer that it is part of.
    same = load_tokenizer("tokenizer/tokenizer.json", base=base, end_of_document=None)
    assert (same.digest, same.end_of_document) == (tokenizer.digest, tokenizer.end_of_document)
    # A copy of another name is alone: it has two known ends of document, and does not choose one.
    (base / "tokenizer" / "alone.json").write_bytes((base / "tokenizer" / "tokenizer.json").read_bytes())
    with pytest.raises(DataError, match="several ends of document"):
        load_tokenizer("tokenizer/alone.json", base=base, end_of_document=None)
    named = load_tokenizer("tokenizer", base=base, end_of_document="</s>")
    assert named.end_of_document == ids_of(tokenizer, "</s>")[0][0]


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"])
def test_a_damaged_config_is_refused(base: Path, text: str) -> None:
    (base / "tokenizer" / "tokenizer_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"tokenizer_config\.json is not"):
        load_tokenizer("tokenizer", base=base, end_of_document=None)


def trained(base: Path, row: dict[str, Any], *, rendering: str | None = None, **settings: Any) -> list[str]:
    """Each of a row's documents, with brackets around each token that is trained on."""
    if rendering is not None:
        (base / "tokenizer" / "chat_template.jinja").write_text(rendering, encoding="utf-8")
    (base / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    source = ChatSource(("*.jsonl",), **settings)
    wanted = want(replace(SPEC, source=source), base=base)
    plain = AutoTokenizer.from_pretrained(base / "tokenizer", local_files_only=True)
    found = []
    with contextlib.closing(wanted.tokenizer.load()) as tokenizer:
        for one in encode(source_documents(source, base=base), tokenizer=tokenizer):
            assert one.is_target is not None
            pairs = zip(one.tokens.tolist(), one.is_target.tolist(), strict=True)
            runs = itertools.groupby(pairs, key=lambda pair: pair[1])
            parts = [(is_target, plain.decode([token for token, _ in run])) for is_target, run in runs]
            found.append("".join(f"[{part}]" if is_target else part for is_target, part in parts))
    return found


PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def test_a_template_may_read_the_first_message(base: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{% endif %}" + PLAIN
    assert trained(base, {"messages": [ANSWER, QUESTION, ANSWER]}, rendering=template) == [
        "<|im_start|>assistant\n[a<|im_end|>]\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
        "[a<|im_end|>]\n<|endoftext|>"
    ]


def test_a_token_that_holds_any_of_an_answer_is_trained_on(base: Path) -> None:
    template = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    row = {"messages": [{"role": "user", "content": "where"}, {"role": "assistant", "content": "welcome."}]}
    assert trained(base, row, rendering=template) == ["user: whereassistant:[ welcome.]<|endoftext|>"]


def test_earlier_turns_without_their_reasoning_are_trained_on_as_they_are(base: Path) -> None:
    template = PLAIN.replace("m.content +", "(m.content if loop.last else m.content.split('</think>')[-1]) +")
    thoughtful = {"role": "assistant", "content": "<think>hm</think>a"}
    row = {"messages": [QUESTION, thoughtful, QUESTION, thoughtful]}
    question, answer = (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
        "<think>hm</think>a<|im_end|>",
    )
    assert trained(base, row, rendering=template) == [
        f"{question}[a<|im_end|>]\n{question}[{answer}]\n<|endoftext|>"
    ]
    assert trained(base, row, thinking="all") == [
        f"{question}[{answer}]\n<|endoftext|>",
        f"{question}a<|im_end|>\n{question}[{answer}]\n<|endoftext|>",
    ]
    assert trained(base, row, train_on="last_answer") == [
        f"{question}a<|im_end|>\n{question}[{answer}]\n<|endoftext|>"
    ]


def test_a_message_that_is_not_to_be_trained_on_is_context(base: Path) -> None:
    row = {"messages": [QUESTION, {**ANSWER, "weight": 0}, QUESTION, ANSWER]}
    question = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    expected = f"{question}a<|im_end|>\n{question}[a<|im_end|>]\n<|endoftext|>"
    assert trained(base, row) == [expected]
    assert trained(base, row, rendering=PLAIN) == [expected]
    assert trained(base, row, train_on="all") == [
        "[<|im_start|>user\nq<|im_end|>\n]<|im_start|>assistant\na<|im_end|>\n"
        f"[{question}a<|im_end|>\n]<|endoftext|>"
    ]


def test_parts_of_a_content_are_joined_for_a_template_of_texts(base: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [QUESTION, {"role": "assistant", "content": parts}]}
    start = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert trained(base, row) == [f"{start}[ab<|im_end|>]\n<|endoftext|>"]
    # It prints a list as Python would, where the other fails.
    printing = PLAIN.replace("m.content", "(m.content | string)")
    assert trained(base, row, rendering=printing) == [f"{start}[ab<|im_end|>]\n<|endoftext|>"]
    by_parts = PLAIN.replace(
        "m.content", "(m.content if m.content is string else m.content | map(attribute='text') | join('+'))"
    )
    assert trained(base, row, rendering=by_parts) == [f"{start}[a+b<|im_end|>]\n<|endoftext|>"]


def test_a_template_asks_a_plan_for_the_date(base: Path) -> None:
    template = "{{ strftime_now('%d %B %Y') + '\n' }}" + PLAIN
    row = {"messages": [QUESTION, ANSWER]}
    with pytest.raises(DataError, match=r"a\.jsonl:1 .* templates have no clock") as caught:
        trained(base, row, rendering=template)
    assert "date = " in caught.value.help
    (text,) = trained(base, row, date="2026-01-31")
    assert text.startswith("31 January 2026\n<|im_start|>")


def test_a_plan_may_name_a_template_of_its_own(base: Path) -> None:
    (base / "own.jinja").write_text(PLAIN.replace("<|im_start|>", "> "), encoding="utf-8")
    row = {"messages": [QUESTION, ANSWER]}
    assert trained(base, row, template="own.jinja") == [
        "> user\nq<|im_end|>\n> assistant\n[a<|im_end|>]\n<|endoftext|>"
    ]


def test_prompts_and_completions_need_no_template(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", template=None)
    row = {"prompt": "Where? ", "completion": "welcome."}
    assert trained(tmp_path, row, template="none") == ["Where?[ welcome.<|endoftext|>]"]
    assert trained(tmp_path, row, train_on="all", template="none") == ["[Where? welcome.<|endoftext|>]"]
    with pytest.raises(DataError, match="rejected by the chat template: there is none"):
        trained(tmp_path, {"messages": [QUESTION, ANSWER]}, template="none")


def test_messages_may_be_prompts_and_completions_too(base: Path) -> None:
    row = {"prompt": [QUESTION, ANSWER, QUESTION], "completion": [ANSWER]}
    start = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert trained(base, row) == [f"{start}a<|im_end|>\n{start}[a<|im_end|>\n]<|endoftext|>"]


def test_what_a_template_writes_at_the_end_of_all_belongs_to_no_answer(base: Path) -> None:
    template = PLAIN.replace(
        "{% if add_generation_prompt %}", "{% if not add_generation_prompt %}</s>{% else %}"
    )
    start = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    row = {"messages": [QUESTION, ANSWER, QUESTION, ANSWER]}
    assert trained(base, row, rendering=template) == [
        f"{start}[a<|im_end|>]\n{start}[a<|im_end|>]\n</s><|endoftext|>"
    ]


def test_an_end_that_only_the_last_turn_has_is_its_end(base: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% else %}</s>{% endif %}"
    )
    row = {"messages": [QUESTION, ANSWER, QUESTION, ANSWER]}
    assert trained(base, row, rendering=template) == [
        "user: q\nassistant: [a]\nuser: q\nassistant: [a\n</s>]<|endoftext|>"
    ]


def test_an_empty_answer_without_an_end_is_nothing_to_train_on(base: Path) -> None:
    template = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    row = {"messages": [QUESTION, {"role": "assistant", "content": ""}]}
    assert trained(base, row, rendering=template) == ["user: qassistant: <|endoftext|>"]


def test_an_answer_after_one_that_was_only_reasoning_is_found(base: Path) -> None:
    template = (
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' }}{% if m.reasoning_content and loop.index0 > ns.last %}"
        "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    silent = {"role": "assistant", "content": "", "reasoning_content": "hm", "weight": 0}
    row = {"messages": [{"role": "user", "content": "q\n\n"}, silent, ANSWER, QUESTION, ANSWER]}
    (found,) = trained(base, row, rendering=template)
    assert found == (
        "<|im_start|>user\nq\n\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
        "[a<|im_end|>]\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n<|endoftext|>"
    )
