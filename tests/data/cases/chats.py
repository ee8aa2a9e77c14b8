"""Cases of conversations: what a template gets of a row, and which tokens are trained on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.data.cases.case import (
    Answer,
    Case,
    differs,
    planc,
    refused,
    save_base,
    save_tokenizer,
    shown,
    write_plan,
    write_rows,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = "{% if tools %}<|im_start|>system\nTOOLS {{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
MARKED = (
    "{% for m in messages %}{% if m['role'] == 'user' %}USER: {{ m['content'] }}{% else %} ASSISTANT: "
    "{% generation %}{{ m['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
PROMPT_ENDS_IN_A_SPACE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}USER: {{ m['content'] }}{% else %} ASSISTANT: "
    "{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} ASSISTANT: {% endif %}"
)
CLOCK = "{{ '<|im_start|>system\nToday ' + strftime_now('%d %B %Y') + '<|im_end|>\n' }}" + CHATML
READS_THE_FIRST = "{% if messages[0]['role'] == 'system' %}{% endif %}" + CHATML
SWITCHED = CHATML + "{% if enable_thinking is defined and not enable_thinking %}/no_think{% endif %}"
THINKING = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set r = m.reasoning_content or '' %}"
    "{%- if loop.index0 > ns.last %}"
    "{{- '<|im_start|>assistant\n<think>\n' + r + '\n</think>\n\n' + m.content + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def said(user: str, assistant: object, **more: object) -> list[dict[str, Any]]:
    """One question and its answer."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant, **more}]


def build(folder: Path, template: str, *rows: object, **replaced: str) -> None:
    save_base(folder / "base")
    save_tokenizer(folder / "tok", {"chat_template": template})
    write_rows(folder, *rows)
    write_plan(folder, source='chat("rows.jsonl")', **replaced)


def in_transformers(
    folder: Path, messages: Sequence[Any], **settings: Any
) -> tuple[list[int], str, list[Any]]:
    """The ids, the text and the characters of each token, by transformers alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tok", local_files_only=True)
    text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return found["input_ids"], text, found["offset_mapping"]


def holding(text: str, offsets: Sequence[Any], *parts: str) -> list[bool]:
    """Which tokens hold a character of one of the parts, each of which is found after the one before it."""
    spans, place = [], 0
    for part in parts:
        place = text.index(part, place)
        spans.append((place, place + len(part)))
        place += len(part)
    return [any(start < high and stop > low for low, high in spans) for start, stop in offsets]


def _row(
    folder: Path, template: str, row: dict[str, Any], *trained: str, messages: Any = None, **settings: Any
) -> str | None:
    """The problem of one row whose tokens that hold a character of `trained` are labels."""
    build(folder, template, row)
    ids, text, offsets = in_transformers(folder, messages or row["messages"], **settings)
    return differs(shown(folder), ids=ids, trained=holding(text, offsets, *trained))


def _tools(folder: Path) -> str | None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    row = {"messages": said("weather?", "sunny"), "tools": tools}
    return _row(folder, TOOLS, row, "sunny<|im_end|>", tools=tools)


def _another_key(folder: Path) -> str | None:
    build(folder, CHATML, {"messages": said("hi", "yo"), "rating": 5})
    return refused(folder, "rating", "rows.jsonl:1")


def _first_token(folder: Path) -> str | None:
    build(folder, MARKED, {"messages": said("how are you", "the cat sat")})
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tok", local_files_only=True)
    found = tokenizer.apply_chat_template(
        said("how are you", "the cat sat"), return_dict=True, return_assistant_tokens_mask=True
    )
    mask = [bool(one) for one in found["assistant_masks"]]
    return differs(shown(folder), ids=found["input_ids"], trained=mask)


def _one_word(folder: Path) -> str | None:
    row = {"messages": said("how are you", "fine")}
    return _row(folder, PROMPT_ENDS_IN_A_SPACE, row, "fine<|im_end|>")


def _clock(folder: Path) -> str | None:
    build(folder, CLOCK, {"messages": said("hi", "yo")})
    return refused(folder, "clock", "date")


def _thinking(folder: Path) -> str | None:
    """The answers of both turns, wherever the template puts the reasoning."""
    build(folder, THINKING, {"messages": said("question", "yo") + said("more", "ok")})
    found = shown(folder)
    if isinstance(found, Answer):
        return f"data show ends with {found.code}: {found.text[-600:]}"
    text = _text_of(folder, found)
    missing = [part for part in ("yo<|im_end|>", "ok<|im_end|>") if part not in text]
    if missing or "more" in text or "question" in text:
        return f"trained on {text!r}"
    return None


def _text_of(folder: Path, found: dict[str, Any]) -> str:
    """The text of the tokens that are trained on."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tok", local_files_only=True)
    pairs = zip(found["ids"], found["trained"], strict=True)
    text: str = tokenizer.decode([token for token, is_trained in pairs if is_trained])
    return text


def _assistant_first(folder: Path) -> str | None:
    talk = [{"role": "assistant", "content": "hello"}, *said("hi", "yo")]
    return _row(folder, READS_THE_FIRST, {"messages": talk}, "hello<|im_end|>", "yo<|im_end|>")


def _template_kwargs(folder: Path) -> str | None:
    row = {"messages": said("hi", "yo"), "chat_template_kwargs": {"enable_thinking": False}}
    return _row(folder, SWITCHED, row, "yo<|im_end|>", enable_thinking=False)


def _weight(key: str, off: object) -> Case:
    def problem(folder: Path) -> str | None:
        talk = said("q", "the cat sat", **{key: off}) + said("q2", "fine thanks")
        plain = said("q", "the cat sat") + said("q2", "fine thanks")
        return _row(folder, CHATML, {"messages": talk}, "fine thanks<|im_end|>", messages=plain)

    return Case(f"a message that says {key}: {json.dumps(off)} is not trained on", problem)


def _parts(folder: Path) -> str | None:
    build(folder, CHATML, {"messages": said("hi", [{"type": "text", "text": "yo"}])})
    found = shown(folder)
    if isinstance(found, Answer):
        return None if "content" in found.text and found.code else f"ends with {found.code}: {found.text}"
    text = _text_of(folder, found)
    return None if text.startswith("yo") and "type" not in text else f"trained on {text!r}"


def _image_part(folder: Path) -> str | None:
    build(folder, CHATML, {"messages": said("hi", [{"type": "image", "url": "a.png"}])})
    return refused(folder, "image", "rows.jsonl:1")


def _whole(folder: Path) -> str | None:
    """Conversations of two in a sequence of 50 are never cut: each label has its question before it."""
    talks = [{"messages": said(f"q{number}", "the cat sat on the mat")} for number in range(9)]
    build(folder, CHATML, *talks)
    plan = (folder / "case.plan").read_text(encoding="utf-8").replace("  packing = none\n", "")
    (folder / "case.plan").write_text(plan.replace("length = 160", "length = 50"), encoding="utf-8")
    num_trained = 0
    for number in range(1, 30):
        answer = planc(
            folder, "data", "show", "case.plan", "--sequence", str(number), "--output-format", "json"
        )
        if answer.code:
            break
        found = json.loads(answer.out)
        starts = [*found["document_starts"], len(found["ids"])]
        for start, stop in itertools.pairwise(starts):
            text = _text_of(
                folder, {"ids": found["ids"][start:stop], "trained": found["trained"][start:stop]}
            )
            num_trained += text.count("the cat sat on the mat<|im_end|>")
    return None if num_trained == len(talks) else f"{num_trained} whole answers of {len(talks)}"


CASES = (
    Case("a row's tools reach the template", _tools),
    Case("a row's other keys are refused", _another_key),
    Case("a token that holds an answer's first character is trained on", _first_token),
    Case("an answer of one word is trained on", _one_word),
    Case("a template with a clock needs a date", _clock),
    Case("several turns of a template that drops earlier reasoning", _thinking),
    Case("a conversation may begin with the assistant", _assistant_first),
    Case("a row's chat_template_kwargs reach the template", _template_kwargs),
    *(
        _weight(key, off)
        for key, off in (
            ("weight", 0),
            ("train", False),
            ("loss_mask", 0),
            ("trainable", False),
            ("loss", False),
        )
    ),
    Case("content as a list of parts is their text, or refused", _parts),
    Case("a part that is no text is refused", _image_part),
    Case("conversations are not cut by packing", _whole),
)
