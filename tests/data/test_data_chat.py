"""Conversations: the text that transformers makes of them, and answers alone as labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from planc.runtime.data.chat import ChatSource, ChatTemplate, TrainOn, conversations
from planc.runtime.data.encoding.template import compiled, rendered
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import read_tokenizer
from tests.data.conversing import TALK, TEMPLATE, save_talks, save_tokenizer
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


def with_template(template: str, *, base: Path, train_on: TrainOn = "assistant") -> OpenData:
    """The data of one conversation and a template."""
    (base / "tokenizer" / "chat_template.jinja").write_text(template, encoding="utf-8")
    source = ChatSource(("*.jsonl",), train_on=train_on)
    return opened(replace(SPEC, source=source), base=base)


def answers(template: str = TEMPLATE, *, train_on: TrainOn = "assistant") -> list[str]:
    """The parts of the conversation's text that are trained on."""
    text, targets = rendered(TALK, render=compiled(ChatTemplate("here", template, {})), train_on=train_on)
    return [text[start:stop] for start, stop in targets]


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
    assert answers(template) == ["Là-bas, à gauche. ☕<|im_end|>\n", "You are welcome.<|im_end|>\n"]


def test_text_that_holds_a_mark_is_refused(base: Path) -> None:
    save_talks(base / "a.jsonl", [{"role": "user", "content": "\ufdd0"}])
    with pytest.raises(DataError, match=r"a\.jsonl:1 contains U"):
        list(conversations(SPEC.source, base=base))


def test_the_whole_conversation_can_be_a_target() -> None:
    render = compiled(ChatTemplate("here", TEMPLATE, {}))
    assert answers(train_on="all") == [rendered(TALK, render=render, train_on="all")[0]]


def test_messages_may_stand_under_another_key(base: Path) -> None:
    save_talks(base / "a.jsonl", TALK, field="dialogue")
    source = replace(SPEC, source=ChatSource(("*.jsonl",), field="dialogue"))
    assert opened(source, base=base).dataset.num_sequences == 1


def test_a_template_may_stand_in_the_tokenizers_config(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", in_config=True)
    template = read_tokenizer("tokenizer", base=tmp_path, end_of_document=None).chat_template
    assert template is not None and template.text == TEMPLATE


def test_a_template_names_special_tokens(base: Path) -> None:
    template = ChatTemplate("here", "{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    assert compiled(template)([{"role": "user", "content": "x"}], False) == "<s>x"


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
        ("{{ strftime_now('%Y') }}", "UndefinedError"),
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
    with pytest.raises(DataError, match="before answer 2 differently when more messages follow") as caught:
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
